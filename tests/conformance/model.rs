//! State-machine tests: a random sequence of commands gives the same answers on the memory stores and on every other
//! backend, also when the backend is closed or killed in between.
//!
//! The commands keep to what the engine promises its stores: events and reports come above the limit, checkpoints are the
//! fold of what the log holds, a slice is dropped when all in it is rolled up, a forgotten namespace is not written again.
//! A put may be lost with the process, so after a kill both sides roll every counter anew, which must repair everything.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventId, EventKey, Provenance};
use tallystone_domain::limits::{STEP, TOUCH_SHARDS};
use tallystone_domain::rollup::{Checkpoint, FoldRules, SliceStatus, TailLookup, TailSum, fold};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{AppendOutcome, NewEvent, RollWrite, ScanOrder, ScanRange, StoreError, Stores};

use crate::backends::{BACKENDS, Backend, Bench, Ending, is_selected, not_run};
use crate::given::{DATASET, OTHER_DATASET, OTHER_NAMESPACE, SLICE, T0, counter, foreign, slice};

/// The number of sequences for every change, unless `PROPTEST_CASES` says another.
const CASES: u32 = 24;
/// The same where a sequence takes seconds.
const CASES_OF_SERVERS: u32 = 6;
/// The two with `tests/run --long`.
const CASES_LONG: u32 = 256;
const CASES_OF_SERVERS_LONG: u32 = 24;
const RESOLUTIONS: [u32; 2] = [10, 60];

/// A command. Times are milliseconds above or below the limit of its dataset.
#[derive(Clone, Debug)]
enum Command {
    Append(Vec<Item>),
    Settle {
        counter: usize,
        offset_millis: i64,
        token: u8,
    },
    Find {
        counter: usize,
        offset_millis: i64,
        token: u8,
    },
    Scan {
        counter: usize,
        after_millis: i64,
        to_millis: i64,
        newest_first: bool,
        page: usize,
    },
    ScanSlices {
        page: usize,
    },
    Tail {
        counter: usize,
        above_millis: i64,
    },
    Publish {
        millis: i64,
    },
    Roll {
        counter: usize,
        keep: bool,
    },
    /// Rolls from the oldest kept checkpoint to a time below the limit, as a slow roller would.
    StaleRoll {
        counter: usize,
        below_millis: i64,
    },
    Watermark {
        counter: usize,
    },
    Row {
        counter: usize,
    },
    Lists,
    Touched {
        page: usize,
    },
    DropOldest,
    TrimSeries {
        below_millis: i64,
    },
    ForgetForeign,
    Restart(Ending),
}

#[derive(Clone, Debug)]
struct Item {
    counter: usize,
    offset_millis: i64,
    token: u8,
    change: Change,
}

// ---- Drawing sequences ----

/// Few places, so that keys meet.
fn above() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 1_i64..4, 2 => select(vec![9_999_i64, 10_000, 10_001, 60_000]), 1 => 1_i64..600_000]
}

fn below() -> impl Strategy<Value = i64> {
    prop_oneof![3 => -20_i64..=0, 1 => -700_000_i64..=0]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => (-3_i64..=3).prop_map(Change::Add),
        1 => select(vec![i64::MIN, i64::MAX]).prop_map(Change::Add),
        3 => Just(Change::Clear),
        1 => (-3_i64..=3).prop_map(Change::Total),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    (0_usize..5, above(), 0_u8..3, change()).prop_map(|(counter, offset_millis, token, change)| Item {
        counter,
        offset_millis,
        token,
        change,
    })
}

