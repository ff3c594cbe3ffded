//! What readers of a loaded service saw, and whether it can be true.
//!
//! A count names the tokens that it holds, so each reading is compared with what became of every token of its counter:
//! what was acknowledged at or below its `as_of` is in it, and in an up-to-date one what was acknowledged before it began;
//! what never counts, was cleared before or is newer than an exact `as_of` is not; and for one reader `as_of` never goes
//! back. A token that was answered ALREADY_APPLIED may have reached the log late, so nothing is asked of it here: the ledger
//! holds it to the count in the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tallystone::proto::counter::v1::Exactness;
use uuid::Uuid;

use super::ledger::{Fate, Ledger, Tagged, What};

/// Wrong readings that a message shows.
const SHOWN_MAX: usize = 5;

/// One reading.
#[derive(Clone, PartialEq, Debug)]
pub struct Read {
    /// The counter.
    pub counter: String,
    /// Who read; its readings are kept in their order.
    pub reader: usize,
    /// Which server answered.
    pub server: usize,
    /// When it was asked for.
    pub begun: Duration,
    /// The count.
    pub count: i64,
    /// Its time, in microseconds since 1970.
    pub as_of: i64,
    /// Whether it says that it is behind.
    pub behind: bool,
    /// What kind of number it says it is.
    pub exactness: Exactness,
}

/// What was seen since the last check.
pub struct History {
    origin: Instant,
    reads: Vec<Read>,
    /// How many reads were refused, by reason.
    refused: BTreeMap<String, u64>,
    /// When adds were answered APPLIED, by token.
    acknowledged: BTreeMap<String, Duration>,
    /// From when on each acknowledged clear must show, by token.
    clears: BTreeMap<String, Duration>,
}

/// The newest `as_of` of a counter that one reader was told.
#[derive(Default)]
struct Told {
    newest: i64,
    by_server: BTreeMap<usize, i64>,
}

impl Told {
    /// Takes a reading in; answers whether its `as_of` goes back.
    fn goes_back(&mut self, read: &Read) -> Option<String> {
        let of_server = self.by_server.entry(read.server).or_default();
        let why = if read.as_of < *of_server {
            Some(format!("as_of went back from {of_server} on one server"))
        } else if read.as_of < self.newest && !read.behind {
            // Another server that has not come so far says so.
            Some(format!("as_of went back from {} for one reader, and is not called behind", self.newest))
        } else {
            None
        };
        *of_server = read.as_of.max(*of_server);
        self.newest = read.as_of.max(self.newest);
        why
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            reads: Vec::new(),
            refused: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            clears: BTreeMap::new(),
        }
    }
}

impl History {
    /// The time of this history.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Notes a reading.
    pub fn read(&mut self, read: Read) {
        self.reads.push(read);
    }

    /// Notes a read that was refused.
    pub fn refused(&mut self, reason: String) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// What there is, in words.
    pub fn summary(&self) -> String {
        format!(
            "{} readings, {} acknowledged adds; refused reads: {:?}",
            self.reads.len(),
            self.acknowledged.len(),
            self.refused
        )
    }

    /// Notes an add that was answered APPLIED by now.
    pub fn acknowledged(&mut self, token: &str) {
        let now = self.now();
        self.acknowledged.entry(token.to_owned()).or_insert(now);
    }

    /// Notes a clear that was acknowledged by now, and when at the latest it shows everywhere.
    pub fn cleared(&mut self, token: &str, visible_in: Duration) {
        let visible = self.now() + visible_in;
        self.clears.entry(token.to_owned()).or_insert(visible);
    }

    /// Forgets what was checked.
    pub fn forget(&mut self) {
        self.reads.clear();
        self.refused.clear();
        self.acknowledged.clear();
        self.clears.clear();
    }

    /// Compares all readings with what became of all tokens; answers how many there were.
    pub fn check(&self, ledger: &Ledger) -> Result<usize, String> {
        let mut wrong = Vec::new();
        let mut told: BTreeMap<(usize, &str), Told> = BTreeMap::new();
        for read in &self.reads {
            wrong.extend(self.fault_of(read, ledger).map(|why| format!("{why}: {read:?}")));
            let told = told.entry((read.reader, &read.counter)).or_default();
            wrong.extend(told.goes_back(read).map(|why| format!("{why}: {read:?}")));
        }
        if wrong.is_empty() {
            return Ok(self.reads.len());
        }
        let shown = wrong.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n");
        Err(format!("{} of {} readings cannot be true\n{shown}", wrong.len(), self.reads.len()))
    }

