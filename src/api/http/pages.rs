//! The pages of operations: `/healthz` (the process answers), `/readyz` (the stores answer), `/metrics`.

use http::{Response, StatusCode, header};
use http_body_util::Full;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tonic::body::Body;

use crate::api::http::gateway::Phase;

/// What Prometheus expects of the text format.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers a page, if there is one of this path.
pub fn page(path: &str, phase: Phase, registry: &Registry) -> Option<Response<Body>> {
    match path {
        "/healthz" => Some(plain(StatusCode::OK, "ok\n")),
        "/readyz" => Some(match phase {
            Phase::Starting => plain(StatusCode::SERVICE_UNAVAILABLE, "starting: the store is not open yet\n"),
            Phase::Ready => plain(StatusCode::OK, "ready\n"),
            Phase::Draining => plain(StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        }),
        "/metrics" => Some(metrics(registry)),
        _ => None, // every other path belongs to the methods
    }
}

fn metrics(registry: &Registry) -> Response<Body> {
    let mut page = String::new();
    match text::encode(&mut page, registry) {
        Ok(()) => with_type(StatusCode::OK, METRICS_TYPE, page),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written; see the log\n")
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", text.to_owned())
}

/// An answer with a body of a content type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
