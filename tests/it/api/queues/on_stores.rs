//! Servers on every store of queues, for what must hold whatever keeps the messages.

use std::sync::Arc;

use serde_json::{Value, json};
use tallystone::adapters::embedded::{self, Embedded, Options};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory::{self, FastTable};
use tallystone::adapters::system::SystemClock;
use tallystone::ports::{Clock, FastCounts};
use tempfile::TempDir;

use super::super::partner::alternates;
use super::super::{DRAIN_DEADLINE, Wire};
use super::clock;
use crate::engines::cassandra::keyspace;

/// What keeps the messages of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// Maps in memory.
    Memory,
    /// A directory.
    Embedded,
    /// A directory, with the counters of the server on Cassandra.
    EmbeddedBesideCassandra,
}

const STORES: [Store; 2] = [Store::Memory, Store::Embedded];

/// The stores of this run. On two servers it is their Redis, whatever the name says.
fn stores() -> &'static [Store] {
    if alternates() { &STORES[..1] } else { &STORES }
}

/// Set to the backends that the laws of the ports run on; without Cassandra among them, these tests do without it too.
const SELECTED: &str = "TALLYSTONE_BACKENDS";

/// The queue `mail` as it is made without settings.
pub fn mail() -> Value {
    json!({"name": "mail"})
}

/// Runs a law on a server with this queue, on one store after another.
pub async fn on_every_store(queue: Value, law: impl AsyncFn(&Wire)) {
    for store in stores() {
        on(*store, Arc::new(SystemClock), &queue, &law).await;
    }
    if alternates() {
        return;
    }
    if std::env::var(SELECTED).map_or(true, |names| names.contains("cassandra")) {
        on(Store::EmbeddedBesideCassandra, Arc::new(SystemClock), &queue, &law).await;
    }
}

/// Runs a law on a server with the queue `mail`, on one store after another, for what is not the same on each.
pub async fn on_each_store(law: impl AsyncFn(&Wire, Store)) {
    for store in stores() {
        on(*store, Arc::new(SystemClock), &mail(), &async |server| law(server, *store).await).await;
    }
}

/// The same on clocks that only the law moves.
pub async fn on_every_store_at(queue: Value, law: impl AsyncFn(&Wire, &ManualClock)) {
    for store in stores() {
        let clock = clock();
        on(*store, Arc::new(clock.clone()), &queue, &async |server| law(server, &clock).await).await;
    }
}

async fn on(store: Store, clock: Arc<dyn Clock>, queue: &Value, law: &impl AsyncFn(&Wire)) {
    if alternates() {
        return on_two_servers(clock, queue, law).await;
    }
    println!("on {store:?}");
    let kept = match store {
        Store::Memory => None,
        Store::Embedded | Store::EmbeddedBesideCassandra => Some(open()),
    };
    let counters = match store {
        Store::Memory | Store::Embedded => memory::stores(),
        Store::EmbeddedBesideCassandra => keyspace("queue_laws").await.stores(fast_counts(Arc::clone(&clock))),
    };
    let queues = match &kept {
        Some((store, _)) => store.queue_stores(Arc::clone(&clock)),
        None => memory::queue_stores(Arc::clone(&clock)),
    };
    let mut server = Wire::bind_to(counters, queues, DRAIN_DEADLINE, clock).await;
    server.open().await;
    server.done("CreateQueue", json!({"queue": queue})).await;
    law(&server).await;
    // Nothing goes on in the store when it is closed and its directory goes.
    server.engine.abandon().await;
}

async fn on_two_servers(clock: Arc<dyn Clock>, queue: &Value, law: &impl AsyncFn(&Wire)) {
    let mut server = Wire::bind_at(memory::stores(), DRAIN_DEADLINE, clock).await;
    server.open().await;
    server.done("CreateQueue", json!({"queue": queue})).await;
    law(&server).await;
}

/// A store and its directory, in this order: it is closed before the directory goes.
fn open() -> (Embedded, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { reserve_bytes: 0, block_bytes: 1 << 20, ..Options::new(dir.path()) };
    (embedded::open(options).expect("the store opens"), dir)
}

fn fast_counts(clock: Arc<dyn Clock>) -> Arc<dyn FastCounts> {
    Arc::new(FastTable::new(clock, 1 << 20))
}
