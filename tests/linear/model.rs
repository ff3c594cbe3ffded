//! A shard as a plain list, written without a look at the one that is tested.

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

/// A shard: its messages in the order of their arrival, and how many leases it has given.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct List {
    items: Vec<Item>,
    leases: u64,
}

impl List {
    /// Applies a call and answers it.
    pub fn apply(&mut self, call: &Call) -> Answer {
        match call {
            Call::Enqueue { id, priority } => self.enqueue(id, *priority),
            Call::Dequeue { max } => Answer::Leased((0..*max).map_while(|_| self.lease_best()).collect()),
            Call::Settle { id, lease, verb } => self.settle(id, *lease, *verb),
            Call::Get { id } => {
                let found = self.items.iter().find(|item| item.id == *id);
                Answer::Found(found.map(|item| item.standing))
            }
        }
    }

    fn enqueue(&mut self, id: &str, priority: i64) -> Answer {
        let already = self.items.iter().any(|item| item.id == id);
        if !already {
            let (id, standing) = (id.to_owned(), Standing::Pending);
            self.items.push(Item { id, priority, standing, attempts: 0, releases: 0, lease: 0, settled: None });
        }
        Answer::Enqueued { already }
    }

    fn lease_best(&mut self) -> Option<(String, u32, u64)> {
        let pending = self.items.iter_mut().filter(|item| item.standing == Standing::Pending);
        let best = pending.min_by_key(|item| item.priority)?; // the first of equals
        self.leases += 1;
        (best.standing, best.attempts, best.lease) = (Standing::Running, best.attempts + 1, self.leases);
        Some((best.id.clone(), best.attempts, best.lease))
    }

    fn settle(&mut self, id: &str, lease: u64, verb: Verb) -> Answer {
        let Some(item) = self.items.iter_mut().find(|item| item.id == id) else { return Answer::LeaseLost };
        if let Some((settled, how, standing)) = item.settled
            && (settled, how) == (lease, verb)
        {
            return Answer::Settled(standing);
        }
        if item.standing != Standing::Running || item.lease != lease {
            return Answer::LeaseLost;
        }
        item.standing = match verb {
            Verb::Complete => Standing::Completed,
            Verb::Release if item.releases < RELEASES => {
                (item.releases, item.attempts) = (item.releases + 1, item.attempts - 1);
                Standing::Pending
            }
            Verb::Fail | Verb::Release if item.attempts < ATTEMPTS => Standing::Pending,
            Verb::Fail | Verb::Release => Standing::Errored,
        };
        item.settled = Some((lease, verb, item.standing));
        Answer::Settled(item.standing)
    }
}
