//! Keyed hashes of message ids: all that memory has of the id of a message that is over.
//!
//! SipHash-1-3 with 128 bits of output and a secret key: no caller that does not know the key can choose ids whose
//! hashes are alike. Two ids of one queue have the same hash with a probability below 2^-80, even among a hundred
//! million ids. The key belongs to the store, which has hashes in its rows.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::queue::messages::message_id::MessageId;

/// The length of a key in bytes.
pub const ID_KEY_BYTES: usize = 16;

/// The secret under which a store hashes ids. A store without stored hashes takes the default.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct IdKey(pub [u8; ID_KEY_BYTES]);

/// The hash of an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IdHash(pub u128);

impl IdKey {
    /// Hashes an id: different texts, such as two forms of one UUID, are different ids.
    pub fn hash(&self, id: &MessageId) -> IdHash {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        match id.uuid() {
            Some(uuid) => {
                hasher.write(&[1]);
                hasher.write(&uuid);
            }
            None => {
                hasher.write(&[0]);
                hasher.write(id.text().as_bytes());
            }
        }
        IdHash(hasher.finish128().as_u128())
    }
}

impl fmt::Debug for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).expect("a legal id")
    }

    #[test]
    fn forms_of_a_uuid_and_ids_that_differ_in_a_byte_have_hashes_of_their_own() {
        let uuid = "0189d3f1-0000-7000-8000-00000000000a";
        let last = "0189d3f1-0000-7000-8000-00000000000b";
        let texts = [uuid.to_owned(), last.to_owned(), uuid.to_uppercase(), uuid.replace('-', ""), "a".to_owned()];
        let key = IdKey([7; ID_KEY_BYTES]);
        let hashes: BTreeSet<_> = texts.iter().map(|text| key.hash(&id(text))).collect();
        assert_eq!(hashes.len(), texts.len());
        // A text of 16 bytes has as many bytes as a number.
        assert_ne!(key.hash(&id("0189d3f100007000")), key.hash(&MessageId::of_uuid(*b"0189d3f100007000")));
    }

    #[test]
    fn another_key_gives_other_hashes_and_no_key_is_shown() {
        let one = id("order-1");
        assert_eq!(IdKey::default().hash(&one), IdKey::default().hash(&one));
        assert_ne!(IdKey::default().hash(&one), IdKey([7; ID_KEY_BYTES]).hash(&one));
        assert_eq!(format!("{:?}", IdKey::default()), "IdKey(..)");
    }
}
