//! Random histories of cumulative counters against the log: reports that are new, repeated, contradicting or late, of
//! sources that restart, at once, with callers that go away, jumps of the clock, engines that are killed, and slices that
//! are dropped meanwhile. A failing history prints its seed; `replay` runs one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::counter::{Change, Counter, EventKey, ReportSource};
use tallystone::domain::namespace::{NamespaceSpec, OnNewEpoch, SeriesSettings, Temporality};
use tallystone::domain::rollup::{CountReading, Exactness, Freshness, ReadOptions, SliceStatus};
use tallystone::domain::{Reason, Timestamp};
use tallystone::engine::counting::{CountingError, Report, SeriesQuery, WriteOutcome, Written};
use tallystone::ports::{Entropy, ScanOrder, ScanRange};
use tokio::task::JoinHandle;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, replay_all, spec};

const STEPS: usize = 150;
const COUNTERS: [&str; 2] = ["depth", "width"];
const SOURCES: [&str; 3] = ["web-1", "web-2", "web-3"];

/// What a history runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ground {
    Plain,
    /// Slices of 20 seconds that are dropped after a minute.
    ShortSlices,
}

/// One total of one counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Total {
    counter: &'static str,
    source: &'static str,
    epoch: u64,
    serial: u64,
    total: i64,
}

type Answer = Result<Written, CountingError>;

