//! Failures of commands: the text on stderr, and the exit code.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use tonic::{Code, Status};

use tallystone_app::notices::print_notice;
use tallystone_cassandra::OpenError;
use tallystone_client::{CallError, TlsFailure, root_cause};
use tallystone_domain::{Reason, Reject};

/// How a command gets its key.
const KEY_HINT: &str = "give the key with --key-file FILE, or in TALLYSTONE_KEY or TALLYSTONE_KEY_FILE";

/// The exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// Failure; the text says whether the command had an effect.
    Failure = 1,
    /// The command line, or a value on it, is invalid.
    Usage = 2,
    /// The subject of the command does not exist.
    NotFound = 3,
    /// The current state does not permit the command.
    Precondition = 4,
    /// The service does not answer, or is too busy; nothing was done.
    Unavailable = 5,
    /// Some items succeeded and others failed.
    Partial = 6,
    /// The work that the command asked for is over already, and does not happen again.
    Over = 8,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The exit code of a server, or of `migrate`, if a cluster cannot be used.
impl From<&OpenError> for Exit {
    fn from(error: &OpenError) -> Self {
        match error {
            OpenError::Unreachable { .. }
            | OpenError::Tls { .. }
            | OpenError::Disagreement { .. }
            | OpenError::Silent { .. }
            | OpenError::Store { .. } => Self::Unavailable,
            OpenError::Credentials { .. }
            | OpenError::DataCenter { .. }
            | OpenError::DataCenterUnnamed { .. }
            | OpenError::WrittenElsewhere { .. }
            | OpenError::Owned { .. }
            | OpenError::Schema { .. }
            | OpenError::Forbidden { .. }
            | OpenError::NotWritable { .. } => Self::Precondition,
        }
    }
}

/// The same if the Redis of the queues cannot be used.
impl From<&tallystone_redis::OpenError> for Exit {
    fn from(error: &tallystone_redis::OpenError) -> Self {
        match error {
            tallystone_redis::OpenError::Unreachable { .. }
            | tallystone_redis::OpenError::Tls { .. }
            | tallystone_redis::OpenError::NoWrites { .. }
            | tallystone_redis::OpenError::Store { .. } => Self::Unavailable,
            tallystone_redis::OpenError::Login { .. }
            | tallystone_redis::OpenError::NoCommand { .. }
            | tallystone_redis::OpenError::NotRedis { .. }
            | tallystone_redis::OpenError::TooOld { .. }
            | tallystone_redis::OpenError::Replica { .. }
            | tallystone_redis::OpenError::NoCluster { .. }
            | tallystone_redis::OpenError::Denied { .. }
            | tallystone_redis::OpenError::Rights { .. }
            | tallystone_redis::OpenError::Library { .. } => Self::Precondition,
        }
    }
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    text: String,
    /// Advice, one line each.
    hints: Vec<String>,
}

