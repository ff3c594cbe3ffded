//! Structured logs on standard error, and traces to a collector. Neither contains payloads or tokens.

mod json_lines;
mod repeated_lines;

use std::io::IsTerminal;
use std::panic::PanicHookInfo;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Runtime;
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry};

use crate::config::{LogConfig, LogFormat, TracesConfig};
use crate::log_filter::{TRACES, filter};
use crate::telemetry::json_lines::JsonLines;
use crate::telemetry::repeated_lines::{RepeatedLineFilter, SuppressionReporter};

/// The time that process exit waits for unsent traces.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// The log and the traces of this process. `finish` writes and sends the rest.
#[must_use = "what was not written or sent yet is lost"]
pub struct Telemetry {
    summary: SuppressionReporter,
    /// None without a collector.
    exporting: Option<TraceExporter>,
}

struct TraceExporter {
    provider: SdkTracerProvider,
    /// The runtime of the exporter's connection. It outlives the server's runtime, so that the last spans are sent.
    runtime: Runtime,
}

/// Starts logging, and tracing if there is a collector. Fails on an invalid level or address. A second call in one
/// process has no effect.
pub fn start(log: &LogConfig, traces: &TracesConfig) -> Result<Telemetry, String> {
    let filter = filter(&log.level).map_err(|error| format!("log.level cannot be used: {error}"))?;
    let exporting = TraceExporter::start(traces)?;
    let (repeated, summary) =
        RepeatedLineFilter::start().map_err(|error| format!("cannot start the thread of the log: {error}"))?;
    let spans = exporting.as_ref().map(|exporting| {
        let tracer = exporting.provider.tracer("tallystone");
        let only_traces = Targets::new().with_target(TRACES, Level::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_filter(only_traces)
    });
    // Tests start telemetry more than once in a process.
    let filter = filter.and(repeated);
    let _ = tracing_subscriber::registry().with(lines(log.format).with_filter(filter)).with(spans).try_init();
    std::panic::set_hook(Box::new(log_panic));
    Ok(Telemetry { summary, exporting })
}

/// The layer that writes log lines. A line that cannot be written is lost; the library would report that on the same
/// stderr, and panic if stderr is closed.
fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = layer().with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).map_event_format(JsonLines).boxed(),
    }
}

impl TraceExporter {
    fn start(config: &TracesConfig) -> Result<Option<Self>, String> {
        if config.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("traces").enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start the runtime of traces: {error}"))?;
        let entered = runtime.enter();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&config.otlp_endpoint)
            .with_timeout(FLUSH_WITHIN)
            .build()
            .map_err(|error| format!("traces.otlp_endpoint cannot be used: {error}"))?;
        let resource = Resource::builder_empty().with_service_name("tallystone");
        let resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))).build();
        // A call that its caller traces is always traced, regardless of the sampling share.
        let share = f64::from(config.sample_per_mille) / 1_000.0;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share))))
            .with_resource(resource)
            .build();
        drop(entered);
        opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Some(Self { provider, runtime }))
    }

    fn finish(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_WITHIN) {
            tracing::warn!(%error, "the last traces were not sent");
        }
        self.runtime.shutdown_background();
    }
}

impl Telemetry {
    /// Sends the unsent traces, and logs the last summary of suppressed lines.
    pub fn finish(self) {
        if let Some(exporting) = self.exporting {
            exporting.finish();
        }
        self.summary.finish();
    }
}

/// Logs a panic as an ordinary log line, so that operators find it.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic without a message");
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(at, "a defect: {what}");
}

#[cfg(test)]
mod tests {
    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::layer::Filter;

    use super::*;

    #[test]
    fn spans_below_the_level_of_the_log_are_not_even_made() {
        let levels =
            [("info", LevelFilter::INFO), ("warn,tallystone=debug", LevelFilter::DEBUG), ("off", LevelFilter::WARN)];
        for (level, most) in levels {
            let (repeated, summary) = RepeatedLineFilter::start().expect("the thread starts");
            let both = filter(level).expect("a valid level").and(repeated);
            assert_eq!(Filter::<Registry>::max_level_hint(&both), Some(most), "{level}");
            summary.finish();
        }
    }
}
