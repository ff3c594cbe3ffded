//! Maps the client's errors to failure kinds and to outcomes.
//!
//! The client's own messages contain keys, and keys contain counter names, so no such message is passed on unchanged.

use memcache::exp::Error;

use crate::memcached::backoff::ConnectionFailure;
use tallystone_ports::{StoreError, StoreErrorKind};

/// Converts the failure of a port call. Cost: O(1).
pub(super) fn store_error(op: &'static str, address: &str, error: &Error) -> StoreError {
    let failure = match error {
        // The command was sent and its outcome is unknown, unless the answer was a refusal.
        Error::Ambiguous { source, .. } => match refusal(source) {
            Some(kind) => StoreError::not_applied(kind, op),
            None => StoreError::unknown(StoreErrorKind::Unavailable, op),
        },
        Error::Io(_) | Error::Timeout { .. } => StoreError::not_applied(StoreErrorKind::Unavailable, op),
        Error::Server(_) | Error::Rejected(_) => match refusal(error) {
            Some(kind) => StoreError::not_applied(kind, op),
            None => StoreError::unknown(StoreErrorKind::Unavailable, op),
        },
        // The client may add errors: an unknown one may have had an effect.
        _ => StoreError::unknown(StoreErrorKind::Corrupt, op),
    };
    failure.at(address).with_source(format!("memcached at {address}: {}", text(error)))
}

/// Whether the server gave no answer, as opposed to an unexpected answer.
pub(super) fn is_no_response(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_no_response(source),
        Error::Io(_) | Error::Timeout { .. } => true,
        _ => false, // every other error came from an answer, or never reached the server
    }
}

/// Whether a timeout passed: a retry would wait for another one.
pub(super) fn is_timeout(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_timeout(source),
        Error::Timeout { .. } => true,
        Error::Io(error) => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false, // every other error comes at once
    }
}

/// Classifies the failure if the server did not answer.
pub(super) fn connection_failure(error: &Error) -> Option<ConnectionFailure> {
    match (is_no_response(error), is_timeout(error)) {
        (true, true) => Some(ConnectionFailure::TimedOut),
        (true, false) => Some(ConnectionFailure::Disconnected),
        (false, _) => None,
    }
}

/// Whether the server would refuse the same key again. The client reports a bare ERROR as a refusal. It gives no reason
/// and does not concern the key: the server did not know the command.
pub(super) fn is_key_refusal(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_key_refusal(source),
        Error::Rejected(text) => text != "ERROR",
        Error::Server(_) => true,
        _ => false, // every other error is not the server's word on a command
    }
}

/// Whether the server's answer refuses the command.
pub(super) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_refusal(source),
        Error::Server(_) | Error::Rejected(_) => true,
        _ => false, // every other error is not the server's word on a command
    }
}

/// The error of a command whose answer was lost behind the refusal of an earlier command: it may have been applied.
pub(super) fn unread_after_refusal(error: Error) -> Error {
    let key = match error {
        Error::Ambiguous { key, .. } => key,
        _ => Vec::new(), // no other error names its key
    };
    Error::Ambiguous { key, source: Box::new(Error::Conflict) }
}

/// Whether an error is the result of `unread_after_refusal`.
pub(super) fn is_unread_after_refusal(error: &Error) -> bool {
    matches!(error, Error::Ambiguous { source, .. } if matches!(**source, Error::Conflict))
}

/// Describes the failure's cause, without keys.
pub(super) fn text(error: &Error) -> String {
    match error {
        Error::Ambiguous { source, .. } => text(source),
        Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        Error::Io(error) => error.to_string(),
        Error::Timeout { .. } => "no answer in time".to_owned(),
        Error::Server(text) | Error::Rejected(text) => text.clone(),
        // The client reports a conflict only for calls that we do not make, so `unread_after_refusal` uses the error
        // for its own case.
        Error::Conflict => "its response was lost after an error of another call".to_owned(),
        Error::Protocol(_) => "the response is not of the meta protocol".to_owned(),
        _ => "the client refused the call".to_owned(), // arguments are ours and hold to its rules
    }
}

/// Returns the failure kind if the answer refuses the command before its effect.
fn refusal(error: &Error) -> Option<StoreErrorKind> {
    match error {
        // protocol.txt: the server could not make room for the item.
        Error::Server(text) if text.to_ascii_lowercase().contains("out of memory") => Some(StoreErrorKind::Full),
        // protocol.txt, CLIENT_ERROR: the input does not conform, as an increment of what is no number.
        Error::Rejected(_) => Some(StoreErrorKind::Corrupt),
        _ => None, // a proxy may say SERVER_ERROR after it has passed the command on
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use tallystone_ports::EffectOutcome;

    fn ambiguous(source: Error) -> Error {
        Error::Ambiguous { key: b"secret".to_vec(), source: Box::new(source) }
    }

    #[test]
    fn a_refusal_without_a_reason_is_not_of_the_key() {
        let rejected = |text: &str| ambiguous(Error::Rejected(text.to_owned()));
        assert!(is_refusal(&rejected("ERROR")) && !is_key_refusal(&rejected("ERROR")));
        assert!(is_key_refusal(&rejected("cannot increment or decrement non-numeric value")));
        assert!(is_key_refusal(&Error::Server("out of memory storing object".to_owned())));
        assert!(!is_key_refusal(&Error::Conflict));
    }

    #[test]
    fn an_error_says_whether_the_effect_may_have_happened_and_never_names_a_key() {
        let reset = || Error::Io(io::Error::from(io::ErrorKind::ConnectionReset));
        let server = |text: &str| Error::Server(text.to_owned());
        use EffectOutcome::{NotApplied, Unknown};
        for (error, outcome, kind) in [
            (reset(), NotApplied, StoreErrorKind::Unavailable),
            (Error::Timeout { key: b"secret".to_vec() }, NotApplied, StoreErrorKind::Unavailable),
            (ambiguous(reset()), Unknown, StoreErrorKind::Unavailable),
            (ambiguous(Error::Timeout { key: b"secret".to_vec() }), Unknown, StoreErrorKind::Unavailable),
            (ambiguous(server("out of memory storing object")), NotApplied, StoreErrorKind::Full),
            (ambiguous(server("backend failure")), Unknown, StoreErrorKind::Unavailable),
            (ambiguous(Error::Rejected("non-numeric value".to_owned())), NotApplied, StoreErrorKind::Corrupt),
            (Error::Protocol("VA secret".to_owned()), Unknown, StoreErrorKind::Corrupt),
        ] {
            let failure = store_error("best-effort add", "127.0.0.1:1", &error);
            assert_eq!((failure.outcome, failure.kind), (outcome, kind), "{error:?}");
            let cause = failure.source.expect("a cause").to_string();
            assert!(cause.contains("127.0.0.1:1") && !cause.contains("secret"), "{cause}");
        }
    }
}