    fn fault_of(&self, read: &Read, ledger: &Ledger) -> Option<String> {
        let tokens = ledger.of(&read.counter);
        let sent: i64 = tokens.iter().map(|(tagged, _)| tagged.delta()).sum();
        if read.count & !sent != 0 {
            return Some(format!("no token adds {:#b}", read.count & !sent));
        }
        let adds = tokens.iter().filter(|(tagged, _)| tagged.what != What::Clear);
        adds.filter_map(|(tagged, fate)| {
            let why = if read.count & tagged.delta() != 0 {
                self.why_absent(read, tagged, *fate, tokens)
            } else {
                self.why_present(read, tagged, tokens)
            };
            why.map(|why| format!("{why}: {tagged:?} {fate:?}"))
        })
        .next()
    }

    /// Why a token must not be in a reading.
    fn why_absent(&self, read: &Read, tagged: &Tagged, fate: Fate, tokens: &[(Tagged, Fate)]) -> Option<&'static str> {
        if [Fate::NotApplied, Fate::Refused].contains(&fate) {
            return Some("it holds a token that never counts");
        }
        let shows = |clear: &Tagged| self.clears.get(&clear.token).is_some_and(|visible| *visible < read.begun);
        if clears_after(tagged, tokens).any(|(clear, _)| shows(clear)) {
            return Some("it holds what was cleared before it began");
        }
        let is_newer = read.exactness == Exactness::ExactAsOf && time_of(tagged) > read.as_of;
        is_newer.then_some("it holds what is newer than its time")
    }

    /// Why a token must be in a reading.
    fn why_present(&self, read: &Read, tagged: &Tagged, tokens: &[(Tagged, Fate)]) -> Option<&'static str> {
        let acknowledged = self.acknowledged.get(&tagged.token)?;
        let may_be_cleared = |fate: Fate| [Fate::Applied, Fate::Unknown].contains(&fate);
        if clears_after(tagged, tokens).any(|(_, fate)| may_be_cleared(*fate)) {
            return None;
        }
        match read.exactness {
            Exactness::UpToDate if *acknowledged < read.begun => Some("it lacks what was acknowledged before it began"),
            Exactness::UpToDate | Exactness::ExactAsOf if time_of(tagged) <= read.as_of => {
                Some("it lacks what was acknowledged at or below its time")
            }
            Exactness::UpToDate
            | Exactness::ExactAsOf
            | Exactness::Estimate
            | Exactness::Partial
            | Exactness::Unspecified => None,
        }
    }
}

/// The clears of a counter that were made after a token.
fn clears_after<'a>(tagged: &Tagged, tokens: &'a [(Tagged, Fate)]) -> impl Iterator<Item = &'a (Tagged, Fate)> {
    let token = tagged.token.clone();
    tokens.iter().filter(move |(other, _)| other.what == What::Clear && other.token > token)
}

/// The event time of a token, in microseconds since 1970.
fn time_of(tagged: &Tagged) -> i64 {
    let token = Uuid::parse_str(&tagged.token).expect("a UUID");
    let (seconds, nanos) = token.get_timestamp().expect("a UUIDv7").to_unix();
    i64::try_from(seconds * 1_000_000 + u64::from(nanos) / 1_000).expect("a time of this century")
}

#[cfg(test)]
mod laws {
    use super::*;

    /// Five tokens of one counter, a millisecond apart: three adds, a clear, and an add that was refused.
    struct World {
        ledger: Ledger,
        history: History,
        tokens: Vec<Tagged>,
    }

    const FIRST_MS: u64 = 1_800_000_000_000;

