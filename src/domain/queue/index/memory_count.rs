//! A count of bytes that is kept next to what it counts.

/// Bytes in use. Two of them are always equal: equal contents may lie in more or less memory.
#[derive(Clone, Copy, Default, Debug)]
pub struct MemoryCount(usize);

impl PartialEq for MemoryCount {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for MemoryCount {}

impl MemoryCount {
    /// The bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: usize) {
        self.0 += bytes;
    }

    /// Removes bytes that were added. A count that is wrong stays at 0, and fails a test: to wrap would refuse every
    /// message.
    pub fn remove(&mut self, bytes: usize) {
        self.replace(bytes, 0);
    }

    /// Adds bytes in place of others.
    pub fn replace(&mut self, before: usize, after: usize) {
        let all = self.0 + after;
        debug_assert!(all >= before, "{before} bytes leave a count of {all}");
        self.0 = all.saturating_sub(before);
    }
}