struct History {
    ground: Ground,
    house: House,
    log: Arc<SlowLog>,
    random: SeededEntropy,
    /// What was ever sent.
    sent: Vec<Total>,
    /// What the log was ever seen to hold, with its time; slices may have been dropped since.
    held: BTreeMap<Total, Timestamp>,
    seen: Vec<(&'static str, CountReading)>,
    newest_as_of: BTreeMap<&'static str, Timestamp>,
}

impl Ground {
    fn spec(self) -> NamespaceSpec {
        let mut spec = spec("shop");
        spec.temporality = Temporality::Cumulative;
        spec.on_new_epoch = Some(OnNewEpoch::Replace);
        spec.series = vec![SeriesSettings { step_seconds: 10, keep: 86_400 * SECOND }];
        match self {
            Self::Plain => {}
            Self::ShortSlices => {
                spec.dataset.seconds_per_slice = 20;
                spec.dataset.close_after = 30 * SECOND;
                spec.dataset.delete_after = 60 * SECOND;
                spec.partition.seconds_per_bucket = 10;
            }
        }
        spec
    }
}

impl Total {
    fn place(&self) -> (u64, u64) {
        (self.epoch, self.serial)
    }
}

impl History {
    fn below(&self, bound: u64) -> u64 {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes);
        u64::from_le_bytes(bytes) % bound
    }

    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).expect("a small number")]
    }

    async fn step(&mut self) {
        match self.below(100) {
            0..=24 => {
                let total = self.next_total();
                self.report(total).await;
            }
            25..=34 if !self.sent.is_empty() => self.report(self.pick(&self.sent)).await,
            35..=42 if !self.sent.is_empty() => {
                let known = self.pick(&self.sent);
                self.report(Total { total: known.total ^ 1, ..known }).await;
            }
            25..=49 => self.at_once().await,
            50..=74 => self.read().await,
            75..=92 => self.house.pass(Duration::from_millis(self.below(2_500))).await,
            93..=94 => self.jump(),
            95..=96 => self.restart().await,
            _ => self.house.pass(9 * SECOND).await,
        }
    }

    /// What a source would say next: the next serial, now and then one further on, or a start of the source anew.
    fn next_total(&self) -> Total {
        let (counter, source) = (self.pick(&COUNTERS), self.pick(&SOURCES));
        let last = self.sent.iter().filter(|sent| (sent.counter, sent.source) == (counter, source));
        let (epoch, serial) = last.map(Total::place).max().unwrap_or((1, 0));
        let total = self.below(1 << 40).cast_signed() - (1 << 38);
        match self.below(8) {
            0 => Total { counter, source, epoch: epoch + 1, serial: self.below(3), total },
            n => Total { counter, source, epoch, serial: serial + 1 + n / 6, total },
        }
    }

    fn send(&self, total: Total) -> JoinHandle<Answer> {
        let (counting, shop) = (self.house.counting.clone(), self.house.shop.clone());
        let Total { counter: name, source, epoch, serial, total } = total;
        tokio::spawn(async move {
            let report = Report { source: ReportSource::new(source).expect("a valid source"), epoch, serial };
            let answers = counting.report_totals(&shop, report, vec![Ok((counter(name), total))]).await?;
            answers.into_iter().next().expect("an answer for the item")
        })
    }

    /// The newest total of a source that the log holds.
    fn newest(&self, counter: &str, source: &str) -> Option<Total> {
        let of = self.held.keys().filter(|held| (held.counter, held.source) == (counter, source));
        of.copied().max_by_key(|held| (held.place(), held.total))
    }

    /// A report by itself: what it is told depends on the newest total alone.
    async fn report(&mut self, total: Total) {
        let expected = match self.newest(total.counter, total.source) {
            None => Ok(WriteOutcome::Applied),
            Some(newest) if total.place() > newest.place() => Ok(WriteOutcome::Applied),
            Some(newest) if total.place() < newest.place() => Err(Reason::SerialBack),
            Some(newest) if total.total == newest.total => Ok(WriteOutcome::AlreadyApplied),
            Some(_) => Err(Reason::AlreadyExists),
        };
        self.sent.push(total);
        let call = self.send(total);
        let answer = self.house.drive(call).await.expect("no panic");
        let told = answer.map(|written| written.outcome).map_err(|refused| refused.reason());
        assert_eq!(told, expected, "{total:?}");
        self.look_into_the_log(&[(total, Some(told))]).await;
    }

    /// Several reports in flight while time passes, of one source and of others; some callers go away.
    async fn at_once(&mut self) {
        let mut totals: Vec<Total> = (0..1 + self.below(3)).map(|_| self.next_total()).collect();
        let first = totals[0];
        totals.push(first);
        totals.push(Total { total: first.total ^ 1, ..first });
        totals.push(Total { serial: first.serial + 1, total: first.total + 5, ..first });
        self.sent.extend(&totals);
        self.log.shut();
        let mut calls = Vec::new();
        for total in &totals {
            calls.push((*total, self.send(*total)));
            self.house.rest().await;
            self.house.clock.advance(Duration::from_millis(self.below(3)));
        }
        self.house.pass(Duration::from_millis(self.below(7_000))).await;
        self.read_between().await;
        let gone = usize::try_from(self.below(calls.len() as u64 + 1)).expect("a small number");
        calls.iter().take(gone).for_each(|(_, call)| call.abort());
        self.log.open();
        self.read_between().await;
        let mut told = Vec::new();
        for (total, call) in calls {
            let answer = match self.house.drive(call).await {
                Ok(answer) => Some(answer.map(|written| written.outcome).map_err(|refused| refused.reason())),
                Err(cancelled) => {
                    assert!(cancelled.is_cancelled(), "no panic");
                    None
                }
            };
            told.push((total, answer));
        }
        self.house.rest().await;
        self.look_into_the_log(&told).await;
    }

    /// Takes in what the log holds and compares it with what the callers were told.
    async fn look_into_the_log(&mut self, told: &[(Total, Option<Result<WriteOutcome, Reason>>)]) {
        let before: BTreeSet<Total> = self.held.keys().copied().collect();
        for name in COUNTERS {
            for (total, time) in self.events(name).await {
                assert!(self.sent.contains(&total), "{total:?} was never sent");
                let known = *self.held.entry(total).or_insert(time);
                assert_eq!(known, time, "{total:?} is held once");
            }
        }
        for (total, answer) in told {
            let is_new = self.held.contains_key(total) && !before.contains(total);
            match answer {
                Some(Ok(_)) => assert!(self.held.contains_key(total), "{total:?} was acknowledged"),
                Some(Err(Reason::SerialBack | Reason::AlreadyExists)) => {
                    let told_of_it = told.iter().filter(|(other, _)| other == total).count();
                    assert!(!is_new || told_of_it > 1, "{total:?} was refused");
                }
                Some(Err(other)) => panic!("{total:?}: {other}"),
                None => {}
            }
        }
    }

    async fn events(&self, name: &'static str) -> Vec<(Total, Timestamp)> {
        let shop = self.house.engine.namespaces().get(&self.house.shop).expect("it is there");
        let range = ScanRange {
            after: Timestamp::MIN,
            to: Timestamp::MAX,
            order: ScanOrder::OldestFirst,
            beyond: None,
            limit: usize::MAX,
        };
        let place = Counter::new(shop.id, counter(name));
        let events = self.house.stores.log.scan(shop.dataset_id, &place, range).await.expect("a scan");
        let total = |(key, change): (EventKey, Change)| {
            let (source, epoch, serial) = key.id.as_total().expect("totals only");
            let source = SOURCES.into_iter().find(|known| *known == source).expect("a known source");
            let Change::Total(total) = change else { panic!("totals only: {change:?}") };
            (Total { counter: name, source, epoch, serial, total }, key.time)
        };
        events.into_iter().map(|event| total((event.key, event.change))).collect()
    }

    /// The sum of the newest totals of all sources, of those held up to a time.
    fn value(&self, counter: &str, to: Timestamp) -> i128 {
        let mut newest: BTreeMap<&str, ((u64, u64), i64)> = BTreeMap::new();
        for (held, _) in self.held.iter().filter(|(held, time)| held.counter == counter && **time <= to) {
            let known = newest.entry(held.source).or_insert((held.place(), held.total));
            *known = (*known).max((held.place(), held.total));
        }
        newest.values().map(|(_, total)| i128::from(*total)).sum()
    }

    async fn read(&mut self) {
        let name = self.pick(&COUNTERS);
        let freshness = if self.below(3) == 0 { Freshness::UpToDate } else { Freshness::RolledUp };
        let max_staleness = (self.below(4) == 0).then(|| Duration::from_millis(self.below(8_000)));
        let reading = self.house.read(name, ReadOptions { max_staleness, freshness, ..ReadOptions::default() }).await;
        if freshness == Freshness::UpToDate {
            let expected = self.value(name, Timestamp::MAX);
            assert_eq!(i128::from(reading.count), expected, "every acknowledged total is in an up-to-date read");
        }
        self.note(name, reading);
    }

    /// A read while reports are in flight.
    async fn read_between(&mut self) {
        let name = self.pick(&COUNTERS);
        let rolled_up = ReadOptions { freshness: Freshness::RolledUp, ..ReadOptions::default() };
        let reading = self.house.read(name, rolled_up).await;
        self.note(name, reading);
    }

    fn note(&mut self, name: &'static str, reading: CountReading) {
        let newest = self.newest_as_of.entry(name).or_insert(Timestamp::MIN);
        assert!(reading.as_of >= *newest, "as_of went back from {newest:?} to {:?}", reading.as_of);
        *newest = reading.as_of;
        self.seen.push((name, reading));
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

    /// Every counter rolled up: now every answer of the past can be judged.
    async fn judge(self, began: Timestamp) {
        self.house.pass(60 * SECOND).await;
        for name in COUNTERS {
            let reading = self.house.get(name).await;
            assert_eq!(i128::from(reading.count), self.value(name, Timestamp::MAX), "{name} at rest");
            assert!(!reading.behind, "{name} converged");
            self.judge_series(name, began).await;
        }
        for (name, reading) in &self.seen {
            if reading.exactness == Exactness::ExactAsOf {
                let expected = self.value(name, reading.as_of);
                assert_eq!(i128::from(reading.count), expected, "{name} as of {:?}", reading.as_of);
            }
        }
        assert_eq!(self.house.engine.rollup_sets(), (0, 0), "nothing waits and no bytes are leaked");
        assert_eq!(self.house.engine.datasets()[0].holds, 0, "nothing is held");
        assert_eq!(self.house.engine.loop_panics(), 0);
        if self.ground == Ground::ShortSlices {
            let dataset = self.house.engine.namespaces().datasets()[0].id;
            let rows = self.house.stores.slices.list(dataset).await.expect("rows");
            assert!(rows.iter().any(|row| row.status == SliceStatus::Dropped), "slices were dropped meanwhile");
        }
    }

    async fn judge_series(&self, name: &str, began: Timestamp) {
        let question = SeriesQuery { from: began, to: self.house.now(), step: None };
        let call = self.house.counting.series(&self.house.shop, counter(name), question);
        let answer = self.house.drive(call).await.expect("a series");
        let mut before = self.value(name, answer.rows[0].start.just_before());
        for row in answer.rows.iter().filter(|row| !row.open) {
            let value = self.value(name, (row.start + answer.step.shortest()).just_before());
            assert_eq!((row.value, row.sum), (value, value - before), "{name} in the step of {:?}", row.start);
            before = value;
        }
    }
}

async fn replay(ground: Ground, seed: u64) {
    let clock = ManualClock::at(START + Duration::from_secs(3_600));
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(ground.spec(), clock, stores, None).await;
    let began = house.now() - 60 * SECOND;
    let mut history = History {
        ground,
        house,
        log,
        random: SeededEntropy::new(seed),
        sent: Vec::new(),
        held: BTreeMap::new(),
        seen: Vec::new(),
        newest_as_of: BTreeMap::new(),
    };
    for _ in 0..STEPS {
        history.step().await;
    }
    history.judge(began).await;
}

#[test]
fn every_answer_about_totals_agrees_with_the_log() {
    replay_all(replay, Ground::Plain, 30);
}

#[test]
fn every_answer_about_totals_agrees_with_the_log_while_slices_are_dropped() {
    replay_all(replay, Ground::ShortSlices, 30);
}
