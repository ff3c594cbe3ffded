//! Names of issuers of tokens.

use std::fmt;

use crate::limits::ISSUER_NAME_BYTES_MAX;
use crate::reason::{Reason, Reject};

/// The name of an issuer: `[a-z0-9][a-z0-9-]*`, 1 to 16 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IssuerName(Box<str>);

impl IssuerName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let has_valid_length = (1..=ISSUER_NAME_BYTES_MAX).contains(&name.len());
        if has_valid_length && name.bytes().all(is_allowed) && !name.starts_with('-') {
            return Ok(Self(name.into()));
        }
        let what = format!(
            "an issuer has a name of 1 to {ISSUER_NAME_BYTES_MAX} lower-case letters, digits and -, which does not begin with -"
        );
        Err(Reject::new(Reason::InvalidArgument, what))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IssuerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IssuerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_have_short_plain_names() {
        for name in ["sso", "k8s-eu", "a", "0123456789abcdef"] {
            assert_eq!(IssuerName::new(name).map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for name in ["", "-a", "A", "a|b", "a_b", "a.b", "0123456789abcdefg"] {
            assert!(IssuerName::new(name).is_err(), "{name}");
        }
    }
}