impl Failure {
    /// Creates a failure with an exit code.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), hints: Vec::new() }
    }

    /// Creates a failure of an invalid command line.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// Creates any other failure.
    pub fn other(text: impl Into<String>) -> Self {
        Self::new(Exit::Failure, text)
    }

    /// Creates the failure of a call to a server.
    pub fn of_call(error: &CallError, server: &str) -> Self {
        if let Some(failure) = error.tls_failure() {
            return Self::new(Exit::Precondition, format!("there is no TLS session with {server}: {failure}"))
                .hint(tls_advice(&failure));
        }
        if error.is_unreachable() {
            let hint = "start a server with `tallystone dev`, or name another with --server or TALLYSTONE_SERVER";
            return Self::new(Exit::Unavailable, format!("no server answers at {server}")).hint(hint);
        }
        let reason = error.reason().and_then(|reason| Reason::from_name(&reason));
        let exit = match (exit_of(error.status.code()), error.may_be_applied) {
            // An unknown outcome never gets the exit code of unavailability.
            (Exit::Unavailable, true) => Exit::Failure,
            (Exit::Failure, false) if error.got_no_answer() => Exit::Unavailable,
            (exit, _) => exit,
        };
        if error.got_no_answer() {
            return match error.status.code() {
                Code::DeadlineExceeded => Self::new(exit, error.to_string()).hint(format!(
                    "the server is {server}; allow more time with --timeout, or name another server with --server"
                )),
                // The time for one try was over.
                Code::Cancelled => Self::new(exit, format!("{server} did not answer: {}", deepest(&error.status)))
                    .hint("its store may not answer: see `tallystone status`; allow more time with --timeout, or name another server with --server"),
                // The transport's own label adds nothing: the details are in the deepest cause.
                _ => Self::new(exit, format!("{server} did not answer: {}", deepest(&error.status)))
                    .hint("check that it is a running tallystone server, or name another with --server; if it has TLS, write https:// before its address"),
            };
        }
        let is_from_earlier = error.may_be_applied && reason.is_some_and(|reason| reason != Reason::OutcomeUnknown);
        let failure = match is_from_earlier {
            true => Self::new(exit, format!("an earlier try may have been applied; the last one failed: {error}")),
            false => Self::new(exit, error.to_string()),
        };
        let failure = match reason {
            Some(Reason::Unauthenticated) => failure.hint(KEY_HINT),
            Some(_) | None => failure,
        };
        match reason {
            Some(reason) => {
                failure.hint(format!("reason {reason}; for details run `tallystone explain-error {reason}`"))
            }
            None => failure,
        }
    }

    /// Creates the failure of a stream whose connection ended. What changed meanwhile may have been missed.
    pub fn cut_off(error: &CallError, server: &str) -> Self {
        let what = format!("the connection to {server} ended: {}", deepest(&error.status));
        Self::new(Exit::Unavailable, what).hint("changes since then are not shown; start the command again")
    }

    /// Adds a line of advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Replaces placeholders in suggested commands with names: ` QUEUE` before a space, a bracket or a quote.
    #[must_use]
    pub fn about(mut self, names: &[(&str, String)]) -> Self {
        for (place, name) in names {
            for end in [' ', ')', '`'] {
                let (place, name) = (format!(" {place}{end}"), format!(" {name}{end}"));
                for text in std::iter::once(&mut self.text).chain(&mut self.hints) {
                    *text = text.replace(&place, &name);
                }
            }
        }
        self
    }

    /// Returns the exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the failure on stderr.
    pub fn report(&self) -> ExitCode {
        if !self.text.is_empty() {
            print_notice(&format!("error: {}", self.text));
        }
        for hint in &self.hints {
            print_notice(&format!("  {hint}"));
        }
        self.exit.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Self::usage(reject.message)
    }
}

impl From<io::Error> for Failure {
    /// The reader of our output may stop reading; that is not a failure.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Ok, ""),
            _ => Self::other(format!("cannot write the output: {error}")), // every other kind loses output
        }
    }
}

/// The advice for a TLS session that does not come about.
fn tls_advice(failure: &TlsFailure) -> &'static str {
    match failure {
        TlsFailure::NotTrusted => {
            "name the authority that signed it with --ca-file FILE or TALLYSTONE_CA_FILE; if you did, the file of the server's \
             certificate must hold those in between too, each after the one that it signed"
        }
        TlsFailure::WrongName(_) => "use a name or an address that the certificate has",
        TlsFailure::OutOfDate(_) => "give the server a certificate that is valid, and check the clock of this machine",
        TlsFailure::BadCertificate(_) => "give the server another certificate",
        TlsFailure::NoTls => "write http:// before the address",
        TlsFailure::CertificateRequired => "show one with --client-cert FILE and --client-key FILE",
        TlsFailure::CertificateRefused(_) => {
            "show one that is signed by an authority in tls.client_ca_file of the server, and valid for clients; --client-cert \
             must hold the certificates in between too, each after the one that it signed"
        }
    }
}

/// The deepest cause, or the message of the status.
fn deepest(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), root_cause)
}

/// Returns the exit code of a refusal by its gRPC code.
pub fn exit_of(code: Code) -> Exit {
    match code {
        Code::Ok => Exit::Ok,
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::NotFound => Exit::NotFound,
        Code::FailedPrecondition
        | Code::Aborted
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated => Exit::Precondition,
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => Exit::Unavailable,
        Code::Cancelled | Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => Exit::Failure,
    }
}
