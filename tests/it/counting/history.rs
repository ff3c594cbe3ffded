//! Random histories against what was acknowledged: adds, batches, repeats, late and future tokens, clears, checks, reads,
//! calls at once, callers that go away, jumps of the clock, engines that are killed; under a TTL, with Sets that overflow,
//! with slices that are dropped meanwhile. A failing history prints its seed; `replay` runs one alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::counter::{Change, Counter, IdempotencyToken, NamespaceId, Provenance};
use tallystone::domain::namespace::NamespaceSpec;
use tallystone::domain::rollup::{CountReading, Exactness, Freshness, ReadOptions, SliceStatus};
use tallystone::domain::{Reason, Timestamp};
use tallystone::engine::counting::{Add, Clear, CountingError, TokenVerdict, Written};
use tallystone::ports::Entropy;
use tokio::task::JoinHandle;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, replay_all, spec, token};

const STEPS: usize = 150;

/// What a history runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ground {
    Plain,
    Ttl,
    /// More counters than the Set holds.
    TightSet,
    /// Slices of 20 seconds that are dropped after a minute.
    ShortSlices,
}

/// What became of a token, as far as the caller was told. Between steps, an open one is not in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Applied,
    Never,
    Open,
}

struct Known {
    counter: String,
    token: IdempotencyToken,
    change: Change,
    fate: Fate,
}

/// A reading, and which clears it had to show, and which it may have shown.
struct Seen {
    counter: String,
    reading: CountReading,
    cleared: Option<Timestamp>,
    perhaps_cleared: Option<Timestamp>,
}

struct History {
    ground: Ground,
    house: House,
    log: Arc<SlowLog>,
    counters: Vec<String>,
    random: SeededEntropy,
    known: Vec<Known>,
    seen: Vec<Seen>,
    newest_as_of: BTreeMap<String, Timestamp>,
    newest_now: Timestamp,
}

impl Ground {
    fn spec(self) -> NamespaceSpec {
        let mut spec = spec("shop");
        match self {
            Self::Plain => {}
            Self::Ttl => spec.ttl = Some(12 * SECOND),
            Self::TightSet => {
                spec.rollup.num_queues = 1;
                spec.rollup.capacity_bytes = 4_096;
            }
            Self::ShortSlices => {
                spec.dataset.seconds_per_slice = 20;
                spec.dataset.close_after = 30 * SECOND;
                spec.dataset.delete_after = 60 * SECOND;
                spec.partition.seconds_per_bucket = 10;
                // Only the gate keeps a slice until the rolls have come around to it.
                spec.rollup.coalesce_ms = 120_000;
            }
        }
        spec
    }

    fn counters(self) -> Vec<String> {
        match self {
            Self::Plain | Self::Ttl | Self::ShortSlices => ["a", "b", "c"].map(str::to_owned).to_vec(),
            Self::TightSet => {
                // All in one touch shard, so that one replay offers more than the Set holds.
                let in_shard = |name: &String| Counter::new(NamespaceId(1), counter(name)).touch_shard() == 0;
                (0..).map(|n| format!("{n:0>250}")).filter(in_shard).take(20).collect()
            }
        }
    }
}