fn command() -> impl Strategy<Value = Command> {
    let counter = || 0_usize..5;
    let anywhere = || prop_oneof![2 => above(), 1 => below()];
    prop_oneof![
        10 => vec(item(), 1..6).prop_map(Command::Append),
        3 => (counter(), anywhere(), 0_u8..3)
            .prop_map(|(counter, offset_millis, token)| Command::Settle { counter, offset_millis, token }),
        2 => (counter(), anywhere(), 0_u8..3)
            .prop_map(|(counter, offset_millis, token)| Command::Find { counter, offset_millis, token }),
        3 => (counter(), below(), anywhere(), any::<bool>(), 1_usize..9).prop_map(
            |(counter, after_millis, to_millis, newest_first, page)| {
                Command::Scan { counter, after_millis, to_millis, newest_first, page }
            },
        ),
        1 => (1_usize..9).prop_map(|page| Command::ScanSlices { page }),
        4 => (counter(), prop_oneof![Just(0), above()])
            .prop_map(|(counter, above_millis)| Command::Tail { counter, above_millis }),
        5 => prop_oneof![1_i64..5, 10_000_i64..90_000, Just(600_000)].prop_map(|millis| Command::Publish { millis }),
        5 => (counter(), any::<bool>()).prop_map(|(counter, keep)| Command::Roll { counter, keep }),
        2 => (counter(), 0_i64..20_000)
            .prop_map(|(counter, below_millis)| Command::StaleRoll { counter, below_millis }),
        2 => counter().prop_map(|counter| Command::Watermark { counter }),
        5 => counter().prop_map(|counter| Command::Row { counter }),
        1 => Just(Command::Lists),
        1 => (1_usize..9).prop_map(|page| Command::Touched { page }),
        1 => Just(Command::DropOldest),
        1 => below().prop_map(|below_millis| Command::TrimSeries { below_millis }),
        1 => prop_oneof![9 => Just(None), 1 => Just(Some(Command::ForgetForeign))]
            .prop_map(|command| command.unwrap_or(Command::Lists)),
        2 => select(vec![Ending::Closed, Ending::Killed]).prop_map(Command::Restart),
    ]
}

// ---- One side ----

/// A backend and what the commands remember of it.
struct Side {
    bench: Bench,
    limit: Timestamp,
    last_slice_millis: i64,
    kept: BTreeMap<usize, Checkpoint>,
    trimmed_before: Timestamp,
    forgotten: bool,
    dropped: bool,
    last_write: LastWrite,
}

/// How the last write times of both sides are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastWrite {
    Exactly,
    /// One of them knows the step only.
    ByStep,
}

impl Side {
    async fn open(backend: Backend) -> Result<Self, String> {
        let bench = Bench::open(backend).await?;
        let limit = T0 - SLICE;
        bench.stores.progress.publish(DATASET, limit).await.map_err(|error| error.to_string())?;
        Ok(Self {
            bench,
            limit,
            last_slice_millis: 600_000,
            kept: BTreeMap::new(),
            trimmed_before: Timestamp::MIN,
            forgotten: false,
            dropped: false,
            last_write: LastWrite::Exactly,
        })
    }

    fn stores(&self) -> &Stores {
        &self.bench.stores
    }

    /// The counters; those of the foreign namespace are left alone once it is forgotten.
    fn counter(&self, at: usize) -> Counter {
        match at {
            0 => counter("a"),
            1 => counter("a.b"),
            2 => counter("b"),
            3 if !self.forgotten => foreign("a"),
            4 if !self.forgotten => foreign("z"),
            _ => counter("c"),
        }
    }

    fn time(&self, millis: i64) -> Timestamp {
        Timestamp::from_micros(self.limit.micros() + millis * 1_000)
    }

    fn key(&self, millis: i64, token: u8) -> EventKey {
        let id = if token == 0 { EventId::Uuid([7; 16]) } else { EventId::text(["x", "y"][usize::from(token) - 1]) };
        EventKey { time: self.time(millis), id }
    }

