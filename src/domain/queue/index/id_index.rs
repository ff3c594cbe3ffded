//! Lookup of messages by id without a second copy of the id. A hash of the id leads to the few sequences with that
//! hash, and each message is compared with the id. A shard has at most one message per id, whatever routed it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::queue::index::sequence_pages::MessagesBySequence;
use crate::queue::messages::message::MessageHead;
use crate::queue::messages::message_id::MessageId;

/// The hashes of the ids of all messages of a shard, each with its sequence.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IdIndex {
    entries: BTreeSet<(u64, u64)>,
    /// The number of messages that were not routed by their id.
    routed: usize,
}

/// The hash of an id. It is the same in every process that runs the same code, and never leaves memory.
fn hash_of(id: &MessageId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

fn entry_of(message: &MessageHead) -> (u64, u64) {
    (hash_of(&message.id), message.key.sequence)
}

impl IdIndex {
    /// Builds the index; the error is the sequence of a message with a duplicate id. O(n log n).
    pub fn of(messages: &MessagesBySequence) -> Result<Self, u64> {
        let routed = messages.iter().filter(|message| message.routing.is_some()).count();
        let names = Self { entries: messages.iter().map(entry_of).collect(), routed };
        let name_of = |sequence| messages.get(sequence).map(|message| &message.id);
        let (mut of_hash, mut alike) = (0, Vec::<u64>::new());
        for (hash, sequence) in &names.entries {
            if *hash != of_hash {
                alike.clear(); // messages are compared only where hashes are equal
            }
            if alike.iter().any(|other| name_of(*other) == name_of(*sequence)) {
                return Err(*sequence);
            }
            of_hash = *hash;
            alike.push(*sequence);
        }
        Ok(names)
    }

    /// Returns the message of an id. O(log n).
    pub fn find<'a>(&self, messages: &'a MessagesBySequence, id: &MessageId) -> Option<&'a MessageHead> {
        let hash = hash_of(id);
        let like_it = self.entries.range((hash, 0)..=(hash, u64::MAX));
        let mut found = like_it.filter_map(|(_, sequence)| messages.get(*sequence));
        found.find(|message| message.id == *id)
    }

    /// Returns whether any message was not routed by its id. O(1).
    pub fn any_routed(&self) -> bool {
        self.routed > 0
    }

    /// Adds a message, whose id must be new. O(log n).
    pub fn insert(&mut self, message: &MessageHead) {
        let is_new = self.entries.insert(entry_of(message));
        self.routed += usize::from(is_new && message.routing.is_some());
    }

    /// Removes a message. O(log n).
    pub fn remove(&mut self, message: &MessageHead) {
        let was_there = self.entries.remove(&entry_of(message));
        self.routed -= usize::from(was_there && message.routing.is_some());
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
    use crate::queue::messages::message::RoutingValue;
    use crate::queue::tests::waiting as message;

    #[test]
    fn a_message_is_found_by_its_id_whatever_routed_it() {
        let named = |id: &str, routing: Option<&str>, sequence| {
            let routing = routing.map(|value| RoutingValue::new(value).expect("a legal value"));
            MessageHead { id: MessageId::new(id).expect("a legal id"), routing, ..message(sequence) }
        };
        let (mut messages, mut names) = (MessagesBySequence::default(), IdIndex::default());
        assert!(!names.any_routed());
        for named in [named("a", None, 1), named("b", Some("x"), 2), named("c", Some("x"), 3)] {
            names.insert(&named);
            messages.insert(named);
        }
        let found = |names: &IdIndex, id: &str| {
            let id = MessageId::new(id).expect("a legal id");
            names.find(&messages, &id).map(|message| message.key.sequence)
        };
        assert_eq!(["a", "b", "c", "d"].map(|id| found(&names, id)), [Some(1), Some(2), Some(3), None]);
        assert_eq!(IdIndex::of(&messages).as_ref(), Ok(&names));
        names.remove(messages.get(2).expect("it is there"));
        assert_eq!((found(&names, "b"), names.len(), names.any_routed()), (None, 2, true));
        names.remove(messages.get(3).expect("it is there"));
        assert!(!names.any_routed(), "the one that is left went by its id");
    }

    #[test]
    fn a_name_that_comes_twice_is_noticed() {
        let mut messages = MessagesBySequence::default();
        for sequence in 1..4 {
            let routing = RoutingValue::new(&sequence.to_string()).ok().filter(|_| sequence > 1);
            messages.insert(MessageHead { id: MessageId::new("a").expect("a legal id"), routing, ..message(sequence) });
        }
        assert_eq!(IdIndex::of(&messages), Err(2));
    }

    #[test]
    fn names_of_one_hash_are_told_apart_by_their_messages() {
        let mut messages = MessagesBySequence::default();
        messages.insert(message(1));
        messages.insert(message(2));
        let first = messages.get(1).expect("it is there");
        let hash = hash_of(&first.id);
        let names = IdIndex { entries: [(hash, 1), (hash, 2)].into(), routed: 0 };
        let found = names.find(&messages, &first.id);
        assert_eq!(found.map(|message| message.key.sequence), Some(1));
        let absent = MessageId::new("absent").expect("a legal id");
        assert_eq!(names.find(&messages, &absent), None);
    }
}
