//! Metrics over OTLP: what the metrics page shows, sent to a collector at an interval.
//!
//! The metrics are read from the page itself, so the two never differ in what they name. A collector that does not
//! answer holds nothing up: the next interval sends the newest values.

mod page;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::RwLock;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::config::MetricsConfig;
use crate::server::keyspace::UnusableSetting;
use tallystone_api::http::Gateway;
use tallystone_domain::Timestamp;
use tallystone_ports::Clock;

/// The time for one export. The last one, at the end of the process, has as much.
const SENT_WITHIN: Duration = Duration::from_secs(2);
const SCOPE: &str = "tallystone";

/// Sends the metrics of this process.
pub struct MetricExport {
    registry: Arc<RwLock<Registry>>,
    clock: Arc<dyn Clock>,
    interval: Duration,
    collector: MetricsServiceClient<Channel>,
    resource: Resource,
    is_failing: bool,
}

impl MetricExport {
    /// Prepares to send; `None` without a collector. `name` is what other servers call this one.
    pub fn of(
        config: &MetricsConfig,
        name: &str,
        gateway: &Gateway,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Option<Self>> {
        if config.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let endpoint = Endpoint::from_shared(config.otlp_endpoint.clone())
            .map_err(|error| UnusableSetting(format!("metrics.otlp_endpoint cannot be used: {error}")))?;
        let collector = MetricsServiceClient::new(endpoint.timeout(SENT_WITHIN).connect_lazy());
        let attributes = [
            ("service.name", "tallystone"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", name),
        ];
        let attributes = attributes.into_iter().map(|(key, value)| page::attribute(key, value)).collect();
        let resource = Resource { attributes, ..Resource::default() };
        let interval = Duration::from_millis(config.otlp_interval_ms);
        let (registry, clock) = (gateway.registry(), Arc::clone(clock));
        Ok(Some(Self { registry, clock, interval, collector, resource, is_failing: false }))
    }

    /// Sends at each interval until `stop`, and once more then.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let is_last = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = self.clock.sleep(self.interval) => false,
            };
            let sent = self.send().await;
            self.tell(sent);
            if is_last {
                return;
            }
        }
    }

    async fn send(&mut self) -> Result<(), String> {
        let registry = Arc::clone(&self.registry);
        // A page with many datasets and queues takes long, so it is written off the runtime.
        let written = tokio::task::spawn_blocking(move || {
            let mut page = String::new();
            text::encode(&mut page, &registry.read()).map(|()| page)
        });
        let page = written.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let metrics = page::read(&page, nanos_of(self.clock.now()))?;
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
        let of_process =
            ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics, ..ResourceMetrics::default() };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![of_process] };
        let sending = tokio::time::timeout(SENT_WITHIN, self.collector.export(request));
        let answer = sending.await.map_err(|_elapsed| format!("no answer within {SENT_WITHIN:?}"))?;
        let answer = answer.map_err(|status| format!("{}: {}", status.code(), status.message()))?.into_inner();
        match answer.partial_success.filter(|refused| refused.rejected_data_points > 0) {
            Some(refused) => {
                Err(format!("{} points were rejected: {}", refused.rejected_data_points, refused.error_message))
            }
            None => Ok(()),
        }
    }

    /// Logs changes only, because a collector may be away for days.
    fn tell(&mut self, sent: Result<(), String>) {
        match sent {
            Err(error) if !self.is_failing => {
                tracing::warn!(error, "the collector did not take the metrics; the next interval sends newer ones");
                self.is_failing = true;
            }
            Ok(()) if self.is_failing => {
                tracing::info!("the collector takes the metrics again");
                self.is_failing = false;
            }
            Ok(()) | Err(_) => {}
        }
    }
}

fn nanos_of(time: Timestamp) -> u64 {
    u64::try_from(time.micros()).unwrap_or(0).saturating_mul(1_000)
}
