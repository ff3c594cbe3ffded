//! What clients were told, and the laws that all of it has to keep, for ever.
//!
//! Every add of a counter has a power of two of its own as its delta, so a count says by itself which adds are in it, and
//! one that is in it twice shows as another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::EventKey;
use tallystone_domain::rollup::{CountReading, Exactness};

/// The adds that one counter can tell apart.
pub const ADDS_OF_A_COUNTER: u32 = 60;

/// The time after which no reading shows the effect of a refused clear.
const REFUSED_IS_GONE_AFTER: Duration = Duration::from_secs(30);

/// The number of a change in the ledger.
pub type Number = usize;

/// What a token changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Adds the power of two with this exponent.
    Add(u32),
    Clear,
}

/// How it came to be known that a change is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// A write was answered with APPLIED.
    Acknowledged,
    /// A repeat or a CheckToken found it.
    Found,
}

/// A change and what was told of it.
#[derive(Clone, Debug)]
pub struct Change {
    pub counter: usize,
    pub kind: Kind,
    pub key: EventKey,
    pub acknowledged: Option<Duration>,
    pub found: Option<Duration>,
    pub refused: Option<Duration>,
    /// Where a clear was not heard of by all caches: the server that says so, and from when on all others show it.
    pub late: Option<(usize, Duration)>,
}

impl Change {
    /// From when on a server has to show it to whoever asks; none if it was not acknowledged.
    fn shown_by(&self, server: usize) -> Option<Duration> {
        let acknowledged = self.acknowledged?;
        let late = self.late.filter(|(by, _)| *by != server);
        Some(late.map_or(acknowledged, |(_, from)| acknowledged.max(from)))
    }

    /// Whether it is known to be applied.
    pub fn is_applied(&self) -> bool {
        self.acknowledged.is_some() || self.found.is_some()
    }

    /// Whether anything final was told of it.
    pub fn is_settled(&self) -> bool {
        self.is_applied() || self.refused.is_some()
    }
}

/// A reading that a client got.
#[derive(Clone, Debug)]
pub struct Seen {
    pub counter: usize,
    /// When the client asked.
    pub asked: Duration,
    pub reading: CountReading,
    /// Which process answered.
    pub server: usize,
    /// The newest as_of that the client had been told of the counter, which it sent along.
    pub at_least: Option<Timestamp>,
}

/// The ledger. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    changes: Vec<Change>,
    seen: Vec<Seen>,
    broken: Vec<String>,
    adds: BTreeMap<usize, u32>,
    /// What each server told of each counter: when, and as of when.
    told: BTreeMap<(usize, usize), Vec<(Duration, Timestamp)>>,
}

impl Ledger {
    /// The exponent of the next add of a counter, if there is one left.
    pub fn next_add(&self, counter: usize) -> Option<u32> {
        let mut book = self.0.lock();
        let adds = book.adds.entry(counter).or_insert(0);
        (*adds < ADDS_OF_A_COUNTER).then(|| {
            *adds += 1;
            *adds - 1
        })
    }

    /// Begins a change.
    pub fn begin(&self, counter: usize, kind: Kind, key: EventKey) -> Number {
        let mut book = self.0.lock();
        book.changes.push(Change { counter, kind, key, acknowledged: None, found: None, refused: None, late: None });
        book.changes.len() - 1
    }

    /// A copy of a change.
    pub fn change(&self, number: Number) -> Change {
        self.0.lock().changes[number].clone()
    }

    /// All changes.
    pub fn changes(&self) -> Vec<Change> {
        self.0.lock().changes.clone()
    }

    /// Somebody was told that a change is applied.
    pub fn applied(&self, number: Number, how: How, now: Duration) {
        let mut book = self.0.lock();
        let change = &mut book.changes[number];
        match how {
            How::Acknowledged => change.acknowledged.get_or_insert(now),
            How::Found => change.found.get_or_insert(now),
        };
        if let Some(refused) = change.refused {
            let why = format!(
                "{now:?}: change {number} is applied ({how:?}), and was refused for good at {refused:?}: {change:?}"
            );
            book.broken.push(why);
        }
    }

    /// Somebody was told that a clear shows on other servers from a time on.
    pub fn shows_late(&self, number: Number, server: usize, from: Duration) {
        let mut book = self.0.lock();
        let late = &mut book.changes[number].late;
        *late = Some((server, late.map_or(from, |(_, known)| known.max(from))));
    }

    /// Somebody was told that a change was not applied and never will be.
    pub fn refused(&self, number: Number, now: Duration) {
        let mut book = self.0.lock();
        let change = &mut book.changes[number];
        change.refused.get_or_insert(now);
        if change.is_applied() {
            let why = format!("{now:?}: change {number} is refused for good, and was applied: {change:?}");
            book.broken.push(why);
        }
    }

