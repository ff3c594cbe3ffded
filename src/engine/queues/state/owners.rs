//! Sessions, labels and operations belong to the principal that made them.
//!
//! The id that a caller gets carries a seal over the id and its principal. So the id alone, which others may guess, is
//! of no use, and nothing needs to be stored. A label is kept together with its principal, so no caller ends a session
//! of another one by its label. Where callers need no key, ids and labels are as they are.

use crate::queues::state::context::QueueContext;
use crate::queues::state::session_registry::LABEL_OWNER_END;
use tallystone_domain::access::PrincipalName;
use tallystone_domain::hex::{hex_bytes, hex_digits};
use tallystone_domain::limits::SESSION_LABEL_BYTES_MAX;
use tallystone_domain::queue::messages::lease_seal::SEAL_BYTES;
use tallystone_domain::{Reason, Reject};

/// Stands between an id and its seal, which does not contain it. An id may.
const SEAL_MARK: char = '~';
/// The first part of the sealed bytes of sessions.
pub const SESSION: &[u8] = b"owner of session ";
/// The first part of the sealed bytes of operations.
pub const OPERATION: &[u8] = b"owner of operation ";

impl QueueContext {
    /// The id of a session or an operation as its owner gets it.
    pub fn owned_text(&self, kind: &[u8], id: &str, owner: Option<&PrincipalName>) -> String {
        let Some(owner) = owner else { return id.to_owned() };
        let seal = self.lease_key.seal(&sealed_bytes(kind, id, owner));
        format!("{id}{SEAL_MARK}{}", hex_digits(&seal))
    }

    /// The id without its seal, if it is the caller's own.
    pub fn unsealed_own<'a>(&self, kind: &[u8], text: &'a str, owner: Option<&PrincipalName>) -> Option<&'a str> {
        let Some(owner) = owner else { return Some(text) };
        let (id, seal) = unsealed(text)?;
        self.lease_key.is_sealed(&sealed_bytes(kind, id, owner), seal).then_some(id)
    }
}

/// The label that is kept for a principal. A session without a label stays one.
pub fn owned_label(owner: Option<&PrincipalName>, label: &str) -> Result<String, Reject> {
    let prefix =
        owner.filter(|_| !label.is_empty()).map_or_else(String::new, |owner| format!("{owner}{LABEL_OWNER_END}"));
    let most = SESSION_LABEL_BYTES_MAX - prefix.len();
    if label.len() > most {
        let what = format!("label has {} bytes; at most {most} are allowed", label.len());
        return Err(Reject::new(Reason::InvalidArgument, what));
    }
    if label.contains(LABEL_OWNER_END) {
        return Err(Reject::new(Reason::InvalidArgument, "label contains the character U+001F, which is not allowed"));
    }
    Ok(prefix + label)
}

/// The bytes that are sealed. The length makes the bytes of two pairs of id and owner differ.
fn sealed_bytes(kind: &[u8], id: &str, owner: &PrincipalName) -> Vec<u8> {
    let length = (id.len() as u64).to_be_bytes();
    [kind, &length, id.as_bytes(), owner.as_str().as_bytes()].concat()
}

/// An id and its seal. None for a text without one.
pub fn unsealed(text: &str) -> Option<(&str, [u8; SEAL_BYTES])> {
    let (id, seal) = text.rsplit_once(SEAL_MARK)?;
    Some((id, hex_bytes(seal.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::state::session_registry::shown_label;

    fn principal(name: &str) -> PrincipalName {
        PrincipalName::new(name).expect("a valid name")
    }

    #[test]
    fn a_label_is_kept_with_its_principal_and_shown_without() {
        let (ann, bob) = (principal("ann"), principal("bob"));
        let kept = |owner: Option<&PrincipalName>, label| owned_label(owner, label).expect("a valid label");
        let all = [kept(None, "w"), kept(Some(&ann), "w"), kept(Some(&bob), "w")];
        assert!(all.iter().all(|label| shown_label(label) == "w"));
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        assert_eq!((kept(None, ""), kept(Some(&ann), "")), (String::new(), String::new()));
    }

    #[test]
    fn a_label_that_is_too_long_with_its_principal_is_refused() {
        let ann = principal("ann");
        let longest = "w".repeat(SESSION_LABEL_BYTES_MAX - 4);
        assert!(owned_label(Some(&ann), &longest).is_ok());
        for label in [longest + "w", "a\u{1f}b".to_owned()] {
            assert_eq!(owned_label(Some(&ann), &label).expect_err("not allowed").reason, Reason::InvalidArgument);
        }
    }

    #[test]
    fn a_seal_is_read_in_one_form_only() {
        let digits = "00ff7f80a5b6c7d8e9f01234";
        let seal_of = |digits: &str| hex_bytes::<SEAL_BYTES>(digits.as_bytes());
        assert_eq!(seal_of(digits).map(|seal| (seal[0], seal[1], seal[11])), Some((0, 0xff, 0x34)));
        for bad in
            ["", &digits[1..], "00FF7f80a5b6c7d8e9f01234", "+0ff7f80a5b6c7d8e9f01234", "00ff7f80a5b6c7d8e9f012345"]
        {
            assert_eq!(seal_of(bad), None, "{bad}");
        }
        let sealed = format!("id~of~{digits}");
        assert_eq!(unsealed(&sealed).map(|(id, _)| id), Some("id~of"));
        assert_eq!((unsealed("id~of"), unsealed(digits)), (None, None));
    }
}
