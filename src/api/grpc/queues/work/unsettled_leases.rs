//! The leases that a stream has sent and whose settlement it has not seen. Only the newest are tracked, so a worker
//! that settles its leases by unary calls does not leak memory. Untracked leases simply expire.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use tallystone_domain::limits::WORK_LEASES_KEPT_MAX;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::{QueueId, QueueName};

/// A lease that was sent on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentLease {
    pub queue: (QueueId, QueueName),
    pub key: MessageKey,
    /// The lease token, as text.
    pub token: String,
}

/// The unsettled leases of a stream.
#[derive(Default)]
pub struct UnsettledLeases {
    in_order: BTreeMap<u64, SentLease>,
    by_token: HashMap<String, u64>,
    by_message: HashMap<(QueueId, MessageKey), u64>,
    next: u64,
}

impl UnsettledLeases {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Adds a lease, and drops the oldest one above the bound. O(log n).
    pub fn add(&mut self, sent: SentLease) {
        if self.in_order.len() >= WORK_LEASES_KEPT_MAX
            && let Some((_, oldest)) = self.in_order.first_key_value()
        {
            let token = oldest.token.clone();
            self.remove(&token);
        }
        let number = self.next;
        self.next += 1;
        self.by_token.insert(sent.token.clone(), number);
        self.by_message.insert((sent.queue.0, sent.key), number);
        self.in_order.insert(number, sent);
    }

    /// Removes a lease by its token. O(log n).
    pub fn remove(&mut self, token: &str) {
        let Some(number) = self.by_token.remove(token) else { return };
        let Some(sent) = self.in_order.remove(&number) else { return };
        let message = (sent.queue.0, sent.key);
        // The message may have been leased again on the same stream.
        if self.by_message.get(&message) == Some(&number) {
            self.by_message.remove(&message);
        }
    }

    /// Returns the token of the newest lease of a message.
    pub fn token_of(&self, queue: QueueId, key: MessageKey) -> Option<&str> {
        let number = self.by_message.get(&(queue, key))?;
        self.in_order.get(number).map(|sent| sent.token.as_str())
    }

    /// Takes so many of the newest leases, newest first.
    pub fn take_newest(&mut self, count: usize) -> Vec<SentLease> {
        let newest = self.in_order.values().rev().take(count).cloned().collect::<Vec<_>>();
        newest.iter().for_each(|sent| self.remove(&sent.token));
        newest
    }

    /// Takes all leases, oldest first.
    pub fn take_all(&mut self) -> Vec<SentLease> {
        std::mem::take(self).in_order.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u64) -> SentLease {
        let name = QueueName::new("mail").expect("a valid name");
        let key = MessageKey { shard: 0, epoch: 1, sequence: number % 10_000 };
        SentLease { queue: (QueueId(1), name), key, token: format!("t-{number}") }
    }

    #[test]
    fn the_newest_leases_are_remembered() {
        let mut held = UnsettledLeases::default();
        let most = u64::try_from(WORK_LEASES_KEPT_MAX).expect("small");
        (0..most + 5).for_each(|number| held.add(sent(number)));
        assert_eq!(held.token_of(QueueId(1), sent(4).key), None);
        assert_eq!(held.token_of(QueueId(1), sent(5).key), Some("t-5"));
        assert_eq!(held.take_all().len(), WORK_LEASES_KEPT_MAX);
        assert!(held.is_empty() && held.by_token.is_empty() && held.by_message.is_empty());
    }

    #[test]
    fn the_newest_leases_can_be_taken_back() {
        let mut held = UnsettledLeases::default();
        (0..5).for_each(|number| held.add(sent(number)));
        assert_eq!(held.take_newest(2), [sent(4), sent(3)]);
        assert_eq!(held.take_newest(9).len(), 3);
        assert!(held.is_empty() && held.by_token.is_empty() && held.by_message.is_empty());
    }

    #[test]
    fn a_message_that_was_leased_again_is_known_by_its_newest_lease() {
        let mut held = UnsettledLeases::default();
        held.add(sent(1));
        held.add(sent(10_001));
        held.remove("t-1");
        assert_eq!(held.token_of(QueueId(1), sent(1).key), Some("t-10001"));
        held.remove("t-10001");
        held.remove("t-10001");
        assert!(held.is_empty() && held.by_message.is_empty());
    }
}
