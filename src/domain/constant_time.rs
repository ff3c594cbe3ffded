//! Constant-time comparison of secrets.

use std::hint::black_box;

/// Returns whether two secrets are equal; the time taken does not depend on how many bytes are equal.
pub fn same_secret<const N: usize>(one: [u8; N], other: [u8; N]) -> bool {
    let pairs = one.into_iter().zip(other);
    pairs.fold(0, |differs, (one, other)| black_box(differs | (one ^ other))) == 0
}