    /// Runs a command and describes its answer.
    async fn run(&mut self, command: &Command) -> String {
        match command {
            Command::Append(items) => self.append(items).await,
            Command::Settle { counter, offset_millis, token } => {
                let (counter, key) = (self.counter(*counter), self.key(*offset_millis, *token));
                show(self.stores().log.settle(DATASET, &counter, &key).await)
            }
            Command::Find { counter, offset_millis, token } => {
                let (counter, key) = (self.counter(*counter), self.key(*offset_millis, *token));
                show(self.stores().log.find(DATASET, &counter, &key).await)
            }
            Command::Scan { counter, after_millis, to_millis, newest_first, page } => {
                let order = if *newest_first { ScanOrder::NewestFirst } else { ScanOrder::OldestFirst };
                let (after, to) = (self.time(*after_millis), self.time(*to_millis));
                let range = ScanRange { after, to, order, beyond: None, limit: *page };
                self.scan(&self.counter(*counter), range).await
            }
            Command::ScanSlices { page } => self.scan_slices(*page).await,
            Command::Tail { counter, above_millis } => {
                self.tail(&self.counter(*counter), self.time(*above_millis)).await
            }
            Command::Publish { millis } => self.publish(*millis).await,
            Command::Roll { counter, keep } => {
                let row = self.stores().rollups.read(DATASET, &self.counter(*counter)).await.expect("a row");
                if let (true, Some(checkpoint)) = (*keep, &row.checkpoint) {
                    self.kept.insert(*counter, checkpoint.clone());
                }
                self.roll(&self.counter(*counter), row.checkpoint, self.limit).await
            }
            Command::StaleRoll { counter, below_millis } => {
                let base = self.kept.get(counter).cloned();
                if base.is_none() && self.dropped {
                    return "a roll from nothing would miss what was dropped".to_owned();
                }
                let to = self.time(-below_millis).max(base.as_ref().map_or(Timestamp::MIN, |base| base.as_of));
                self.roll(&self.counter(*counter), base, to).await
            }
            Command::Watermark { counter } => {
                let shard = self.counter(*counter).touch_shard();
                show(self.stores().touches.put_watermarks(DATASET, vec![(shard, self.limit)]).await)
            }
            Command::Row { counter } => self.row(&self.counter(*counter)).await,
            Command::Lists => self.lists().await,
            Command::Touched { page } => self.touched(*page).await,
            Command::DropOldest => self.drop_oldest().await,
            Command::TrimSeries { below_millis } => {
                self.trimmed_before = self.trimmed_before.max(self.time(*below_millis));
                for step_seconds in RESOLUTIONS {
                    let before = self.time(*below_millis);
                    self.stores().rollups.trim_series(step_seconds, before).await.expect("a trim");
                }
                String::new()
            }
            Command::ForgetForeign => {
                self.forgotten = true;
                self.kept.retain(|at, _| *at < 3);
                show(self.stores().rollups.remove_namespace(OTHER_NAMESPACE).await)
            }
            Command::Restart(_) => unreachable!("restarts are worked off by the pair"),
        }
    }

    async fn append(&self, items: &[Item]) -> String {
        let new = |item: &Item| {
            let mut key = self.key(item.offset_millis, item.token);
            if let Change::Total(_) = item.change {
                key.id = EventId::total("web", 1, u64::from(item.token));
            }
            let provenance = Provenance::new(["", "a host"][usize::from(item.token) % 2]).expect("short");
            NewEvent { counter: self.counter(item.counter), event: Event { key, change: item.change, provenance } }
        };
        let answers = self.stores().log.append(DATASET, items.iter().map(new).collect(), Box::new(())).await;
        let answers: Vec<Result<AppendOutcome, _>> = answers.into_iter().map(|answer| answer.map_err(brief)).collect();
        format!("{answers:?}")
    }

    async fn scan(&self, counter: &Counter, mut range: ScanRange) -> String {
        let mut all = Vec::new();
        loop {
            let page = self.stores().log.scan(DATASET, counter, range.clone()).await.expect("a scan");
            let is_last = page.len() < range.limit;
            range.beyond = page.last().map(|event| event.key.clone());
            all.extend(page);
            if is_last {
                return format!("{all:?}");
            }
        }
    }

    async fn scan_slices(&self, page: usize) -> String {
        let mut all = Vec::new();
        for slice in self.stores().slices.list(DATASET).await.expect("rows") {
            let mut beyond = None;
            loop {
                let rows = self.stores().log.scan_slice(DATASET, slice.start, beyond, page).await.expect("rows");
                let is_last = rows.len() < page;
                beyond = rows.last().map(|row| (row.counter.clone(), row.event.key.clone()));
                all.extend(rows);
                if is_last {
                    break;
                }
            }
        }
        // Each backend has an order of its own among counters.
        all.sort_by(|a, b| (&a.counter, &a.event.key).cmp(&(&b.counter, &b.event.key)));
        format!("{all:?}")
    }

