//! Metrics of calls: a latency histogram for each method and code, with handles that need no look-up.

use std::fmt::{self, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::metric_units::register;

/// Upper bounds of the latency buckets, in seconds.
const LATENCY_BUCKETS: [f64; 15] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

const CODES: usize = 17;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct CallLabels {
    method: Arc<str>,
    code: &'static str,
}

#[derive(Clone)]
struct LatencyBuckets;

impl MetricConstructor<Histogram> for LatencyBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(LATENCY_BUCKETS)
    }
}

/// The metrics of all calls. Cheap to clone.
#[derive(Clone)]
pub struct CallMetrics {
    latencies: Family<CallLabels, Histogram, LatencyBuckets>,
    /// Calls that ended in a panic.
    pub panics: Counter,
    /// Accepted connections.
    pub connections: Counter,
    pub connections_open: Gauge,
    /// Bytes reserved for requests that are still being read.
    pub request_bytes: Gauge,
    /// Bytes of answers that are being built or sent.
    pub answer_bytes: Gauge,
    /// Answers that were reset because the client did not read them in time.
    pub answers_reset: Counter,
    refused: Family<RefusedLabels, Counter>,
    unauthenticated: Family<UnauthenticatedLabels, Counter>,
}

/// The limit that refused a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnectionRefusal {
    /// The server's limit of connections.
    Server,
    /// The limit of connections from one address.
    Address,
}

impl EncodeLabelValue for ConnectionRefusal {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Server => "server",
            Self::Address => "address",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RefusedLabels {
    full: ConnectionRefusal,
}

/// The reason why a call was refused before it was read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnauthenticatedCall {
    /// It shows no key.
    Missing,
    /// It shows something else than a valid key.
    Invalid,
    /// It shows a key that was valid.
    Expired,
}

impl EncodeLabelValue for UnauthenticatedCall {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Missing => "missing",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct UnauthenticatedLabels {
    why: UnauthenticatedCall,
}

impl CallMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            latencies: Family::new_with_constructor(LatencyBuckets),
            panics: Counter::default(),
            connections: Counter::default(),
            connections_open: Gauge::default(),
            request_bytes: Gauge::default(),
            answer_bytes: Gauge::default(),
            answers_reset: Counter::default(),
            refused: Family::default(),
            unauthenticated: Family::default(),
        };
        register(
            registry,
            "tallystone_call_duration_seconds",
            "Time from the head of a request to its response, by method and gRPC code; for streams, to their end",
            metrics.latencies.clone(),
        );
        register(
            registry,
            "tallystone_call_panics",
            "Calls that panicked and returned INTERNAL",
            metrics.panics.clone(),
        );
        register(registry, "tallystone_connections", "Connections accepted", metrics.connections.clone());
        register(registry, "tallystone_connections_open", "Open connections", metrics.connections_open.clone());
        register(
            registry,
            "tallystone_connections_refused",
            "Connections refused because the server or the address had its maximum of connections",
            metrics.refused.clone(),
        );
        register(
            registry,
            "tallystone_request_buffer_bytes",
            "Bytes reserved for requests that have not fully arrived",
            metrics.request_bytes.clone(),
        );
        register(
            registry,
            "tallystone_answer_buffer_bytes",
            "Bytes of large responses in progress or not yet read by their clients",
            metrics.answer_bytes.clone(),
        );
        register(
            registry,
            "tallystone_answers_reset",
            "Responses reset because their clients stopped reading",
            metrics.answers_reset.clone(),
        );
        register(
            registry,
            "tallystone_calls_unauthenticated",
            "Calls refused because they showed no valid API key, by what was wrong",
            metrics.unauthenticated.clone(),
        );
        for why in [UnauthenticatedCall::Missing, UnauthenticatedCall::Invalid, UnauthenticatedCall::Expired] {
            drop(metrics.unauthenticated.get_or_create(&UnauthenticatedLabels { why }));
        }
        // Exported from startup, so that the first refusal is visible as an increase.
        for full in [ConnectionRefusal::Server, ConnectionRefusal::Address] {
            drop(metrics.refused.get_or_create(&RefusedLabels { full }));
        }
        metrics
    }

    /// Counts a call without a valid key.
    pub fn unauthenticated(&self, why: UnauthenticatedCall) {
        self.unauthenticated.get_or_create(&UnauthenticatedLabels { why }).inc();
    }

    /// Counts a refused connection.
    pub fn refused(&self, full: ConnectionRefusal) {
        self.refused.get_or_create(&RefusedLabels { full }).inc();
    }

    pub fn method(&self, name: &str) -> MethodMetrics {
        let handles = std::array::from_fn(|_| OnceLock::new());
        MethodMetrics { inner: Arc::new(MethodHandles { name: name.into(), metrics: self.clone(), handles }) }
    }
}

/// The metrics of one method. Cheap to clone.
#[derive(Clone)]
pub struct MethodMetrics {
    inner: Arc<MethodHandles>,
}

struct MethodHandles {
    name: Arc<str>,
    metrics: CallMetrics,
    /// One histogram for each code, created at the first use of the code.
    handles: [OnceLock<Histogram>; CODES],
}

impl MethodMetrics {
    /// Records one finished call.
    pub fn record(&self, code: Code, elapsed: Duration) {
        let handles = &self.inner;
        let Some(handle) = handles.handles.get(code as usize) else { return };
        let histogram = handle.get_or_init(|| {
            let labels = CallLabels { method: Arc::clone(&handles.name), code: code_name(code) };
            handles.metrics.latencies.get_or_create(&labels).clone()
        });
        histogram.observe(elapsed.as_secs_f64());
    }

    /// Counts a panic.
    pub fn panicked(&self) {
        self.inner.metrics.panics.inc();
    }
}

/// The name of a code in the gRPC specification, in lower case as all values of labels.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}
