//! Reads little-endian numbers and pieces from bytes that may end too early.

/// A reader of the remaining bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    /// The remaining bytes.
    pub rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Reads the next bytes; `None` if too few are left.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (piece, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(piece)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|piece| piece[0])
    }

    /// Reads a number of 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|piece| u16::from_le_bytes(piece.try_into().expect("2 bytes")))
    }

    /// Reads a number of 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|piece| u32::from_le_bytes(piece.try_into().expect("4 bytes")))
    }

    /// Reads a number of 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|piece| u64::from_le_bytes(piece.try_into().expect("8 bytes")))
    }

    /// Reads a number of 128 bits.
    pub fn u128(&mut self) -> Option<u128> {
        self.take(16).map(|piece| u128::from_le_bytes(piece.try_into().expect("16 bytes")))
    }
}
