//! Lookup of messages by id without a second copy of the id. A few bits of the id's hash lead to the few sequences with
//! those bits, and each message is compared with the id, or with its hash where it is over. A shard has at most one
//! message per id, whatever routed it.

use std::collections::BTreeSet;

use crate::queue::allocation::in_shuffled_tree;
use crate::queue::index::sequence_pages::MessagesBySequence;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::id_hash::{IdHash, IdKey};
use crate::queue::messages::message::MessageHead;
use crate::queue::messages::message_id::MessageId;

/// The first bits of the hashes of the ids of all messages of a shard, each with the low bits of its sequence.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IdIndex {
    entries: BTreeSet<u64>,
    /// The number of messages that were not routed by their id.
    routed: usize,
    key: IdKey,
}

/// The bits of an entry that are the sequence's. A shard never has messages 2^40 sequences apart: those are years of a
/// million messages a second.
const SEQUENCE_BITS: u32 = 40;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;

/// The part that a shard has of the message of an id.
pub enum Found<'m> {
    /// Its head.
    Head(&'m MessageHead),
    /// Its stub: it is over, and the store has its head.
    Stub(Stub),
}

impl Found<'_> {
    /// The sequence of the message.
    #[cfg(test)]
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Head(head) => head.key.sequence,
            Self::Stub(stub) => stub.key.sequence,
        }
    }

    /// Whether something else than its id selected its shard.
    pub fn is_routed(&self) -> bool {
        match self {
            Self::Head(head) => head.routing.is_some(),
            Self::Stub(stub) => stub.is_routed,
        }
    }
}

/// The first 24 bits of the hash above the low 40 bits of the sequence. The casts truncate on purpose.
const fn entry_of(hash: IdHash, sequence: u64) -> u64 {
    first_bits(hash) | sequence & SEQUENCE_MASK
}

const fn first_bits(hash: IdHash) -> u64 {
    (hash.0 >> 64) as u64 & !SEQUENCE_MASK
}

/// The sequence of an entry: the newest possible one with these low bits.
const fn sequence_of(entry: u64, newest: u64) -> u64 {
    let sequence = newest & !SEQUENCE_MASK | entry & SEQUENCE_MASK;
    if sequence > newest { sequence.saturating_sub(1 << SEQUENCE_BITS) } else { sequence }
}

impl IdIndex {
    /// An index without messages that hashes ids under this key.
    pub fn new(key: IdKey) -> Self {
        Self { key, ..Self::default() }
    }

    /// The key under which ids are hashed.
    pub fn key(&self) -> &IdKey {
        &self.key
    }

    /// Builds the index; the error is the sequence of a message with a duplicate id. O(n log n).
    pub fn of(messages: &MessagesBySequence, key: IdKey) -> Result<Self, u64> {
        let heads = messages.iter().map(|head| (key.hash(&head.id), head.key.sequence, head.routing.is_some()));
        let stubs = messages.stubs().map(|stub| (stub.id, stub.key.sequence, stub.is_routed));
        let mut routed = 0;
        let entry = |(hash, sequence, is_routed)| {
            routed += usize::from(is_routed);
            entry_of(hash, sequence)
        };
        let mut entries: Vec<u64> = heads.chain(stubs).map(entry).collect();
        entries.sort_unstable();
        let (names, newest) = (Self { entries: BTreeSet::new(), routed: 0, key }, messages.newest_possible());
        // Whole hashes are compared only where their first bits are equal.
        let alike = entries.chunk_by(|one, other| one & !SEQUENCE_MASK == other & !SEQUENCE_MASK);
        for group in alike.filter(|group| group.len() > 1) {
            let whole = |entry: &u64| {
                let sequence = sequence_of(*entry, newest);
                names.hash_at(messages, sequence).map(|hash| (hash, sequence)).ok_or(sequence)
            };
            let mut hashes = group.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
            hashes.sort_unstable();
            if let Some([_, (_, twice)]) = hashes.array_windows().find(|[one, other]| one.0 == other.0) {
                return Err(*twice);
            }
        }
        Ok(Self { entries: entries.into_iter().collect(), routed, key })
    }

    fn hash_at(&self, messages: &MessagesBySequence, sequence: u64) -> Option<IdHash> {
        let of_head = || messages.get(sequence).map(|head| self.key.hash(&head.id));
        messages.stub_id(sequence).or_else(of_head)
    }

