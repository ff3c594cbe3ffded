//! The gateway: what a request is, and who answers it.
//!
//! The port is open before the stores are; until `open`, calls are told so. Invariant: `answer` always answers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use parking_lot::RwLock;
use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service;
use tonic::transport::server::TcpConnectInfo;
use tonic_web::GrpcWebLayer;
use tower::Layer;

use crate::errors::ApiError;
use crate::grpc::audit::AuditApi;
use crate::grpc::backups::BackupsApi;
use crate::grpc::bridge::BridgeApi;
use crate::grpc::counters::CountersApi;
use crate::grpc::experiments::ExperimentsApi;
use crate::grpc::history::HistoryApi;
use crate::grpc::keys::KeysApi;
use crate::grpc::namespaces::NamespacesApi;
use crate::grpc::queues::QueuesApi;
use crate::grpc::rollup_signals::RollupSignalsApi;
use crate::grpc::rules::RulesApi;
use crate::grpc::status::{StatusApi, StatusSource};
use crate::http::buffers::Caller;
use crate::http::call::{CallContext, call, role_missing};
use crate::http::console::{Console, ConsoleContext, ConsoleSettings};
use crate::http::health::{ServerHealth, ServerPhase, ServiceOutages};
use crate::http::hosts::AllowedHosts;
use crate::http::identity::{Authentication, IdentityCheck};
use crate::http::metered_body::ByteMeter;
use crate::http::methods::{
    BuiltByFirstCall, COUNTERS, EXPERIMENTS, GrpcService, HISTORY, Methods, NAMESPACES, QUEUES, RULES, ResponseFuture,
};
use crate::http::metrics::CallMetrics;
use crate::http::recorded_calls::RecordedCalls;
use crate::http::response_body::plain;
use crate::http::{audit, headers, hosts, json, pages, unread_body};
use tallystone_domain::Reason;
use tallystone_domain::access::AccessResource;
use tallystone_domain::call_limit::CallLimitSettings;
use tallystone_domain::limits::BODY_BYTES_MAX;
use tallystone_engine::Engine;
use tallystone_engine::access::{Identity, Tokens};
use tallystone_engine::audit::Audit;
use tallystone_engine::call_limiter::CallLimiter;
use tallystone_ports::{Backups, Clock};
use tallystone_proto::admin::v1::audit_service_server::{self, AuditServiceServer};
use tallystone_proto::admin::v1::backup_service_server::{self, BackupServiceServer};
use tallystone_proto::admin::v1::bridge_service_server::{self, BridgeServiceServer};
use tallystone_proto::admin::v1::key_service_server::{self, KeyServiceServer};
use tallystone_proto::admin::v1::namespace_service_server::NamespaceServiceServer;
use tallystone_proto::admin::v1::status_service_server::{self, StatusServiceServer};
use tallystone_proto::counter::v1::counter_service_server::CounterServiceServer;
use tallystone_proto::experiment::v1::experiment_service_server::ExperimentServiceServer;
use tallystone_proto::history::v1::history_service_server::HistoryServiceServer;
use tallystone_proto::internal::v1::rollup_signal_service_server::{self, RollupSignalServiceServer};
use tallystone_proto::queue::v1::queue_service_server::QueueServiceServer;
use tallystone_proto::rule::v1::rule_service_server::RuleServiceServer;

/// A service with what every service reads: messages up to the bound of bodies, also ones that are compressed by gzip.
/// The bound counts what they hold.
macro_rules! reading {
    ($service:expr) => {
        $service.max_decoding_message_size(BODY_BYTES_MAX).accept_compressed(CompressionEncoding::Gzip)
    };
}

const AUDIT: &str = audit_service_server::SERVICE_NAME;
const BACKUPS: &str = backup_service_server::SERVICE_NAME;
const BRIDGE: &str = bridge_service_server::SERVICE_NAME;
const KEYS: &str = key_service_server::SERVICE_NAME;
const STATUS: &str = status_service_server::SERVICE_NAME;
const ROLLUP_SIGNALS: &str = rollup_signal_service_server::SERVICE_NAME;
const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: &str = "grpc.reflection.v1.ServerReflection";
const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";
/// The prefix of the packages that servers speak to each other.
const INTERNAL: &str = "tallystone.internal.";
const DECODES: &str = "descriptors of this build decode";
/// The services that callers are here for.
const PUBLIC: [&str; 10] = [AUDIT, BRIDGE, COUNTERS, EXPERIMENTS, HISTORY, KEYS, NAMESPACES, QUEUES, RULES, STATUS];

