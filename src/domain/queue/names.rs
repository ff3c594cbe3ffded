//! Finds the message of an id without keeping the id a second time: a hash of the name leads to the few sequences that have
//! it, and the message itself says whether it is the one.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::domain::queue::message::{Message, MessageId, Routing};
use crate::domain::queue::sequences::Messages;

/// The hashes of the names of all messages of a shard, each with its sequence.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Names(BTreeSet<(u64, u64)>);

/// What a message is found by. It is the same in every process that runs the same code, and never leaves memory.
fn hash_of(id: &MessageId, routing: Option<&Routing>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (id, routing).hash(&mut hasher);
    hasher.finish()
}

fn entry_of(message: &Message) -> (u64, u64) {
    (hash_of(&message.id, message.routing.as_ref()), message.key.sequence)
}

impl Names {
    /// The names of messages; the sequence of one whose name another has is an error. O(n log n).
    pub fn of(messages: &Messages) -> Result<Self, u64> {
        let names = Self(messages.iter().map(entry_of).collect());
        let name_of = |sequence| messages.get(sequence).map(|message| (&message.id, &message.routing));
        let (mut of_hash, mut alike) = (0, Vec::<u64>::new());
        for (hash, sequence) in &names.0 {
            if *hash != of_hash {
                alike.clear(); // messages are looked at only where hashes are the same
            }
            if alike.iter().any(|other| name_of(*other) == name_of(*sequence)) {
                return Err(*sequence);
            }
            of_hash = *hash;
            alike.push(*sequence);
        }
        Ok(names)
    }

    /// The message of a name. O(log n).
    pub fn find<'a>(&self, messages: &'a Messages, id: &MessageId, routing: Option<&Routing>) -> Option<&'a Message> {
        let hash = hash_of(id, routing);
        let like_it = self.0.range((hash, 0)..=(hash, u64::MAX));
        let mut found = like_it.filter_map(|(_, sequence)| messages.get(*sequence));
        found.find(|message| message.id == *id && message.routing.as_ref() == routing)
    }

    /// Takes a message in, whose name nobody has. O(log n).
    pub fn insert(&mut self, message: &Message) {
        self.0.insert(entry_of(message));
    }

    /// Takes a message out. O(log n).
    pub fn remove(&mut self, message: &Message) {
        self.0.remove(&entry_of(message));
    }

    /// How many there are. O(1).
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::queue::tests::waiting as message;

    #[test]
    fn a_name_is_an_id_and_what_routed_it() {
        let id = MessageId::new("a").expect("a legal id");
        let routed = |value: &str| Some(Routing::new(value).expect("a legal value"));
        let (mut messages, mut names) = (Messages::default(), Names::default());
        for (sequence, routing) in [(1, None), (2, routed("x")), (3, routed("y"))] {
            let named = Message { id: id.clone(), routing, ..message(sequence) };
            names.insert(&named);
            messages.insert(named);
        }
        let found = |names: &Names, routing: Option<Routing>| {
            names.find(&messages, &id, routing.as_ref()).map(|message| message.key.sequence)
        };
        assert_eq!(
            [None, routed("x"), routed("y"), routed("z")].map(|of| found(&names, of)),
            [Some(1), Some(2), Some(3), None]
        );
        assert_eq!(Names::of(&messages).as_ref(), Ok(&names));
        names.remove(messages.get(2).expect("it is there"));
        assert_eq!((found(&names, routed("x")), names.len()), (None, 2));
    }

    #[test]
    fn a_name_that_comes_twice_is_noticed() {
        let mut messages = Messages::default();
        for sequence in 1..4 {
            messages.insert(Message { id: MessageId::new("a").expect("a legal id"), ..message(sequence) });
        }
        assert_eq!(Names::of(&messages), Err(2));
    }

    #[test]
    fn names_of_one_hash_are_told_apart_by_their_messages() {
        let mut messages = Messages::default();
        messages.insert(message(1));
        messages.insert(message(2));
        let first = messages.get(1).expect("it is there");
        let hash = hash_of(&first.id, first.routing.as_ref());
        let names = Names([(hash, 1), (hash, 2)].into());
        let found = names.find(&messages, &first.id, None);
        assert_eq!(found.map(|message| message.key.sequence), Some(1));
        let absent = MessageId::new("absent").expect("a legal id");
        assert_eq!(names.find(&messages, &absent, None), None);
    }
}