    /// Returns the message of an id. O(log n).
    pub fn find<'m>(&self, messages: &'m MessagesBySequence, id: &MessageId) -> Option<Found<'m>> {
        let (hash, newest) = (self.key.hash(id), messages.newest_possible());
        let like_it = self.entries.range(first_bits(hash)..=first_bits(hash) | SEQUENCE_MASK);
        like_it.map(|entry| sequence_of(*entry, newest)).find_map(|sequence| match messages.get(sequence) {
            Some(head) => (head.id == *id).then_some(Found::Head(head)),
            None => messages.stub(sequence).filter(|stub| stub.id == hash).map(Found::Stub),
        })
    }

    /// The bytes of the index. O(1).
    pub fn memory_bytes(&self) -> usize {
        self.entries.len() * in_shuffled_tree(size_of::<u64>())
    }

    /// Returns whether any message was not routed by its id. O(1).
    pub fn any_routed(&self) -> bool {
        self.routed > 0
    }

    /// Adds a message, whose id must be new. O(log n).
    pub fn insert(&mut self, message: &MessageHead) {
        let is_new = self.entries.insert(entry_of(self.key.hash(&message.id), message.key.sequence));
        self.routed += usize::from(is_new && message.routing.is_some());
    }

    /// Removes a message. O(log n).
    pub fn remove(&mut self, message: &MessageHead) {
        self.remove_hash(self.key.hash(&message.id), message.key.sequence, message.routing.is_some());
    }

    /// Removes a message that is a stub. O(log n).
    pub fn remove_stub(&mut self, stub: &Stub) {
        self.remove_hash(stub.id, stub.key.sequence, stub.is_routed);
    }

    fn remove_hash(&mut self, hash: IdHash, sequence: u64, is_routed: bool) {
        let was_there = self.entries.remove(&entry_of(hash, sequence));
        self.routed -= usize::from(was_there && is_routed);
    }

    /// Counts the messages. O(1).
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::messages::message::{MessageKey, RoutingValue};
    use crate::queue::messages::state_machine::MessageState;
    use crate::queue::tests::waiting as message;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).expect("a legal id")
    }

    #[test]
    fn a_message_is_found_by_its_id_whatever_routed_it() {
        let named = |text: &str, routing: Option<&str>, sequence| {
            let routing = routing.map(|value| RoutingValue::new(value).expect("a legal value"));
            MessageHead { id: id(text), routing, ..message(sequence) }
        };
        let (mut messages, mut names) = (MessagesBySequence::default(), IdIndex::default());
        assert!(!names.any_routed());
        for named in [named("a", None, 1), named("b", Some("x"), 2), named("c", Some("x"), 3)] {
            names.insert(&named);
            messages.insert(named);
        }
        let found = |names: &IdIndex, messages: &MessagesBySequence, text: &str| {
            names.find(messages, &id(text)).map(|message| message.sequence())
        };
        assert_eq!(["a", "b", "c", "d"].map(|id| found(&names, &messages, id)), [Some(1), Some(2), Some(3), None]);
        assert_eq!(IdIndex::of(&messages, IdKey::default()).as_ref(), Ok(&names));
        // One that is over is found by its hash, and is the same to the index.
        let over = MessageHead { state: MessageState::Completed, ..messages.remove(1).expect("it is there") };
        assert!(messages.insert_stub(&Stub::of(&over, names.key())));
        assert_eq!(found(&names, &messages, "a"), Some(1));
        assert_eq!(IdIndex::of(&messages, IdKey::default()).as_ref(), Ok(&names));
        names.remove(messages.get(2).expect("it is there"));
        assert_eq!((found(&names, &messages, "b"), names.len(), names.any_routed()), (None, 2, true));
        names.remove(messages.get(3).expect("it is there"));
        assert!(!names.any_routed(), "the one that is left went by its id");
        names.remove_stub(&messages.stub(1).expect("it is there"));
        assert_eq!((found(&names, &messages, "a"), names.len()), (None, 0));
    }

    #[test]
    fn a_name_that_comes_twice_is_noticed() {
        let mut messages = MessagesBySequence::default();
        for sequence in 1..4 {
            let routing = RoutingValue::new(&sequence.to_string()).ok().filter(|_| sequence > 1);
            messages.insert(MessageHead { id: id("a"), routing, ..message(sequence) });
        }
        assert_eq!(IdIndex::of(&messages, IdKey::default()), Err(2));
    }

    #[test]
    fn many_names_of_one_bucket_are_compared_without_comparing_each_with_each() {
        const MANY: u64 = 200_000;
        let mut messages = MessagesBySequence::default();
        let over = MessageHead { state: MessageState::Completed, ..message(1) };
        let stub = Stub::of(&over, &IdKey::default());
        for sequence in 1..=MANY {
            let key = MessageKey { sequence, ..stub.key };
            // All have the same first bits, and differ in the last ones.
            messages.insert_stub(&Stub { key, id: IdHash(7 << 120 | u128::from(sequence)), ..stub });
        }
        let names = IdIndex::of(&messages, IdKey::default()).expect("all differ");
        assert_eq!(names.len() as u64, MANY);
        let key = MessageKey { sequence: MANY + 1, ..stub.key };
        messages.insert_stub(&Stub { key, id: IdHash(7 << 120 | 5), ..stub });
        assert_eq!(IdIndex::of(&messages, IdKey::default()), Err(MANY + 1), "one comes twice");
    }

    #[test]
    fn names_of_one_bucket_are_told_apart_by_their_messages() {
        let mut messages = MessagesBySequence::default();
        messages.insert(message(1));
        messages.insert(message(2));
        let first = messages.get(1).expect("it is there");
        let bits = first_bits(IdKey::default().hash(&first.id));
        let names = IdIndex { entries: [bits | 1, bits | 2].into(), routed: 0, key: IdKey::default() };
        assert_eq!(names.find(&messages, &first.id).map(|found| found.sequence()), Some(1));
        assert!(names.find(&messages, &id("absent")).is_none());
    }

    #[test]
    fn a_sequence_is_the_newest_possible_one_with_its_low_bits() {
        for newest in [63, SEQUENCE_MASK, SEQUENCE_MASK + 64, 5 << SEQUENCE_BITS] {
            for back in [0, 1, 63, 1_000_000] {
                let Some(sequence) = u64::checked_sub(newest, back) else { continue };
                assert_eq!(sequence_of(entry_of(IdHash(u128::MAX), sequence), newest), sequence);
            }
        }
    }
}
