//! API keys as their owners write them: `ts_ID_SECRET`, the id as 16 and the secret as 64 hexadecimal digits.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::access::{KeyId, SecretHash};
use crate::hex::{hex_bytes, hex_digits};

/// The beginning of a key, by which scanners for leaked secrets find one.
const PREFIX: &str = "ts_";
/// The bytes of a secret: 256 bits, too many to guess.
const SECRET_BYTES: usize = 32;

/// An API key with its secret.
#[derive(Clone, Copy)]
pub struct ApiKey {
    /// The id, which is no secret.
    pub id: KeyId,
    secret: [u8; SECRET_BYTES],
}

impl ApiKey {
    /// The key of an id with a random secret.
    pub fn new(id: KeyId, secret: [u8; SECRET_BYTES]) -> Self {
        Self { id, secret }
    }

    /// Reads a key. None if the text is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX.as_bytes())?.split_at_checked(16)?;
        let secret = secret.strip_prefix(b"_")?;
        Some(Self { id: KeyId(u64::from_be_bytes(hex_bytes(id)?)), secret: hex_bytes(secret)? })
    }

    /// The key as its owner writes it. The only way to see the secret.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex_digits(&self.secret))
    }

    /// The hash that is kept of the secret: SHA-256. A slow hash is for passwords; no caller guesses 256 random bits.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.secret).into())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}, ..)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(id: u64, secret: [u8; SECRET_BYTES]) {
            let key = ApiKey::new(KeyId(id), secret);
            let text = key.reveal();
            let read = ApiKey::parse(text.as_bytes()).expect("it was written here");
            prop_assert_eq!((read.id, read.secret), (key.id, secret));
            prop_assert_eq!(read.hash(), key.hash());
            let shown = format!("{key:?} {:?}", key.hash());
            prop_assert!(!shown.contains(&text[20..]));
        }

        #[test]
        fn any_other_text_is_none(text in any::<Vec<u8>>(), cut in 0..84_usize, byte: u8) {
            prop_assert!(ApiKey::parse(&text).is_none());
            let whole = ApiKey::new(KeyId(7), [0xA5; SECRET_BYTES]).reveal().into_bytes();
            prop_assert!(ApiKey::parse(&whole[..cut]).is_none());
            let is_digit = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let mut other = whole;
            let before = other[cut];
            other[cut] = byte;
            let is_key = byte == before || (is_digit && cut >= 3 && cut != 19);
            prop_assert_eq!(ApiKey::parse(&other).is_some(), is_key, "{} at {}", byte, cut);
        }
    }

    #[test]
    fn the_hash_is_that_of_the_secret_alone() {
        let hash = ApiKey::new(KeyId(1), [0; SECRET_BYTES]).hash();
        assert_eq!(hash.0[..4], [0x66, 0x68, 0x7a, 0xad], "SHA-256 of 32 zero bytes");
        assert_eq!(hash, ApiKey::new(KeyId(2), [0; SECRET_BYTES]).hash());
    }
}
