//! Counters on Cassandra or ScyllaDB: events, touches, checkpoints, names, slices and the catalog.
//!
//! No native counter columns and no conditional writes on the way of an add: every row carries its own timestamp, so
//! writing it twice changes nothing. A value that may only grow is a register whose timestamp is its value. Conditional
//! writes decide verdicts, slices, the catalog and sealed values. Statements are of the kind that Cassandra 4.1, 5.0
//! and ScyllaDB all know. Tables and their partitions are described in `cql/`; keys in `place`.
//!
//! Several servers share a keyspace; what one keeps in memory of slices and steps is read again with every limit.
//!
//! The protocol is above an interface (`store`) that sends one statement once; `session` is the driver's side of it.

mod append;
mod catalog;
mod connect;
mod counting_store;
mod data_center;
mod entries;
mod fleet;
mod history;
mod limits;
mod log;
mod ownership;
mod request_failure;
mod request_runner;
mod rollups;
mod row_keys;
mod rules;
mod scan;
pub mod schema;
mod series;
mod serving;
mod session;
mod slices;
mod startup_deadline;
mod statements;
pub mod store;
mod touch_writer;
mod touches;
pub mod value;
mod wide_rows;
mod write_batcher;

use std::sync::Arc;
use std::time::Duration;

use crate::append::Appender;
use crate::counting_store::{CountingStore, RequestCounters};
use crate::entries::CqlEntries;
use crate::fleet::CqlFleetStore;
use crate::history::CqlHistory;
use crate::log::Log;
use crate::request_runner::RequestRunner;
use crate::rollups::Rollups;
use crate::rules::CqlRules;
use crate::scan::LogReader;
use crate::session::CqlStore;
use crate::slices::CqlSlices;
use crate::statements::Statements;
use crate::store::WideStore;
use crate::touch_writer::TouchWriter;
use crate::touches::{PublishedLimits, TouchIndex};
use tallystone_adapters::Opened;
use tallystone_domain::counter::Counter;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_domain::rollup::CachedCount;
use tallystone_ports::{
    CacheLease, Clock, CountCache, FastCounts, HistoryStore, LabelledCounts, Metric, SharedStores, StoreCheck,
    StoreHandle, Stores, metrics,
};

pub use catalog::Catalog;
pub use connect::{Credentials, OpenError, Options, connect, data_centers, within_deadline};
pub use request_failure::RequestFailure;
pub use slices::{RowSettings, SettingsSource};
pub use startup_deadline::StartupDeadline;

/// The metrics of all keyspaces together.
pub const METRICS: &[Metric<Vec<Arc<Cassandra>>>] = metrics! { all:
    CountBy "tallystone_cassandra_requests" = LabelledCounts::by("kind", [
        ("read", sum(all, |one| one.request_counters.requests().reads)),
        ("write", sum(all, |one| one.request_counters.requests().writes)),
        ("conditional", sum(all, |one| one.request_counters.requests().conditional)),
    ]), "Requests by kind: reads, counted by page; plain writes, where a batch of rows counts as one; conditional requests";
    Count "tallystone_cassandra_rows_written" = sum(all, |one| one.request_counters.requests().rows),
        "Rows in plain writes";
    Count "tallystone_cassandra_failures" = sum(all, |one| one.request_counters.requests().failed),
        "Failed requests; most of them are retried";
    Count "tallystone_cassandra_wide_counters" = sum(all, |one| one.rollups.wide_rows.warning_count()),
        "Counters with partitions above 10 MiB, counted per slice";
};

fn sum(keyspaces: &[Arc<Cassandra>], count: fn(&Cassandra) -> u64) -> u64 {
    keyspaces.iter().map(|keyspace| count(keyspace)).sum()
}

/// An opened keyspace.
pub struct Cassandra {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touch_writer: Arc<TouchWriter>,
    appender: Arc<Appender>,
    rollups: Arc<Rollups>,
    catalog: Arc<Catalog>,
    request_counters: Arc<RequestCounters>,
    /// HOST:PORT of the nodes that the settings name.
    servers: Vec<String>,
}

impl Cassandra {
    /// Opens a keyspace: checks its schema and that it is written in the data centre of this server, and reads what is
    /// kept in memory. `settings` answers the settings of versions of namespaces; none means those of the catalog in
    /// the keyspace itself. It ends with what is left of a start.
    pub async fn open(
        options: &Options,
        settings: Option<Arc<dyn SettingsSource>>,
        clock: Arc<dyn Clock>,
        startup_deadline: &Arc<StartupDeadline>,
    ) -> Result<Self, OpenError> {
        let session = connect::connect(options, startup_deadline).await?;
        connect::check_schema(&session, &options.keyspace, clock.as_ref(), startup_deadline).await?;
        let opening = async {
            connect::warn_of_settings(&session).await;
            data_center::ensure_write_data_center(&session, options, clock.as_ref()).await?;
            let tally = Arc::new(RequestCounters::default());
            let store = CqlStore::new(session, options.data_center.clone(), Arc::clone(startup_deadline));
            let store = Arc::new(CountingStore::new(store, Arc::clone(&tally)));
            let opened = Self::open_on(store, &options.keyspace, settings, clock, ProtocolRules::default()).await?;
            Ok(Self { request_counters: tally, servers: options.servers.clone(), ..opened })
        };
        connect::within_deadline(startup_deadline, &options.keyspace, Box::pin(opening)).await
    }

