//! How a call fails: the status of its last attempt, and what is known about its effect.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::proto::counter::v1::IdempotencyToken;
use crate::proto::error::v1::ItemError;

/// Reasons after which the same call, with the same token, may succeed. `domain::reason` has the same list; a test
/// compares the two.
pub const RETRYABLE: [&str; 9] = [
    "PENDING",
    "OUTCOME_UNKNOWN",
    "RETRY_LATER",
    "STORAGE_FULL",
    "STORE_UNAVAILABLE",
    "SHUTTING_DOWN",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "QUEUE_FULL",
];

/// Reasons that leave open whether the call had its effect. `domain::reason` has the same list; a test compares the two.
pub const EFFECT_UNKNOWN: [&str; 5] = ["PENDING", "TOO_OLD", "OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL"];

/// Reasons that another server of the same service may not have.
const SWITCH_SERVER_REASONS: [&str; 6] =
    ["OUTCOME_UNKNOWN", "RETRY_LATER", "STORAGE_FULL", "STORE_UNAVAILABLE", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"];

/// An address that no connection can be made of.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is no server's address, HOST:PORT: {cause}")]
pub struct AddressError {
    /// The address.
    pub address: String,
    /// What is wrong with it.
    pub cause: String,
}

/// A call that failed for good.
#[derive(Debug)]
pub struct CallError {
    /// The status of the last attempt.
    pub status: Box<Status>,
    /// How often it was tried.
    pub attempts: u32,
    /// Whether any attempt may have had its effect.
    pub may_be_applied: bool,
}

/// A write that failed for good, with the token that settles what became of it.
#[derive(Debug)]
pub struct WriteError {
    /// The token of the write.
    pub token: IdempotencyToken,
    /// How it failed.
    pub error: CallError,
}

impl CallError {
    /// The failure of a call that changes something and was made once.
    pub fn of_one(status: Status) -> Self {
        let may_be_applied = may_be_applied(&status);
        Self { status: Box::new(status), attempts: 1, may_be_applied }
    }

    /// The reason from the service's closed list; none if the service was not reached.
    pub fn reason(&self) -> Option<String> {
        reason_of(&self.status)
    }

    /// Whether the failure came of the way to the service: it answered nothing, or somebody between answered for it.
    pub fn got_no_answer(&self) -> bool {
        self.reason().is_none() && is_transport_code(self.status.code())
    }

    /// Whether no connection to the server could be made.
    pub fn is_unreachable(&self) -> bool {
        was_never_sent(&self.status)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.message() {
            "" => write!(f, "the call failed with {:?}", self.status.code()),
            message => f.write_str(message),
        }
    }
}

impl Error for CallError {}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl Error for WriteError {}

/// The reason that a status carries.
pub(super) fn reason_of(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (info.domain == "tallystone").then_some(info.reason)
}

/// When the server wants to be asked again.
pub(super) fn retry_delay_of(status: &Status) -> Option<Duration> {
    status.get_details_retry_info().and_then(|info| info.retry_delay)
}

/// A value that the service sent beside the reason.
pub(super) fn metadata_of(status: &Status, key: &str) -> Option<String> {
    status.get_details_error_info().and_then(|mut info| info.metadata.remove(key))
}

/// The refusal of an item as that of a call of its own.
pub(super) fn status_of(error: ItemError) -> Status {
    let details = ErrorDetails::with_error_info(error.reason, "tallystone", error.metadata);
    Status::with_error_details(Code::from_i32(error.code), error.message, details)
}

/// The refusal of a call that is kept back here, in the words of a busy service.
pub(super) fn busy(why: &str) -> Status {
    let details = ErrorDetails::with_error_info("RETRY_LATER", "tallystone", std::collections::HashMap::new());
    Status::with_error_details(Code::ResourceExhausted, why, details)
}

/// The refusal of a call for which no time is left, so that it is not sent; in the words of a server.
pub(super) fn no_time_left(time: Duration) -> Status {
    let effect = std::collections::HashMap::from([("effect".to_owned(), "nothing".to_owned())]);
    let details = ErrorDetails::with_error_info("DEADLINE_EXCEEDED", "tallystone", effect);
    let what = format!("a deadline of {time:?} leaves no time for the call; nothing was sent: allow more time");
    Status::with_error_details(Code::DeadlineExceeded, what, details)
}

/// Whether the same call may succeed later.
pub(super) fn is_retryable(status: &Status) -> bool {
    match reason_of(status) {
        Some(reason) => RETRYABLE.contains(&reason.as_str()),
        None => is_transport_code(status.code()),
    }
}

/// Whether the call may have had its effect: as its reason says, unless the refusal says that this one had none.
pub(super) fn may_be_applied(status: &Status) -> bool {
    match reason_of(status) {
        Some(reason) => EFFECT_UNKNOWN.contains(&reason.as_str()) && !says_no_effect(status),
        None => is_transport_code(status.code()) && !was_never_sent(status),
    }
}

/// Whether a refusal says that the call had no effect, where its reason leaves that open.
fn says_no_effect(status: &Status) -> bool {
    metadata_of(status, "effect").as_deref() == Some("nothing")
}

/// Whether another server should be asked: this one did not answer, is stopping, or cannot do its work.
pub(super) fn should_switch_server(status: &Status) -> bool {
    match reason_of(status) {
        Some(reason) => SWITCH_SERVER_REASONS.contains(&reason.as_str()),
        None => is_transport_code(status.code()),
    }
}

/// Whether a status without a reason comes from the way to the service and not from the service.
fn is_transport_code(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded)
}

/// Whether no connection stood, so that nothing can have reached the server.
pub(super) fn was_never_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::NotFound
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::AddrNotAvailable
            );
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_started_has_no_effect_though_its_reason_leaves_that_open() {
        let status = no_time_left(Duration::from_micros(999));
        assert_eq!(reason_of(&status).as_deref(), Some("DEADLINE_EXCEEDED"));
        assert!(is_retryable(&status) && !may_be_applied(&status));
        let details = ErrorDetails::with_error_info("DEADLINE_EXCEEDED", "tallystone", [("effect".into(), "?".into())]);
        let status = Status::with_error_details(Code::DeadlineExceeded, "the deadline passed", details);
        assert!(may_be_applied(&status) && should_switch_server(&status));
    }
}