/// Reflection of what callers may call, under its own name; what servers say to each other is neither listed nor
/// described.
fn reflection(own: &str) -> tonic_reflection::server::Builder<'static> {
    let mut ours = prost_types::FileDescriptorSet::decode(tallystone_proto::DESCRIPTORS).expect(DECODES);
    ours.file.retain(|file| !file.package().starts_with(INTERNAL));
    let described = tonic_reflection::server::Builder::configure()
        .register_file_descriptor_set(ours)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    PUBLIC.into_iter().chain([HEALTH, own]).fold(described, tonic_reflection::server::Builder::with_service_name)
}

pub struct Gateway {
    methods: Arc<Methods>,
    metrics: CallMetrics,
    registry: Arc<RwLock<Registry>>,
    calls: Arc<CallContext>,
    health: Arc<ServerHealth>,
    hosts: AllowedHosts,
    identity: Arc<IdentityCheck>,
    console: Console,
}

impl Gateway {
    /// A gateway without services; the registry may hold whatever else is measured. Streams end when `drain` is
    /// cancelled.
    pub fn new(
        mut registry: Registry,
        clock: Arc<dyn Clock>,
        limits: CallLimitSettings,
        drain: CancellationToken,
    ) -> Self {
        let metrics = CallMetrics::register(&mut registry);
        let methods = Methods::new(&metrics);
        let (health, health_server) = tonic_health::server::health_reporter();
        methods.mount(HEALTH, health_server);
        let v1 = || -> Box<dyn GrpcService> { Box::new(reflection(REFLECTION).build_v1().expect(DECODES)) };
        methods.mount(REFLECTION, BuiltByFirstCall::new(v1));
        let v1alpha =
            || -> Box<dyn GrpcService> { Box::new(reflection(REFLECTION_ALPHA).build_v1alpha().expect(DECODES)) };
        methods.mount(REFLECTION_ALPHA, BuiltByFirstCall::new(v1alpha));
        let registry = Arc::new(RwLock::new(registry));
        let identity = Arc::new(IdentityCheck::new(Authentication::Off, metrics.clone()));
        let limiter = Arc::new(CallLimiter::new(limits, Arc::clone(&clock)));
        let (audit, recorded) = (OnceLock::new(), RecordedCalls::default());
        Self {
            methods: Arc::new(methods),
            metrics,
            registry,
            calls: Arc::new(CallContext { clock, limiter, drain, audit, recorded }),
            health: Arc::new(ServerHealth::new(health)),
            hosts: AllowedHosts::default(),
            identity,
            console: Console::default(),
        }
    }

