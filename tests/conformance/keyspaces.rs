//! Keyspaces of the node that all tests share. A test borrows one and finds it as new.
//!
//! A bench has about forty tables. The node takes a second or two to create them and as long to drop them, but two milliseconds
//! to empty one. So a keyspace is made once, with the slices of `given::slices`, and emptied before each test: every table that it
//! was made with is truncated, every other one is dropped. It is emptied when it is borrowed, whatever its last borrower left, and
//! one whose borrower failed is not lent again. Tests of the schema itself make keyspaces of their own.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use scylla::client::session::Session;
use scylla::statement::Statement;
use tallystone_adapters::memory::FastTable;
use tallystone_adapters::system::SystemClock;
use tallystone_cassandra::{Cassandra, RowSettings, SettingsSource, StartupDeadline, schema};
use tallystone_domain::counter::{Change, NamespaceId};
use tallystone_domain::namespace::{HotCounter, SeriesSettings, TimePartition};
use tallystone_domain::rollup::SliceStatus;
use tallystone_ports::StoreError;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;

use crate::backends::{Backend, is_selected, not_run};
use crate::given;

/// How long a call may take on a busy machine.
const CALL_WITHIN: Duration = Duration::from_secs(60);
/// How long the node may take to empty or drop a table.
const EMPTIED_WITHIN: Duration = Duration::from_secs(120);
/// So many of those that were given back rest: a request that their borrower gave up ends meanwhile.
const RESTING: usize = 2;

/// The list of applied migrations, which stays.
const MIGRATED: &str = "schema_migrations";

/// A keyspace that a test has to itself.
#[derive(Clone)]
pub struct Keyspace {
    options: tallystone_cassandra::Options,
    /// The tables that it was made with.
    tables: Arc<BTreeSet<String>>,
}

/// All keyspaces that nobody has.
struct Pool {
    session: Session,
    node: String,
    /// The one that rests longest comes first.
    free: Mutex<VecDeque<Keyspace>>,
}

/// Namespaces of which no catalog knows anything: two event buckets, five of the counters that most laws are about and, in
/// later versions, three; time buckets of a minute, series for a month.
struct Constant;

#[async_trait]
impl SettingsSource for Constant {
    async fn settings(&self, _: NamespaceId, version: u64) -> Result<RowSettings, StoreError> {
        let keep = Duration::from_secs(30 * 86_400);
        let series = [10, 60].map(|step_seconds| SeriesSettings { step_seconds, keep }).into();
        let buckets_per_id = if version == 1 { 5 } else { 3 };
        let hot = |name| HotCounter { counter_name: given::counter_name(name), buckets_per_id };
        let hot_counters = given::HOT.map(hot).into_iter().collect();
        Ok(RowSettings { partition: TimePartition { buckets_per_id: 2, seconds_per_bucket: 60 }, hot_counters, series })
    }
}

static POOL: OnceCell<Result<Arc<Pool>, String>> = OnceCell::const_new();

/// That of the pool's session, because that of a test ends with the test.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
    RUNTIME.get_or_init(|| build().expect("a thread more"))
}

async fn pool() -> Result<Arc<Pool>, String> {
    POOL.get_or_init(async || Pool::start().await.map(Arc::new)).await.clone()
}

/// Lends a keyspace that is as new.
pub async fn borrow() -> Result<Keyspace, String> {
    let pool = pool().await?;
    let rested = {
        let mut free = pool.free.lock();
        if free.len() > RESTING { free.pop_front() } else { None }
    };
    let made_ready = {
        let pool = Arc::clone(&pool);
        async move {
            let keyspace = match rested {
                Some(keyspace) => keyspace,
                None => pool.make().await?,
            };
            pool.make_as_new(&keyspace).await?;
            Ok(keyspace)
        }
    };
    runtime().spawn(made_ready).await.map_err(|error| error.to_string())?
}

impl Keyspace {
    /// Opens it, as a process does.
    pub async fn open(&self) -> Result<Cassandra, String> {
        let settings = Some(Arc::new(Constant) as Arc<dyn SettingsSource>);
        // Boxed, because it is large.
        let opened = Box::pin(Cassandra::open(&self.options, settings, Arc::new(SystemClock), &patience())).await;
        opened.map_err(|error| error.to_string())
    }

    /// Gives it back, whatever is in it. Nothing may use it any more.
    pub async fn give_back(self) {
        let pool = pool().await.expect("a keyspace was borrowed");
        pool.free.lock().push_back(self);
    }
}

impl Pool {
    async fn start() -> Result<Self, String> {
        let node = crate::servers::cassandra::shared()?.to_string();
        let options = options(&node, "system");
        let connected = runtime().spawn(async move { tallystone_cassandra::connect(&options, &patience()).await });
        let session = connected.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok(Self { session, node, free: Mutex::default() })
    }

