//! Writers, rollers, readers, clears, verdicts and a moving limit, all at once on every backend: what a reader puts
//! together of row and tail is never older than what was acknowledged before it asked, nor newer than what was sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_domain::counter::{Change, Counter, EventKey};
use tallystone_domain::rollup::{Checkpoint, FoldRules, TailLookup, fold};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{AppendOutcome, RollWrite, ScanOrder, ScanRange, Stores, VerdictOutcome};
use tokio::task::JoinSet;

use crate::backends::on_every_backend;
use crate::given::{DATASET, append, at, counter, event, key};

const COUNTERS: usize = 40;
const WRITERS: usize = 4;
const WRITES: usize = 400;

/// What the tasks share: the stores, a clock of one tick a write, the ticks in flight, and a ledger for each counter.
struct House {
    stores: Stores,
    ticks: Mutex<Ticks>,
    ledgers: Vec<Ledger>,
    done: AtomicBool,
}

#[derive(Default)]
struct Ticks {
    next: i64,
    held: BTreeSet<i64>,
}

/// Adds of one counter, each of 1.
#[derive(Default)]
struct Ledger {
    sent: AtomicI64,
    acknowledged: AtomicI64,
}

impl House {
    fn new(stores: Stores) -> Self {
        let ledgers = (0..COUNTERS).map(|_| Ledger::default()).collect();
        Self { stores, ticks: Mutex::default(), ledgers, done: AtomicBool::new(false) }
    }

    /// A time that no limit passes until it is let go.
    fn hold(&self) -> i64 {
        let mut ticks = self.ticks.lock();
        ticks.next += 1;
        let tick = ticks.next;
        ticks.held.insert(tick);
        tick
    }

    fn let_go(&self, tick: i64) {
        self.ticks.lock().held.remove(&tick);
    }

    /// Everything at or below this is decided.
    fn closed(&self) -> Timestamp {
        let ticks = self.ticks.lock();
        at(ticks.held.first().map_or(ticks.next, |held| held - 1))
    }

    async fn write(&self, task: usize) {
        for round in 0..WRITES {
            let of = (task * 7 + round * 13) % COUNTERS;
            let ledger = &self.ledgers[of];
            let tick = self.hold();
            ledger.sent.fetch_add(1, Ordering::SeqCst);
            let add = event(tick, "t", Change::Add(1));
            let appended = append(&self.stores, &named(of), add.clone()).await;
            assert_eq!(appended, AppendOutcome::Inserted);
            ledger.acknowledged.fetch_add(1, Ordering::SeqCst);
            let row = self.stores.rollups.read(DATASET, &named(of)).await.expect("a row");
            assert!(row.last_write_time >= Some(at(tick)), "an acknowledged write is known at once");
            if let Some(cached) = self.stores.cache.get(&named(of)).await {
                assert!(cached.last_write_time >= Some(at(tick)), "also to a coherent cache");
            }
            if round % 5 == 0 && self.stores.log.capabilities().reports_existing {
                assert_eq!(append(&self.stores, &named(of), add).await, AppendOutcome::Existing(Change::Add(1)));
            }
            self.let_go(tick);
        }
    }

    async fn roll(&self, task: usize) {
        let mut round = task;
        while !self.done.load(Ordering::SeqCst) {
            let limit = self.stores.progress.publish(DATASET, self.closed()).await.expect("a limit");
            round += 1;
            self.roll_one(&named(round % COUNTERS), limit).await;
            // A verdict on a token that nobody sent must not show anywhere.
            let absent = key(limit.millis() - at(0).millis(), "absent");
            let settled = self.stores.log.settle(DATASET, &named(round % COUNTERS), &absent).await;
            assert_eq!(settled.expect("a verdict"), VerdictOutcome::Voided);
            tokio::task::yield_now().await;
        }
    }

    async fn roll_one(&self, counter: &Counter, limit: Timestamp) {
        let row = self.stores.rollups.read(DATASET, counter).await.expect("a row");
        let base = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
        if base.as_of >= limit {
            return;
        }
        let rules = FoldRules::constant(Duration::from_secs(10), None, vec![10]);
        let events = self.scan(counter, base.as_of, limit).await;
        let rolled = fold(base, &events, limit, &rules);
        let write = RollWrite {
            counter: counter.clone(),
            checkpoint: rolled.checkpoint,
            finished_buckets: rolled.finished_buckets,
            finished_steps: rolled.finished_steps,
        };
        self.stores.rollups.put(DATASET, vec![write]).await.expect("a put");
    }

