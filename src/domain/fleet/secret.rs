//! The secret that distinguishes members of a fleet from other callers of their ports.

use std::fmt;

use crate::constant_time::same_secret;

/// The bytes of a secret: 128 bits, too many to guess.
pub const SECRET_BYTES: usize = 16;

/// Random bytes of one process, known only to readers of the store that its fleet shares.
///
/// Secrets are compared in constant time, and neither logs nor errors show one.
#[derive(Clone, Copy, Eq)]
pub struct FleetSecret(pub [u8; SECRET_BYTES]);

impl FleetSecret {
    /// The secret of these bytes; none if their number differs.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl PartialEq for FleetSecret {
    fn eq(&self, other: &Self) -> bool {
        same_secret(self.0, other.0)
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_equal_to_itself_only_and_is_not_shown() {
        let secret = FleetSecret([0xA5; SECRET_BYTES]);
        assert_eq!(FleetSecret::from_bytes(&[0xA5; SECRET_BYTES]), Some(secret));
        for bit in 0..8 * SECRET_BYTES {
            let mut other = secret;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(other, secret, "bit {bit}");
        }
        for length in [0, SECRET_BYTES - 1, SECRET_BYTES + 1] {
            assert_eq!(FleetSecret::from_bytes(&vec![0xA5; length]), None, "{length} bytes");
        }
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
