//! Errors of stores: the kind of the failure, and whether the effect may have happened.

use std::error::Error;
use std::fmt;

use crate::domain::Reason;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreErrorKind {
    /// The store did not answer in time.
    Unavailable,
    /// The store has no space for this write.
    Full,
    /// Too many requests are waiting; nothing was done.
    Busy,
    /// The stored data is damaged; an operator has to look at it.
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
    /// The kind of the failure.
    pub kind: StoreErrorKind,
    /// Whether the effect may have happened.
    pub outcome: EffectOutcome,
    /// The operation, for example `append`.
    pub op: &'static str,
    /// The cause, if the store named one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without any effect.
    pub fn not_applied(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::NotApplied, op, source: None }
    }

    /// A failure whose effect may have happened.
    pub fn unknown(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::Unknown, op, source: None }
    }

    /// The reason for callers. An unknown outcome is never called unavailable.
    pub fn reason(&self) -> Reason {
        match (self.outcome, self.kind) {
            (EffectOutcome::Unknown, _) => Reason::OutcomeUnknown,
            (EffectOutcome::NotApplied, StoreErrorKind::Unavailable | StoreErrorKind::Forbidden) => {
                Reason::StoreUnavailable
            }
            (EffectOutcome::NotApplied, StoreErrorKind::Full) => Reason::StorageFull,
            (EffectOutcome::NotApplied, StoreErrorKind::Busy) => Reason::RetryLater,
            (EffectOutcome::NotApplied, StoreErrorKind::Corrupt) => Reason::Internal,
            (EffectOutcome::NotApplied, StoreErrorKind::Conflict) => Reason::EtagMismatch,
            (EffectOutcome::NotApplied, StoreErrorKind::Closed) => Reason::ShuttingDown,
        }
    }

    /// Adds the cause.
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
            StoreErrorKind::Full => "the store is full",
            StoreErrorKind::Busy => "the store is busy",
            StoreErrorKind::Corrupt => "the stored data is damaged",
            StoreErrorKind::Conflict => "the record changed since it was read",
            StoreErrorKind::Closed => "the store is closing",
            StoreErrorKind::Forbidden => "the store denies this operation to the user of this server",
        };
        write!(f, "{}: {kind}", self.op)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}
