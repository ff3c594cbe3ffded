//! The counter use cases on the memory stores and a clock moved by hand.

mod adds;
mod budgets;
mod circulation;
mod clears;
mod clock_jumps;
mod cumulative;
mod drain;
mod explain;
mod failing_rolls;
mod faulty_progress;
mod frozen_settings;
mod history;
mod history_totals;
mod leftovers;
mod logs;
mod long_exports;
mod long_folds;
mod namespaces;
mod queue_totals;
mod races;
mod reads;
mod retention;
mod rollups;
mod series;
mod shared_cache;
mod slow_log;
mod verdicts;

use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::codec::queues::register::ProtobufRegisters;
use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::access::QuotaLimits;
use tallystone::domain::counter::{ClientToken, CounterName, IdempotencyToken, NamespaceName, Provenance};
use tallystone::domain::fleet::ProtocolRules;
use tallystone::domain::namespace::{CounterType, NamespaceSpec};
use tallystone::domain::rollup::{CountReading, Freshness, ReadOptions};
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::{Add, Clear, Counting, CountingError, WriteOutcome, Written};
use tallystone::engine::namespaces::NamespaceCatalog;
use tallystone::engine::{Engine, EngineParts, MemberProfile};
use tallystone::ports::{Clock, ExportSink, Stores};

/// 2026-11-20T00:00:00Z, the beginning of a slice.
const START: Timestamp = Timestamp::from_secs(1_795_132_800);
const SECOND: Duration = Duration::from_secs(1);

/// An engine on memory stores, with one namespace `shop`.
struct House {
    engine: Engine,
    counting: Counting,
    clock: ManualClock,
    stores: Stores,
    shop: NamespaceName,
}

fn spec(name: &str) -> NamespaceSpec {
    let mut spec = NamespaceSpec::with_defaults(NamespaceName::new(name).expect("a valid name"));
    spec.rollup.coalesce_ms = 1_000;
    spec
}

impl House {
    async fn new() -> Self {
        Self::with(spec("shop")).await
    }

    async fn of_type(counter_type: CounterType) -> Self {
        let mut spec = spec("shop");
        spec.counter_type = counter_type;
        Self::with(spec).await
    }

    async fn with(spec: NamespaceSpec) -> Self {
        let clock = ManualClock::at(START + Duration::from_secs(3_600));
        let stores = memory::stores_on(Arc::new(clock.clone()));
        Self::on(spec, clock, stores, None).await
    }

    async fn on(spec: NamespaceSpec, clock: ManualClock, stores: Stores, export: Option<Arc<dyn ExportSink>>) -> Self {
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let namespaces = NamespaceCatalog::open(stores.catalog.clone(), shared.clone()).await.expect("memory opens");
        let shop = spec.name.clone();
        namespaces.create(spec, Author::default()).await.expect("a valid namespace");
        let parts = EngineParts {
            stores: stores.clone(),
            queue_stores: Some(memory::queue_stores(Arc::clone(&shared))),
            history: None,
            history_registers: Arc::new(ProtobufRegisters),
            clock: shared,
            entropy: Arc::new(SeededEntropy::new(7)),
            export,
            namespaces,
            profile: MemberProfile::default(),
            signals: None,
            seal_delay: None,
            rules: ProtocolRules::default(),
            progress: Arc::new(|| {}),
            bridge: None,
            quotas: QuotaLimits::UNLIMITED,
        };
        let engine = Engine::start(parts).await.expect("the engine starts");
        let counting = engine.counting();
        let house = Self { engine, counting, clock, stores, shop };
        house.rest().await;
        house
    }

    /// Lets every task come to rest.
    async fn rest(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    /// Moves the clock in small steps, letting every task come to rest after each.
    async fn pass(&self, duration: Duration) {
        let step = Duration::from_millis(100);
        let mut left = duration;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            left -= now;
            self.rest().await;
        }
    }

    /// Drives a call to its end, moving the clock while it waits for a timer.
    async fn drive<T>(&self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        loop {
            tokio::select! {
                biased;
                done = &mut call => return done,
                () = self.rest() => self.clock.advance(Duration::from_millis(5)),
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn add(&self, name: &str, delta: i64, token: Option<IdempotencyToken>) -> Result<Written, CountingError> {
        let add = Add { name: counter(name), delta, token, provenance: Provenance::default() };
        self.drive(self.counting.add(&self.shop, add)).await
    }

    async fn clear(&self, name: &str, token: Option<IdempotencyToken>) -> Result<Written, CountingError> {
        let clear = Clear { name: counter(name), token, provenance: Provenance::default() };
        self.drive(self.counting.clear(&self.shop, clear)).await
    }

    async fn get(&self, name: &str) -> CountReading {
        self.read(name, ReadOptions::default()).await
    }

    async fn fresh(&self, name: &str) -> CountReading {
        self.read(name, ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() }).await
    }

    async fn read(&self, name: &str, options: ReadOptions) -> CountReading {
        self.drive(self.counting.get(&self.shop, counter(name), options)).await.expect("a read that works")
    }
}

fn counter(name: &str) -> CounterName {
    CounterName::new(name).expect("a valid name")
}

/// A caller's token with its own time.
fn token(text: &str, time: Timestamp) -> IdempotencyToken {
    IdempotencyToken::parse(&ClientToken { token: text.to_owned(), generation_time: Some(time) })
        .expect("a valid token")
}

fn applied(answer: &Result<Written, CountingError>) -> Option<WriteOutcome> {
    answer.as_ref().ok().map(|written| written.outcome)
}

/// Replays random histories of some seeds, each on a runtime of its own; says which one failed.
fn replay_all<G: Copy + Debug, R: Future<Output = ()>>(replay: impl Fn(G, u64) -> R, ground: G, seeds: u64) {
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(replay(ground, seed))));
        if let Err(cause) = outcome {
            eprintln!("the history of seed {seed} failed; replay(Ground::{ground:?}, {seed}) runs it alone");
            panic::resume_unwind(cause);
        }
    }
}