    fn at(n: u64) -> i64 {
        i64::try_from((FIRST_MS + n) * 1_000).expect("a time of this century")
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    impl World {
        fn new() -> Self {
            let (mut ledger, mut history) = (Ledger::default(), History::default());
            let mut tokens = Vec::new();
            let whats = [What::Bit(0), What::Bit(1), What::Clear, What::Bit(2), What::Bit(3)];
            for (n, what) in (0..).zip(whats) {
                let token = uuid::Builder::from_unix_timestamp_millis(FIRST_MS + n, &[7; 10]).into_uuid().to_string();
                let tagged = Tagged { counter: "c".to_owned(), what, token: token.clone() };
                let fate = if what == What::Bit(3) { Fate::Refused } else { Fate::Applied };
                let told = if what == What::Clear { &mut history.clears } else { &mut history.acknowledged };
                if fate == Fate::Applied {
                    told.insert(token, secs(10 * (n + 1)));
                }
                ledger.note(tagged.clone(), fate);
                tokens.push(tagged);
            }
            Self { ledger, history, tokens }
        }

        fn check(&mut self, reads: &[Read]) -> Result<usize, String> {
            self.history.reads = reads.to_vec();
            self.history.check(&self.ledger)
        }
    }

    fn read(begun: u64, count: i64, as_of: i64, exactness: Exactness) -> Read {
        let counter = "c".to_owned();
        Read { counter, reader: 0, server: 0, begun: secs(begun), count, as_of, behind: false, exactness }
    }

    #[test]
    fn what_can_be_true_is_taken() {
        let mut world = World::new();
        let reads = [
            read(1, 0, at(0) - 1, Exactness::ExactAsOf),
            // A token may show before its caller has heard of it.
            read(1, 3, at(0), Exactness::UpToDate),
            read(12, 1, at(0), Exactness::ExactAsOf),
            // A clear may show before its caller has heard of it, and has to afterwards.
            read(25, 0, at(1), Exactness::Estimate),
            read(31, 0, at(1), Exactness::Estimate),
            read(41, 4, at(1), Exactness::UpToDate),
            read(41, 4, at(3), Exactness::ExactAsOf),
        ];
        assert_eq!(world.check(&reads), Ok(7));
    }

    #[test]
    fn every_reading_that_cannot_be_true_is_found() {
        let exact = Exactness::ExactAsOf;
        for (wrong, words) in [
            (read(41, 0, at(4), exact), "lacks what was acknowledged at or below its time"),
            (read(41, 0, at(4), Exactness::UpToDate), "lacks what was acknowledged before it began"),
            (read(39, 0, at(3), Exactness::UpToDate), "lacks what was acknowledged at or below its time"),
            (read(41, 4, at(2), exact), "newer than its time"),
            (read(41, 12, at(4), exact), "never counts"),
            (read(41, 5, at(4), exact), "cleared before it began"),
            (read(31, 2, at(1), exact), "cleared before it began"),
            (read(41, 16, at(4), exact), "no token adds 0b10000"),
            (read(41, -4, at(4), exact), "no token adds"),
        ] {
            let found = World::new().check(std::slice::from_ref(&wrong)).expect_err("it cannot be true");
            assert!(found.contains(words), "{words}: {found}");
        }
    }

    #[test]
    fn an_as_of_that_goes_back_is_found() {
        let mut world = World::new();
        let (newer, older) = (read(41, 4, at(4), Exactness::ExactAsOf), read(42, 4, at(3), Exactness::ExactAsOf));
        let found = world.check(&[newer.clone(), Read { behind: true, ..older.clone() }]).expect_err("on one server");
        assert!(found.contains("on one server"), "{found}");
        let elsewhere = Read { server: 1, ..older.clone() };
        let found = world.check(&[newer.clone(), elsewhere.clone()]).expect_err("for one reader");
        assert!(found.contains("for one reader"), "{found}");
        assert!(world.check(&[newer.clone(), Read { behind: true, ..elsewhere }]).is_ok(), "it says that it is behind");
        assert!(world.check(&[newer, Read { reader: 1, ..older }]).is_ok(), "another reader saw nothing newer");
    }

    #[test]
    fn what_may_have_been_cleared_or_came_late_is_not_missed() {
        let mut world = World::new();
        world.history.acknowledged.remove(&world.tokens[3].token);
        let reads = [read(41, 0, at(4), Exactness::ExactAsOf), read(41, 0, at(4), Exactness::UpToDate)];
        assert_eq!(world.check(&reads), Ok(2), "it was found later, and is counted then");
        let reads = [read(21, 1, at(1), Exactness::ExactAsOf), read(21, 0, at(1), Exactness::ExactAsOf)];
        assert_eq!(world.check(&reads), Ok(2), "the clear may show or not while its caller waits");
    }
}