    /// Answers JSON, gRPC-Web and pages under these names only.
    #[must_use]
    pub fn with_hosts(mut self, hosts: AllowedHosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// Asks every caller for its credential, or nobody.
    #[must_use]
    pub fn with_authentication(mut self, mode: Authentication) -> Self {
        self.identity = Arc::new(IdentityCheck::new(mode, self.metrics.clone()));
        self
    }

    /// Shows a console as its settings say.
    #[must_use]
    pub fn with_console(mut self, settings: ConsoleSettings) -> Self {
        self.console = Console::new(settings);
        self
    }

    /// Takes tokens of identity providers from now on. Call it once, before `open`.
    pub fn open_tokens(&self, tokens: Tokens) {
        self.identity.open_tokens(tokens);
    }

    /// Opens the services over an engine. Call it once.
    pub fn open(&self, engine: &Engine) {
        let counters = CountersApi::new(engine.counting(), self.calls.drain.clone());
        self.methods.mount(COUNTERS, reading!(CounterServiceServer::new(counters)));
        self.methods.mount(NAMESPACES, reading!(NamespaceServiceServer::new(NamespacesApi::new(engine.namespaces()))));
        let queues = QueuesApi::new(engine.queues(), self.calls.drain.clone());
        self.methods.mount(QUEUES, reading!(QueueServiceServer::new(queues)));
        self.methods.mount(HISTORY, reading!(HistoryServiceServer::new(HistoryApi::new(engine))));
        let experiments = ExperimentsApi::new(engine.experiments());
        self.methods.mount(EXPERIMENTS, reading!(ExperimentServiceServer::new(experiments)));
        self.methods.mount(RULES, reading!(RuleServiceServer::new(RulesApi::new(engine.rules()))));
        self.methods.mount(BRIDGE, reading!(BridgeServiceServer::new(BridgeApi::new(engine.adoption()))));
        self.methods.mount(KEYS, reading!(KeyServiceServer::new(KeysApi::new(engine.keys()))));
        self.identity.open(engine.keys(), engine.is_in_fleet().then(|| engine.signalled()));
        // A server that shares its store with nobody has nobody to hear signals from.
        if engine.is_in_fleet() {
            let signals = RollupSignalsApi::new(engine.signalled());
            self.methods.mount(ROLLUP_SIGNALS, reading!(RollupSignalServiceServer::new(signals)));
        }
    }

    /// Opens the service of backups, for a store that can be backed up. Call it once.
    pub fn open_backups(&self, backups: Option<Arc<dyn Backups>>) {
        let backups = BackupsApi::new(backups, self.calls.drain.clone());
        self.methods.mount(BACKUPS, reading!(BackupServiceServer::new(backups)));
    }

    /// Opens the service that tells how the server is. Call it once.
    pub fn open_status(&self, source: Arc<dyn StatusSource>) {
        let status = StatusApi::new(source);
        self.methods.mount(STATUS, reading!(StatusServiceServer::new(status)));
    }

    /// Records acts of operators from now on, and opens the service that lists them. Call it once, before `open`.
    pub fn open_audit(&self, audit: Audit) {
        self.calls.audit.get_or_init(|| audit.clone());
        self.methods.mount(AUDIT, reading!(AuditServiceServer::new(AuditApi::new(audit))));
    }

    /// Shows what a collector reads on the metrics page as well.
    pub fn register_collector(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    /// Tells everybody who asks where the server is in its life.
    pub async fn set_phase(&self, phase: ServerPhase) {
        self.health.set_phase(phase).await;
    }

    /// Tells everybody who asks what is not served. Calls are tried all the same.
    pub async fn set_outages(&self, standing: ServiceOutages) {
        self.health.set_outages(standing).await;
    }

    /// Everything that is measured, as the metrics page shows it.
    pub fn registry(&self) -> Arc<RwLock<Registry>> {
        Arc::clone(&self.registry)
    }

    /// The metrics of connections.
    pub fn metrics(&self) -> &CallMetrics {
        &self.metrics
    }

    /// The calls in progress.
    pub fn limiter(&self) -> &Arc<CallLimiter> {
        &self.calls.limiter
    }

    /// The clock of the server.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.calls.clock
    }

    /// Waits for recorded calls whose callers went away, no longer than a time. Call it once, after the connections
    /// have ended.
    pub async fn drain_recorded(&self, deadline: Duration) {
        self.calls.recorded.drain(deadline).await;
    }

    /// Whether a request is for a page of operations, such as `/healthz`.
    pub fn is_page<B>(request: &Request<B>) -> bool {
        pages::exists(request.uri().path())
    }

    pub async fn answer(self: Arc<Self>, request: Request<Incoming>, caller: Arc<Caller>) -> Response<Body> {
        if let Some(refusal) = hosts::bad_host(&request) {
            unread_body::discard(request).await;
            return plain(StatusCode::BAD_REQUEST, refusal);
        }
        let protocol = Protocol::of(request.headers().get(header::CONTENT_TYPE));
        if protocol.refuses(request.method()) {
            // A proxy may repeat or keep what it takes for a read.
            let what = format!("{} is not allowed here; gRPC calls by POST", request.method());
            unread_body::discard(request).await;
            return json::refused(&Status::from(ApiError::new(Reason::MethodNotAllowed, what)));
        }
        if let Some(refusal) = headers::too_large(&request) {
            let refusal = Status::from(refusal);
            unread_body::discard(request).await;
            return if protocol == Protocol::Grpc { refusal.into_http() } else { json::refused(&refusal) };
        }
        if protocol != Protocol::Grpc
            && let Some(host) = self.hosts.rejected_host(&request)
        {
            let shown: String = host.chars().take(200).collect();
            let what = format!(
                "the host name {shown:?} is not allowed; use the server's address or localhost, or add the name to \
                 server.hosts"
            );
            unread_body::discard(request).await;
            return json::refused(&Status::from(ApiError::new(Reason::HostNotAllowed, what)));
        }
        match protocol {
            Protocol::Grpc => {
                let mut request = request.map(Body::new);
                match self.admit(&mut request, &caller).await {
                    Ok(()) => self.answer_grpc(request, &caller).await,
                    Err(refusal) => Status::from(refusal).into_http(),
                }
            }
            Protocol::GrpcWeb => {
                let mut service = GrpcWebLayer::new().layer(GrpcWebCalls { gateway: self, caller });
                let Ok(response) = Box::pin(service.call(request.map(Body::new))).await;
                response
            }
            // Boxed, so that calls of the other kind, which are more, do not reserve its space.
            Protocol::Other => Box::pin(self.answer_http(request.map(Body::new), &caller)).await,
        }
    }

    async fn answer_grpc(&self, mut request: Request<Body>, caller: &Arc<Caller>) -> Response<Body> {
        if request.version() != Version::HTTP_2 {
            let what = "gRPC needs HTTP/2; over HTTP/1.1 send application/json or application/grpc-web";
            return Status::from(ApiError::new(Reason::InvalidContentType, what)).into_http();
        }
        match self.methods.served(request.uri().path()) {
            Ok(method) => {
                if method.wants_peer {
                    request.extensions_mut().insert(connect_info(caller.peer));
                }
                let Some(meter) = ByteMeter::of(&request, method.streaming, &self.calls.clock) else {
                    return call(&self.calls, method, request, caller).await;
                };
                let request = request.map(|body| meter.clone().count_request(body, method.streaming));
                call(&self.calls, method, request, caller).await.map(|body| meter.count_answer(body))
            }
            Err(refusal) => Status::from(refusal).into_http(),
        }
    }

    /// Finds out who sent a request, before its body is read, and notes it in the request. Refuses it if the sender has
    /// used up a quota. A refusal of a stranger is noted in the audit.
    async fn admit(&self, request: &mut Request<Body>, caller: &Caller) -> Result<(), ApiError> {
        let found = self.identify(request, caller).await;
        if found.as_ref().is_err_and(|refusal| refusal.reason == Reason::Unauthenticated) {
            let path = request.uri().path();
            // No text of a stranger gets into the audit.
            let called = match self.methods.known(path) {
                Some(method) => method.descriptor.name(),
                None if pages::exists(path) => path,
                None => "unknown",
            };
            let actor = caller.peer.ip().to_string();
            let audit = self.calls.audit.get();
            Box::pin(audit::record_refusal(audit, actor, called, Reason::Unauthenticated)).await;
        }
        found
    }

    async fn identify(&self, request: &mut Request<Body>, caller: &Caller) -> Result<(), ApiError> {
        if Methods::is_internal(request.uri().path()) {
            return self.identity.check_member(request.headers());
        }
        if let Some(identity) = self.identity.caller_on(request.headers(), caller.certificate.as_ref()).await? {
            self.calls.admit(&identity, caller)?;
            request.extensions_mut().insert(identity);
        }
        Ok(())
    }

    async fn answer_http(&self, mut request: Request<Body>, caller: &Arc<Caller>) -> Response<Body> {
        if let Some(front) = self.console.front(&request) {
            return front;
        }
        if self.console.owns(request.uri().path()) {
            if caller.is_tls {
                // As a proxy with TLS says it; the cookie with the key then stays on TLS.
                request.headers_mut().insert("x-forwarded-proto", HeaderValue::from_static("https"));
            }
            let context = ConsoleContext {
                methods: Arc::clone(&self.methods),
                calls: Arc::clone(&self.calls),
                health: Arc::clone(&self.health),
                identity: Arc::clone(&self.identity),
            };
            return self.console.answer(context, request, caller).await;
        }
        if !pages::is_open(request.uri().path())
            && let Err(refusal) = self.admit(&mut request, caller).await
        {
            unread_body::discard(request).await;
            return json::refused(&Status::from(refusal));
        }
        let identity = request.extensions().get::<Arc<Identity>>();
        if let Some((identity, role)) = identity.zip(pages::role(request.uri().path()))
            && !identity.grants.allows(role, AccessResource::Server)
        {
            let (actor, page) = (identity.principal.name.to_string(), request.uri().path());
            Box::pin(audit::record_refusal(self.calls.audit.get(), actor, page, Reason::RoleMissing)).await;
            return json::refused(&Status::from(role_missing(&identity.principal, role, "this page")));
        }
        let meter = ByteMeter::of(&request, false, &self.calls.clock);
        if pages::exists(request.uri().path()) {
            let request = Request::from_parts(request.into_parts().0, ());
            let page = pages::answer(&request, &self.health, &self.registry, caller, self.console.is_on()).await;
            return match meter {
                Some(meter) => page.map(|body| meter.count_answer(body)),
                None => page,
            };
        }
        request.extensions_mut().insert(connect_info(caller.peer));
        let Some(meter) = meter else {
            return json::answer(&self.methods, &self.calls, request, caller).await;
        };
        let request = request.map(|body| meter.clone().count_request(body, false));
        json::answer(&self.methods, &self.calls, request, caller).await.map(|body| meter.count_answer(body))
    }
}

fn connect_info(peer: SocketAddr) -> TcpConnectInfo {
    TcpConnectInfo { local_addr: None, remote_addr: Some(peer) }
}

/// The protocol of a request, by its content type.
#[derive(PartialEq, Eq, Debug)]
enum Protocol {
    Grpc,
    GrpcWeb,
    Other,
}

impl Protocol {
    /// Whether no request of this protocol has such a method. Browsers ask by OPTIONS whether they may call at all.
    fn refuses(&self, method: &http::Method) -> bool {
        match self {
            Self::Grpc => method != http::Method::POST,
            Self::GrpcWeb => method != http::Method::POST && method != http::Method::OPTIONS,
            Self::Other => false,
        }
    }

