//! The approximate memory of an entry of an ordered set or map.
//!
//! The figures are rough. An ordered set of the standard library keeps up to 11 entries in a node and is about two
//! thirds full under changing contents; the overhead of the allocator is not included.

/// The memory of an entry of this size in an ordered set or map.
pub(super) const fn in_tree(entry: usize) -> usize {
    const ENTRIES: usize = 11;
    const HEADER_BYTES: usize = 16;
    const USED: usize = 7;
    (ENTRIES * entry + HEADER_BYTES) / USED
}
