//! A shard as a plain list, written without a look at the one that is tested.

use std::collections::BTreeMap;

/// How a lease ends. A failure comes without delay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// The work is done.
    Complete,
    /// The work failed.
    Fail,
    /// The work was not begun.
    Release,
}

/// What is asked of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// Takes a message in.
    Enqueue { id: String, priority: i64 },
    /// Leases so many.
    Dequeue { max: usize },
    /// Ends the lease of this number.
    Settle { id: String, lease: u64, verb: Verb },
    /// Reads the state of a message.
    Get { id: String },
}

/// Where a message stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    Pending,
    Running,
    Completed,
    Errored,
}

/// What a shard answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The message is there; whether it was before.
    Enqueued { already: bool },
    /// Message, number of the attempt and number of the lease of each.
    Leased(Vec<(String, u32, u64)>),
    /// Where the settlement left the message.
    Settled(Standing),
    /// The lease is not the message's.
    LeaseLost,
    /// The state; none if there is no such message.
    Found(Option<Standing>),
}

/// The attempts of a message, as the queues of these tests have them.
pub const ATTEMPTS: u32 = 3;
/// The releases that give the attempt back.
const RELEASES: u32 = 10;

/// One message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Item {
    id: String,
    priority: i64,
    standing: Standing,
    attempts: u32,
    releases: u32,
    lease: u64,
    settled: Option<(u64, Verb, Standing)>,
}

/// A shard: its messages, and how many leases it has given. Shards that answer alike from now on are equal: nobody can tell
/// any more in what order messages of different priorities came, or those that are finished.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct List {
    /// The ones to be leased, now or after a lease ends, in the order they are served.
    open: Vec<Item>,
    finished: BTreeMap<String, Item>,
    leases: u64,
}

impl List {
    /// Applies a call and answers it.
    pub fn apply(&mut self, call: &Call) -> Answer {
        match call {
            Call::Enqueue { id, priority } => self.enqueue(id, *priority),
            Call::Dequeue { max } => Answer::Leased((0..*max).map_while(|_| self.lease_best()).collect()),
            Call::Settle { id, lease, verb } => self.settle(id, *lease, *verb),
            Call::Get { id } => Answer::Found(self.find(id).map(|item| item.standing)),
        }
    }

    fn find(&self, id: &str) -> Option<&Item> {
        self.open.iter().find(|item| item.id == id).or_else(|| self.finished.get(id))
    }

    fn enqueue(&mut self, id: &str, priority: i64) -> Answer {
        let already = self.find(id).is_some();
        if !already {
            let (id, standing) = (id.to_owned(), Standing::Pending);
            let item = Item { id, priority, standing, attempts: 0, releases: 0, lease: 0, settled: None };
            let behind_equals = self.open.partition_point(|other| other.priority <= priority);
            self.open.insert(behind_equals, item);
        }
        Answer::Enqueued { already }
    }

    fn lease_best(&mut self) -> Option<(String, u32, u64)> {
        let best = self.open.iter_mut().find(|item| item.standing == Standing::Pending)?;
        self.leases += 1;
        (best.standing, best.attempts, best.lease) = (Standing::Running, best.attempts + 1, self.leases);
        Some((best.id.clone(), best.attempts, best.lease))
    }

    fn settle(&mut self, id: &str, lease: u64, verb: Verb) -> Answer {
        let Some(item) = self.find(id) else { return Answer::LeaseLost };
        if let Some((settled, how, standing)) = item.settled
            && (settled, how) == (lease, verb)
        {
            return Answer::Settled(standing);
        }
        let at = self
            .open
            .iter()
            .position(|item| item.id == id && item.standing == Standing::Running && item.lease == lease);
        let Some(at) = at else { return Answer::LeaseLost };
        let item = &mut self.open[at];
        item.standing = match verb {
            Verb::Complete => Standing::Completed,
            Verb::Release if item.releases < RELEASES => {
                (item.releases, item.attempts) = (item.releases + 1, item.attempts - 1);
                Standing::Pending
            }
            Verb::Fail | Verb::Release if item.attempts < ATTEMPTS => Standing::Pending,
            Verb::Fail | Verb::Release => Standing::Errored,
        };
        let standing = item.standing;
        item.settled = Some((lease, verb, standing));
        if standing != Standing::Pending {
            let item = self.open.remove(at);
            self.finished.insert(item.id.clone(), item);
        }
        Answer::Settled(standing)
    }
}
