//! The first API key: a server that asks for keys does not start without one, and a command makes it while no server
//! runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::config::{AuthMode, Config, CounterEngine, QueueEngine};
use crate::server::backend::Backend;
use crate::server::keyspace::UnusableSetting;
use crate::server::preset::Preset;
use crate::server::resources;
use tallystone_adapters::system::{SystemClock, SystemEntropy};
use tallystone_cassandra::StartupDeadline;
use tallystone_domain::Timestamp;
use tallystone_domain::access::QuotaLimits;
use tallystone_engine::access::{AccessKeys, IssuedKey, KeyDraft, KeyError};
use tallystone_engine::catalog::Author;
use tallystone_ports::Clock;

/// The text for a store that keeps no key beyond the process.
const IN_MEMORY: &str = "counters.engine is \"memory\", which keeps no API keys beyond the process; choose another engine, or set \
    auth.mode = \"off\" to let everyone who reaches the server read and change everything";

/// Refuses to go on with stores that hold no valid key, if the settings ask for keys. Closes the stores then.
pub async fn require(config: &Config, backend: Backend, now: Timestamp) -> anyhow::Result<Backend> {
    // Whoever has a token of an issuer needs no key.
    if config.auth.mode == AuthMode::Off || config.auth.takes_tokens() {
        return Ok(backend);
    }
    let keys = backend.stores.keys.load().await.context("cannot read the API keys");
    if keys.as_ref().is_ok_and(|keys| keys.iter().any(|key| key.is_valid(now))) {
        return Ok(backend);
    }
    backend.close().await;
    keys?;
    let what = match config.counters.engine {
        CounterEngine::Memory => IN_MEMORY,
        CounterEngine::Embedded | CounterEngine::Cassandra => {
            "there is no valid API key, so nobody could call this server: make the first one with the same settings, \
             tallystone key create NAME --offline, or set auth.mode = \"off\" to let everyone who reaches the server read and \
             change everything"
        }
    };
    Err(UnusableSetting(what.to_owned()).into())
}

/// Creates a key in the store that the settings name, while no server owns it. It is valid for `lasts`, from when the
/// store is open; none: for ever.
pub async fn create_offline(
    config: &Config,
    draft: KeyDraft,
    lasts: Option<Duration>,
    author: Author,
) -> anyhow::Result<IssuedKey> {
    if config.counters.engine == CounterEngine::Memory {
        return Err(UnusableSetting(IN_MEMORY.to_owned()).into());
    }
    resources::keep_files_private();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    // Keys are beside the counters, so the store of queues may be away.
    let mut config = config.clone();
    config.queues.engine = QueueEngine::None;
    let deadline = Arc::new(StartupDeadline::start(Arc::clone(&clock)));
    let backend = Backend::open(&config, Preset::Server, &clock, &deadline).await?;
    let draft = KeyDraft { expires: lasts.map(|lasts| clock.now() + lasts), ..draft };
    let made = create(&backend, clock, draft, author).await;
    backend.close().await;
    made
}

async fn create(
    backend: &Backend,
    clock: Arc<dyn Clock>,
    draft: KeyDraft,
    author: Author,
) -> anyhow::Result<IssuedKey> {
    let store = Arc::clone(&backend.stores.keys);
    let keys = AccessKeys::open(store, clock, Arc::new(SystemEntropy), QuotaLimits::UNLIMITED).await?;
    let made = keys.create(draft, author).await;
    keys.drain().await;
    made.map_err(|error| match error {
        KeyError::Reject(reject) => reject.into(),
        KeyError::Store(error) => error.into(),
    })
}
