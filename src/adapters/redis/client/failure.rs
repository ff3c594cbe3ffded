//! The cause of a failed call, and whether its effect may have happened.
//!
//! A server's refusal before a command runs leaves no trace. A command that may have reached the server and got no
//! answer may have had its effect. So may one whose error comes from inside a function: everything that the function
//! wrote before the error stays.

use std::error::Error;
use std::fmt;

use tallystone_ports::{EffectOutcome, StoreError, StoreErrorKind};

/// The cause of a failed call. The list is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureCause {
    /// No connection could be made before the deadline.
    Unreachable,
    /// The program that listens there does not answer as a server of this kind does.
    NotRedis,
    /// Too many calls of the node were in progress.
    Busy,
    /// The command may have been sent, and no answer came.
    NoAnswer,
    /// The slot or the primary is moving, or the node is loading: MOVED, ASK, TRYAGAIN, CLUSTERDOWN, MASTERDOWN,
    /// READONLY, LOADING.
    Moving,
    /// The node runs a script that takes long: BUSY.
    ScriptBusy,
    /// The log-in is missing or wrong: NOAUTH, WRONGPASS.
    Unauthenticated,
    /// The user may not do this: NOPERM.
    Denied,
    /// The node has no memory left: OOM.
    Full,
    /// The node cannot persist and therefore takes no writes: MISCONF.
    CannotPersist,
    /// Too few replicas are there: NOREPLICAS, or fewer than a caller asked for.
    TooFewReplicas,
    /// The command was refused for the moment, and a later one of its call was done. It is not sent again.
    OutOfOrder,
    /// Another error, of the command itself or of a function.
    Function {
        /// The first word of the error.
        code: String,
    },
    /// The client was closed.
    Closed,
    /// The call is larger than a call may be.
    TooLarge,
    /// The answer is not what the command answers.
    Protocol,
}

impl FailureCause {
    /// The outcome of a command that failed so, unless something else is known.
    fn outcome(&self) -> EffectOutcome {
        match self {
            Self::NoAnswer | Self::Function { .. } | Self::Protocol => EffectOutcome::Unknown,
            Self::Unreachable
            | Self::NotRedis
            | Self::Busy
            | Self::Moving
            | Self::ScriptBusy
            | Self::Unauthenticated
            | Self::Denied
            | Self::Full
            | Self::CannotPersist
            | Self::TooFewReplicas
            | Self::OutOfOrder
            | Self::Closed
            | Self::TooLarge => EffectOutcome::NotApplied,
        }
    }

    fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Full => StoreErrorKind::Full,
            Self::Busy | Self::ScriptBusy => StoreErrorKind::Busy,
            Self::Unauthenticated | Self::Denied => StoreErrorKind::Forbidden,
            Self::Closed => StoreErrorKind::Closed,
            Self::Function { .. } | Self::Protocol => StoreErrorKind::Corrupt,
            Self::Unreachable
            | Self::NotRedis
            | Self::NoAnswer
            | Self::Moving
            | Self::CannotPersist
            | Self::TooFewReplicas
            | Self::OutOfOrder
            | Self::TooLarge => StoreErrorKind::Unavailable,
        }
    }
}

/// A failed call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallFailure {
    /// The cause.
    pub cause: FailureCause,
    /// Whether the effect may have happened.
    pub outcome: EffectOutcome,
    /// The description of the failure, for people. It names the node and no keys of ours.
    pub text: String,
}

impl CallFailure {
    /// A failure with the usual outcome of its cause.
    pub fn new(cause: FailureCause, text: impl Into<String>) -> Self {
        Self { outcome: cause.outcome(), cause, text: text.into() }
    }

    /// The same failure of a call whose effect may have happened.
    #[must_use]
    pub(super) fn unknown(mut self) -> Self {
        self.outcome = EffectOutcome::Unknown;
        self
    }

    /// The failure of a server that is watched by nobody and has become a replica: no other one is asked in its place.
    pub(super) fn of_lone_replica(address: &str) -> Self {
        Self::new(FailureCause::Moving, format!("{SERVER}{address}{LONE_REPLICA}"))
    }

