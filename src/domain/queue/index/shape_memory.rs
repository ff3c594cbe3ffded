//! About what a filter shape takes in memory: arithmetic over what its index keeps, for whoever decides on shapes.
//!
//! The figures are rough. An ordered set of the standard library keeps up to 11 entries in a node and is about two thirds
//! full when entries come and go; what the allocator adds is left out.

use crate::domain::queue::index::lanes::LANE_BYTES;
use crate::domain::queue::index::shape_index::SET_BYTES;
use crate::domain::queue::messages::message::Rank;

/// For a pending message of a simple queue that has the keys of the shape, in bytes. On an exclusive queue, for each one
/// after the first of its value.
pub const SHAPE_MESSAGE_BYTES: usize = in_tree(size_of::<Rank>());

/// On an exclusive queue, for each exclusivity value with pending messages that have the keys of the shape, in bytes.
pub const SHAPE_VALUE_BYTES: usize = LANE_BYTES;

/// For each set of values of the keys that any message has, in bytes.
pub const SHAPE_SET_BYTES: usize = SET_BYTES;

/// What an entry of so many bytes takes in an ordered set or map.
pub(in crate::domain::queue) const fn in_tree(entry: usize) -> usize {
    const ENTRIES: usize = 11;
    const HEADER_BYTES: usize = 16;
    const USED: usize = 7;
    (ENTRIES * entry + HEADER_BYTES) / USED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_tell_about_these_figures() {
        let rounded = |bytes: usize| bytes.div_ceil(10) * 10;
        let told = [SHAPE_MESSAGE_BYTES, SHAPE_VALUE_BYTES, SHAPE_SET_BYTES].map(rounded);
        assert_eq!(told, [30, 170, 440], "docs/queues.md says so");
    }
}
