//! What is known of the messages of an exclusive queue, and what therefore must not be answered.

use std::collections::BTreeMap;

use tallystone::proto::queue::v1::{Lease, Message, MessageState, Verb};

use super::super::queues::CheckError;

/// A settlement that was sent, until it is answered.
#[derive(Clone, Debug)]
pub struct Settling {
    pub id: String,
    pub token: String,
    pub verb: Verb,
    pub sent_before: bool,
}

/// What is known of one message.
#[derive(Clone, Default, Debug)]
pub struct Known {
    value: String,
    priority: i64,
    /// A moment before it was sent.
    sent: u64,
    /// A moment after it was acknowledged.
    taken: Option<u64>,
    /// Since when it waits for certain, until somebody is known to have leased it.
    waits_since: Option<u64>,
    pub attempts: i32,
    releases: u32,
    /// The last lease that was answered, until its end was.
    pub open: Option<String>,
    /// The settlement of that lease that was sent.
    pub ending: Option<Verb>,
    pub completed: bool,
}

impl Known {
    /// Whether its lease holds for certain.
    fn is_held(&self) -> bool {
        self.open.is_some() && self.ending.is_none()
    }

    /// Takes in that the lease has ended so.
    fn end(&mut self, verb: Verb) {
        (self.open, self.ending) = (None, None);
        self.completed = verb == Verb::Complete;
        if verb == Verb::Release && self.releases < 10 {
            self.releases += 1;
            self.attempts -= 1;
        }
    }

    /// Where it must stand once every call has its answer.
    pub fn state(&self) -> MessageState {
        match (self.completed, self.open.is_some()) {
            (true, _) => MessageState::Completed,
            (false, true) => MessageState::Running,
            (false, false) => MessageState::Pending,
        }
    }
}

/// All messages, and moments that only grow.
#[derive(Default)]
pub struct Ledger {
    moment: u64,
    pub messages: BTreeMap<String, Known>,
}

impl Ledger {
    pub fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    pub fn known(&mut self, id: &str) -> &mut Known {
        self.messages.get_mut(id).expect("it was sent by somebody here")
    }

    pub fn send(&mut self, message: &Message) {
        let (value, priority) = (message.metadata["value"].clone(), message.priority.unwrap_or_default());
        let known = Known { value, priority, sent: self.tick(), ..Known::default() };
        self.messages.insert(message.message_id.clone(), known);
    }

    pub fn taken(&mut self, id: &str) {
        let moment = self.tick();
        let known = self.known(id);
        known.taken = Some(moment);
        let is_untouched = known.attempts == 0 && known.releases == 0 && !known.completed;
        if is_untouched {
            known.waits_since = Some(moment);
        }
    }

    /// Notes a lease that a call gave which began at this moment.
    pub fn leased(&mut self, began: u64, lease: &Lease) -> Result<(), CheckError> {
        let message = lease.message.clone().unwrap_or_default();
        let Some(known) = self.messages.get_mut(&message.message_id) else {
            return wrong(format!("a message that nobody sent: {message:?}"));
        };
        if known.completed || known.is_held() || known.ending == Some(Verb::Complete) {
            return wrong(format!("served although it is not to be: {known:?}, {lease:?}"));
        }
        if let Some(verb) = known.ending {
            known.end(verb); // its settlement was heard, or nobody could lease it
        }
        known.attempts += 1;
        (known.open, known.waits_since) = (Some(lease.lease_token.clone()), None);
        let known = known.clone();
        if lease.attempt_number != known.attempts || message.payload != message.message_id.as_bytes() {
            return wrong(format!("another attempt or payload than was to come: {known:?}, {lease:?}"));
        }
        let others =
            self.messages.iter().filter(|(id, other)| **id != message.message_id && other.value == known.value);
        for (id, other) in others {
            if other.is_held() {
                return wrong(format!("its value is with another worker: {known:?}, {id}: {other:?}"));
            }
            let is_before = other.priority < known.priority
                || (other.priority == known.priority && other.taken.is_some_and(|taken| taken < known.sent));
            if is_before && other.waits_since.is_some_and(|since| since < began) {
                return wrong(format!("a message of its value comes first: {known:?}, {id}: {other:?}"));
            }
        }
        Ok(())
    }

    /// Notes that a settlement was answered.
    pub fn settled(&mut self, settling: &Settling) {
        let moment = self.tick();
        let known = self.known(&settling.id);
        // Somebody else may have it already.
        if known.open.as_ref() == Some(&settling.token) {
            known.end(settling.verb);
            known.waits_since = (!known.completed).then_some(moment);
        }
    }
}

pub fn wrong<T>(text: String) -> Result<T, CheckError> {
    Err(CheckError::Mismatch(text))
}
