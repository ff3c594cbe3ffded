//! How far the queues of several servers are reported: each states its own time, and all of them answer the least.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::cassandra::Cassandra;
use tallystone::adapters::codec::queues::register::ProtobufRegisters;
use tallystone::adapters::memory::FastTable;
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::domain::access::QuotaLimits;
use tallystone::domain::counter::CounterName;
use tallystone::domain::fleet::{ProtocolRules, Roles};
use tallystone::domain::rollup::ReadOptions;
use tallystone::domain::time::Timestamp;
use tallystone::engine::namespaces::{NamespaceCatalog, queue_namespace};
use tallystone::engine::{Engine, EngineParts, MemberProfile};
use tallystone::ports::Clock;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::engines::cassandra::keyspace;
use crate::support::harness::eventually;

/// Several heartbeats on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

struct Peer {
    engine: Engine,
    /// Open as long as the engine runs.
    _store: Cassandra,
}

impl Peer {
    async fn start() -> Self {
        let store = keyspace("reported_queues").await;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let stores = store.stores(Arc::new(FastTable::new(Arc::clone(&clock), 1 << 20)));
        let namespaces = NamespaceCatalog::open(stores.catalog.clone(), Arc::clone(&clock)).await.expect("the catalog");
        namespaces.ensure_queue_namespace().await.expect("made or found");
        let parts = EngineParts {
            stores,
            queue_stores: None,
            history: None,
            history_registers: Arc::new(ProtobufRegisters),
            clock,
            entropy: Arc::new(SystemEntropy),
            export: None,
            namespaces,
            profile: MemberProfile { roles: Roles { writer: true, roller: true }, ..MemberProfile::default() },
            signals: None,
            seal_delay: None,
            rules: ProtocolRules::default(),
            progress: Arc::new(|| {}),
            bridge: None,
            quotas: QuotaLimits::UNLIMITED,
        };
        Self { engine: Engine::start(parts).await.expect("the engine starts"), _store: store }
    }

    async fn reported_to(&self) -> Option<Timestamp> {
        let name = CounterName::new("jobs~enqueued").expect("a valid name");
        let reading = self.engine.counting().get(&queue_namespace(), name, ReadOptions::default()).await;
        reading.expect("a reading").reported_to
    }

    /// Waits until this server answers a time.
    fn answers(&self, reported_to: Option<Timestamp>) -> bool {
        let answers = || Handle::current().block_on(self.reported_to()) == reported_to;
        block_in_place(|| eventually(WITHIN, answers))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_least_time_of_all_servers_is_answered_until_its_server_leaves() {
    let (one, other) = (Peer::start().await, Peer::start().await);
    let at = |seconds| Some(Timestamp::from_secs(seconds));
    assert_eq!(one.reported_to().await, None, "no server reports for queues");
    one.engine.set_queues_reported_to(at(200));
    assert!(other.answers(at(200)), "a server without queues answers what others report");
    other.engine.set_queues_reported_to(at(100));
    assert!(one.answers(at(100)) && other.answers(at(100)));
    other.engine.set_queues_reported_to(Some(Timestamp::MIN));
    assert!(one.answers(None), "one does not know how far it is");
    other.engine.set_queues_reported_to(at(300));
    assert!(one.answers(at(200)) && other.answers(at(200)));
    assert!(one.engine.drain(WITHIN).await, "it leaves in good order");
    assert!(other.answers(at(300)), "a server that left counts no more");
    assert!(other.engine.drain(WITHIN).await);
}
