//! Sets of sequences, and messages by sequence, in pages of 64.
//!
//! A shard assigns consecutive sequences and removes them in nearly that order, so most pages are full or removed. A
//! sequence in a set costs about one bit, and a message little more than itself. Both structures keep the order of
//! sequences.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::{Deref, DerefMut};

use crate::queue::allocation::{in_tree, on_heap};
use crate::queue::index::memory_count::MemoryCount;
use crate::queue::index::stubs::{Stub, StubPage};
use crate::queue::messages::id_hash::IdHash;
use crate::queue::messages::message::MessageHead;
use crate::time::Timestamp;

/// The number of sequences in a page.
const PAGE: u64 = 64;

/// Returns the page of a sequence, and its bit in the page's mask.
pub const fn place(sequence: u64) -> (u64, u64) {
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

    /// The bytes of the set. O(1).
    pub fn memory_bytes(&self) -> usize {
        self.pages.len() * in_tree(size_of::<(u64, u64)>())
    }

    /// Adds a sequence; returns whether it is new. O(log n).
    pub fn insert(&mut self, sequence: u64) -> bool {
        let (page, bit) = place(sequence);
        self.insert_mask(page, bit) == 1
    }

    /// Adds the sequences of a page's mask; returns how many are new. O(log n).
    pub fn insert_mask(&mut self, page: u64, mask: u64) -> usize {
        if mask == 0 {
            return 0;
        }
        let held = self.pages.entry(page).or_default();
        let new = (mask & !*held).count_ones() as usize;
        *held |= mask;
        self.count += new;
        new
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

/// The messages of a shard by their sequence: heads, and stubs of those that are over.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MessagesBySequence {
    pages: BTreeMap<u64, MessagePage>,
    /// The heads.
    heads: usize,
    stubs: usize,
    /// The earliest end of the stubs of each page that has some.
    stub_ends: BTreeSet<(Timestamp, u64)>,
    /// The bytes of the heads: room for them in their pages, and what they own.
    head_bytes: MemoryCount,
    /// The bytes of the pages of stubs.
    stub_bytes: MemoryCount,
}

/// The heads of a page in order and the mask of their sequences, and its stubs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct MessagePage {
    held: u64,
    messages: Vec<MessageHead>,
    over: Option<Box<StubPage>>,
}

impl MessagePage {
    /// Returns the index of a bit's message, or its insertion index.
    fn index(&self, bit: u64) -> usize {
        (self.held & (bit - 1)).count_ones() as usize
    }

    /// The mask of the stubs.
    fn over(&self) -> u64 {
        self.over.as_ref().map_or(0, |over| over.held())
    }

    fn first_end(&self) -> Option<Timestamp> {
        self.over.as_ref()?.first_end()
    }

    /// The bytes of the room for heads.
    fn head_room(&self) -> usize {
        on_heap(self.messages.capacity() * size_of::<MessageHead>())
    }

    fn stub_bytes(&self) -> usize {
        self.over.as_ref().map_or(0, |over| over.memory_bytes())
    }
}

/// The reason why a stub is not added to its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StubMisfit {
    /// Its sequence has a head or a stub already.
    Twice(u64),
    /// It differs too much from the others of its page.
    Unfit(u64),
}

/// A head that is changed. Its memory is counted again when it is dropped.
pub struct ChangedHead<'a> {
    head: &'a mut MessageHead,
    counted: &'a mut MemoryCount,
}

impl<'a> ChangedHead<'a> {
    fn new(head: &'a mut MessageHead, counted: &'a mut MemoryCount) -> Self {
        counted.remove(head.heap_bytes());
        Self { head, counted }
    }
}

impl Deref for ChangedHead<'_> {
    type Target = MessageHead;

    fn deref(&self) -> &MessageHead {
        self.head
    }
}

impl DerefMut for ChangedHead<'_> {
    fn deref_mut(&mut self) -> &mut MessageHead {
        self.head
    }
}

impl Drop for ChangedHead<'_> {
    fn drop(&mut self) {
        self.counted.add(self.head.heap_bytes());
    }
}

impl MessagesBySequence {
    /// Counts the messages. O(1).
    pub fn len(&self) -> usize {
        self.heads + self.stubs
    }

    /// Returns whether there are no messages. O(1).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the head of a sequence; none if its message is gone or a stub. O(log n).
    pub fn get(&self, sequence: u64) -> Option<&MessageHead> {
        let (page, bit) = place(sequence);
        let page = self.pages.get(&page).filter(|page| page.held & bit != 0)?;
        page.messages.get(page.index(bit))
    }

    /// The bytes of all heads. O(1).
    pub fn head_bytes(&self) -> usize {
        self.head_bytes.bytes()
    }

    /// The bytes of all stubs, with the order of their ends. O(1).
    pub fn stub_bytes(&self) -> usize {
        self.stub_bytes.bytes() + self.stub_ends.len() * in_tree(size_of::<(Timestamp, u64)>())
    }

    /// The bytes of the index of pages. O(1).
    pub fn page_bytes(&self) -> usize {
        self.pages.len() * in_tree(size_of::<(u64, MessagePage)>())
    }

