//! The closed list of reasons for which any call can be refused, and what each means to the caller.
//!
//! One table serves gRPC, HTTP, the command line and `docs/errors.md`; the names are those of
//! `proto/tallystone/error/v1/reason.proto`, which a test compares.

mod base_rows;
mod table;

use std::fmt;

use table::TABLE;

pub use table::Reason;

/// Whether a refused call is worth repeating.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// The same call is refused again.
    Never,
    /// The same call with the same token may succeed later.
    SameToken,
}

/// Whether a refused call may have changed something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It changed nothing.
    Nothing,
    /// It may have been applied, once.
    Unknown,
}

/// The gRPC status codes in use, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// The meaning of a reason.
#[derive(Clone, Copy, Debug)]
pub struct ReasonInfo {
    /// The reason as it is written on the wire.
    pub name: &'static str,
    /// The gRPC status code.
    pub code: Code,
    /// The HTTP status.
    pub http: u16,
    /// Whether to repeat the call.
    pub retry: Retry,
    /// Whether it may have been applied.
    pub effect: Effect,
    /// The field of the request that the reason is about, where it is always the same one.
    pub field: Option<&'static str>,
    /// The advice in short, for the reasons whose messages say only what is wrong.
    pub advice: Option<&'static str>,
    /// The advice on what to do.
    pub help: &'static str,
}

impl Reason {
    /// The meaning of the reason.
    pub const fn info(self) -> &'static ReasonInfo {
        &TABLE[self as usize]
    }

    /// Finds a reason by its name, in any letter case, with or without the `REASON_` prefix.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("REASON_").unwrap_or(&name);
        Self::ALL.iter().copied().find(|reason| reason.info().name == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

/// An invalid argument or a broken precondition that no retry cures; nothing was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The reason of the refusal.
    pub reason: Reason,
    /// The fault in words, with the values at hand.
    pub message: String,
    /// The fields of the request that are at fault, where they are known, and what is wrong with each.
    pub fields: Vec<(String, String)>,
}

impl Reject {
    /// Refuses for a reason, in words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), fields: Vec::new() }
    }

    /// Names a field at fault, and what is wrong with it.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>, what: impl Into<String>) -> Self {
        self.fields.push((field.into(), what.into()));
        self
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Reject {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_finds_itself_by_name() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.info().name), Some(*reason));
            assert_eq!(Reason::from_name(&format!("reason_{}", reason.info().name.to_lowercase())), Some(*reason));
        }
        assert_eq!(Reason::ALL.len(), TABLE.len());
    }

    #[test]
    fn whatever_is_invalid_is_invalid_argument_and_400_and_headers_431() {
        for reason in Reason::ALL {
            let info = reason.info();
            let is_invalid = info.name.starts_with("INVALID_");
            let http = if *reason == Reason::InvalidHeadersTooLarge { 431 } else { 400 };
            assert_eq!(is_invalid, (info.code, info.http) == (Code::InvalidArgument, http), "{reason}");
        }
    }

    #[test]
    fn an_unknown_effect_is_never_called_unavailable() {
        for reason in Reason::ALL {
            let info = reason.info();
            assert!(info.effect == Effect::Nothing || info.code != Code::Unavailable, "{reason}");
        }
    }
}
