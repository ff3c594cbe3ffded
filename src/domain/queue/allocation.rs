//! The memory of allocations, and of entries of ordered sets and maps.
//!
//! The figures are close, not exact. An ordered set of the standard library keeps up to 11 entries in a node. The
//! allocator of the server gives memory away in classes of sizes, four for each power of two.

/// The most entries of a node.
const ENTRIES: usize = 11;
/// The bytes of a node besides its entries.
const HEADER_BYTES: usize = 12;

/// The memory of an entry of this size in an ordered set or map that grows at its end, which leaves nodes half full.
pub(in crate::queue) const fn in_tree(entry: usize) -> usize {
    of_nodes(entry, 62)
}

/// The memory of an entry of this size in an ordered set or map that grows everywhere, such as one by hashes.
pub(in crate::queue) const fn in_shuffled_tree(entry: usize) -> usize {
    of_nodes(entry, 76)
}

/// The memory of an ordered set or map with so many entries of this size. The first eleven are in one node.
pub(in crate::queue) const fn small_tree(entry: usize, entries: usize) -> usize {
    match entries {
        0 => 0,
        1..=ENTRIES => allocated(ENTRIES * entry + HEADER_BYTES),
        _ => entries * in_tree(entry), // several nodes
    }
}

/// The part of an entry in its node, and in the node above it, which has the places of those below it too. `used` is
/// the number of entries of a node in tenths.
const fn of_nodes(entry: usize, used: usize) -> usize {
    const BELOW_BYTES: usize = (ENTRIES + 1) * size_of::<usize>();
    let leaf = allocated(ENTRIES * entry + HEADER_BYTES);
    let inner = allocated(ENTRIES * entry + HEADER_BYTES + BELOW_BYTES);
    (10 * leaf + 10 * 10 * inner / (used + 10)).div_ceil(used)
}

/// The memory of the first node of an ordered set of ranks, however few it has.
pub(in crate::queue) const FIRST_NODE_BYTES: usize = 192;

/// The memory of one allocation of this size: a multiple of 16 bytes, above 128 bytes of a quarter of a power of two.
pub(in crate::queue) const fn allocated(bytes: usize) -> usize {
    let class = if bytes <= 128 { 16 } else { bytes.next_power_of_two() / 8 };
    bytes.next_multiple_of(class)
}

/// The memory of an allocation of this size, if it has any.
pub(in crate::queue) const fn on_heap(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { allocated(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_rounded_up_to_classes() {
        assert_eq!([1, 16, 17, 128, 129, 256, 257, 2_816].map(allocated), [16, 16, 32, 128, 160, 256, 320, 3_072]);
        assert_eq!((on_heap(0), on_heap(1)), (0, 16));
    }

    #[test]
    fn entries_take_their_share_of_nodes_of_eleven() {
        assert_eq!((in_tree(16), in_shuffled_tree(16)), (39, 31));
        assert!(in_tree(100) > 100 && in_shuffled_tree(100) > 100);
    }

    #[test]
    fn a_small_set_has_one_node_whatever_it_holds() {
        assert_eq!([0, 1, 11].map(|entries| small_tree(8, entries)), [0, 112, 112]);
        assert_eq!(small_tree(8, 12), 12 * in_tree(8));
    }
}
