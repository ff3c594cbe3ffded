//! Changes of bytes that know nothing of what the bytes are.

use super::driver::Rng;

/// An input never grows beyond this.
const BYTES_MAX: usize = 64 * 1024;
/// Changes of one input at most.
const STEPS_MAX: usize = 6;
const EDGES: &[i64] =
    &[0, 1, -1, 127, 128, 255, 256, 32_767, 65_535, i32::MAX as i64, i32::MIN as i64, i64::MAX, i64::MIN];

/// One input of the pool, changed in some places.
pub fn changed(rng: &mut Rng, pool: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = rng.pick(pool).clone();
    change(rng, &mut bytes, pool, words);
    bytes
}

/// Changes bytes in some places.
pub fn change(rng: &mut Rng, bytes: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str]) {
    for _ in 0..=rng.below(STEPS_MAX) {
        step(rng, bytes, pool, words);
        bytes.truncate(BYTES_MAX);
    }
}

fn step(rng: &mut Rng, bytes: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str]) {
    let at = rng.below(bytes.len() + 1);
    let range = at..at + rng.below((bytes.len() - at).min(64) + 1);
    match rng.below(10) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        1 if at < bytes.len() => bytes[at] = rng.next().to_le_bytes()[0],
        2 => drop(bytes.drain(range)),
        3 => {
            let piece = bytes[range].to_vec();
            insert(bytes, at, &piece);
        }
        4 => {
            // The same again and again: depth and length.
            let piece = bytes[range].to_vec();
            insert(bytes, at, &piece.repeat(1 << rng.below(12)));
        }
        5 => {
            let random: Vec<u8> = (0..rng.below(16)).map(|_| rng.next().to_le_bytes()[0]).collect();
            insert(bytes, at, &random);
        }
        6 => {
            let edge = rng.pick(EDGES).to_le_bytes();
            let width = *rng.pick(&[1, 2, 4, 8]);
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&edge[..end - at]);
        }
        7 => insert(bytes, at, rng.pick(EDGES).to_string().as_bytes()),
        8 if !words.is_empty() => insert(bytes, at, rng.pick(words).as_bytes()),
        // A piece of another input; also where a choice above did not fit.
        _ => {
            let other = rng.pick(pool);
            let from = rng.below(other.len() + 1);
            let to = from + rng.below(other.len() - from + 1);
            insert(bytes, at, &other[from..to]);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let piece = &piece[..piece.len().min(BYTES_MAX)];
    bytes.splice(at..at, piece.iter().copied());
}
