//! The backends, and how a law is run on each of them.
//!
//! A backend that cannot be opened is named on standard error, past the capture of the test runner, and is a failure
//! under `CI=true`.

use std::io::Write;
use std::sync::Arc;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::ports::Stores;

use crate::given;

/// A backend of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Ordered maps: the oracle.
    Memory,
}

/// Every backend; a new one is added here and in `Bench::open`.
pub const BACKENDS: [Backend; 1] = [Backend::Memory];

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
}

impl Bench {
    /// Opens a backend.
    pub async fn open(backend: Backend) -> Result<Self, String> {
        let clock = ManualClock::at(given::T0);
        let stores = match backend {
            Backend::Memory => memory::stores_on(Arc::new(clock.clone())),
        };
        let bench = Self { backend, stores, clock };
        for slice in given::slices() {
            bench.stores.slices.create(slice).await.map_err(|error| format!("slices cannot be created: {error}"))?;
        }
        Ok(bench)
    }

    /// Whether the backend keeps anything over a restart.
    pub fn is_durable(&self) -> bool {
        match self.backend {
            Backend::Memory => false,
        }
    }

    /// Ends the stores and opens them again.
    pub async fn reopen(self, ending: Ending) -> Self {
        match self.backend {
            Backend::Memory => unreachable!("{:?} keeps nothing over a restart ({ending:?})", self.backend),
        }
    }
}

/// Runs a law on a fresh bench of every backend.
pub async fn on_every_backend(law: impl AsyncFn(Bench)) {
    for backend in BACKENDS {
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
