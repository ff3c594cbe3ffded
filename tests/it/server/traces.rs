//! Traces: a call is a span of its caller's trace with what it did below it, rollups are spans of their own, and a
//! collector that is not there fails nothing.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::support::harness::{Launch, Server, http};

/// How long spans may be on their way on a busy machine; they are sent in batches.
const SENT_WITHIN: Duration = Duration::from_secs(60);
const CALLER_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER_SPAN: &str = "b7ad6b7169203331";

/// Keeps every span that it is sent.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let scopes = request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().expect("nobody panicked").extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens on a free port and answers where.
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let service = TraceServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder();
        tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
        format!("http://{address}")
    }

    /// Waits for a span with a name.
    async fn span(&self, name: &str) -> Span {
        let deadline = Instant::now() + SENT_WITHIN;
        loop {
            let found = self.spans.lock().expect("nobody panicked").iter().find(|span| span.name == name).cloned();
            if let Some(span) = found {
                return span;
            }
            let names: Vec<String> =
                self.spans.lock().expect("nobody panicked").iter().map(|span| span.name.clone()).collect();
            assert!(Instant::now() < deadline, "no span {name} among {names:?}");
            tokio::task::yield_now().await;
        }
    }
}

fn add(server: &Server, headers: &[(&str, &str)]) -> u16 {
    let path = "/tallystone.counter.v1.CounterService/AddCount";
    let body = r#"{"namespace": "default", "counterName": "secret-views", "delta": 1}"#;
    let headers = [&[("content-type", "application/json")], headers].concat();
    http(server.address, "POST", path, &headers, body).expect("the server answers").status
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_a_span_of_its_callers_trace_and_rollups_are_spans_of_their_own() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let settings = [format!("traces.otlp_endpoint={endpoint}"), "traces.sample_per_mille=1000".to_owned()];
    let launch = settings.iter().fold(Launch::dev(folder.path()), |launch, setting| launch.arg("--set").arg(setting));
    let server = tokio::task::spawn_blocking(move || launch.start()).await.expect("it starts");
    let traceparent = format!("00-{CALLER_TRACE}-{CALLER_SPAN}-01");
    assert_eq!(add(&server, &[("traceparent", traceparent.as_str())]), 200);

    let call = collector.span("tallystone.counter.v1.CounterService.AddCount").await;
    assert_eq!((hex(&call.trace_id).as_str(), hex(&call.parent_span_id).as_str()), (CALLER_TRACE, CALLER_SPAN));
    let append = collector.span("append").await;
    assert_eq!((&append.trace_id, &append.parent_span_id), (&call.trace_id, &call.span_id), "it is below the call");
    let roll = collector.span("roll").await;
    assert_ne!(roll.trace_id, call.trace_id, "a rollup serves many calls");
    let spans = format!("{:?}", collector.spans.lock().expect("nobody panicked"));
    assert!(!spans.contains("secret-views"), "spans name no counters");
}

#[test]
fn a_collector_that_is_not_there_fails_no_call_and_no_stop() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::dev(folder.path()).arg("--set").arg("traces.otlp_endpoint=http://127.0.0.1:1");
    let server = launch.arg("--set").arg("traces.sample_per_mille=1000").start();
    for _ in 0..20 {
        assert_eq!(add(&server, &[]), 200);
    }
    assert!(server.stop().success());
}
