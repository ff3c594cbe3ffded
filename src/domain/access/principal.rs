//! Principals: the names of callers that showed a credential.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::access::IssuerName;
use crate::hex::hex_digits;
use crate::limits::PRINCIPAL_NAME_BYTES_MAX;
use crate::reason::{Reason, Reject};

/// The bytes of the hash that stands for the rest of a long subject: too many for two subjects that share it.
const SUBJECT_HASH_BYTES: usize = 16;

/// The name of a principal: `[A-Za-z0-9][A-Za-z0-9._:/=~%@+-]*`, 1 to 64 bytes. That of a token also has one `|`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalName(Arc<str>);

impl PrincipalName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=~%@+-".contains(&byte);
        let what = match name.as_bytes() {
            [] => "is empty",
            bytes if bytes.len() > PRINCIPAL_NAME_BYTES_MAX => "is too long",
            [first, ..] if !first.is_ascii_alphanumeric() => "does not begin with a letter or digit (A-Z, a-z, 0-9)",
            bytes if !bytes.iter().copied().all(is_allowed) => "has a character that is not allowed",
            _ => return Ok(Self(name.into())), // the name is valid
        };
        let text = format!(
            "the name of the key {what}; use 1 to {PRINCIPAL_NAME_BYTES_MAX} letters, digits and . _ : / = ~ % @ + -"
        );
        Err(Reject::new(Reason::InvalidArgument, text.as_str()).at("name", text.as_str()))
    }

    /// The name of a subject of an issuer of tokens: `ISSUER|SUBJECT`. Other bytes than letters, digits and
    /// `. _ : / = @ + -` are written as `%` and two digits. Of a longer name the beginning stays, with `~` and a hash
    /// of the subject behind it. So no two subjects share a name, and no key has one of them.
    pub fn of_subject(issuer: &IssuerName, subject: &str) -> Self {
        let mut name = format!("{issuer}|");
        for byte in subject.bytes() {
            match byte.is_ascii_alphanumeric() || b"._:/=@+-".contains(&byte) {
                true => name.push(char::from(byte)),
                false => name.push_str(&format!("%{byte:02x}")),
            }
        }
        if name.len() > PRINCIPAL_NAME_BYTES_MAX {
            let hash = hex_digits(&Sha256::digest(subject.as_bytes())[..SUBJECT_HASH_BYTES]);
            name.truncate(PRINCIPAL_NAME_BYTES_MAX - "~".len() - hash.len());
            name.push('~');
            name.push_str(&hash);
        }
        Self(name.into())
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

    #[test]
    fn the_name_of_a_subject_is_readable_and_short() {
        let issuer = IssuerName::new("k8s").expect("a valid name");
        let of = |subject: &str| PrincipalName::of_subject(&issuer, subject).to_string();
        assert_eq!(of("system:serviceaccount:shop:worker"), "k8s|system:serviceaccount:shop:worker");
        assert_eq!(of("auth0|ann ~%"), "k8s|auth0%7cann%20%7e%25");
        let long = of(&"a".repeat(61));
        assert_eq!((long.len(), &long[..31], &long[31..32]), (64, format!("k8s|{}", "a".repeat(27)).as_str(), "~"));
        assert_eq!(of(&"a".repeat(60)).len(), 64, "the longest that is written out");
    }
}