    /// Opens a keyspace of any store of wide rows; its schema is that of this release. Its requests are not counted.
    pub async fn open_on(
        store: Arc<dyn WideStore>,
        keyspace: &str,
        settings: Option<Arc<dyn SettingsSource>>,
        clock: Arc<dyn Clock>,
        rules: ProtocolRules,
    ) -> Result<Self, OpenError> {
        let unusable = |error| OpenError::of_store(error, keyspace);
        let statements = Statements::of_schema(store.as_ref(), keyspace).await;
        let statements = statements.map_err(|fault| OpenError::of(fault, keyspace))?;
        let requests = Arc::new(RequestRunner::new(store, keyspace.to_owned(), statements, clock, rules));
        let catalog = Arc::new(Catalog::new(Arc::clone(&requests)));
        let begun = catalog.initialize().await;
        begun.map_err(|fault| OpenError::of_condition(fault, keyspace))?;
        let settings = settings.unwrap_or_else(|| Arc::clone(&catalog) as Arc<dyn SettingsSource>);
        let slices = Arc::new(CqlSlices::new(Arc::clone(&requests), settings));
        let touching = TouchWriter::open(Arc::clone(&requests), Arc::clone(&slices)).await.map_err(unusable)?;
        let touching = Arc::new(touching);
        let rollups = Rollups::open(Arc::clone(&requests), Arc::clone(&slices), Arc::clone(&touching)).await;
        let rollups = rollups.map_err(unusable)?;
        let appending = Appender::new(Arc::clone(&requests), Arc::clone(&slices), Arc::clone(&touching));
        let (rollups, appending) = (Arc::new(rollups), Arc::new(appending));
        Ok(Self {
            requests,
            slices,
            touch_writer: touching,
            appender: appending,
            rollups,
            catalog,
            request_counters: Arc::default(),
            servers: Vec::new(),
        })
    }

    /// The catalog, which is also the source of settings of keyspaces beside this one: theirs are empty.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// The stores of the keyspace, beside those best-effort counters.
    pub fn stores(&self, fast: Arc<dyn FastCounts>) -> Stores {
        let Self { requests: link, slices, touch_writer: touching, appender: appending, .. } = self;
        let scanning = Arc::new(LogReader::new(Arc::clone(link), Arc::clone(slices)));
        let log = Log::new(
            Arc::clone(link),
            Arc::clone(slices),
            Arc::clone(touching),
            Arc::clone(appending),
            Arc::clone(&scanning),
        );
        let rollups = Arc::clone(&self.rollups);
        let fleet =
            Arc::new(CqlFleetStore::new(Arc::clone(link), Arc::clone(slices), Arc::clone(touching), scanning, rollups));
        Stores {
            log: Arc::new(log),
            touches: Arc::new(TouchIndex::new(Arc::clone(link), Arc::clone(slices))),
            slices: Arc::clone(slices) as Arc<_>,
            rollups: Arc::clone(&self.rollups) as Arc<_>,
            cache: Arc::new(NoCache),
            caches: Arc::default(),
            progress: Arc::new(PublishedLimits::new(Arc::clone(link), Arc::clone(slices))),
            fast,
            catalog: Arc::clone(&self.catalog) as Arc<_>,
            keys: Arc::new(CqlEntries::new(Arc::clone(link))),
            experiments: Arc::new(CqlEntries::new(Arc::clone(link))),
            rules: Arc::new(CqlRules::new(Arc::clone(link))),
            fleet: Some(SharedStores { members: fleet.clone(), counters: fleet }),
        }
    }

    /// The history of messages in the keyspace. Rows written from now on are kept for `retention`.
    pub fn history(&self, retention: Duration) -> Arc<dyn HistoryStore> {
        Arc::new(CqlHistory::new(Arc::clone(&self.requests), retention))
    }

    /// The stores of the keyspace by role: counters and the history of messages. Best-effort counters are kept in
    /// `fast`.
    pub fn opened(self: &Arc<Self>, fast: Arc<dyn FastCounts>, history_retention: Duration) -> Opened {
        Opened {
            counters: Some(self.stores(fast)),
            queues: None,
            history: Some(self.history(history_retention)),
            cache: None,
            backups: None,
            handle: Arc::clone(self) as Arc<dyn StoreHandle>,
        }
    }

    /// Ends what is under way.
    pub async fn close(&self) {
        self.appender.close().await;
    }
}

#[async_trait::async_trait]
impl StoreHandle for Cassandra {
    fn name(&self) -> String {
        self.keyspace().to_owned()
    }

    fn label(&self) -> String {
        self.name()
    }

    fn description(&self) -> String {
        format!("keyspace {} of Cassandra at {}", self.keyspace(), self.servers.join(", "))
    }

    async fn check(&self) -> StoreCheck {
        serving::check(&self.requests, self.keyspace()).await
    }

    async fn close(&self) {
        self.close().await;
    }
}

/// A cache that keeps nothing: every read asks the keyspace, one point read.
struct NoCache;

#[async_trait::async_trait]
impl CountCache for NoCache {
    async fn get(&self, _counter: &Counter) -> Option<CachedCount> {
        None
    }

    async fn lease(&self, _counter: &Counter) -> CacheLease {
        CacheLease::default()
    }

    async fn fill(&self, _counter: &Counter, _value: CachedCount, _lease: CacheLease) {}

    async fn delete(&self, _counter: &Counter) -> bool {
        true
    }
}