    fn of(content_type: Option<&HeaderValue>) -> Self {
        let Some(rest) = content_type.and_then(|sent| sent.as_bytes().strip_prefix(b"application/grpc")) else {
            return Self::Other;
        };
        match rest {
            b"" | b"+proto" => Self::Grpc,
            b"-web" | b"-web+proto" | b"-web-text" | b"-web-text+proto" => Self::GrpcWeb,
            [b';', ..] => Self::Grpc,
            _ => Self::Other, // another format of the message, which is not read here
        }
    }
}

/// Calls that came as gRPC-Web and go on as gRPC.
struct GrpcWebCalls {
    gateway: Arc<Gateway>,
    caller: Arc<Caller>,
}

impl Service<Request<Body>> for GrpcWebCalls {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ResponseFuture {
        let gateway = Arc::clone(&self.gateway);
        let caller = Arc::clone(&self.caller);
        Box::pin(async move {
            let admitted = gateway.admit(&mut request, &caller).await;
            if let Err(refusal) = admitted.and_then(|()| gateway.methods.public(request.uri().path())) {
                return Ok(Status::from(refusal).into_http());
            }
            // gRPC-Web travels on HTTP/1.1 as well; its translation keeps all that gRPC needs of HTTP/2.
            *request.version_mut() = Version::HTTP_2;
            Ok(gateway.answer_grpc(request, &caller).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_says_what_is_spoken() {
        let of = |text| Protocol::of(Some(&HeaderValue::from_static(text)));
        assert_eq!(Protocol::of(None), Protocol::Other);
        for grpc in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
            assert_eq!(of(grpc), Protocol::Grpc, "{grpc}");
        }
        for web in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"] {
            assert_eq!(of(web), Protocol::GrpcWeb, "{web}");
        }
        for other in ["application/json", "application/grpc+json", "application/grpcx", "text/plain"] {
            assert_eq!(of(other), Protocol::Other, "{other}");
        }
    }
}