    async fn make(&self) -> Result<Keyspace, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("laws_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let replication = schema::Replication::new(vec![("datacenter1".to_owned(), 1)]);
        let made = schema::make_keyspace(&self.session, &name, &replication, &SystemClock).await;
        made.map_err(|fault| fault.why)?;
        // The node is never started again, and before it empties a durable table it writes it to disk.
        self.define(format!("ALTER KEYSPACE {name} WITH durable_writes = false")).await?;
        let applied = schema::apply(&self.session, &name, schema::MIGRATIONS, &SystemClock, &|| ()).await;
        applied.map_err(|fault| fault.why)?;
        let made = Keyspace { options: options(&self.node, &name), tables: Arc::default() };
        let opened = made.open().await?;
        let stores = opened.stores(Arc::new(FastTable::new(Arc::new(SystemClock), 1 << 20)));
        for slice in given::slices() {
            stores.slices.create(slice).await.map_err(|error| format!("slices cannot be created: {error}"))?;
        }
        let tables = self.tables_of(&name).await?.into_iter().collect();
        Ok(Keyspace { tables: Arc::new(tables), ..made })
    }

    /// Empties the tables that a keyspace was made with, but the list of its migrations, and drops all others. Rows are not
    /// deleted, because a deletion would outlive them: some have the greatest timestamp that there is.
    async fn make_as_new(&self, keyspace: &Keyspace) -> Result<(), String> {
        let name = &keyspace.options.keyspace;
        let there = self.tables_of(name).await?;
        let (made_with, further): (Vec<_>, Vec<_>) =
            there.into_iter().filter(|table| table != MIGRATED).partition(|table| keyspace.tables.contains(table));
        for table in further {
            self.define(format!("DROP TABLE {name}.{table}")).await?;
        }
        try_join_all(made_with.iter().map(|table| self.define(format!("TRUNCATE {name}.{table}")))).await?;
        Ok(())
    }

    async fn tables_of(&self, keyspace: &str) -> Result<Vec<String>, String> {
        let asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let answered = self.session.query_unpaged(asked, (keyspace,)).await.map_err(|error| error.to_string())?;
        let rows = answered.into_rows_result().map_err(|error| error.to_string())?;
        let rows = rows.rows::<(String,)>().map_err(|error| error.to_string())?;
        rows.map(|row| row.map(|(table,)| table).map_err(|error| error.to_string())).collect()
    }

    async fn count_rows(&self, keyspace: &str, table: &str) -> i64 {
        let counted = self.session.query_unpaged(format!("SELECT COUNT(*) FROM {keyspace}.{table}"), ()).await;
        let counted = counted.expect("a read").into_rows_result().expect("rows");
        counted.single_row::<(i64,)>().expect("a number").0
    }

    async fn define(&self, text: String) -> Result<(), String> {
        let mut statement = Statement::new(text);
        statement.set_request_timeout(Some(EMPTIED_WITHIN));
        let done = self.session.query_unpaged(statement, ()).await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

fn options(node: &str, keyspace: &str) -> tallystone_cassandra::Options {
    tallystone_cassandra::Options {
        servers: vec![node.to_owned()],
        keyspace: keyspace.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: CALL_WITHIN,
    }
}

/// Longer than a server waits for its start: a machine whose disk pauses must not fail a test.
fn patience() -> Arc<StartupDeadline> {
    Arc::new(StartupDeadline::start_within(Arc::new(SystemClock), Duration::from_secs(90)))
}

#[tokio::test]
async fn a_keyspace_is_as_new_whatever_its_borrower_left() {
    if !is_selected(Backend::Cassandra) {
        return;
    }
    let keyspace = match borrow().await {
        Ok(keyspace) => keyspace,
        Err(why) => return not_run(Backend::Cassandra, &why),
    };
    let opened = keyspace.open().await.expect("it opens");
    let stores = opened.stores(Arc::new(FastTable::new(Arc::new(SystemClock), 1 << 20)));
    for slice in given::slices().into_iter().chain([given::slice(given::DATASET, 1_200_000)]) {
        stores.slices.create(slice).await.expect("a slice");
    }
    given::append(&stores, &given::counter("left"), given::event(0, "a", Change::Add(1))).await;
    stores.slices.set_status(given::DATASET, given::at(-600_000), SliceStatus::Dropped).await.expect("a drop");
    drop((stores, opened));
    let (pool, name) = (pool().await.expect("it lent the keyspace"), &keyspace.options.keyspace);
    assert_eq!(pool.count_rows(name, "time_slices").await, 7);
    pool.make_as_new(&keyspace).await.expect("it can be emptied");
    let there = pool.tables_of(name).await.expect("tables");
    assert_eq!(there.len(), keyspace.tables.len() - 3, "those of the dropped slice are made again with it: {there:?}");
    for table in there.iter().filter(|table| *table != MIGRATED) {
        assert!(keyspace.tables.contains(table), "{table}");
        assert_eq!(pool.count_rows(name, table).await, 0, "{table}");
    }
    keyspace.give_back().await;
}