    /// Returns the head of a sequence for a change. O(log n).
    pub fn get_mut(&mut self, sequence: u64) -> Option<ChangedHead<'_>> {
        let (page, bit) = place(sequence);
        let page = self.pages.get_mut(&page).filter(|page| page.held & bit != 0)?;
        let index = page.index(bit);
        Some(ChangedHead::new(page.messages.get_mut(index)?, &mut self.head_bytes))
    }

    /// Inserts the head of a message that has no stub; returns the replaced head of the same sequence. O(log n + 64).
    pub fn insert(&mut self, message: MessageHead) -> Option<MessageHead> {
        let (page, bit) = place(message.key.sequence);
        let page = self.pages.entry(page).or_default();
        let index = page.index(bit);
        self.head_bytes.add(message.heap_bytes());
        if page.held & bit != 0 {
            let replaced = std::mem::replace(&mut page.messages[index], message);
            self.head_bytes.remove(replaced.heap_bytes());
            return Some(replaced);
        }
        page.held |= bit;
        let before = page.head_room();
        page.messages.insert(index, message);
        self.head_bytes.replace(before, page.head_room());
        self.heads += 1;
        None
    }

    /// Removes a head. O(log n + 64).
    pub fn remove(&mut self, sequence: u64) -> Option<MessageHead> {
        let (number, bit) = place(sequence);
        let page = self.pages.get_mut(&number).filter(|page| page.held & bit != 0)?;
        let (index, before) = (page.index(bit), page.head_room());
        let message = page.messages.remove(index);
        page.held &= !bit;
        self.heads -= 1;
        if page.messages.len() <= page.messages.capacity() / 4 {
            page.messages.shrink_to_fit(); // a few messages of a page may stay for long
        }
        self.head_bytes.replace(before + message.heap_bytes(), page.head_room());
        if page.held | page.over() == 0 {
            self.pages.remove(&number);
        }
        Some(message)
    }

    /// Returns the stub of a sequence, if its message is over and has no head here. O(log n).
    pub fn stub(&self, sequence: u64) -> Option<Stub> {
        let (page, bit) = place(sequence);
        self.pages.get(&page)?.over.as_ref()?.get(sequence, bit)
    }

    /// Returns whether a sequence has a stub. O(log n).
    pub fn is_stub(&self, sequence: u64) -> bool {
        let (page, bit) = place(sequence);
        self.pages.get(&page).is_some_and(|page| page.over() & bit != 0)
    }

    /// Returns the hash of the id of a stub. O(log n).
    pub fn stub_id(&self, sequence: u64) -> Option<IdHash> {
        let (page, bit) = place(sequence);
        self.pages.get(&page)?.over.as_ref()?.id_of(bit)
    }

    /// Adds the stub of a sequence that has neither head nor stub; returns whether it fits into the page.
    /// O(log n + 64).
    pub fn insert_stub(&mut self, stub: &Stub) -> bool {
        self.insert_stubs(std::slice::from_ref(stub)).is_ok()
    }

    /// Adds stubs of one page; the error names the first that is not added. O(log n + 64), and 64 more for each that
    /// does not come in the order of sequences.
    pub fn insert_stubs(&mut self, stubs: &[Stub]) -> Result<(), StubMisfit> {
        let Some(first) = stubs.first() else { return Ok(()) };
        let number = page_of(first.key.sequence);
        let page = self.pages.entry(number).or_default();
        let (before, bytes, count) = (page.first_end(), page.stub_bytes(), page.over().count_ones());
        let heads = page.held;
        let over = page.over.get_or_insert_with(|| Box::new(StubPage::new(first)));
        let add = |stub: &Stub| {
            let (of, bit) = place(stub.key.sequence);
            debug_assert_eq!(of, number, "stubs of one page");
            match (heads | over.held()) & bit != 0 {
                true => Err(StubMisfit::Twice(stub.key.sequence)),
                false => over.insert(bit, stub).then_some(()).ok_or(StubMisfit::Unfit(stub.key.sequence)),
            }
        };
        let added = stubs.iter().try_for_each(add);
        if over.held() == 0 {
            page.over = None;
        }
        self.stub_bytes.replace(bytes, page.stub_bytes());
        self.stubs += (page.over().count_ones() - count) as usize;
        let after = page.first_end();
        if page.held | page.over() == 0 {
            self.pages.remove(&number);
        }
        self.move_end(number, before, after);
        added
    }

    /// Removes a stub. O(log n + 64).
    pub fn remove_stub(&mut self, sequence: u64) -> Option<Stub> {
        let stub = self.stub(sequence)?;
        let (number, bit) = place(sequence);
        let page = self.pages.get_mut(&number)?;
        let (before, bytes) = (page.first_end(), page.stub_bytes());
        let over = page.over.as_mut()?;
        over.remove(bit);
        if over.held() == 0 {
            page.over = None;
        }
        self.stub_bytes.replace(bytes, page.stub_bytes());
        let after = page.first_end();
        if page.held | page.over() == 0 {
            self.pages.remove(&number);
        }
        self.stubs -= 1;
        self.move_end(number, before, after);
        Some(stub)
    }

    fn move_end(&mut self, page: u64, before: Option<Timestamp>, after: Option<Timestamp>) {
        if before != after {
            if let Some(end) = before {
                self.stub_ends.remove(&(end, page));
            }
            self.stub_ends.extend(after.map(|end| (end, page)));
        }
    }

    /// Returns the end of the stub that ends first. O(1).
    pub fn earliest_stub_end(&self) -> Option<Timestamp> {
        self.stub_ends.first().map(|(at, _)| *at)
    }

    /// Returns the end of the stub that ends first, and its sequence: the lowest of those that end then. O(log n + 64).
    pub fn first_stub_end(&self) -> Option<(Timestamp, u64)> {
        let (first, page) = self.stub_ends.first()?;
        let page_of = self.pages.get(page)?;
        let over = page_of.over.as_ref()?;
        let mut ends = of_mask(*page, over.held()).zip(over.ends());
        ends.find(|(_, end)| end == first).map(|(sequence, end)| (end, sequence))
    }

    /// Returns the first stubs that end by a time, at most `max`, in the order of their ends and sequences. O(stubs of
    /// the pages in which some end).
    pub fn stubs_ended_by(&self, time: Timestamp, max: usize) -> Vec<u64> {
        let mut first: BinaryHeap<(Timestamp, u64)> = BinaryHeap::new();
        for (earliest, page) in self.stub_ends.range(..=(time, u64::MAX)) {
            if first.len() >= max && first.peek().is_some_and(|(last, _)| last < earliest) {
                break;
            }
            let Some(over) = self.pages.get(page).and_then(|page| page.over.as_ref()) else { continue };
            for (sequence, end) in of_mask(*page, over.held()).zip(over.ends()).filter(|(_, end)| *end <= time) {
                first.push((end, sequence));
                if first.len() > max {
                    first.pop();
                }
            }
        }
        first.into_sorted_vec().into_iter().map(|(_, sequence)| sequence).collect()
    }

    /// Returns the first sequence with a message after the given one. O(log n).
    pub fn next_after(&self, sequence: u64) -> Option<u64> {
        let mut pages = self.pages.range(place(sequence).0..);
        pages.find_map(|(number, page)| of_mask(*number, after(sequence, *number, page.held | page.over())).next())
    }

    /// Returns the highest sequence that the page of the newest message may have. O(log n).
    pub fn newest_possible(&self) -> u64 {
        self.pages.last_key_value().map_or(0, |(page, _)| page * PAGE + (PAGE - 1))
    }

    /// Iterates over all heads, by sequence.
    pub fn iter(&self) -> impl Iterator<Item = &MessageHead> {
        self.pages.values().flat_map(|page| &page.messages)
    }

    /// Iterates over all stubs, by sequence.
    pub fn stubs(&self) -> impl Iterator<Item = Stub> {
        self.stub_pages().flat_map(|(number, over)| {
            of_mask(number, over.held()).filter_map(|sequence| over.get(sequence, place(sequence).1))
        })
    }

    /// Iterates over the stubs of a page, by sequence. O(log n) for the first.
    pub fn stubs_of(&self, number: u64) -> impl Iterator<Item = Stub> {
        let over = self.pages.get(&number).and_then(|page| page.over.as_ref());
        over.into_iter().flat_map(move |over| {
            of_mask(number, over.held()).filter_map(|sequence| over.get(sequence, place(sequence).1))
        })
    }

    /// Iterates over the pages of stubs with their numbers.
    pub fn stub_pages(&self) -> impl Iterator<Item = (u64, &StubPage)> {
        self.pages.iter().filter_map(|(number, page)| Some((*number, page.over.as_deref()?)))
    }

    /// Counts the stubs of a page. O(log n).
    pub fn stubs_held(&self, number: u64) -> usize {
        self.pages.get(&number).map_or(0, |page| page.over().count_ones() as usize)
    }

    /// Iterates over the heads of a page, by sequence. O(log n) for the first.
    pub fn heads_of(&self, number: u64) -> impl Iterator<Item = &MessageHead> {
        self.pages.get(&number).into_iter().flat_map(|page| &page.messages)
    }
}

/// The page of a sequence.
pub const fn page_of(sequence: u64) -> u64 {
    sequence / PAGE
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
                let owned: usize = messages.iter().map(MessageHead::heap_bytes).sum();
                let room: usize = messages.pages.values().map(MessagePage::head_room).sum();
                prop_assert_eq!(messages.head_bytes(), owned + room);
            }
            prop_assert!(messages.iter().eq(wanted.values()));
            for sequence in 0..210 {
                prop_assert_eq!(messages.get(sequence), wanted.get(&sequence));
                let changed = messages.get_mut(sequence).map(|head| head.clone());
                prop_assert_eq!(changed.as_ref(), wanted.get(&sequence));
                let next = wanted.range(sequence + 1..).next().map(|(next, _)| *next);
                prop_assert_eq!(messages.next_after(sequence), next);
            }
        }
    }
}
