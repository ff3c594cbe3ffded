//! The backends, and how a law is run on each of them.
//!
//! A backend that cannot be opened is named on standard error, past the capture of the test runner, and is a failure
//! under `CI=true`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::embedded::{self, Embedded, Options};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memcached::{self, Cluster};
use tallystone::adapters::memory::{self, FastTable};
use tallystone::ports::Stores;
use tempfile::TempDir;

use crate::given;
use crate::servers::Memcached;

/// How long a call of memcached may take on a busy machine.
const CALL_WITHIN: Duration = Duration::from_secs(10);

/// A backend of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Ordered maps: the oracle.
    Memory,
    /// The durable store inside the process.
    Embedded,
    /// The same with no memory to spare: it forgets as soon as it may and reads from disk.
    EmbeddedForgetful,
    /// Best-effort counters and the count cache on a real memcached, everything else in ordered maps.
    Memcached,
    /// The same on two replicas of two servers.
    MemcachedReplicas,
    /// A memcached that remembers tokens.
    MemcachedTokens,
}

/// Every backend that keeps more than best-effort counters; a new one is added here and in `Bench::open`.
pub const BACKENDS: [Backend; 3] = [Backend::Memory, Backend::Embedded, Backend::EmbeddedForgetful];

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
    /// The clock of its best-effort counters.
    pub clock: ManualClock,
    /// The store and its directory, where there is one. In this order: it is closed before its directory goes.
    kept: Option<(Embedded, TempDir)>,
    /// The memcached servers, where there are some.
    servers: Vec<Memcached>,
}

impl Bench {
    /// Opens a backend.
    pub async fn open(backend: Backend) -> Result<Self, String> {
        let clock = ManualClock::at(given::T0);
        let bench = match backend {
            Backend::Memory => {
                let stores = memory::stores_on(Arc::new(clock.clone()));
                Self { backend, stores, clock, kept: None, servers: Vec::new() }
            }
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

    /// Whether the backend keeps anything over a restart.
    pub fn is_durable(&self) -> bool {
        match self.backend {
            Backend::Memory | Backend::Memcached | Backend::MemcachedReplicas | Backend::MemcachedTokens => false,
            Backend::Embedded | Backend::EmbeddedForgetful => true,
        }
    }

    fn open_embedded(backend: Backend, clock: ManualClock, dir: TempDir) -> Result<Self, String> {
        let mut options = Options { reserve_bytes: 0, block_bytes: 1 << 20, ..Options::new(dir.path()) };
        if backend == Backend::EmbeddedForgetful {
            options = Options { row_bytes: 0, tail_bytes: 0, ..options };
        }
        let store = embedded::open(options).map_err(|error| error.to_string())?;
        let stores = store.stores(Arc::new(FastTable::new(Arc::new(clock.clone()), 1 << 20)));
        Ok(Self { backend, stores, clock, kept: Some((store, dir)), servers: Vec::new() })
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
        Ok(Self { backend, stores, clock, kept: None, servers })
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

async fn on_each(backends: &[Backend], law: impl AsyncFn(Bench)) {
    for &backend in backends {
        match Bench::open(backend).await {
            Ok(bench) => {
                // Shown by the test runner when the law fails: the last one named is the one that broke it.
                println!("on {backend:?}");
                law(bench).await;
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
