//! The etag of a namespace: its id and its version.
//!
//! The id is part of it because a name that was deleted and created again starts at version 1 again. An etag of the
//! deleted namespace must not match the new one.

use std::fmt;
use std::str::FromStr;

use crate::domain::counter::NamespaceId;
use crate::domain::namespace::Namespace;
use crate::domain::{Reason, Reject};

/// The version of a namespace that a caller read. Opaque to callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Etag {
    namespace: NamespaceId,
    version: u64,
}

impl Etag {
    /// The etag of the present version of a namespace.
    pub fn of(namespace: &Namespace) -> Self {
        Self::of_version(namespace.id, namespace.version)
    }

    /// The etag of a present or past version of a namespace.
    pub fn of_version(namespace: NamespaceId, version: u64) -> Self {
        Self { namespace, version }
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.namespace.0, self.version)
    }
}

impl FromStr for Etag {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        let numbers = text.split_once('-').and_then(|(namespace, version)| {
            Some(Self { namespace: NamespaceId(namespace.parse().ok()?), version: version.parse().ok()? })
        });
        numbers
            .filter(|etag| etag.to_string() == text)
            .ok_or_else(|| Reject::new(Reason::EtagMismatch, format!("etag {text:?} is not from this service")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_out_is_read_back() {
        assert_eq!("7-3".parse(), Ok(Etag { namespace: NamespaceId(7), version: 3 }));
        for forged in ["", "7", "-", "7-", "+7-3", "07-3", "7-3-1", "7-x", "99999999999999999999-1"] {
            let reject = forged.parse::<Etag>().expect_err(forged);
            assert_eq!(reject.reason, Reason::EtagMismatch);
        }
    }
}
