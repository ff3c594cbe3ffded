//! The operations pages: `/` (what this server is), `/healthz` (liveness), `/readyz` (all services are ready),
//! `/metrics`. They support GET and HEAD; every other path belongs to the methods.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use prometheus_client::registry::Registry;
use tonic::body::Body;

use parking_lot::RwLock;

use crate::errors::ApiError;
use crate::http::buffers::Caller;
use crate::http::health::ServerHealth;
use crate::http::json;
use crate::http::metrics_page;
use crate::http::response_body::plain;
use tallystone_domain::Reason;
use tallystone_domain::access::AccessRole;

const PATHS: [&str; 4] = ["/", "/healthz", "/readyz", "/metrics"];

/// Whether a page has this path.
pub fn exists(path: &str) -> bool {
    PATHS.contains(&path)
}

/// Whether a page answers everyone: those by which others watch over the process.
pub fn is_open(path: &str) -> bool {
    ["/healthz", "/readyz"].contains(&path)
}

/// The role that a page needs, if any.
pub fn role(path: &str) -> Option<AccessRole> {
    (path == "/metrics").then_some(AccessRole::Metrics)
}

/// Answers a page. The front page names the console if there is one.
pub async fn answer(
    request: &Request<()>,
    health: &ServerHealth,
    registry: &Arc<RwLock<Registry>>,
    caller: &Caller,
    has_console: bool,
) -> Response<Body> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let what = format!("{} is not allowed here; read the page with GET", request.method());
        let mut response = json::refused(&ApiError::new(Reason::MethodNotAllowed, what).into());
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" => match health.readiness() {
            Ok(text) => plain(StatusCode::OK, text),
            Err(text) => plain(StatusCode::SERVICE_UNAVAILABLE, text),
        },
        "/metrics" => metrics_page::answer(request, Arc::clone(registry), caller).await,
        // The front page, the only one left.
        _ => plain(StatusCode::OK, front(&format!("{}://{}", caller.scheme(), host_of(request)), has_console)),
    }
}

/// Describes the server and suggests first calls, for a person who opened the printed address.
fn front(url: &str, has_console: bool) -> String {
    let console = if has_console { format!("{url}/console/  the web console\n") } else { String::new() };
    format!(
        "tallystone {version}: counters and queues over gRPC, gRPC-Web and JSON over HTTP, all on this port\n\n\
         {console}{url}/readyz    whether it accepts calls\n\
         {url}/healthz   whether the process answers\n\
         {url}/metrics   Prometheus metrics\n\n\
         Add 1 to the counter `views` of the namespace `default`:\n\n\
         curl -s {url}/tallystone.counter.v1.CounterService/AddCount \\\n  \
         -H 'content-type: application/json' \\\n  \
         -d '{{\"namespace\": \"default\", \"counter_name\": \"views\", \"delta\": 1}}'\n\n\
         Put a message into the queue `timed/hello`, which a template creates:\n\n\
         curl -s {url}/tallystone.queue.v1.QueueService/Enqueue \\\n  \
         -H 'content-type: application/json' \\\n  \
         -d '{{\"queue\": \"timed/hello\", \"message\": {{\"payload\": \"aGVsbG8=\"}}}}'\n\n\
         gRPC reflection lists every method; `tallystone --help` shows the command line.\n\
         The documentation is in the folder docs of the source.\n",
        version = env!("CARGO_PKG_VERSION")
    )
}

/// The host in the request, if it is safe to paste into a shell.
fn host_of(request: &Request<()>) -> String {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let named = request.uri().authority().map(http::uri::Authority::as_str).or(header);
    let is_plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    named.filter(is_plain).unwrap_or("127.0.0.1:7450").to_owned()
}