    async fn tail(&self, counter: &Counter, after: Timestamp) -> String {
        match self.stores().log.tail(DATASET, counter, after) {
            // A store that was opened again may have to be asked for what was written before.
            TailLookup::Unknown => format!("{:?}", self.scanned_tail(counter, after).await),
            tail @ (TailLookup::Empty | TailLookup::Sum(_)) => format!("{tail:?}"),
        }
    }

    async fn scanned_tail(&self, counter: &Counter, after: Timestamp) -> TailLookup {
        let range =
            ScanRange { after, to: Timestamp::MAX, order: ScanOrder::OldestFirst, beyond: None, limit: usize::MAX };
        let mut events = self.stores().log.scan(DATASET, counter, range).await.expect("events");
        events.retain(|event| event.change.is_mutation());
        if events.iter().any(|event| matches!(event.change, Change::Total(_))) {
            return TailLookup::Unknown;
        }
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return TailLookup::Empty };
        let cleared = events.iter().rposition(|event| event.change == Change::Clear);
        let adds = events.iter().skip(cleared.map_or(0, |at| at + 1));
        let sum = adds.map(|event| if let Change::Add(delta) = event.change { i128::from(delta) } else { 0 }).sum();
        TailLookup::Sum(TailSum {
            mutations: events.len() as u64,
            sum,
            clear: cleared.map(|at| events[at].key.clone()),
            first: first.key.time,
            last: last.key.time,
        })
    }

    async fn publish(&mut self, millis: i64) -> String {
        let stores = self.stores();
        self.limit = stores.progress.publish(DATASET, self.time(millis)).await.expect("a limit");
        // Slices are there before anybody writes into them.
        while self.limit + SLICE * 2 > crate::given::at(self.last_slice_millis) {
            self.last_slice_millis += 600_000;
            let row = slice(DATASET, self.last_slice_millis);
            self.stores().slices.create(row).await.expect("a slice");
        }
        format!("{:?}", self.stores().progress.limit(DATASET).await.map_err(brief))
    }

    /// Rolls a counter as the engine does: fold what the log holds, put what comes of it.
    async fn roll(&self, counter: &Counter, base: Option<Checkpoint>, to: Timestamp) -> String {
        let base = base.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
        let range = ScanRange { after: base.as_of, to, order: ScanOrder::OldestFirst, beyond: None, limit: usize::MAX };
        let events = self.stores().log.scan(DATASET, counter, range).await.expect("a scan");
        let ttl = Some(Duration::from_secs(45));
        let rolled = fold(base, &events, to, &FoldRules::constant(Duration::from_secs(20), ttl, RESOLUTIONS.to_vec()));
        let write = RollWrite {
            counter: counter.clone(),
            checkpoint: rolled.checkpoint,
            finished_buckets: rolled.finished_buckets,
            finished_steps: rolled.finished_steps,
        };
        let shown = format!("{write:?}");
        self.stores().rollups.put(DATASET, vec![write]).await.expect("a put");
        shown
    }

    async fn row(&self, counter: &Counter) -> String {
        let rollups = &self.stores().rollups;
        let row = rollups.read(DATASET, counter).await.map_err(brief);
        let elsewhere = rollups.read(OTHER_DATASET, counter).await.map_err(brief);
        let buckets = rollups.buckets(DATASET, counter, Timestamp::MIN, Timestamp::MAX).await.map_err(brief);
        let mut stepwise = row.clone();
        if let (Ok(row), LastWrite::ByStep) = (&mut stepwise, self.last_write) {
            row.last_write_time = row.last_write_time.map(|time| time.floor_to(STEP));
        }
        let mut shown = format!("{stepwise:?} {elsewhere:?} {buckets:?}");
        for step_seconds in RESOLUTIONS {
            // What a trim leaves of older steps is up to the store.
            let from = self.trimmed_before;
            let steps = rollups.series(counter, step_seconds, from, Timestamp::MAX).await.map_err(brief);
            let last = rollups.series_before(counter, step_seconds, Timestamp::MAX).await.expect("a step");
            let last = last.filter(|step| step.start >= from);
            shown.push_str(&format!(" {steps:?} {last:?}"));
        }
        if let Some(cached) = self.stores().cache.get(counter).await {
            assert_eq!(cached.checked_at, None, "nobody fills the cache here");
            let row = row.expect("a row");
            let checkpoint = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
            let known =
                (checkpoint.count, checkpoint.as_of, checkpoint.last_event_time, row.clear, row.last_write_time);
            let told = (cached.count, cached.as_of, cached.last_event_time, cached.clear, cached.last_write_time);
            assert_eq!(told, known, "a coherent cache agrees with the store");
        }
        shown
    }

    async fn lists(&self) -> String {
        let stores = self.stores();
        let mut shown = String::new();
        for namespace in [crate::given::NAMESPACE, OTHER_NAMESPACE] {
            let names = stores.rollups.names(namespace, "", None, 100).await.map_err(brief);
            let some = stores.rollups.names(namespace, "a", None, 1).await.map_err(brief);
            shown.push_str(&format!("{names:?} {some:?} "));
        }
        let slices = stores.slices.list(DATASET).await.map_err(brief);
        let watermarks = stores.touches.watermarks(DATASET).await.map_err(brief);
        let limits: Vec<_> = [DATASET, OTHER_DATASET, DatasetId(3)].map(|of| stores.progress.limit(of)).into();
        for limit in limits {
            shown.push_str(&format!("{:?} ", limit.await.map_err(brief)));
        }
        format!("{shown}{slices:?} {watermarks:?}")
    }

    async fn touched(&self, page: usize) -> String {
        let mut all = Vec::new();
        for shard in 0..TOUCH_SHARDS {
            let mut beyond = None;
            loop {
                let (from, to) = (Timestamp::MIN, Timestamp::MAX);
                let touches = &self.stores().touches;
                let more = touches.touched(DATASET, shard, from, to, beyond.as_ref(), page).await.expect("touches");
                let is_last = more.len() < page;
                beyond = more.last().cloned();
                all.extend(more.into_iter().map(|touch| (touch.step, touch.counter)));
                if is_last {
                    break;
                }
            }
        }
        // Inside a step the order is up to the store.
        all.sort();
        format!("{all:?}")
    }

    /// Drops the oldest live slice if the limit has passed it, once everything in it is rolled up.
    async fn drop_oldest(&mut self) -> String {
        let rows = self.stores().slices.list(DATASET).await.expect("rows");
        let oldest = rows.into_iter().find(|row| row.status != SliceStatus::Dropped);
        let Some(oldest) = oldest.filter(|row| row.end <= self.limit) else { return "nothing to drop".to_owned() };
        let rolled = self.roll_all().await;
        let dropped = self.stores().slices.set_status(DATASET, oldest.start, SliceStatus::Dropped).await;
        // A base from before the slice was dropped has nothing to fold any more.
        self.kept.clear();
        self.dropped = true;
        format!("{rolled} {}", show(dropped))
    }

    async fn roll_all(&self) -> String {
        let mut shown = String::new();
        for at in 0..6 {
            let counter = self.counter(at);
            let row = self.stores().rollups.read(DATASET, &counter).await.expect("a row");
            shown.push_str(&self.roll(&counter, row.checkpoint, self.limit).await);
        }
        shown
    }

    /// Everything that can be asked.
    async fn everything(&self) -> String {
        let mut shown = self.lists().await + &self.touched(100).await + &self.scan_slices(100).await;
        for at in 0..6 {
            let counter = self.counter(at);
            shown += &self.row(&counter).await;
            shown += &self.tail(&counter, self.limit).await;
            shown += &self.scan(&counter, crate::given::everything()).await;
        }
        shown
    }
}