impl History {
    fn below(&self, bound: u64) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes) % bound
    }

    fn pick(&self, of: usize) -> usize {
        usize::try_from(self.below(of as u64)).expect("a small number")
    }

    fn counter(&self) -> String {
        self.counters[self.pick(self.counters.len())].clone()
    }

    async fn step(&mut self) {
        match self.below(100) {
            0..=25 => {
                let at = self.new_change();
                self.write(at).await;
            }
            26..=31 => self.batch().await,
            32..=39 => self.at_once().await,
            40..=49 if !self.known.is_empty() => self.write(self.pick(self.known.len())).await,
            50..=57 if !self.known.is_empty() => self.check(self.pick(self.known.len())).await,
            40..=77 => self.read().await,
            78..=94 => self.house.pass(Duration::from_millis(self.below(2_500))).await,
            95 => self.jump(),
            96..=97 => self.restart().await,
            _ => self.house.pass(9 * SECOND).await,
        }
        self.newest_now = self.newest_now.max(self.house.now());
        self.settle_the_old().await;
    }

    /// A change that nobody has asked for yet.
    fn new_change(&mut self) -> usize {
        let age = Duration::from_millis(self.below(9_000));
        let time = self.house.now() + 2 * SECOND - age;
        let change = if self.below(8) == 0 { Change::Clear } else { Change::Add(1 << self.below(40)) };
        let token = token(&format!("t{}", self.known.len()), time);
        self.known.push(Known { counter: self.counter(), token, change, fate: Fate::Open });
        self.known.len() - 1
    }

    fn send(&self, at: usize) -> JoinHandle<Result<Written, CountingError>> {
        let Known { counter: name, token, change, .. } = &self.known[at];
        let (name, token, provenance) = (counter(name), Some(token.clone()), Provenance::default());
        let (counting, shop) = (self.house.counting.clone(), self.house.shop.clone());
        match *change {
            Change::Add(delta) => {
                tokio::spawn(async move { counting.add(&shop, Add { name, delta, token, provenance }).await })
            }
            Change::Clear => {
                tokio::spawn(async move { counting.clear(&shop, Clear { name, token, provenance }).await })
            }
            Change::Void | Change::Total(_) => unreachable!("histories write adds and clears"),
        }
    }

    async fn write(&mut self, at: usize) {
        let call = self.send(at);
        let answer = self.house.drive(call).await.expect("no panic");
        self.told(at, answer);
    }

    fn told(&mut self, at: usize, answer: Result<Written, CountingError>) {
        let fate = self.known[at].fate;
        let now = match answer {
            Ok(_) => Fate::Applied,
            Err(refused) => match refused.reason() {
                Reason::NotApplied => Fate::Never,
                Reason::Pending | Reason::InvalidFutureTime => fate,
                Reason::TooOld if self.ground == Ground::ShortSlices && fate != Fate::Open => fate,
                other => panic!("{other}: {refused}"),
            },
        };
        self.settle(at, now);
    }

    async fn batch(&mut self) {
        let mut items: Vec<usize> = (0..2 + self.below(4)).map(|_| self.new_change()).collect();
        items.extend((0..self.below(3)).map(|_| self.pick(self.known.len())));
        items.retain(|at| matches!(self.known[*at].change, Change::Add(_)));
        let item = |at: &usize| {
            let Known { counter: name, token, change, .. } = &self.known[*at];
            let (name, token) = (counter(name), Some(token.clone()));
            Ok(Add { name, delta: change.delta(), token, provenance: Provenance::default() })
        };
        let call = self.house.counting.batch_add(&self.house.shop, items.iter().map(item).collect());
        let answers = self.house.drive(call).await.expect("the namespace is there");
        assert_eq!(answers.len(), items.len());
        for (at, answer) in items.into_iter().zip(answers) {
            self.told(at, answer);
        }
    }

    /// Several calls in flight while time passes, reads among them; some callers go away.
    async fn at_once(&mut self) {
        let mut items: Vec<usize> = (0..1 + self.below(4)).map(|_| self.new_change()).collect();
        // One token twice, at once.
        items.push(items[0]);
        self.log.shut();
        let calls: Vec<_> = items.iter().map(|at| (*at, self.send(*at))).collect();
        self.house.rest().await;
        self.house.pass(Duration::from_millis(self.below(7_000))).await;
        self.read_between().await;
        let gone = self.below(calls.len() as u64 + 1) as usize;
        calls.iter().take(gone).for_each(|(_, call)| call.abort());
        self.log.open();
        self.read_between().await;
        for (n, (at, call)) in calls.into_iter().enumerate() {
            let answer = self.house.drive(call).await;
            match answer {
                Ok(answer) => self.told(at, answer),
                Err(cancelled) => assert!(n < gone && cancelled.is_cancelled(), "no panic"),
            }
        }
        self.house.rest().await;
        for at in items {
            self.write(at).await;
        }
    }

    async fn check(&mut self, at: usize) {
        let Known { counter: name, token, change, fate } = &self.known[at];
        let call = self.house.counting.check_token(&self.house.shop, counter(name), token.clone());
        let now = match self.house.drive(call).await.expect("a check that works") {
            TokenVerdict::Applied { change: found, .. } => {
                assert_eq!(found, *change);
                Fate::Applied
            }
            TokenVerdict::NotApplied => Fate::Never,
            TokenVerdict::Pending { .. } => *fate,
            TokenVerdict::TooOld => {
                assert!(self.ground == Ground::ShortSlices && *fate != Fate::Open, "nothing else is that old here");
                *fate
            }
        };
        self.settle(at, now);
    }

    fn settle(&mut self, at: usize, now: Fate) {
        let known = &mut self.known[at];
        assert!(known.fate == Fate::Open || known.fate == now, "{:?} became {now:?}", known.fate);
        known.fate = now;
    }

    /// Asks again for what is open, before it is too old to be answered.
    async fn settle_the_old(&mut self) {
        let old = self.house.now() - 15 * SECOND;
        for at in 0..self.known.len() {
            if self.known[at].fate == Fate::Open && self.known[at].token.key.time < old {
                self.write(at).await;
            }
        }
    }

    async fn read(&mut self) {
        let name = self.counter();
        let freshness = if self.below(3) == 0 { Freshness::UpToDate } else { Freshness::RolledUp };
        let max_staleness = (self.below(4) == 0).then(|| Duration::from_millis(self.below(8_000)));
        let cleared = self.newest_clear(&name, |fate| fate == Fate::Applied);
        let (expected, last) = self.value(&name, Timestamp::MAX);
        let reading = self.house.read(&name, ReadOptions { max_staleness, freshness, ..ReadOptions::default() }).await;
        if freshness == Freshness::UpToDate {
            // The limit lies somewhere below the newest time that the clock has shown.
            let perhaps_silent = self.silent(last, self.newest_now.max(self.house.now())) && reading.count == 0;
            assert!(
                i128::from(reading.count) == expected || perhaps_silent,
                "{} instead of {expected}: every acknowledged change is in an up-to-date read",
                reading.count
            );
        }
        self.note(name, reading, cleared, cleared);
    }

    /// A read while writes are in flight.
    async fn read_between(&mut self) {
        let name = self.counter();
        let cleared = self.newest_clear(&name, |fate| fate == Fate::Applied);
        let perhaps = self.newest_clear(&name, |fate| fate != Fate::Never);
        let rolled_up = ReadOptions { freshness: Freshness::RolledUp, ..ReadOptions::default() };
        let reading = self.house.read(&name, rolled_up).await;
        self.note(name, reading, cleared, perhaps);
    }

    fn note(&mut self, name: String, reading: CountReading, cleared: Option<Timestamp>, perhaps: Option<Timestamp>) {
        let newest = self.newest_as_of.entry(name.clone()).or_insert(Timestamp::MIN);
        assert!(reading.as_of >= *newest, "as_of went back from {newest:?} to {:?}", reading.as_of);
        *newest = reading.as_of;
        self.seen.push(Seen { counter: name, reading, cleared, perhaps_cleared: perhaps });
    }

    fn jump(&self) {
        let by = Duration::from_millis(self.below(20_000));
        let now = self.house.now();
        self.house.clock.set_wall(if self.below(2) == 0 { now + by } else { now - by });
    }

    /// A kill: nothing is drained, and a new engine starts on what the stores hold.
    async fn restart(&mut self) {
        let (clock, stores) = (self.house.clock.clone(), self.house.stores.clone());
        self.house.engine.abandon().await;
        self.house = House::on(self.ground.spec(), clock, stores, None).await;
    }

    fn newest_clear(&self, counter: &str, of: impl Fn(Fate) -> bool) -> Option<Timestamp> {
        let clears = self.known.iter().filter(|known| known.counter == counter && known.change == Change::Clear);
        clears.filter(|known| of(known.fate)).map(|known| known.token.key.time).max()
    }

    fn silent(&self, last: Option<Timestamp>, at: Timestamp) -> bool {
        match (last, self.ground.spec().ttl) {
            (Some(last), Some(ttl)) => at.since(last) > ttl,
            (None, _) | (_, None) => false,
        }
    }

    /// The naive value: everything applied up to a time, in the order of keys; and the time of the last change.
    fn value(&self, counter: &str, to: Timestamp) -> (i128, Option<Timestamp>) {
        let mut applied: Vec<_> = self.known.iter().filter(|known| known.counter == counter).collect();
        applied.retain(|known| known.fate == Fate::Applied && known.token.key.time <= to);
        applied.sort_by(|a, b| a.token.key.cmp(&b.token.key));
        applied.into_iter().fold((0, None), |(value, last), known| {
            let time = known.token.key.time;
            let value = if self.silent(last, time) { 0 } else { value };
            match known.change {
                Change::Add(delta) => (value + i128::from(delta), Some(time)),
                Change::Clear | Change::Void | Change::Total(_) => (0, Some(time)),
            }
        })
    }

    fn value_seen(&self, counter: &str, at: Timestamp) -> i128 {
        let (value, last) = self.value(counter, at);
        if self.silent(last, at) { 0 } else { value }
    }

    /// Every token settled, every counter rolled up: now every answer of the past can be judged.
    async fn judge(mut self) {
        let latest = self.known.iter().map(|known| known.token.key.time).max().unwrap_or(Timestamp::MIN);
        let ahead = latest.since(self.house.now());
        self.house.pass(ahead + 20 * SECOND).await;
        for at in 0..self.known.len() {
            self.write(at).await;
            assert_ne!(self.known[at].fate, Fate::Open, "every token is settled in the end");
        }
        let patience = match self.ground {
            Ground::Plain | Ground::Ttl => 20,
            Ground::TightSet => 60,
            Ground::ShortSlices => 300,
        };
        self.house.pass(patience * SECOND).await;
        for name in self.counters.clone() {
            let reading = self.house.get(&name).await;
            assert_eq!(i128::from(reading.count), self.value_seen(&name, reading.as_of), "{name} at rest");
            assert!(!reading.behind, "{name} converged");
        }
        for Seen { counter, reading, cleared, perhaps_cleared } in &self.seen {
            let above = |clear: &Option<Timestamp>| clear.is_some_and(|clear| clear > reading.as_of);
            let (count, as_of) = (i128::from(reading.count), reading.as_of);
            match reading.exactness {
                Exactness::ExactAsOf => {
                    assert_eq!(count, self.value_seen(counter, as_of), "{counter} as of {as_of:?}");
                    assert!(count == 0 || !above(cleared), "{counter} is {count} after a clear");
                }
                Exactness::Estimate => {
                    assert!(above(cleared) || above(perhaps_cleared), "{counter} was not cleared after {as_of:?}");
                    assert_eq!(count, 0, "{counter} after a clear");
                }
                Exactness::UpToDate | Exactness::Partial => {}
            }
        }
        assert_eq!(self.house.engine.rollup_sets(), (0, 0), "nothing waits and no bytes are leaked");
        assert_eq!(self.house.engine.datasets()[0].holds, 0, "nothing is held");
        assert_eq!(self.house.engine.loop_panics(), 0);
        assert_eq!(self.house.engine.stats().acknowledged_below_limit.get(), 0);
        if self.ground == Ground::ShortSlices {
            let dataset = self.house.engine.namespaces().datasets()[0].id;
            let rows = self.house.stores.slices.list(dataset).await.expect("rows");
            assert!(rows.iter().any(|row| row.status == SliceStatus::Dropped), "slices were dropped meanwhile");
        }
    }
}

async fn replay(ground: Ground, seed: u64) {
    let clock = ManualClock::at(START + Duration::from_secs(3_600));
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let newest_now = START;
    let house = House::on(ground.spec(), clock, stores, None).await;
    let mut history = History {
        ground,
        house,
        log,
        counters: ground.counters(),
        random: SeededEntropy::new(seed),
        known: Vec::new(),
        seen: Vec::new(),
        newest_as_of: BTreeMap::new(),
        newest_now,
    };
    for _ in 0..STEPS {
        history.step().await;
    }
    history.judge().await;
}

#[test]
fn every_answer_agrees_with_what_was_acknowledged() {
    replay_all(replay, Ground::Plain, 40);
}

#[test]
fn every_answer_agrees_with_what_was_acknowledged_under_a_ttl() {
    replay_all(replay, Ground::Ttl, 30);
}

#[test]
fn every_answer_agrees_with_what_was_acknowledged_while_sets_overflow() {
    replay_all(replay, Ground::TightSet, 20);
}

#[test]
fn every_answer_agrees_with_what_was_acknowledged_while_slices_are_dropped() {
    replay_all(replay, Ground::ShortSlices, 30);
}
