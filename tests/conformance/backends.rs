//! The backends, and how a law is run on each of them.
//!
//! A backend that cannot be opened is named on standard error, past the capture of the test runner, and is a failure
//! under `CI=true`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::memcached::{self, Cluster};
use tallystone_adapters::memory::{self, FastTable, MemoryHistory};
use tallystone_adapters::system::SystemClock;
use tallystone_embedded::{Embedded, Options};
use tallystone_ports::{Clock as _, HistoryStore, Stores};
use tempfile::TempDir;

use crate::given;
use crate::keyspaces::{self, Keyspace};
use crate::servers::Memcached;

/// How long a call of memcached may take on a busy machine.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// The limit for other processes to let go of a directory that was given up.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(10);

/// How long a keyspace keeps the history of messages.
const HISTORY_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// A backend of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Ordered maps: the oracle.
    Memory,
    /// The durable store inside the process.
    Embedded,
    /// The same with no memory to spare: it forgets as soon as it may and reads from disk.
    EmbeddedForgetful,
    /// A keyspace of a real Cassandra node.
    Cassandra,
    /// Best-effort counters and the count cache on a real memcached, everything else in ordered maps.
    Memcached,
    /// The same on two replicas of two servers.
    MemcachedReplicas,
    /// A memcached that remembers tokens.
    MemcachedTokens,
}

/// Every backend that keeps more than best-effort counters; a new one is added here and in `Bench::open`.
pub const BACKENDS: [Backend; 4] = [Backend::Memory, Backend::Embedded, Backend::EmbeddedForgetful, Backend::Cassandra];

/// Every backend that keeps best-effort counters in its own way.
const FAST_BACKENDS: [Backend; 5] =
    [Backend::Memory, Backend::Embedded, Backend::Memcached, Backend::MemcachedReplicas, Backend::MemcachedTokens];

/// Every backend that keeps the count cache in its own way.
const CACHE_BACKENDS: [Backend; 5] =
    [Backend::Memory, Backend::Embedded, Backend::EmbeddedForgetful, Backend::Memcached, Backend::MemcachedReplicas];

/// How a store ends before it is opened again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It is closed.
    Closed,
    /// Its process ends without a word: what opens next is a copy of the directory as it stood.
    Killed,
}

/// A freshly opened backend with the three slices of `given::slices`.
pub struct Bench {
    backend: Backend,
    /// Its stores.
    pub stores: Stores,
    /// Its history of messages, where it keeps one in its own way.
    pub history: Option<Arc<dyn HistoryStore>>,
    /// The clock of its best-effort counters.
    pub clock: ManualClock,
    /// The store and its directory, where there is one. In this order: it is closed before its directory goes.
    kept: Option<(Embedded, TempDir)>,
    /// The keyspace that it borrowed, where there is one.
    keyspace: Option<Keyspace>,
    /// The memcached servers, where there are some.
    servers: Vec<Memcached>,
}

/// What a bench has of a server that goes on.
pub struct Leftovers(Option<Keyspace>);

impl Leftovers {
    /// Gives it back for other benches. After a law that failed it is not: something may still use it.
    pub async fn give_back(self) {
        if let Some(keyspace) = self.0 {
            keyspace.give_back().await;
        }
    }
}

impl Bench {
    /// Opens a backend.
    pub async fn open(backend: Backend) -> Result<Self, String> {
        let clock = ManualClock::at(given::T0);
        let bench = match backend {
            Backend::Memory => {
                let stores = memory::stores_on(Arc::new(clock.clone()));
                let history = Some(Arc::new(MemoryHistory::default()) as Arc<dyn HistoryStore>);
                Self { backend, stores, history, clock, kept: None, keyspace: None, servers: Vec::new() }
            }
            Backend::Cassandra => Self::open_cassandra(clock, keyspaces::borrow().await?).await?,
            Backend::Memcached => Self::open_memcached(backend, clock, &[1], 0).await?,
            Backend::MemcachedReplicas => Self::open_memcached(backend, clock, &[2, 2], 0).await?,
            Backend::MemcachedTokens => Self::open_memcached(backend, clock, &[1, 1], 3_600).await?,
            Backend::Embedded | Backend::EmbeddedForgetful => {
                let dir = directory().map_err(|error| error.to_string())?;
                Self::open_embedded(backend, clock, dir)?
            }
        };
        for slice in given::slices() {
            bench.stores.slices.create(slice).await.map_err(|error| format!("slices cannot be created: {error}"))?;
        }
        Ok(bench)
    }