    /// A client got a reading. Within one server the as_of of a counter never goes back; over several it may, and then the
    /// reading says that it is behind.
    pub fn seen(&self, seen: Seen, now: Duration) {
        let mut book = self.0.lock();
        let told = book.told.entry((seen.server, seen.counter)).or_default();
        let before = told.iter().filter(|(answered, _)| *answered <= seen.asked).map(|(_, as_of)| *as_of).max();
        told.push((now, seen.reading.as_of));
        if before.is_some_and(|before| seen.reading.as_of < before) {
            book.broken.push(format!("as_of went back within one server, from {before:?}: {seen:?}"));
        }
        if let Some(at_least) = seen.at_least
            && seen.reading.as_of < at_least
            && !seen.reading.behind
        {
            book.broken.push(format!("as_of went back below {at_least:?} and the reading does not say so: {seen:?}"));
        }
        book.seen.push(seen);
    }

    /// A law was broken that the ledger does not look at itself.
    pub fn broke(&self, why: String) {
        self.0.lock().broken.push(why);
    }

    /// What was broken so far.
    pub fn broken(&self) -> Vec<String> {
        self.0.lock().broken.clone()
    }

    /// How many changes were acknowledged, found, refused and left open, and how many readings there are.
    pub fn summary(&self) -> [usize; 5] {
        let book = self.0.lock();
        let count = |is: fn(&Change) -> bool| book.changes.iter().filter(|change| is(change)).count();
        [
            count(|change| change.acknowledged.is_some()),
            count(|change| change.acknowledged.is_none() && change.found.is_some()),
            count(|change| change.refused.is_some()),
            count(|change| !change.is_settled()),
            book.seen.len(),
        ]
    }

    /// Looks at every reading again, once everything is settled.
    pub fn audit(&self) {
        let mut book = self.0.lock();
        let mut found = Vec::new();
        for seen in &book.seen {
            let of_counter: Vec<&Change> =
                book.changes.iter().filter(|change| change.counter == seen.counter).collect();
            found.extend(audit_one(&of_counter, seen));
        }
        book.broken.extend(found);
    }

    /// What a counter has to come to in the end.
    pub fn expected(&self, counter: usize) -> i64 {
        let book = self.0.lock();
        let applied = || book.changes.iter().filter(|change| change.counter == counter && change.is_applied());
        let cleared = applied().filter(|change| change.kind == Kind::Clear).map(|change| &change.key).max();
        let counts = applied().filter(|change| cleared.is_none_or(|clear| change.key > *clear));
        counts.map(|change| if let Kind::Add(bit) = change.kind { 1_i64 << bit } else { 0 }).sum()
    }
}

/// What is wrong with a reading.
fn audit_one(changes: &[&Change], seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let reading = &seen.reading;
    let exact = match reading.exactness {
        Exactness::ExactAsOf => Some(false),
        Exactness::UpToDate => Some(true),
        Exactness::Estimate | Exactness::Partial => None,
    };
    let issued: i64 =
        changes.iter().map(|change| if let Kind::Add(bit) = change.kind { 1_i64 << bit } else { 0 }).sum();
    if reading.count & !issued != 0 {
        wrong.push(format!("a count holds what nobody added: {seen:?}"));
        return wrong;
    }
    for change in changes {
        let Kind::Add(bit) = change.kind else { continue };
        let is_in = reading.count >> bit & 1 == 1;
        let cleared = |sure: bool| {
            changes.iter().any(|clear| {
                let known = match sure {
                    true => clear.shown_by(seen.server).is_some_and(|at| at <= seen.asked),
                    false => clear.is_applied(),
                };
                clear.kind == Kind::Clear && clear.key > change.key && known
            })
        };
        if is_in && !change.is_applied() {
            wrong.push(format!("a count holds {change:?}: {seen:?}"));
        }
        if is_in && cleared(true) {
            wrong.push(format!("a count holds {change:?} after a clear above it was acknowledged: {seen:?}"));
        }
        if exact == Some(false) && is_in && change.key.time > reading.as_of {
            wrong.push(format!("a count as of an earlier time holds {change:?}: {seen:?}"));
        }
        let due = match exact {
            Some(false) => change.acknowledged.is_some() && change.key.time <= reading.as_of,
            Some(true) => change.acknowledged.is_some_and(|at| at <= seen.asked),
            None => false,
        };
        if due && !is_in && !cleared(false) {
            wrong.push(format!("a count lacks {change:?}: {seen:?}"));
        }
        let is_told = change.acknowledged.is_some() && change.key.time <= reading.as_of;
        let refused = |clear: &&&Change| {
            let is_over = clear.refused.is_some_and(|at| at + REFUSED_IS_GONE_AFTER <= seen.asked);
            clear.kind == Kind::Clear && clear.key > change.key && is_over
        };
        if let Some(clear) = changes.iter().find(refused)
            && is_told
            && reading.exactness != Exactness::Partial
            && !is_in
            && !cleared(false)
        {
            wrong.push(format!("a count shows the effect of {clear:?} long after its refusal: {seen:?}"));
        }
    }
    wrong
}
