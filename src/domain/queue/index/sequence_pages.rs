//! Sets of sequences, and messages by sequence, in pages of 64.
//!
//! A shard assigns consecutive sequences and removes them in nearly that order, so most pages are full or removed. A
//! sequence in a set costs about one bit, and a message little more than itself. Both structures keep the order of
//! sequences.

use std::collections::BTreeMap;

use crate::queue::messages::message::MessageHead;

/// The number of sequences in a page.
const PAGE: u64 = 64;

/// Returns the page of a sequence, and its bit in the page's mask.
fn place(sequence: u64) -> (u64, u64) {
    (sequence / PAGE, 1 << (sequence % PAGE))
}

/// Iterates over the sequences of a page's mask, in order.
fn of_mask(page: u64, mut mask: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            page * PAGE + u64::from(bit)
        })
    })
}

/// Returns the part of a page's mask after a sequence.
fn after(sequence: u64, page: u64, mask: u64) -> u64 {
    let (last, bit) = place(sequence);
    if page == last { mask & !(bit | (bit - 1)) } else { mask }
}

/// A set of sequences.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sequences {
    pages: BTreeMap<u64, u64>,
    count: usize,
}

impl Sequences {
    /// Counts the sequences. O(1).
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds a sequence; returns whether it is new. O(log n).
    pub fn insert(&mut self, sequence: u64) -> bool {
        let (page, bit) = place(sequence);
        let mask = self.pages.entry(page).or_default();
        let is_new = *mask & bit == 0;
        *mask |= bit;
        self.count += usize::from(is_new);
        is_new
    }

    /// Removes a sequence; returns whether it existed. O(log n).
    pub fn remove(&mut self, sequence: u64) -> bool {
        let (page, bit) = place(sequence);
        let Some(mask) = self.pages.get_mut(&page).filter(|mask| **mask & bit != 0) else { return false };
        *mask &= !bit;
        if *mask == 0 {
            self.pages.remove(&page);
        }
        self.count -= 1;
        true
    }

    /// Iterates over the sequences after the given one, in order. O(log n) for the first.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = u64> {
        let pages = self.pages.range(place(sequence).0..);
        pages.flat_map(move |(page, mask)| of_mask(*page, after(sequence, *page, *mask)))
    }

    /// Iterates over all sequences, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flat_map(|(page, mask)| of_mask(*page, *mask))
    }
}

/// The messages of a shard by their sequence.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MessagesBySequence {
    pages: BTreeMap<u64, MessagePage>,
    count: usize,
}

/// The messages of a page in order, and the mask of their sequences.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct MessagePage {
    held: u64,
    messages: Vec<MessageHead>,
}

impl MessagePage {
    /// Returns the index of a bit's message, or its insertion index.
    fn index(&self, bit: u64) -> usize {
        (self.held & (bit - 1)).count_ones() as usize
    }
}

impl MessagesBySequence {
    /// Counts the messages. O(1).
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no messages. O(1).
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the message of a sequence. O(log n).
    pub fn get(&self, sequence: u64) -> Option<&MessageHead> {
        let (page, bit) = place(sequence);
        let page = self.pages.get(&page).filter(|page| page.held & bit != 0)?;
        page.messages.get(page.index(bit))
    }

    /// Returns the message of a sequence for a change. O(log n).
    pub fn get_mut(&mut self, sequence: u64) -> Option<&mut MessageHead> {
        let (page, bit) = place(sequence);
        let page = self.pages.get_mut(&page).filter(|page| page.held & bit != 0)?;
        let index = page.index(bit);
        page.messages.get_mut(index)
    }

    /// Inserts a message; returns the replaced message of the same sequence. O(log n + 64).
    pub fn insert(&mut self, message: MessageHead) -> Option<MessageHead> {
        let (page, bit) = place(message.key.sequence);
        let page = self.pages.entry(page).or_default();
        let index = page.index(bit);
        if page.held & bit != 0 {
            return Some(std::mem::replace(&mut page.messages[index], message));
        }
        page.held |= bit;
        page.messages.insert(index, message);
        self.count += 1;
        None
    }

    /// Removes a message. O(log n + 64).
    pub fn remove(&mut self, sequence: u64) -> Option<MessageHead> {
        let (number, bit) = place(sequence);
        let page = self.pages.get_mut(&number).filter(|page| page.held & bit != 0)?;
        let index = page.index(bit);
        let message = page.messages.remove(index);
        page.held &= !bit;
        self.count -= 1;
        if page.held == 0 {
            self.pages.remove(&number);
        } else if page.messages.len() <= page.messages.capacity() / 4 {
            page.messages.shrink_to_fit(); // a few messages of a page may stay for long
        }
        Some(message)
    }

    /// Returns the first message after a sequence. O(log n).
    pub fn next_after(&self, sequence: u64) -> Option<&MessageHead> {
        let mut pages = self.pages.range(place(sequence).0..);
        let next = pages.find_map(|(number, page)| of_mask(*number, after(sequence, *number, page.held)).next());
        self.get(next?)
    }

    /// Iterates over all messages, by sequence.
    pub fn iter(&self) -> impl Iterator<Item = &MessageHead> {
        self.pages.values().flat_map(|page| &page.messages)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::queue::tests::waiting as message;

    proptest! {
        #[test]
        fn a_set_holds_what_an_ordered_set_holds(steps in prop::collection::vec((any::<bool>(), 0_u64..400), 0..300)) {
            let (mut set, mut wanted) = (Sequences::default(), BTreeSet::new());
            for (adds, sequence) in steps {
                if adds {
                    prop_assert_eq!(set.insert(sequence), wanted.insert(sequence));
                } else {
                    prop_assert_eq!(set.remove(sequence), wanted.remove(&sequence));
                }
                prop_assert_eq!(set.len(), wanted.len());
            }
            prop_assert!(set.iter().eq(wanted.iter().copied()));
            for from in [0, 1, 62, 63, 64, 65, 127, 200, 399, 10_000] {
                prop_assert!(set.after(from).eq(wanted.range(from + 1..).copied()), "after {}", from);
            }
        }

        #[test]
        fn messages_are_kept_by_sequence_as_a_map_keeps_them(
            steps in prop::collection::vec((any::<bool>(), 0_u64..200), 0..300),
        ) {
            let (mut messages, mut wanted) = (MessagesBySequence::default(), BTreeMap::new());
            for (number, (adds, sequence)) in steps.into_iter().enumerate() {
                if adds {
                    let mut message = message(sequence);
                    message.version = number as u64; // distinguishes messages of one sequence
                    prop_assert_eq!(messages.insert(message.clone()), wanted.insert(sequence, message));
                } else {
                    prop_assert_eq!(messages.remove(sequence), wanted.remove(&sequence));
                }
                prop_assert_eq!((messages.len(), messages.is_empty()), (wanted.len(), wanted.is_empty()));
            }
            prop_assert!(messages.iter().eq(wanted.values()));
            for sequence in 0..210 {
                prop_assert_eq!(messages.get(sequence), wanted.get(&sequence));
                prop_assert_eq!(messages.get_mut(sequence), wanted.get_mut(&sequence));
                let next = wanted.range(sequence + 1..).next().map(|(_, message)| message);
                prop_assert_eq!(messages.next_after(sequence), next);
            }
        }
    }
}