    /// What the bench has of a server that goes on when it is gone.
    pub fn leftovers(&self) -> Leftovers {
        Leftovers(self.keyspace.clone())
    }

    /// Whether the backend keeps anything over a restart.
    pub fn is_durable(&self) -> bool {
        match self.backend {
            Backend::Memory | Backend::Memcached | Backend::MemcachedReplicas | Backend::MemcachedTokens => false,
            Backend::Embedded | Backend::EmbeddedForgetful | Backend::Cassandra => true,
        }
    }

    fn open_embedded(backend: Backend, clock: ManualClock, dir: TempDir) -> Result<Self, String> {
        let mut options = Options { reserve_bytes: 0, block_bytes: 1 << 20, ..Options::new(dir.path()) };
        if backend == Backend::EmbeddedForgetful {
            options = Options { row_bytes: 0, tail_bytes: 0, ..options };
        }
        let store = open_store(&options).map_err(|error| error.to_string())?;
        let stores = store.stores(Arc::new(FastTable::new(Arc::new(clock.clone()), 1 << 20)));
        let history = Some(store.history());
        Ok(Self { backend, stores, history, clock, kept: Some((store, dir)), keyspace: None, servers: Vec::new() })
    }

    async fn open_cassandra(clock: ManualClock, keyspace: Keyspace) -> Result<Self, String> {
        let opened = keyspace.open().await?;
        let stores = opened.stores(Arc::new(FastTable::new(Arc::new(clock.clone()), 1 << 20)));
        Ok(Self {
            backend: Backend::Cassandra,
            stores,
            history: Some(opened.history(HISTORY_KEPT)),
            clock,
            kept: None,
            keyspace: Some(keyspace),
            servers: Vec::new(),
        })
    }

    /// Starts as many servers for each replica.
    async fn open_memcached(
        backend: Backend,
        clock: ManualClock,
        replicas: &[usize],
        dedupe_seconds: u32,
    ) -> Result<Self, String> {
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for &count in replicas {
            let started = (0..count).map(|_| Memcached::start()).collect::<Result<Vec<_>, _>>()?;
            addresses.push(started.iter().map(|server| server.address().to_string()).collect());
            servers.extend(started);
        }
        let options = memcached::Options {
            replicas: addresses,
            key_prefix: "conformance".to_owned(),
            timeout: CALL_WITHIN,
            dedupe_seconds,
        };
        let opened = Cluster::open(options, Arc::new(clock.clone())).await;
        let (cluster, _) = opened.map_err(|absent| format!("no memcached answers: {absent:?}"))?;
        let mut stores = memory::stores_on(Arc::new(clock.clone()));
        let cluster = Arc::new(cluster);
        (stores.fast, stores.cache) = (cluster.clone(), cluster);
        Ok(Self { backend, stores, history: None, clock, kept: None, keyspace: None, servers })
    }

    /// The stores of another process on the same data, where there may be one.
    pub async fn beside(&self) -> Option<Stores> {
        let opened = self.keyspace.as_ref()?.open().await.expect("the keyspace opens again");
        Some(opened.stores(Arc::new(FastTable::new(Arc::new(self.clock.clone()), 1 << 20))))
    }

    /// The memcached servers, where there are some.
    pub fn servers(&self) -> &[Memcached] {
        &self.servers
    }