    /// The address of such a server; none for other failures. The text may go on, with the next attempt.
    pub fn lone_replica(&self) -> Option<&str> {
        let (before, _) = self.text.split_once(LONE_REPLICA)?;
        before.rsplit_once(SERVER).map(|(_, address)| address)
    }

    /// The same failure without what changes with each attempt.
    #[must_use]
    pub fn steady(self) -> Self {
        self.lone_replica().map(Self::of_lone_replica).unwrap_or(self)
    }

    /// The error of a port call.
    pub fn store_error(self, op: &'static str) -> StoreError {
        let at = self.lone_replica().map(Box::from);
        let kind = if at.is_some() { StoreErrorKind::Demoted } else { self.cause.kind() };
        StoreError { kind, outcome: self.outcome, op, at, advice: None, source: None }.with_source(self.text)
    }
}

/// How the failure of a server begins that has become a replica, and how it goes on after the address.
const SERVER: &str = "Redis at ";
const LONE_REPLICA: &str = " is a replica and takes no writes; name the address of its primary in the settings, or the Sentinels that watch it";

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for CallFailure {}

/// The codes by which a node refuses whatever may write, with what to do.
const REFUSED_WRITES: [(&str, &str); 2] = [
    ("MISCONF", "free space on its disk, or mend what keeps it from saving"),
    ("NOREPLICAS", "start its replicas, or lower min-replicas-to-write"),
];

/// The advice for a node that answers and takes no writes, by the text of a failure; none for other failures.
pub fn write_advice(text: &str) -> Option<&'static str> {
    REFUSED_WRITES.iter().find(|(code, _)| text.contains(code)).map(|(_, advice)| *advice)
}

/// The step to take after an error that a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Advice {
    /// Nothing: the call has failed.
    Fail,
    /// The slot is at another node: send it there.
    GoTo(String),
    /// Look up where the slot is, and send it again after a pause.
    Wait,
    /// Load the library of functions, and send it again.
    LoadLibrary,
}

