//! The errors of calls: the status of the last attempt, and whether the call may have had its effect.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::tls_failure::TlsFailure;
use tallystone_proto::counter::v1::IdempotencyToken;
use tallystone_proto::error::v1::ItemError;

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

/// Reasons that leave open whether the call had its effect. `domain::reason` has the same list; a test compares the
/// two.
pub const EFFECT_UNKNOWN: [&str; 6] =
    ["PENDING", "TOO_OLD", "OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAUTHENTICATED"];

/// Reasons for which another server of the same service is worth a try.
const SWITCH_SERVER_REASONS: [&str; 6] =
    ["OUTCOME_UNKNOWN", "RETRY_LATER", "STORAGE_FULL", "STORE_UNAVAILABLE", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"];

/// An address that is not valid.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is not a server address HOST:PORT: {cause}")]
pub struct AddressError {
    /// The address.
    pub address: String,
    /// The fault of the address.
    pub cause: String,
}

/// A call that failed for good.
#[derive(Debug)]
pub struct CallError {
    /// The status of the last attempt.
    pub status: Box<Status>,
    /// The number of attempts.
    pub attempts: u32,
    /// Whether any attempt may have had its effect.
    pub may_be_applied: bool,
}

/// A write that failed for good, with the token for its verdict.
#[derive(Debug)]
pub struct WriteError {
    /// The token of the write.
    pub token: IdempotencyToken,
    /// The error of the call.
    pub error: CallError,
}

impl CallError {
    /// The error of a write that was sent once.
    pub fn of_one(status: Status) -> Self {
        let may_be_applied = may_be_applied(&status);
        Self { status: Box::new(status), attempts: 1, may_be_applied }
    }

    /// The reason from the service's closed list; none if the service was not reached.
    pub fn reason(&self) -> Option<String> {
        reason_of(&self.status)
    }

    /// Whether the failure came from the transport: there was no response, or a proxy responded instead.
    pub fn got_no_answer(&self) -> bool {
        self.reason().is_none() && is_transport_code(self.status.code())
    }

    /// The reason why there is no TLS session with the server, if that is the cause of the failure.
    pub fn tls_failure(&self) -> Option<TlsFailure> {
        TlsFailure::of(&self.status)
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

/// The reason of a status.
pub(super) fn reason_of(status: &Status) -> Option<String> {
    let info = status.get_details_error_info()?;
    (info.domain == "tallystone").then_some(info.reason)
}

/// The retry delay of the server.
pub(super) fn retry_delay_of(status: &Status) -> Option<Duration> {
    status.get_details_retry_info().and_then(|info| info.retry_delay)
}

/// A value that the service sent with the reason.
pub(super) fn metadata_of(status: &Status, key: &str) -> Option<String> {
    status.get_details_error_info().and_then(|mut info| info.metadata.remove(key))
}

/// The error of an item as that of a single call.
pub(super) fn status_of(error: ItemError) -> Status {
    let details = ErrorDetails::with_error_info(error.reason, "tallystone", error.metadata);
    Status::with_error_details(Code::from_i32(error.code), error.message, details)
}

/// The error of a call that was not sent, as of a busy service.
pub(super) fn busy(why: &str) -> Status {
    let details = ErrorDetails::with_error_info("RETRY_LATER", "tallystone", std::collections::HashMap::new());
    Status::with_error_details(Code::ResourceExhausted, why, details)
}

/// The error of a call without remaining time, which was not sent, as of a server.
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
        // What is wrong with a certificate stays wrong.
        None => is_transport_code(status.code()) && TlsFailure::of(status).is_none(),
    }
}

/// Whether the call may have had its effect: as its reason says, unless the error says that it had none.
pub(super) fn may_be_applied(status: &Status) -> bool {
    match reason_of(status) {
        Some(reason) => EFFECT_UNKNOWN.contains(&reason.as_str()) && !says_no_effect(status),
        None => is_transport_code(status.code()) && !was_never_sent(status),
    }
}

/// Whether an error says that the call had no effect, where its reason leaves that open.
fn says_no_effect(status: &Status) -> bool {
    metadata_of(status, "effect").as_deref() == Some("nothing")
}

/// Whether to switch to another server: this one did not answer, is stopping, or cannot do its work.
pub(super) fn should_switch_server(status: &Status) -> bool {
    match reason_of(status) {
        Some(reason) => SWITCH_SERVER_REASONS.contains(&reason.as_str()),
        None => is_transport_code(status.code()),
    }
}

/// Whether a status without a reason comes from the transport and not from the service.
fn is_transport_code(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded)
}

/// Whether there was no connection, so that nothing can have reached the server.
pub(super) fn was_never_sent(status: &Status) -> bool {
    if TlsFailure::of(status).is_some() {
        return true;
    }
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
