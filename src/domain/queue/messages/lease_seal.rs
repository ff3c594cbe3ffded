//! The seal of lease tokens. Without the key no caller can compute it, even with knowledge of queues, messages and
//! fences.
//!
//! SipHash-2-4 with 128 bits of output is a keyed function for short inputs. A token carries 96 bits of the output, so
//! a guess succeeds with probability 2^-96. The key belongs to the store: it is generated once, and tokens stay valid
//! across restarts.

use std::fmt;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::constant_time::same_secret;
use crate::queue::messages::id_hash::IdKey;

/// The length of a key in bytes.
pub const LEASE_KEY_BYTES: usize = 16;
/// The length of a seal in bytes.
pub const SEAL_BYTES: usize = 12;

/// The secret by which a store recognizes the lease tokens that it issued.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseKey(pub [u8; LEASE_KEY_BYTES]);

impl LeaseKey {
    /// Computes the seal of these bytes.
    pub fn seal(&self, bytes: &[u8]) -> [u8; SEAL_BYTES] {
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&self.output(bytes)[..SEAL_BYTES]);
        seal
    }

    /// Derives the key under which a store hashes the ids of messages. No token has these bytes under its seal.
    pub fn id_key(&self) -> IdKey {
        IdKey(self.output(b"key for the hashes of message ids"))
    }

    fn output(&self, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        std::hash::Hasher::write(&mut hasher, bytes);
        hasher.finish128().as_bytes()
    }

    /// Returns whether the seal belongs to these bytes, in constant time.
    pub fn is_sealed(&self, bytes: &[u8], seal: [u8; SEAL_BYTES]) -> bool {
        same_secret(self.seal(bytes), seal)
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LeaseKey = LeaseKey([7; LEASE_KEY_BYTES]);

    #[test]
    fn a_seal_is_of_its_bytes_and_its_key_only() {
        let seal = KEY.seal(b"lease");
        assert!(KEY.is_sealed(b"lease", seal));
        assert!(!KEY.is_sealed(b"leasf", seal) && !KEY.is_sealed(b"leas", seal));
        assert!(!LeaseKey([8; LEASE_KEY_BYTES]).is_sealed(b"lease", seal));
        for bit in 0..8 * SEAL_BYTES {
            let mut other = seal;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!KEY.is_sealed(b"lease", other), "bit {bit}");
        }
    }

    /// The first test vector of the authors of SipHash-2-4-128: issued tokens stay valid whatever library computes the
    /// seal.
    #[test]
    fn the_function_is_siphash_2_4() {
        let key = LeaseKey(std::array::from_fn(|at| u8::try_from(at).expect("small")));
        assert_eq!(key.seal(b""), [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14]);
    }

    #[test]
    fn the_key_for_ids_is_of_this_key_only_and_is_not_the_key() {
        assert_eq!(KEY.id_key(), KEY.id_key());
        assert_ne!(KEY.id_key(), LeaseKey([8; LEASE_KEY_BYTES]).id_key());
        assert_ne!(KEY.id_key().0, KEY.0);
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{KEY:?}"), "LeaseKey(..)");
    }
}
