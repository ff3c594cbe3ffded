//! The errors of counter calls: one enum; each case has a reason and the data that the caller needs to react.

use std::time::Duration;

use tallystone_domain::counter::Change;
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::StoreError;

/// The refusal or failure of a counter call.
#[derive(Debug, thiserror::Error)]
pub enum CountingError {
    /// An argument is invalid.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The namespace does not exist.
    #[error("namespace {name} does not exist; create it first, for example with tallystone apply -f FILE")]
    NamespaceNotFound {
        /// The requested name.
        name: String,
    },
    /// The namespace names clusters that this server does not know, or uses them for something they cannot store.
    #[error("this server cannot serve namespace {name}; nothing was done: {what}")]
    UnknownCluster {
        /// The namespace.
        name: String,
        /// The fault in its clusters, and the remedy.
        what: String,
    },
    /// The namespace belongs to the service itself and is read-only.
    #[error("{writer} namespace {name}; callers can only read it")]
    NamespaceReadOnly {
        /// The namespace.
        name: String,
        /// The writer of the namespace in place of callers, with the verb.
        writer: &'static str,
    },
    /// The token's time is too far ahead of the server's clock.
    #[error("the token's time is {ahead:?} ahead of the server's clock; at most {limit:?} are allowed")]
    FutureTime {
        /// The distance to the server's clock.
        ahead: Duration,
        /// The greatest distance allowed.
        limit: Duration,
        /// The server's clock.
        server_time: Timestamp,
    },
    /// The token was not applied and never will be.
    #[error("the token was not applied and never will be: it arrived after its time was closed; create a new token")]
    NotApplied {
        /// The server's clock.
        server_time: Timestamp,
    },
    /// The outcome is not known yet.
    #[error("the outcome of the token is not decided yet; retry with the same token")]
    Pending {
        /// The delay before the same call is worth repeating.
        retry_after: Duration,
    },
    /// The token is older than the oldest live slice, so its outcome can no longer be known.
    #[error("the token is older than the oldest live slice; the service can no longer tell whether it was applied")]
    TooOld {
        /// The beginning of the oldest live slice.
        oldest: Timestamp,
    },
    /// The token names another change, or the serial of a source names another total.
    #[error("{}", already_exists(*found, *asked))]
    AlreadyExists {
        /// The change that the token names.
        found: ChangeText,
        /// The change that this call asks for.
        asked: ChangeText,
    },
    /// The serial of a report went back.
    #[error("serial {serial} of epoch {epoch} is below the newest known serial, {known_serial} of epoch {known_epoch}")]
    SerialBack {
        /// The epoch of the call.
        epoch: u64,
        /// The serial of the call.
        serial: u64,
        /// The newest known epoch.
        known_epoch: u64,
        /// The newest known serial.
        known_serial: u64,
    },
    /// A total fell within its epoch.
    #[error("the total {total} is below {least}, where epoch {epoch} of the source stands")]
    TotalBack {
        /// The total of the call.
        total: i64,
        /// The least total that would be accepted.
        least: i64,
        /// The epoch of the call.
        epoch: u64,
    },
    /// The server is busy and did nothing.
    #[error("{what}; nothing was done: retry with the same token")]
    RetryLater {
        /// The resource that is used up.
        what: &'static str,
        /// The delay before a retry.
        retry_after: Duration,
    },
    /// The server takes no writes, permanently or at this moment.
    #[error("{why}; nothing was done: retry with the same token")]
    NoWriter {
        /// The cause and the remedy.
        why: &'static str,
    },
    /// The server is stopping.
    #[error("the server is stopping; nothing was done")]
    ShuttingDown,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Totals are identified by the serial of their source, all other changes by a token.
fn already_exists(found: ChangeText, asked: ChangeText) -> String {
    match asked.0 {
        Change::Total(_) => format!(
            "the source already reported {found} with this epoch and serial; this call reports {asked}: raise the \
             serial with each report"
        ),
        Change::Add(_) | Change::Clear | Change::Void => format!(
            "the token was already used for another change, {found}; this call requests {asked}: create a new token \
             for each change"
        ),
    }
}

/// A change, formatted for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeText(pub Change);

impl std::fmt::Display for ChangeText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Change::Add(delta) => write!(f, "an add of {delta}"),
            Change::Clear => f.write_str("a clear"),
            Change::Void => f.write_str("a void"),
            Change::Total(total) => write!(f, "a total of {total}"),
        }
    }
}

impl CountingError {
    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reject(reject) => reject.reason,
            Self::NamespaceNotFound { .. } => Reason::NamespaceNotFound,
            Self::UnknownCluster { .. } | Self::NoWriter { .. } => Reason::StoreUnavailable,
            Self::NamespaceReadOnly { .. } => Reason::NamespaceReadOnly,
            Self::FutureTime { .. } => Reason::InvalidFutureTime,
            Self::NotApplied { .. } => Reason::NotApplied,
            Self::Pending { .. } => Reason::Pending,
            Self::TooOld { .. } => Reason::TooOld,
            Self::AlreadyExists { .. } => Reason::AlreadyExists,
            Self::SerialBack { .. } => Reason::SerialBack,
            Self::TotalBack { .. } => Reason::TotalBack,
            Self::RetryLater { .. } => Reason::RetryLater,
            Self::ShuttingDown => Reason::ShuttingDown,
            Self::Store(error) => error.reason(),
        }
    }

    /// The delay before a retry, if the case has one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Pending { retry_after } | Self::RetryLater { retry_after, .. } => Some(*retry_after),
            _ => None, // every other case is either final or has no better advice than the client's own back-off
        }
    }

    /// The server's clock, if the caller needs it to correct its own.
    pub fn server_time(&self) -> Option<Timestamp> {
        match self {
            Self::FutureTime { server_time, .. } | Self::NotApplied { server_time } => Some(*server_time),
            _ => None, // no other case is about clocks
        }
    }

    /// Values for programs, in addition to the text.
    pub fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::AlreadyExists { found, asked } => {
                vec![("found", found.to_string()), ("asked", asked.to_string())]
            }
            Self::SerialBack { known_epoch, known_serial, .. } => {
                vec![("known_epoch", known_epoch.to_string()), ("known_serial", known_serial.to_string())]
            }
            Self::TotalBack { least, .. } => vec![("known_total", least.to_string())],
            Self::NamespaceNotFound { name }
            | Self::NamespaceReadOnly { name, .. }
            | Self::UnknownCluster { name, .. } => {
                vec![("namespace", name.clone())]
            }
            _ => Vec::new(), // the text says it all
        }
    }
}
