//! The wire, through real sockets: what callers send, well or badly, and what they hear.

mod bad_input;
mod bounds;
mod experiments;
mod grpc;
mod json;
mod life;
mod output_only;
mod overload;
mod partial_settings;
mod partner;
mod queues;
mod readiness;
mod recorded_calls;
mod rules;
mod shares;
mod stores;
mod stream_adds;
mod watches;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::registry::Registry;
use serde_json::Value;
use tallystone::adapters::codec::queues::register::ProtobufRegisters;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::api::http::{Gateway, ServerPhase};
use tallystone::api::serve::{ConnectionDrainSummary, ServeLimits, serve};
use tallystone::domain::access::QuotaLimits;
use tallystone::domain::call_limit::CallLimitSettings;
use tallystone::domain::counter::NamespaceName;
use tallystone::domain::fleet::ProtocolRules;
use tallystone::domain::namespace::{CounterType, NamespaceSpec, OnNewEpoch, SeriesSettings, Temporality};
use tallystone::engine::catalog::Author;
use tallystone::engine::namespaces::NamespaceCatalog;
use tallystone::engine::{Engine, EngineParts, MemberProfile};
use tallystone::ports::{Clock, HistoryStore, QueueStores, Stores};
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone::proto::counter::v1::{AddItem, IdempotencyToken};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use crate::support::harness::{HttpAnswer, http};
use crate::support::patience::{PatientChannel, patient_channel};
use partner::Partner;
use stores::{Gate, gated};

const COUNTERS: &str = "/tallystone.counter.v1.CounterService";
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// A server on memory stores: namespaces `shop` (EVENTUAL), `exact` (ACCURATE), `fast` (BEST_EFFORT) and `totals`
/// (cumulative). Its log waits at a gate that tests may close.
struct Wire {
    address: SocketAddr,
    gateway: Arc<Gateway>,
    engine: Arc<Engine>,
    queue_stores: QueueStores,
    history: Arc<dyn HistoryStore>,
    gate: Gate,
    stop: CancellationToken,
    serving: JoinHandle<ConnectionDrainSummary>,
    /// Another server on the same stores. Calls alternate between the two.
    partner: Option<Partner>,
}

impl Wire {
    async fn start() -> Self {
        Self::with_drain_deadline(DRAIN_DEADLINE).await
    }

