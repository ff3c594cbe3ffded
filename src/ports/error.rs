//! Errors of stores: the kind of the failure, and whether the effect may have happened.

use std::error::Error;
use std::fmt;

use tallystone_domain::Reason;

/// The message about a store that has lost its catalog, in the log and wherever health is asked for.
pub const CATALOG_LOST: &str = "STORE_LOST: the store has lost its catalog. What this server knows of it stays. Restore a \
                                backup of the store; or restart the servers, which accepts the loss";

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
    /// The store has lost what it had; an operator restores it, or accepts the loss.
    Lost,
    /// The record changed since it was read.
    Conflict,
    /// The store is closing.
    Closed,
    /// The store does not allow this process to do it.
    Forbidden,
    /// The server of the store follows another one and takes no writes; an operator names the one that does.
    Demoted,
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
    /// The address of the server that failed, HOST:PORT, if there is one that can be named.
    pub at: Option<Box<str>>,
    /// The advice on what to do about it, for callers: sizes and names of settings, no data of others.
    pub advice: Option<Box<str>>,
    /// The cause, if the store named one.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without any effect.
    pub fn not_applied(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::NotApplied, op, at: None, advice: None, source: None }
    }

    /// A failure whose effect may have happened.
    pub fn unknown(kind: StoreErrorKind, op: &'static str) -> Self {
        Self { kind, outcome: EffectOutcome::Unknown, op, at: None, advice: None, source: None }
    }

    /// The same failure of a call that changes nothing.
    #[must_use]
    pub fn of_read(self) -> Self {
        Self { outcome: EffectOutcome::NotApplied, ..self }
    }

    /// The same failure of another call, without its cause.
    pub fn alike(&self) -> Self {
        let Self { kind, outcome, op, at, advice, .. } = self;
        Self { kind: *kind, outcome: *outcome, op, at: at.clone(), advice: advice.clone(), source: None }
    }

    /// The reason for callers. An unknown outcome is never called unavailable.
    pub fn reason(&self) -> Reason {
        match (self.outcome, self.kind) {
            (EffectOutcome::Unknown, _) => Reason::OutcomeUnknown,
            (
                EffectOutcome::NotApplied,
                StoreErrorKind::Unavailable
                | StoreErrorKind::Forbidden
                | StoreErrorKind::Lost
                | StoreErrorKind::Demoted,
            ) => Reason::StoreUnavailable,
            (EffectOutcome::NotApplied, StoreErrorKind::Full) => Reason::StorageFull,
            (EffectOutcome::NotApplied, StoreErrorKind::Busy) => Reason::RetryLater,
            (EffectOutcome::NotApplied, StoreErrorKind::Corrupt) => Reason::Internal,
            (EffectOutcome::NotApplied, StoreErrorKind::Conflict) => Reason::EtagMismatch,
            (EffectOutcome::NotApplied, StoreErrorKind::Closed) => Reason::ShuttingDown,
        }
    }

    /// Names the server that failed.
    #[must_use]
    pub fn at(mut self, address: impl Into<Box<str>>) -> Self {
        self.at = Some(address.into());
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<Box<str>>) -> Self {
        self.advice = Some(advice.into());
        self
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
        write!(f, "{}: ", self.op)?;
        let what = match self.kind {
            StoreErrorKind::Unavailable => "does not answer",
            StoreErrorKind::Full => "is full",
            StoreErrorKind::Busy => "is busy",
            StoreErrorKind::Closed => "is closing",
            StoreErrorKind::Forbidden => "denies this operation to the user of this server",
            StoreErrorKind::Demoted => {
                "is a replica now and takes no writes: name the address of its primary in the settings of this server, or \
                 the Sentinels that watch it"
            }
            StoreErrorKind::Lost => {
                "has lost what it had; restore a backup of it, or accept the loss: /readyz and the server's log say how"
            }
            StoreErrorKind::Corrupt => return f.write_str("the stored data is damaged"),
            StoreErrorKind::Conflict => return f.write_str("the record changed since it was read"),
        };
        match &self.at {
            Some(address) => write!(f, "the store at {address} {what}")?,
            None => write!(f, "the store {what}")?,
        }
        self.advice.iter().try_for_each(|advice| write!(f, ": {advice}"))
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}

/// The text of an error and of all its causes, for the log. Callers of the service learn only the kind.
pub fn text_with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_server_if_it_is_one_of_a_server() {
        let away = |error: StoreError| error.at("10.0.0.1:6379").to_string();
        let [unavailable, corrupt] = [StoreErrorKind::Unavailable, StoreErrorKind::Corrupt];
        let failed = |kind| StoreError::not_applied(kind, "enqueue");
        assert_eq!(failed(unavailable).to_string(), "enqueue: the store does not answer");
        assert_eq!(away(failed(unavailable)), "enqueue: the store at 10.0.0.1:6379 does not answer");
        let full = failed(StoreErrorKind::Full).with_advice("raise the bound");
        assert_eq!(full.alike().to_string(), "enqueue: the store is full: raise the bound");
        assert_eq!(away(failed(corrupt)), "enqueue: the stored data is damaged");
    }
}
