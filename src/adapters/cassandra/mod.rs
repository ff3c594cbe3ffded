//! Counters on Cassandra or ScyllaDB: events, touches, checkpoints, names, slices and the catalog.
//!
//! No native counter columns and no conditional writes on the way of an add: every row carries its own timestamp, so
//! writing it twice changes nothing, and what may only grow is a register whose timestamp is its value. Conditional writes
//! decide verdicts, slices, the catalog and sealed values. Statements are of the kind that Cassandra 4.1, 5.0 and
//! ScyllaDB all know. Tables and their partitions are described in `cql/`; keys in `place`.
//!
//! Several servers share a keyspace; what one keeps in memory of slices and steps is read again with every limit.
//!
//! The protocol stands on a seam (`store`) that sends one statement once; `session` is the driver's side of it.

mod append;
mod catalog;
mod connect;
mod counted;
mod fault;
mod fleet;
mod gathering;
mod home;
mod link;
mod log;
mod no_queues;
mod owner;
mod patience;
mod place;
mod rollups;
mod scan;
pub mod schema;
mod series;
mod session;
mod slices;
mod statements;
pub mod store;
mod touches;
mod touching;
pub mod value;
mod wide;

use std::sync::Arc;

use crate::adapters::cassandra::append::Appending;
use crate::adapters::cassandra::counted::{Counted, Tally};
use crate::adapters::cassandra::fleet::Fleet;
use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::log::Log;
use crate::adapters::cassandra::place::stored_dataset;
use crate::adapters::cassandra::rollups::Rollups;
use crate::adapters::cassandra::scan::Scanning;
use crate::adapters::cassandra::session::CqlStore;
use crate::adapters::cassandra::slices::Slices;
use crate::adapters::cassandra::statements::Statements;
use crate::adapters::cassandra::store::{Level, WideStore};
use crate::adapters::cassandra::touches::{Limits, TouchIndex};
use crate::adapters::cassandra::touching::Touching;
use crate::adapters::cassandra::value::Bind as _;
use crate::domain::counter::{Counter, DatasetId};
use crate::domain::fleet::Rules;
use crate::ports::{CacheLease, CachedCount, Clock, CountCache, FastCounts, StoreError, Stores};

pub use catalog::Catalog;
pub use connect::{Credentials, OpenError, Options, connect, data_centers, in_time};
pub use counted::Requests;
pub use fault::Fault;
pub use no_queues::no_queues;
pub use patience::Patience;
pub use slices::{RowSettings, SettingsSource};

/// An opened keyspace.
pub struct Cassandra {
    link: Arc<Link>,
    slices: Arc<Slices>,
    touching: Arc<Touching>,
    appending: Arc<Appending>,
    rollups: Arc<Rollups>,
    catalog: Arc<Catalog>,
    tally: Arc<Tally>,
}

impl Cassandra {
    /// Opens a keyspace: checks its schema and that it is written in the data centre of this server, and reads what is kept
    /// in memory. `settings` answers the settings of versions
    /// of namespaces; none means those of the catalog in the keyspace itself. It ends with what is left of a start.
    pub async fn open(
        options: &Options,
        settings: Option<Arc<dyn SettingsSource>>,
        clock: Arc<dyn Clock>,
        patience: &Arc<Patience>,
    ) -> Result<Self, OpenError> {
        let session = connect::connect(options, patience).await?;
        connect::check_schema(&session, &options.keyspace, clock.as_ref(), patience).await?;
        let opening = async {
            connect::warn_of_settings(&session).await;
            home::settle(&session, options, clock.as_ref()).await?;
            let tally = Arc::new(Tally::default());
            let store = CqlStore::new(session, options.data_center.clone(), Arc::clone(patience));
            let store = Arc::new(Counted::new(store, Arc::clone(&tally)));
            let opened = Self::on(store, &options.keyspace, settings, clock, Rules::default()).await?;
            Ok(Self { tally, ..opened })
        };
        connect::in_time(patience, &options.keyspace, Box::pin(opening)).await
    }