    async fn scan(&self, counter: &Counter, after: Timestamp, to: Timestamp) -> Vec<tallystone_domain::counter::Event> {
        let range = ScanRange { after, to, order: ScanOrder::OldestFirst, beyond: None, limit: usize::MAX };
        self.stores.log.scan(DATASET, counter, range).await.expect("a scan")
    }

    /// Reads as an UP_TO_DATE read does, from row or cache, with the tail or a scan.
    async fn read(&self, task: usize) {
        let mut round = task;
        let mut seen: Vec<Option<(Timestamp, Option<EventKey>)>> = vec![None; COUNTERS];
        while !self.done.load(Ordering::SeqCst) {
            round += 1;
            let of = (round * 11) % COUNTERS;
            let counter = named(of);
            let acknowledged = self.ledgers[of].acknowledged.load(Ordering::SeqCst);
            let (as_of, base, clear) = match self.stores.cache.get(&counter).await {
                Some(cached) if round.is_multiple_of(2) => (cached.as_of, cached.count, cached.clear),
                Some(_) | None => {
                    let row = self.stores.rollups.read(DATASET, &counter).await.expect("a row");
                    let checkpoint = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
                    (checkpoint.as_of, checkpoint.count, row.clear)
                }
            };
            let value = match self.stores.log.tail(DATASET, &counter, as_of) {
                TailLookup::Sum(tail) => base + tail.sum,
                TailLookup::Empty => base,
                TailLookup::Unknown => base + i128::from(adds(&self.scan(&counter, as_of, Timestamp::MAX).await)),
            };
            let sent = self.ledgers[of].sent.load(Ordering::SeqCst);
            assert!(
                i128::from(acknowledged) <= value && value <= i128::from(sent),
                "{counter:?} shows {value} where {acknowledged} were acknowledged and {sent} sent",
            );
            let now = Some((as_of, clear));
            assert!(seen[of] <= now, "{counter:?} went back from {:?} to {now:?}", seen[of]);
            seen[of] = now;
            tokio::task::yield_now().await;
        }
    }

    /// Every add is in the log once, and a last roll counts it.
    async fn check(&self) {
        let limit = self.stores.progress.publish(DATASET, self.closed()).await.expect("a limit");
        for (of, ledger) in self.ledgers.iter().enumerate() {
            let sent = ledger.sent.load(Ordering::SeqCst);
            assert_eq!(adds(&self.scan(&named(of), Timestamp::MIN, Timestamp::MAX).await), sent);
            self.roll_one(&named(of), limit).await;
            let row = self.stores.rollups.read(DATASET, &named(of)).await.expect("a row");
            assert_eq!(row.checkpoint.map(|checkpoint| checkpoint.count), Some(i128::from(sent)));
        }
    }
}

fn named(of: usize) -> Counter {
    counter(&format!("c{of}"))
}

fn adds(events: &[tallystone_domain::counter::Event]) -> i64 {
    events.iter().map(|event| event.change.delta()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_sees_what_was_acknowledged_while_everything_moves() {
    on_every_backend(async |bench| {
        let house = Arc::new(House::new(bench.stores.clone()));
        let mut others = JoinSet::new();
        for task in 0..2 {
            let (rolling, reading) = (house.clone(), house.clone());
            others.spawn(async move { rolling.roll(task * 20).await });
            others.spawn(async move { reading.read(task * 17).await });
        }
        let mut writers = JoinSet::new();
        for task in 0..WRITERS {
            let house = house.clone();
            writers.spawn(async move { house.write(task).await });
        }
        let written = async {
            while let Some(ended) = writers.join_next().await {
                ended.expect("no writer panics");
            }
        };
        tokio::select! {
            () = written => house.done.store(true, Ordering::SeqCst),
            ended = others.join_next() => ended.expect("they run").expect("no roller or reader panics"),
        }
        while let Some(ended) = others.join_next().await {
            ended.expect("no roller or reader panics");
        }
        house.check().await;
    })
    .await;
}
