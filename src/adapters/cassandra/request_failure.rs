//! Maps a failed request to its outcome: whether it may have had an effect.
//!
//! A write counts as not applied only in four cases: it was never sent, it was refused as invalid, the coordinator did
//! not know its statement, or the coordinator knew at once that too few replicas were alive. Every other write may have
//! been applied, or may be applied later: by a slow replica, by a hint, or by a request that is still in a socket.

use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};

use tallystone_ports::{EffectOutcome, StoreError, StoreErrorKind};

/// A failed request.
#[derive(Clone, Debug)]
pub struct RequestFailure {
    pub kind: StoreErrorKind,
    /// Whether the request may have had its effect.
    pub outcome: EffectOutcome,
    /// Whether a retry can help.
    pub is_retryable: bool,
    /// The message of the driver or the server.
    pub why: String,
}

impl RequestFailure {
    /// Converts the failure to the store error of an operation.
    pub fn during(self, op: &'static str) -> StoreError {
        StoreError { kind: self.kind, outcome: self.outcome, op, at: None, advice: None, source: Some(self.why.into()) }
    }

    /// A failure before sending, because a connection or a table is missing.
    pub fn not_sent(why: impl Into<String>) -> Self {
        let kind = StoreErrorKind::Unavailable;
        Self { kind, outcome: EffectOutcome::NotApplied, is_retryable: true, why: why.into() }
    }

    /// A failure because a stored value or an answer is not in our format.
    pub fn corrupt(why: impl ToString) -> Self {
        let kind = StoreErrorKind::Corrupt;
        Self { kind, outcome: EffectOutcome::NotApplied, is_retryable: false, why: why.to_string() }
    }

    /// The failure of a request with rows of several partitions. The coordinator writes them one by one: it may have
    /// sent some before it knew that too few replicas of another are alive.
    pub fn of_several(error: ExecutionError) -> Self {
        let is_unavailable = matches!(
            error,
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(DbError::Unavailable { .. }, _))
        );
        let fault = Self::from(error);
        if is_unavailable { Self { outcome: EffectOutcome::Unknown, ..fault } } else { fault }
    }
}

impl From<ExecutionError> for RequestFailure {
    fn from(error: ExecutionError) -> Self {
        let why = error.to_string();
        match error {
            ExecutionError::BadQuery(_) => refused(why),
            ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) | ExecutionError::PrepareError(_) => {
                Self::not_sent(why)
            }
            ExecutionError::LastAttemptError(error) => of_attempt(&error, why),
            // A timeout, or an error of a later driver version: the request may have been applied.
            _ => unknown(why),
        }
    }
}

impl From<PrepareError> for RequestFailure {
    fn from(error: PrepareError) -> Self {
        Self::not_sent(error.to_string())
    }
}

fn of_attempt(error: &RequestAttemptError, why: String) -> RequestFailure {
    match error {
        RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => refused(why),
        RequestAttemptError::UnableToAllocStreamId => RequestFailure::not_sent(why),
        RequestAttemptError::DbError(error, _) => of_server(error, why),
        // The connection broke or the answer was malformed: the request may have been applied.
        _ => unknown(why),
    }
}

fn of_server(error: &DbError, why: String) -> RequestFailure {
    match error {
        DbError::SyntaxError | DbError::Invalid | DbError::ConfigError => refused(why),
        DbError::Unauthorized => RequestFailure { kind: StoreErrorKind::Forbidden, ..refused(why) },
        DbError::AlreadyExists { .. } => refused(why),
        // A node whose cache of prepared statements is full forgets them at once, also those that the driver has just
        // prepared again. It executes nothing that it does not know.
        DbError::Unavailable { .. } | DbError::Unprepared { .. } => RequestFailure::not_sent(why),
        // Timeouts and failures of replicas, overload, errors of other versions: the request may have been applied.
        _ => unknown(why),
    }
}

fn refused(why: String) -> RequestFailure {
    RequestFailure { kind: StoreErrorKind::Unavailable, outcome: EffectOutcome::NotApplied, is_retryable: false, why }
}

fn unknown(why: String) -> RequestFailure {
    RequestFailure { kind: StoreErrorKind::Unavailable, outcome: EffectOutcome::Unknown, is_retryable: true, why }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scylla::frame::types::Consistency;

    use super::*;

    fn of(error: DbError) -> RequestFailure {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new())).into()
    }

    #[test]
    fn only_what_was_refused_before_its_execution_is_not_applied() {
        let consistency = Consistency::LocalQuorum;
        let unavailable = DbError::Unavailable { consistency, required: 2, alive: 1 };
        let forgotten = DbError::Unprepared { statement_id: Vec::new().into() };
        for refused in [of(DbError::Invalid), of(DbError::Unauthorized), of(unavailable), of(forgotten)] {
            assert_eq!(refused.outcome, EffectOutcome::NotApplied, "{refused:?}");
        }
        let late = ExecutionError::RequestTimeout(Duration::from_secs(2)).into();
        for open in [of(DbError::Overloaded), of(DbError::ServerError), of(DbError::Other(77)), late] {
            assert_eq!(open.outcome, EffectOutcome::Unknown, "{open:?}");
            assert!(open.is_retryable);
        }
    }

    #[test]
    fn of_several_partitions_some_may_have_been_written_before_one_was_refused() {
        let several = |error| {
            RequestFailure::of_several(ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                error,
                String::new(),
            )))
        };
        let consistency = Consistency::LocalQuorum;
        let unavailable = DbError::Unavailable { consistency, required: 2, alive: 1 };
        assert_eq!(several(unavailable).outcome, EffectOutcome::Unknown);
        assert_eq!(several(DbError::Invalid).outcome, EffectOutcome::NotApplied, "checked before the first is sent");
    }

    #[test]
    fn what_is_invalid_or_forbidden_is_not_sent_again() {
        assert!(!of(DbError::Invalid).is_retryable);
        assert!(!of(DbError::Unauthorized).is_retryable);
        assert_eq!(of(DbError::Unauthorized).kind, StoreErrorKind::Forbidden);
        assert!(!of(DbError::SyntaxError).is_retryable);
        assert!(RequestFailure::not_sent("no node").is_retryable);
    }
}