    /// Ends the stores and opens them again.
    pub async fn reopen(self, ending: Ending) -> Self {
        match self.backend {
            Backend::Memory | Backend::Memcached | Backend::MemcachedReplicas | Backend::MemcachedTokens => {
                unreachable!("{:?} keeps nothing over a restart ({ending:?})", self.backend)
            }
            Backend::Cassandra => {
                // Either way the process that wrote is gone and the node is not: what was acknowledged, it has.
                let Self { stores, clock, keyspace, .. } = self;
                drop(stores);
                let keyspace = keyspace.expect("a bench on Cassandra has a keyspace");
                Self::open_cassandra(clock, keyspace).await.expect("the keyspace opens again")
            }
            Backend::Embedded | Backend::EmbeddedForgetful => {
                let (store, dir) = self.kept.expect("a durable bench has a directory");
                let dir = match ending {
                    Ending::Closed => {
                        store.close();
                        dir
                    }
                    Ending::Killed => copy(dir.path()).expect("the directory can be copied"),
                };
                drop(store);
                Self::open_embedded(self.backend, self.clock, dir).expect("the store opens again")
            }
        }
    }
}

/// Opens a store. A process that another test is just starting has copies of the open files of this one until it runs, the lock
/// of a directory included. So a directory that was given up may be in use for a moment.
pub fn open_store(options: &Options) -> Result<Embedded, tallystone_embedded::OpenError> {
    let deadline = SystemClock.elapsed() + GIVEN_UP_WITHIN;
    loop {
        match tallystone_embedded::open(options.clone()) {
            Err(tallystone_embedded::OpenError::InUse(_)) if SystemClock.elapsed() < deadline => {
                std::thread::yield_now();
            }
            outcome => return outcome,
        }
    }
}

/// A directory for a store: in memory where the system has a place for that, because no law here is about a disk that
/// loses what it was told to sync, and hundreds of stores are opened.
pub fn directory() -> io::Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory).or_else(|_| tempfile::tempdir())
    } else {
        tempfile::tempdir()
    }
}

/// Copies a directory as it stands.
pub fn copy(from: &Path) -> io::Result<TempDir> {
    fn copy_into(from: &Path, to: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                fs::create_dir(&to)?;
                copy_into(&entry.path(), &to)?;
            } else {
                fs::copy(entry.path(), to)?;
            }
        }
        Ok(())
    }
    let to = directory()?;
    copy_into(from, to.path())?;
    Ok(to)
}

/// Runs a law on a fresh bench of every backend.
pub async fn on_every_backend(law: impl AsyncFn(Bench)) {
    on_each(&BACKENDS, law).await;
}

/// Runs a law of the count cache on a fresh bench of every backend that keeps it in its own way.
pub async fn on_every_cache_backend(law: impl AsyncFn(Bench)) {
    on_each(&CACHE_BACKENDS, law).await;
}

/// Runs a law of best-effort counters on a fresh bench of every backend that keeps them in its own way.
pub async fn on_every_fast_backend(law: impl AsyncFn(Bench)) {
    on_each(&FAST_BACKENDS, law).await;
}

/// Names the backends to run, with commas between, as in `memory,embedded`; all of them if it is not set.
const SELECTED: &str = "TALLYSTONE_BACKENDS";

/// Whether a backend is to be run.
pub fn is_selected(backend: Backend) -> bool {
    let name = format!("{backend:?}");
    std::env::var(SELECTED).map_or(true, |names| names.split(',').any(|one| one.trim().eq_ignore_ascii_case(&name)))
}

async fn on_each(backends: &[Backend], law: impl AsyncFn(Bench)) {
    for &backend in backends.iter().filter(|backend| is_selected(**backend)) {
        match Bench::open(backend).await {
            Ok(bench) => {
                // Shown by the test runner when the law fails: the last one named is the one that broke it.
                println!("on {backend:?}");
                let leftovers = bench.leftovers();
                law(bench).await;
                leftovers.give_back().await;
            }
            Err(why) => not_run(backend, &why),
        }
    }
}

/// Runs a law that only shows over a restart, for each ending, where there is something to restart.
pub async fn on_every_durable_backend(law: impl AsyncFn(Bench, Ending)) {
    for ending in [Ending::Closed, Ending::Killed] {
        on_every_backend(async |bench| {
            if bench.is_durable() {
                law(bench, ending).await;
            }
        })
        .await;
    }
}

/// Says that a backend was not run, past the capture of the test runner; a failure under `CI=true`.
pub fn not_run(backend: Backend, why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{backend:?} cannot be opened: {why}");
    // Not `eprintln`: the runner shows that of failing tests only.
    let _ = writeln!(std::io::stderr(), "NOT RUN on {backend:?}: {why}");
}