    /// Opens a keyspace of any store of wide rows; its schema is that of this release. Its requests are not counted.
    pub async fn on(
        store: Arc<dyn WideStore>,
        keyspace: &str,
        settings: Option<Arc<dyn SettingsSource>>,
        clock: Arc<dyn Clock>,
        rules: Rules,
    ) -> Result<Self, OpenError> {
        let unusable = |error| OpenError::of_store(error, keyspace);
        let statements = Statements::of_schema(store.as_ref(), keyspace).await;
        let statements = statements.map_err(|fault| OpenError::of(fault, keyspace))?;
        let link = Arc::new(Link::new(store, keyspace.to_owned(), statements, clock, rules));
        let catalog = Arc::new(Catalog::new(Arc::clone(&link)));
        let begun = catalog.begin().await;
        begun.map_err(|fault| OpenError::of_condition(fault, keyspace))?;
        let settings = settings.unwrap_or_else(|| Arc::clone(&catalog) as Arc<dyn SettingsSource>);
        let slices = Arc::new(Slices::new(Arc::clone(&link), settings));
        let touching = Touching::open(Arc::clone(&link), Arc::clone(&slices)).await.map_err(unusable)?;
        let touching = Arc::new(touching);
        let rollups = Rollups::open(Arc::clone(&link), Arc::clone(&slices), Arc::clone(&touching)).await;
        let rollups = rollups.map_err(unusable)?;
        let appending = Appending::new(Arc::clone(&link), Arc::clone(&slices), Arc::clone(&touching));
        let (rollups, appending) = (Arc::new(rollups), Arc::new(appending));
        Ok(Self { link, slices, touching, appending, rollups, catalog, tally: Arc::default() })
    }

    /// The catalog, which is also the source of settings of keyspaces beside this one: theirs are empty.
    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// How often the keyspace was asked so far.
    pub fn requests(&self) -> Requests {
        self.tally.requests()
    }

    /// The stores of the keyspace, beside those best-effort counters.
    pub fn stores(&self, fast: Arc<dyn FastCounts>) -> Stores {
        let Self { link, slices, touching, appending, .. } = self;
        let scanning = Arc::new(Scanning::new(Arc::clone(link), Arc::clone(slices)));
        let log = Log::new(
            Arc::clone(link),
            Arc::clone(slices),
            Arc::clone(touching),
            Arc::clone(appending),
            Arc::clone(&scanning),
        );
        let rollups = Arc::clone(&self.rollups);
        let fleet = Fleet::new(Arc::clone(link), Arc::clone(slices), Arc::clone(touching), scanning, rollups);
        Stores {
            log: Arc::new(log),
            touches: Arc::new(TouchIndex::new(Arc::clone(link), Arc::clone(slices))),
            slices: Arc::clone(slices) as Arc<_>,
            rollups: Arc::clone(&self.rollups) as Arc<_>,
            cache: Arc::new(NoCache),
            caches: Arc::default(),
            progress: Arc::new(Limits::new(Arc::clone(link), Arc::clone(slices))),
            fast,
            catalog: Arc::clone(&self.catalog) as Arc<_>,
            fleet: Some(Arc::new(fleet)),
        }
    }

    /// Reads one row at a quorum, once: an error while the keyspace does not answer that in the time of a request.
    pub async fn answers(&self) -> Result<(), StoreError> {
        let values = (stored_dataset(DatasetId(0)),).bind();
        let read = self.link.store.read(self.link.statement("read_frontier"), &values, Level::Quorum).await;
        read.map(|_| ()).map_err(|fault| fault.during("look whether it answers"))
    }

    /// How many counters were found whose partitions are too large, one for each slice.
    pub fn wide_counters(&self) -> u64 {
        self.rollups.wide.found()
    }

    /// Ends what is under way.
    pub async fn close(&self) {
        self.appending.close().await;
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
