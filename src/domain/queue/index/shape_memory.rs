//! The approximate memory of a filter shape: arithmetic on the contents of its index, as help for declaring shapes.

use crate::queue::allocation::in_tree;
use crate::queue::index::lanes::LANE_BYTES;
use crate::queue::index::shape_index::SET_BYTES;
use crate::queue::messages::message::Rank;

/// The bytes per pending message of a simple queue that has the keys of the shape. In an exclusive queue, the bytes per
/// such message after the first of its value.
pub const SHAPE_MESSAGE_BYTES: usize = in_tree(size_of::<Rank>());

/// In an exclusive queue, the bytes per exclusivity value with pending messages that have the keys of the shape.
pub const SHAPE_VALUE_BYTES: usize = LANE_BYTES;

/// The bytes per set of values of the keys that any message has.
pub const SHAPE_SET_BYTES: usize = SET_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_tell_about_these_figures() {
        let rounded = |bytes: usize| bytes.div_ceil(10) * 10;
        let told = [SHAPE_MESSAGE_BYTES, SHAPE_VALUE_BYTES, SHAPE_SET_BYTES].map(rounded);
        assert_eq!(told, [40, 200, 520], "docs/queues.md says so");
    }
}
