//! Principals: the names of callers that showed a credential.

use std::fmt;
use std::sync::Arc;

use crate::domain::access::KeyId;
use crate::domain::limits::PRINCIPAL_NAME_BYTES_MAX;
use crate::domain::reason::{Reason, Reject};

/// The name of a principal: `[A-Za-z0-9][A-Za-z0-9._:/=~%@+-]*`, 1 to 64 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=~%@+-".contains(&byte);
        let what = match name.as_bytes() {
            [] => "is empty",
            bytes if bytes.len() > PRINCIPAL_NAME_BYTES_MAX => "is too long",
            [first, ..] if !first.is_ascii_alphanumeric() => "does not begin with a letter or digit",
            bytes if !bytes.iter().copied().all(is_allowed) => "has a character that is not allowed",
            _ => return Ok(Self(name.into())), // the name is valid
        };
        let text = format!(
            "the name of the key {what}; use 1 to {PRINCIPAL_NAME_BYTES_MAX} letters, digits and . _ : / = ~ % @ + -"
        );
        Err(Reject::new(Reason::InvalidArgument, text.as_str()).at("name", text.as_str()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The principal of a call. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    /// The name.
    pub name: PrincipalName,
    /// The key by which it is known.
    pub key: KeyId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_form_of_other_names() {
        let longest = "a".repeat(PRINCIPAL_NAME_BYTES_MAX);
        for name in ["a", "7", "orders-worker", "spiffe://eu/orders", "ann@example.com", &longest] {
            assert_eq!(PrincipalName::new(name).map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for name in ["", "-a", " a", "a b", "a(b)", "ä", "a\n", &format!("{longest}a")] {
            let reject = PrincipalName::new(name).expect_err(name);
            assert_eq!((reject.reason, reject.fields[0].0.as_str()), (Reason::InvalidArgument, "name"));
        }
    }
}