    /// A server whose connections are bounded as the test says.
    async fn bounded(bounds: ServeLimits) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let queue_stores = memory::queue_stores(Arc::clone(&clock));
        let mut wire = Self::bind_within(memory::stores(), queue_stores, DRAIN_DEADLINE, clock, bounds).await;
        wire.open().await;
        wire
    }

    async fn with_drain_deadline(deadline: Duration) -> Self {
        let mut wire = Self::bind(memory::stores(), deadline).await;
        wire.open().await;
        wire
    }

    /// A server on memory stores whose time is moved by the test.
    async fn with_clock(clock: &ManualClock) -> Self {
        let mut wire = Self::bind_at(memory::stores(), DRAIN_DEADLINE, Arc::new(clock.clone())).await;
        wire.open().await;
        wire
    }

    /// Opens the port; the services are not there yet.
    async fn bind(stores: Stores, deadline: Duration) -> Self {
        Self::bind_at(stores, deadline, Arc::new(SystemClock)).await
    }

    async fn bind_at(stores: Stores, deadline: Duration, clock: Arc<dyn Clock>) -> Self {
        if let Some(partner) = Partner::on_redis(&stores, deadline, &clock).await {
            return partner.beside(stores, deadline, clock).await;
        }
        let queue_stores = memory::queue_stores(Arc::clone(&clock));
        Self::bind_to(stores, queue_stores, deadline, clock).await
    }

    async fn bind_to(stores: Stores, queue_stores: QueueStores, deadline: Duration, clock: Arc<dyn Clock>) -> Self {
        Self::bind_within(stores, queue_stores, deadline, clock, ServeLimits::default()).await
    }

    async fn bind_within(
        stores: Stores,
        queue_stores: QueueStores,
        deadline: Duration,
        clock: Arc<dyn Clock>,
        bounds: ServeLimits,
    ) -> Self {
        let history: Arc<dyn HistoryStore> = Arc::new(memory::MemoryHistory::default());
        Self::bind_all((stores, queue_stores, history), deadline, clock, bounds).await
    }

    async fn bind_all(
        (stores, queue_stores, history): (Stores, QueueStores, Arc<dyn HistoryStore>),
        deadline: Duration,
        clock: Arc<dyn Clock>,
        bounds: ServeLimits,
    ) -> Self {
        let (stores, gate) = gated(stores);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let stop = CancellationToken::new();
        let gateway =
            Arc::new(Gateway::new(Registry::default(), Arc::clone(&clock), CallLimitSettings::default(), stop.clone()));
        gateway.set_phase(ServerPhase::Starting).await;
        let serving = tokio::spawn(serve(listener, Arc::clone(&gateway), stop.clone(), deadline, bounds));
        let namespaces =
            NamespaceCatalog::open(stores.catalog.clone(), Arc::clone(&clock)).await.expect("memory opens");
        for spec in specs() {
            // A store that other tests use too has them already.
            if namespaces.get(&spec.name).is_err() {
                namespaces.create(spec, Author::default()).await.expect("a valid namespace");
            }
        }
        let entropy = Arc::new(SystemEntropy);
        let (profile, rules) = (MemberProfile::default(), ProtocolRules::default());
        let parts = EngineParts {
            stores,
            queue_stores: Some(queue_stores.clone()),
            history: Some(Arc::clone(&history)),
            history_registers: Arc::new(ProtobufRegisters),
            clock,
            entropy,
            export: None,
            namespaces,
            profile,
            signals: None,
            seal_delay: None,
            rules,
            progress: Arc::new(|| {}),
            bridge: None,
            quotas: QuotaLimits::UNLIMITED,
        };
        let engine = Arc::new(Engine::start(parts).await.expect("the engine starts"));
        Self { address, gateway, engine, queue_stores, history, gate, stop, serving, partner: None }
    }

    async fn open(&mut self) {
        if let Some(partner) = &mut self.partner {
            Box::pin(partner.server.open()).await;
        }
        self.gateway.open(&self.engine);
        self.gateway.set_phase(ServerPhase::Ready).await;
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.next_address())).expect("a valid address");
        endpoint.connect().await.expect("the server takes connections")
    }

    /// The address of the server that is next.
    fn next_address(&self) -> SocketAddr {
        self.partner.as_ref().and_then(Partner::in_turn).unwrap_or(self.address)
    }

    /// The dequeues that wait, at both servers if there are two.
    fn waiting_dequeues(&self) -> usize {
        let here = self.engine.queues().expect("this engine has queues").waiting();
        here + self.partner.as_ref().map_or(0, |partner| partner.server.waiting_dequeues())
    }

    async fn patient_channel(&self) -> PatientChannel {
        patient_channel(&format!("http://{}", self.next_address())).await
    }

    async fn counters(&self) -> CounterServiceClient<PatientChannel> {
        CounterServiceClient::new(self.patient_channel().await)
    }

    async fn http(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
        let (address, method, path, body) = (self.next_address(), method.to_owned(), path.to_owned(), body.to_owned());
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let call = tokio::task::spawn_blocking(move || {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
            http(address, &method, &path, &headers, &body)
        });
        call.await.expect("no panic").expect("the server answers")
    }

    /// Calls a method of the counter service with a JSON body.
    async fn post(&self, method: &str, body: &str) -> (u16, Value) {
        let path = format!("{COUNTERS}/{method}");
        let answer = self.http("POST", &path, &[("content-type", "application/json")], body).await;
        (answer.status, json(&answer.body))
    }
}

fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn specs() -> Vec<NamespaceSpec> {
    let spec = |name| {
        let mut spec = NamespaceSpec::with_defaults(NamespaceName::new(name).expect("a valid name"));
        spec.rollup.coalesce_ms = 10;
        spec
    };
    let mut shop = spec("shop");
    shop.series.push(SeriesSettings { step_seconds: 10, keep: Duration::from_secs(3_600) });
    let mut exact = spec("exact");
    exact.counter_type = CounterType::Accurate;
    let mut fast = spec("fast");
    fast.counter_type = CounterType::BestEffort;
    let mut totals = spec("totals");
    totals.temporality = Temporality::Cumulative;
    totals.on_new_epoch = Some(OnNewEpoch::Add);
    vec![shop, exact, fast, totals]
}

/// Now, moved by some seconds.
fn at(seconds: f64) -> prost_types::Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() + seconds;
    let (whole, fraction) = (now.floor(), now.fract());
    prost_types::Timestamp { seconds: whole as i64, nanos: (fraction * 1e9) as i32 }
}

fn token(text: &str) -> IdempotencyToken {
    IdempotencyToken { token: text.to_owned(), generation_time: Some(at(0.0)) }
}

fn item(counter: &str, delta: i64, text: &str) -> AddItem {
    AddItem {
        counter_name: counter.to_owned(),
        delta: Some(delta),
        idempotency_token: Some(token(text)),
        provenance: String::new(),
    }
}

/// The reason of an error of ours.
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
    assert_eq!(info.domain, "tallystone", "{status:?}");
    info.reason
}