/// Reads an error that a server answered to a command. The text begins with the code.
pub(super) fn judge(address: &str, text: &str) -> (CallFailure, Advice) {
    let code = text.split(' ').next().unwrap_or_default();
    let cause = match code {
        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING" => FailureCause::Moving,
        "BUSY" => FailureCause::ScriptBusy,
        "NOAUTH" | "WRONGPASS" => FailureCause::Unauthenticated,
        "NOPERM" => FailureCause::Denied,
        "OOM" => FailureCause::Full,
        "MISCONF" => FailureCause::CannotPersist,
        "NOREPLICAS" => FailureCause::TooFewReplicas,
        _ => FailureCause::Function { code: code.to_owned() }, // a server may have any other code, and so may a function
    };
    let said = |cause| CallFailure::new(cause, format!("Redis at {address}: {text}"));
    // A server adds this to an error that a function met half way: it wrote what came before.
    if text.contains(" script: ") {
        return (said(cause).unknown(), Advice::Fail);
    }
    match code {
        // Known from the clause above: refused before a function ran.
        "ERR" if text.starts_with("ERR Function not found") => {
            let mut failure = said(cause);
            failure.outcome = EffectOutcome::NotApplied;
            (failure, Advice::LoadLibrary)
        }
        "MOVED" => (said(cause), text.split(' ').nth(2).map_or(Advice::Wait, |node| Advice::GoTo(node.to_owned()))),
        "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING" | "BUSY" => {
            (said(cause), Advice::Wait)
        }
        _ => (said(cause), Advice::Fail), // nothing that passes by itself within a deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_alone_that_became_a_replica_is_told_with_its_address_and_from_others() {
        let failure = CallFailure::of_lone_replica("10.0.0.1:6379");
        let later = CallFailure { text: format!("{}; next attempt in 40 ms", failure.text), ..failure.clone() };
        assert_eq!(later.lone_replica(), Some("10.0.0.1:6379"));
        assert_eq!(later.clone().steady(), failure, "what is told does not change with each attempt");
        let told = later.store_error("enqueue");
        assert_eq!((told.kind, told.outcome), (StoreErrorKind::Demoted, EffectOutcome::NotApplied));
        let text = told.to_string();
        assert!(
            text.starts_with("enqueue: the store at 10.0.0.1:6379 is a replica now") && text.contains("Sentinels"),
            "{text}"
        );
        let watched = CallFailure::new(FailureCause::Moving, "Redis at 10.0.0.1:6379 is a replica");
        assert_eq!(watched.lone_replica(), None);
        assert_eq!(watched.store_error("enqueue").kind, StoreErrorKind::Unavailable);
    }

    #[test]
    fn an_error_of_a_server_has_its_cause_and_says_whether_the_effect_may_have_happened() {
        use EffectOutcome::{NotApplied, Unknown};
        let function = |code: &str| FailureCause::Function { code: code.to_owned() };
        for (text, cause, outcome) in [
            ("MOVED 3999 127.0.0.1:6381", FailureCause::Moving, NotApplied),
            ("ASK 3999 127.0.0.1:6381", FailureCause::Moving, NotApplied),
            ("TRYAGAIN Multiple keys request during rehashing of slot", FailureCause::Moving, NotApplied),
            ("CLUSTERDOWN Hash slot not served", FailureCause::Moving, NotApplied),
            ("MASTERDOWN Link with MASTER is down", FailureCause::Moving, NotApplied),
            ("READONLY You can't write against a read only replica.", FailureCause::Moving, NotApplied),
            ("LOADING Redis is loading the dataset in memory", FailureCause::Moving, NotApplied),
            ("BUSY Redis is busy running a script.", FailureCause::ScriptBusy, NotApplied),
            ("NOAUTH Authentication required.", FailureCause::Unauthenticated, NotApplied),
            ("WRONGPASS invalid username-password pair", FailureCause::Unauthenticated, NotApplied),
            ("NOPERM this user has no permissions", FailureCause::Denied, NotApplied),
            ("OOM command not allowed when used memory > 'maxmemory'.", FailureCause::Full, NotApplied),
            ("MISCONF Redis is configured to persist data", FailureCause::CannotPersist, NotApplied),
            ("NOREPLICAS Not enough good replicas to write.", FailureCause::TooFewReplicas, NotApplied),
            ("OOM command not allowed. script: enq, on @user_function:7.", FailureCause::Full, Unknown),
            ("ERR Function not found", function("ERR"), NotApplied),
            ("STALE settings", function("STALE"), Unknown),
            ("", function(""), Unknown),
        ] {
            let (failure, _) = judge("127.0.0.1:1", text);
            assert_eq!((failure.cause, failure.outcome), (cause, outcome), "{text}");
            assert!(failure.text.contains("127.0.0.1:1"), "{}", failure.text);
        }
    }

    #[test]
    fn only_what_passes_by_itself_or_can_be_mended_is_sent_again() {
        let advice = |text| judge("127.0.0.1:1", text).1;
        assert_eq!(advice("MOVED 3999 127.0.0.1:6381"), Advice::GoTo("127.0.0.1:6381".to_owned()));
        assert_eq!(advice("ASK 3999 127.0.0.1:6381"), Advice::Wait);
        assert_eq!(advice("ERR Function not found"), Advice::LoadLibrary);
        assert_eq!(advice("ERR Function not found script: enq, on @user_function:7."), Advice::Fail);
        assert_eq!(advice("OOM command not allowed when used memory > 'maxmemory'."), Advice::Fail);
        assert_eq!(advice("WRONGPASS invalid username-password pair"), Advice::Fail);
    }

    #[test]
    fn a_port_gets_the_kind_the_outcome_and_the_cause() {
        let error = CallFailure::new(FailureCause::NoAnswer, "Redis at 127.0.0.1:1: no answer").store_error("enqueue");
        assert_eq!(
            (error.kind, error.outcome, error.op),
            (StoreErrorKind::Unavailable, EffectOutcome::Unknown, "enqueue")
        );
        assert_eq!(error.source.expect("a cause").to_string(), "Redis at 127.0.0.1:1: no answer");
    }
}