fn show<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    format!("{:?}", answer.map_err(brief))
}

/// What callers go by; the text is the store's own.
fn brief(error: StoreError) -> String {
    format!("{:?} {:?}", error.kind, error.outcome)
}

// ---- Both sides ----

async fn compare(backend: Backend, commands: &[Command]) -> Result<(), TestCaseError> {
    let oracle = Side::open(Backend::Memory).await.map_err(TestCaseError::fail)?;
    let subject = Side::open(backend).await.map_err(TestCaseError::fail)?;
    let leftovers = subject.bench.leftovers();
    let compared = compare_sides(oracle, subject, commands).await;
    leftovers.give_back().await;
    compared
}

async fn compare_sides(mut oracle: Side, mut subject: Side, commands: &[Command]) -> Result<(), TestCaseError> {
    if !subject.stores().log.capabilities().exact_last_write {
        (oracle.last_write, subject.last_write) = (LastWrite::ByStep, LastWrite::ByStep);
    }
    for (at, command) in commands.iter().enumerate() {
        if let Command::Restart(ending) = command {
            if subject.bench.is_durable() {
                if !subject.stores().log.capabilities().reports_existing {
                    // A new process knows nothing of tokens above the limit; below it, verdicts keep them apart.
                    prop_assert_eq!(subject.publish(600_000).await, oracle.publish(600_000).await);
                }
                subject.bench = subject.bench.reopen(*ending).await;
                after_restart(&mut oracle, &mut subject, *ending).await?;
            }
            continue;
        }
        let expected = oracle.run(command).await;
        prop_assert_eq!(subject.run(command).await, expected, "command {} {:?}", at, command);
    }
    prop_assert_eq!(subject.everything().await, oracle.everything().await, "at the end");
    Ok(())
}

