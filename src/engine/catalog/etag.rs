//! The etag of an entry: its id and its version.
//!
//! The id is part of it because a name that was deleted and created again starts at version 1 again. An etag of the
//! deleted entry must not match the new one.

use std::fmt::{self, Display};
use std::str::FromStr;

use tallystone_domain::{Reason, Reject};
use tallystone_ports::CatalogEntry;

/// The characters of a refused etag that are shown.
const SHOWN_CHARS: usize = 64;

/// The version of an entry that a caller read. Opaque to callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Etag<I> {
    id: I,
    version: u64,
}

impl<I> Etag<I> {
    /// The etag of the present version of an entry.
    pub fn of<E: CatalogEntry<Id = I>>(entry: &E) -> Self {
        Self::of_version(entry.id(), entry.version())
    }

    /// The etag of a present or past version of an entry.
    pub fn of_version(id: I, version: u64) -> Self {
        Self { id, version }
    }
}

impl<I: Display> Display for Etag<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.id, self.version)
    }
}

impl<I: Display + FromStr> FromStr for Etag<I> {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        let parts = text
            .split_once('-')
            .and_then(|(id, version)| Some(Self { id: id.parse().ok()?, version: version.parse().ok()? }));
        parts.filter(|etag| etag.to_string() == text).ok_or_else(|| {
            let shown: String = text.chars().take(SHOWN_CHARS).collect();
            Reject::new(Reason::EtagMismatch, format!("etag {shown:?} is not from this service"))
        })
    }
}

/// Refuses a change of an entry that is not at the version that the caller read.
pub fn check_etag<E: CatalogEntry>(live: &E, expected: Option<Etag<E::Id>>) -> Result<(), Reject> {
    let own = Etag::of(live);
    let Some(expected) = expected.filter(|expected| *expected != own) else { return Ok(()) };
    let (word, name) = (E::WORD, live.name());
    let what = format!("{word} {name} changed since it was read: its etag is {own}, the call expects {expected}");
    Err(Reject::new(Reason::EtagMismatch, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::counter::NamespaceId;
    use tallystone_domain::queue::QueueId;

    #[test]
    fn only_what_was_sent_out_is_read_back() {
        assert_eq!("7-3".parse(), Ok(Etag { id: NamespaceId(7), version: 3 }));
        for forged in ["", "7", "-", "7-", "+7-3", "07-3", "7-3-1", "7-x", "99999999999999999999-1"] {
            let reject = forged.parse::<Etag<NamespaceId>>().expect_err(forged);
            assert_eq!(reject.reason, Reason::EtagMismatch);
        }
    }

    #[test]
    fn only_what_was_sent_out_is_read_back_as_an_etag_of_a_queue() {
        let etag = Etag::of_version(QueueId(7), 3);
        assert_eq!(etag.to_string().parse(), Ok(etag));
        for forged in ["", "7-3", "-", "00000000000000000000000000000007-03", "0000000000000000000000000000000G-3"] {
            assert_eq!(forged.parse::<Etag<QueueId>>().expect_err(forged).reason, Reason::EtagMismatch);
        }
    }
}
