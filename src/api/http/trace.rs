//! The span of a call, for traces: its method, its status, and the trace of its caller (W3C Trace Context).
//!
//! Without a trace collector, which is the default, a span costs one comparison of levels.

use http::HeaderMap;
use opentelemetry::propagation::Extractor;
use tonic::Code;
use tracing::{Level, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::http::methods::Method;

/// Creates the span of a call; it continues the caller's trace, if there is one.
pub fn of(method: &Method, headers: &HeaderMap) -> Span {
    let span = tracing::span!(
        target: "tallystone::traces",
        Level::TRACE,
        "call",
        otel.name = method.descriptor.full_name(),
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.grpc.status_code = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
    );
    if !span.is_disabled() {
        let parent = opentelemetry::global::get_text_map_propagator(|propagator| propagator.extract(&Headers(headers)));
        // Fails if no layer accepts it; then there is no trace to continue.
        let _ = span.set_parent(parent);
    }
    span
}

/// Records the status of the call.
pub fn answered(span: &Span, code: Code) {
    if !span.is_disabled() {
        span.record("rpc.grpc.status_code", code as i32);
        let failed = matches!(code, Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss);
        if failed {
            span.record("otel.status_code", "ERROR");
        }
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
