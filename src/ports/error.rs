//! How a store fails: what kind of failure, and whether the effect may have happened.

use std::error::Error;
use std::fmt;

/// What kind of failure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreErrorKind {
    /// The store does not answer, or not in time.
    Unavailable,
    /// The store has no room for this write.
    Full,
    /// Too much is waiting; nothing was done.
    Busy,
    /// What is stored cannot be right; somebody has to look.
    Corrupt,
    /// The record changed since it was read.
    Conflict,
    /// The store is closing.
    Closed,
    /// The store does not allow this process to do it.
    Forbidden,
}

/// Whether the effect of a failed call may have happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EffectOutcome {
    /// It did not happen and never will.
    NotApplied,
    /// It may have happened, or happen yet.
    Unknown,
}

/// A failed call of a store.
#[derive(Debug)]
pub struct StoreError {
    /// What kind of failure it is.
    pub kind: StoreErrorKind,
    /// Whether the effect may have happened.
    pub outcome: EffectOutcome,
    /// What was being done, for example `append`.
    pub op: &'static str,
    /// The cause, if the store named one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without any effect.
    pub fn not_applied(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::NotApplied, op, source: None }
    }

    /// A failure that may have had its effect.
    pub fn unknown(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::Unknown, op, source: None }
    }

    /// Names the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            StoreErrorKind::Unavailable => "the store does not answer",
            StoreErrorKind::Full => "the store has no room left",
            StoreErrorKind::Busy => "the store is busy",
            StoreErrorKind::Corrupt => "the stored data is damaged",
            StoreErrorKind::Conflict => "the record changed since it was read",
            StoreErrorKind::Closed => "the store is closing",
            StoreErrorKind::Forbidden => "the store forbids it to the user of this server",
        };
        write!(f, "{}: {kind}", self.op)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}
