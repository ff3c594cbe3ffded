//! Metrics over OTLP: a collector gets what the metrics page shows, and one that is not there holds up nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, NumberDataPoint, metric};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::support::harness::{Launch, Server};

/// How long an export may be on its way on a busy machine; one is made every second.
const SENT_WITHIN: Duration = Duration::from_secs(60);
/// What changes from one moment to the next, also while nobody else calls: the metrics about the process, and those that the
/// reading of the page moves.
const MOVING: [&str; 5] = [
    "process_",
    "tallystone_call",
    "tallystone_connections_open",
    "tallystone_answer_buffer",
    "tallystone_request_buffer",
];

/// How many exports wait for the test.
const EXPORTS_KEPT: usize = 1_000;

/// The value of each series, by its name and its labels as the page writes them.
type Series = BTreeMap<String, f64>;

/// Passes on every export that it gets.
struct Collector(Sender<ExportMetricsServiceRequest>);

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let _ = self.0.try_send(request.into_inner()); // the test may be over, or look at others first
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// A collector on a free port: where it listens, and what it gets.
async fn collector() -> (String, Receiver<ExportMetricsServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (sender, exports) = channel(EXPORTS_KEPT);
    let server = tonic::transport::Server::builder();
    tokio::spawn(
        server.serve_with_incoming(MetricsServiceServer::new(Collector(sender)), TcpListenerStream::new(listener)),
    );
    (format!("http://{address}"), exports)
}

fn series_of_page(page: &str) -> Series {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let split = |line: &str| {
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        (series.to_owned(), value.parse().expect("a value is a number"))
    };
    samples.map(split).collect()
}

fn series_name(name: &str, labels: &[String]) -> String {
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}

fn labels_of(attributes: &[KeyValue]) -> Vec<String> {
    let label = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => format!("{}={text:?}", attribute.key),
        other => panic!("labels are texts: {other:?}"),
    };
    attributes.iter().map(label).collect()
}

/// Writes an export as the page would.
fn series_of_export(export: ExportMetricsServiceRequest) -> Series {
    let mut series = Series::new();
    let scopes = export.resource_metrics.into_iter().flat_map(|process| process.scope_metrics);
    for metric in scopes.flat_map(|scope| scope.metrics) {
        let mut numbers = |points: Vec<NumberDataPoint>| {
            for point in points {
                let value = match point.value.expect("a point has a value") {
                    Value::AsInt(whole) => whole as f64,
                    Value::AsDouble(value) => value,
                };
                series.insert(series_name(&metric.name, &labels_of(&point.attributes)), value);
            }
        };
        match metric.data.expect("a metric has points") {
            metric::Data::Gauge(gauge) => numbers(gauge.data_points),
            metric::Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.data_points.iter().all(|point| point.start_time_unix_nano > 0));
                numbers(sum.data_points);
            }
            metric::Data::Histogram(histogram) => {
                histogram.data_points.iter().for_each(|point| add_histogram(&mut series, &metric.name, point));
            }
            other => panic!("the page has no such metric: {other:?}"),
        }
    }
    series
}

fn add_histogram(series: &mut Series, name: &str, point: &HistogramDataPoint) {
    let labels = labels_of(&point.attributes);
    series.insert(series_name(&format!("{name}_count"), &labels), point.count as f64);
    series.insert(series_name(&format!("{name}_sum"), &labels), point.sum.expect("it has a sum"));
    let bounds = point.explicit_bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
    let mut below = 0;
    for (bound, count) in bounds.zip(&point.bucket_counts) {
        below += count;
        let labels = [vec![format!("le=\"{bound}\"")], labels.clone()].concat();
        series.insert(series_name(&format!("{name}_bucket"), &labels), below as f64);
    }
}

fn use_it(server: &Server) {
    let done = |path: &str, body: &str| {
        let answer = server.post(&format!("/tallystone.{path}"), body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    for _ in 0..3 {
        done("counter.v1.CounterService/AddCount", r#"{"namespace": "default", "counterName": "views", "delta": 1}"#);
    }
    done("queue.v1.QueueService/CreateQueue", r#"{"queue": {"name": "jobs"}}"#);
    for _ in 0..2 {
        done("queue.v1.QueueService/Enqueue", r#"{"queue": "jobs", "message": {"payload": "Zm9v"}}"#);
        done("queue.v1.QueueService/Dequeue", r#"{"queue": "jobs", "wait": "60s"}"#);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_every_series_of_the_metrics_page_with_its_value() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (endpoint, mut exports) = collector().await;
    let endpoint = format!("metrics.otlp_endpoint={endpoint}");
    let launch = Launch::dev(folder.path()).arg("--set").arg(&endpoint);
    let launch = launch.arg("--set").arg("metrics.otlp_interval_ms=1000");
    let server = tokio::task::spawn_blocking(move || launch.start()).await.expect("it starts");
    tokio::task::block_in_place(|| use_it(&server));
    let deadline = Instant::now() + SENT_WITHIN;
    loop {
        let page = || tokio::task::block_in_place(|| series_of_page(&server.get("/metrics").body));
        while exports.try_recv().is_ok() {}
        let before = page();
        let export = tokio::time::timeout(SENT_WITHIN, exports.recv()).await.expect("it is sent").expect("it listens");
        let resource = format!("{:?}", export.resource_metrics[0].resource);
        assert!(resource.contains("service.instance.id") && resource.contains("tallystone"), "{resource}");
        let (sent, after) = (series_of_export(export), page());
        let is_still = |name: &str| !MOVING.iter().any(|moving| name.starts_with(moving));
        // What the server did of its own accord between the two pages may be in the export or not.
        let unchanged = before.iter().filter(|(name, value)| after.get(*name) == Some(*value) && is_still(name));
        let differs = |(name, value): &(&String, &f64)| sent.get(*name) != Some(*value);
        let differing: Vec<_> = unchanged.filter(differs).map(|(name, value)| (name, value, sent.get(name))).collect();
        let names = |series: &Series| series.keys().cloned().collect::<BTreeSet<_>>();
        let only_one_has: Vec<_> = names(&sent).symmetric_difference(&names(&after)).cloned().collect();
        let leases = after.get("tallystone_queue_wait_seconds_count{queue=\"jobs\"}");
        if differing.is_empty() && only_one_has.is_empty() && leases == Some(&2.0) {
            assert!(after.len() > 300, "it was a whole page: {}", after.len());
            break;
        }
        assert!(Instant::now() < deadline, "{differing:?} {only_one_has:?} {leases:?}");
    }
    while exports.try_recv().is_ok() {}
    let stopped = tokio::task::spawn_blocking(move || server.stop()).await.expect("it stops");
    assert!(stopped.success());
    assert!(exports.try_recv().is_ok(), "an orderly stop sends the last values");
}

#[test]
fn a_collector_of_metrics_that_is_not_there_fails_no_call_and_no_stop() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::dev(folder.path()).arg("--set").arg("metrics.otlp_endpoint=http://127.0.0.1:1");
    let server = launch.arg("--set").arg("metrics.otlp_interval_ms=1000").start();
    use_it(&server);
    assert!(server.stop().success());
}
