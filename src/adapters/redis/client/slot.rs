//! Slots of keys: CRC16 (XMODEM) of the key, or of the part between the first `{` and the next `}`, modulo 16,384, as
//! the cluster specification of Redis says.

/// The slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// A slot of a cluster. On a server that is no cluster it says nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u16);

impl Slot {
    /// The slot of a key. O(length).
    pub fn of(key: &[u8]) -> Self {
        Self(crc16(hashed_part(key)) % SLOTS)
    }

    /// A slot by its number; none if there is no such slot.
    pub fn numbered(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// The part of a key that chooses its slot: an empty tag chooses nothing.
fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inside = &key[open + 1..];
    match inside.iter().position(|byte| *byte == b'}') {
        Some(length) if length > 0 => &inside[..length],
        Some(_) | None => key,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The remainders of each byte by the polynomial x^16 + x^12 + x^5 + 1.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn a_tag_chooses_the_slot_and_an_empty_one_does_not() {
        let slot = |key: &str| Slot::of(key.as_bytes());
        assert_eq!(slot("{user1000}.following"), slot("user1000"));
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        // The examples of the specification: the first tag counts, and it ends at the first brace after it.
        assert_ne!(slot("foo{}{bar}"), slot("bar"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
        assert_eq!(slot("foo{bar"), Slot(crc16(b"foo{bar") % SLOTS));
        assert_eq!(slot("somekey").number(), 11_058);
    }

    #[test]
    fn no_slot_lies_beyond_the_last() {
        assert_eq!(Slot::numbered(SLOTS - 1).map(Slot::number), Some(SLOTS - 1));
        assert_eq!(Slot::numbered(SLOTS), None);
        assert!((0..10_000).all(|number: u32| Slot::of(&number.to_be_bytes()).number() < SLOTS));
    }
}
