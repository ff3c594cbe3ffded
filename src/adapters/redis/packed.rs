//! The byte strings that the functions read and write: little-endian numbers and texts with their lengths.
//!
//! Lua has doubles only. Times, durations, sequences and priorities are whole numbers within ±2^53, which doubles hold
//! exactly; what lies beyond is cut to the nearest of them, where no command may reach.

use std::time::Duration;

use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::time::{Timestamp, micros_of};

/// The greatest whole number that is exact together with its neighbours.
const EXACT: u64 = 1 << 53;
/// The longest duration: added to a time of this century it stays exact. It is beyond every limit of durations.
const LONGEST: u64 = 1 << 52;

/// A byte string in the making.
#[derive(Clone, Default, Debug)]
pub struct PackedBytes(pub Vec<u8>);

impl PackedBytes {
    /// Adds bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn byte(self, byte: u8) -> Self {
        self.raw(&[byte])
    }

    pub fn u16(self, number: u16) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }

    pub fn double(self, number: f64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    /// Adds a whole number as a double.
    pub fn whole(self, number: u64) -> Self {
        self.double(number.min(EXACT) as f64)
    }

    /// Adds a whole number with a sign as a double.
    pub fn signed(self, number: i64) -> Self {
        self.double(number.clamp(-(EXACT as i64), EXACT as i64) as f64)
    }

    pub fn time(self, time: Timestamp) -> Self {
        self.signed(time.micros())
    }

    pub fn duration(self, duration: Duration) -> Self {
        self.whole(micros_of(duration).unsigned_abs().min(LONGEST))
    }

    /// Adds a text of less than 64 KiB with its length.
    pub fn text(self, text: &str) -> Self {
        let size = u16::try_from(text.len()).expect("texts of messages are shorter than 64 KiB");
        self.u16(size).raw(text.as_bytes())
    }
}

/// A byte string that is read from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct PackedReader<'b> {
    what: &'static str,
    rest: &'b [u8],
}

impl<'b> PackedReader<'b> {
    /// Reads bytes; errors say what they should have been.
    pub fn new(what: &'static str, bytes: &'b [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub fn raw(&mut self, count: usize) -> Result<&'b [u8], CorruptValue> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.corrupt("it is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CorruptValue> {
        Ok(self.raw(N)?.try_into().expect("so many were taken"))
    }

    pub fn byte(&mut self) -> Result<u8, CorruptValue> {
        Ok(self.array::<1>()?[0])
    }

    /// Whether a byte is not 0.
    pub fn flag(&mut self) -> Result<bool, CorruptValue> {
        Ok(self.byte()? != 0)
    }

    pub fn u16(&mut self) -> Result<u16, CorruptValue> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, CorruptValue> {
        self.array().map(u32::from_le_bytes)
    }

    /// A whole number of five bytes.
    pub fn u40(&mut self) -> Result<u64, CorruptValue> {
        let [a, b, c, d, e] = self.array()?;
        Ok(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]))
    }

    pub fn double(&mut self) -> Result<f64, CorruptValue> {
        self.array().map(f64::from_le_bytes)
    }

    /// A whole number with a sign, stored as a double.
    pub fn signed(&mut self) -> Result<i64, CorruptValue> {
        let number = self.double()?;
        let fits = number.fract() == 0.0 && number.abs() <= EXACT as f64;
        if fits { Ok(number as i64) } else { Err(self.corrupt("a number is not whole")) }
    }

    /// A whole number, stored as a double.
    pub fn whole(&mut self) -> Result<u64, CorruptValue> {
        u64::try_from(self.signed()?).map_err(|_| self.corrupt("a number is negative"))
    }

    pub fn time(&mut self) -> Result<Timestamp, CorruptValue> {
        self.signed().map(Timestamp::from_micros)
    }

    /// A time, or a negative number where there is none.
    pub fn time_or_none(&mut self) -> Result<Option<Timestamp>, CorruptValue> {
        Ok(Some(self.signed()?).filter(|micros| *micros >= 0).map(Timestamp::from_micros))
    }

    pub fn duration(&mut self) -> Result<Duration, CorruptValue> {
        self.whole().map(Duration::from_micros)
    }

    pub fn text(&mut self) -> Result<&'b str, CorruptValue> {
        let size = self.u16()?;
        let bytes = self.raw(usize::from(size))?;
        std::str::from_utf8(bytes).map_err(|_| self.corrupt("a text is not UTF-8"))
    }

    /// The bytes that have not been read yet.
    pub fn rest(&mut self) -> &'b [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The error for bytes of another form.
    pub fn corrupt(&self, why: impl Into<String>) -> CorruptValue {
        CorruptValue::new(self.what, why.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_and_what_is_beyond_exactness_is_cut() {
        let most = 1_i64 << 53;
        let packed = PackedBytes::default().signed(-most).signed(i64::MIN).whole(u64::MAX).u32(7).text("ä");
        let mut reader = PackedReader::new("numbers", &packed.0);
        assert_eq!([reader.signed(), reader.signed()].map(Result::ok), [Some(-most), Some(-most)]);
        assert_eq!(reader.whole().ok(), Some(1 << 53));
        assert_eq!((reader.u32().ok(), reader.text().ok(), reader.is_empty()), (Some(7), Some("ä"), true));
        assert!(reader.byte().is_err());
    }
}
