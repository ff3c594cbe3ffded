//! What the client's errors mean: what kind of failure, and whether the effect may have happened.
//!
//! The client's own texts name keys, and keys hold names of counters, so no text of it is passed on as it is.

use memcache::exp::Error;

use crate::adapters::memcached::backoff::ConnectionFailure;
use crate::ports::{StoreError, StoreErrorKind};

/// The failure of a port's call. Cost: O(1).
pub(super) fn store_error(op: &'static str, address: &str, error: &Error) -> StoreError {
    let failure = match error {
        // Written, and no answer that says what became of it, unless the answer was the refusal.
        Error::Ambiguous { source, .. } => match refusal(source) {
            Some(kind) => StoreError::not_applied(kind, op),
            None => StoreError::unknown(StoreErrorKind::Unavailable, op),
        },
        Error::Io(_) | Error::Timeout { .. } => StoreError::not_applied(StoreErrorKind::Unavailable, op),
        Error::Server(_) | Error::Rejected(_) => match refusal(error) {
            Some(kind) => StoreError::not_applied(kind, op),
            None => StoreError::unknown(StoreErrorKind::Unavailable, op),
        },
        // The client's list may grow: what is not known may have had an effect.
        _ => StoreError::unknown(StoreErrorKind::Corrupt, op),
    };
    failure.with_source(format!("memcached at {address}: {}", text(error)))
}

/// Whether the server did not answer, as against an answer that nobody likes.
pub(super) fn is_no_response(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_no_response(source),
        Error::Io(_) | Error::Timeout { .. } => true,
        _ => false, // every other error came from an answer, or never reached the server
    }
}

/// Whether a time limit passed: trying again would spend it once more.
pub(super) fn is_timeout(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_timeout(source),
        Error::Timeout { .. } => true,
        Error::Io(error) => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false, // every other error comes at once
    }
}

/// How the server did not answer, if it did not.
pub(super) fn connection_failure(error: &Error) -> Option<ConnectionFailure> {
    match (is_no_response(error), is_timeout(error)) {
        (true, true) => Some(ConnectionFailure::TimedOut),
        (true, false) => Some(ConnectionFailure::Disconnected),
        (false, _) => None,
    }
}

/// Whether the same key would be refused again. A bare ERROR, which the client takes for a refusal, names no reason and is
/// not of the key: the server did not know the command.
pub(super) fn is_key_refusal(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_key_refusal(source),
        Error::Rejected(text) => text != "ERROR",
        Error::Server(_) => true,
        _ => false, // every other error is not the server's word on a command
    }
}

/// Whether the server answered that it refuses the command.
pub(super) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Ambiguous { source, .. } => is_refusal(source),
        Error::Server(_) | Error::Rejected(_) => true,
        _ => false, // every other error is not the server's word on a command
    }
}

/// What is known of a command whose answer was not read, because the one before it was a refusal: the server may have done it.
pub(super) fn unread_after_refusal(error: Error) -> Error {
    let key = match error {
        Error::Ambiguous { key, .. } => key,
        _ => Vec::new(), // no other error names its key
    };
    Error::Ambiguous { key, source: Box::new(Error::Conflict) }
}

/// Whether it is that.
pub(super) fn is_unread_after_refusal(error: &Error) -> bool {
    matches!(error, Error::Ambiguous { source, .. } if matches!(**source, Error::Conflict))
}

/// The failure's cause in words, without keys.
pub(super) fn text(error: &Error) -> String {
    match error {
        Error::Ambiguous { source, .. } => text(source),
        Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        Error::Io(error) => error.to_string(),
        Error::Timeout { .. } => "no answer in time".to_owned(),
        Error::Server(text) | Error::Rejected(text) => text.clone(),
        // The client says this of calls that we do not make, so here it is ours.
        Error::Conflict => "its answer was lost behind the refusal of another call".to_owned(),
        Error::Protocol(_) => "an answer that is not of the meta protocol".to_owned(),
        _ => "the client refused the call".to_owned(), // arguments are ours and hold to its rules
    }
}

/// What an answer says that refuses the command before its effect.
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
    use crate::ports::EffectOutcome;

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