/// A closed store comes back whole. A killed one may have lost puts, which the next rolls make good.
async fn after_restart(oracle: &mut Side, subject: &mut Side, ending: Ending) -> Result<(), TestCaseError> {
    if ending == Ending::Killed {
        for side in [&mut *oracle, &mut *subject] {
            side.publish(1).await;
            side.roll_all().await;
            let all = (0..TOUCH_SHARDS).map(|shard| (shard, side.limit)).collect();
            side.stores().touches.put_watermarks(DATASET, all).await.expect("watermarks");
        }
    }
    prop_assert_eq!(subject.everything().await, oracle.everything().await, "after it was {:?}", ending);
    Ok(())
}

/// How many sequences a backend gets; `asked` is what the test library makes of `PROPTEST_CASES`.
fn cases_of(backend: Backend, asked: u32) -> u32 {
    let is_asked = std::env::var_os("PROPTEST_CASES").is_some();
    let is_long = std::env::var_os("TALLYSTONE_LONG_TESTS").is_some();
    match (is_asked, is_long, backend == Backend::Cassandra) {
        (true, _, _) => asked,
        (false, false, false) => CASES,
        (false, false, true) => CASES_OF_SERVERS,
        (false, true, false) => CASES_LONG,
        (false, true, true) => CASES_OF_SERVERS_LONG,
    }
}

#[test]
fn random_commands_get_the_same_answers_from_every_backend() {
    let others = BACKENDS.into_iter().filter(|backend| *backend != Backend::Memory && is_selected(*backend));
    for backend in others {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        if let Err(why) = runtime.block_on(Side::open(backend)) {
            not_run(backend, &why);
            continue;
        }
        let config = ProptestConfig::default();
        let config = ProptestConfig {
            cases: cases_of(backend, config.cases),
            source_file: Some(file!()),
            test_name: Some("random_commands_get_the_same_answers_from_every_backend"),
            ..config
        };
        let outcome = proptest::test_runner::TestRunner::new(config)
            .run(&vec(command(), 1..60), |commands| runtime.block_on(compare(backend, &commands)));
        if let Err(failure) = outcome {
            panic!("{backend:?}: {failure}\nreplay: the seed is saved under proptest-regressions");
        }
    }
}
