//! One port for gRPC, gRPC-Web, JSON over HTTP and the operations pages.
//!
//! `gateway` routes a request to one of: `call` (gRPC, and in the end every method call), `json` (transcodes to gRPC
//! and back by descriptor), `pages`, `console`. `identity` finds out who calls. `methods` is the table of all methods,
//! built once from the descriptors. `request_body` and `response_body` bound the memory of a call's request and answer,
//! `call_start_queue` the number of calls that start at once; `recorded_calls` run to their end without their callers,
//! and `recorded_stream` says how a stream of theirs ended. Invariant: every method call, in any protocol, passes
//! through `call`, which sets its deadline, catches a panic and records its metrics.

mod audit;
mod buffers;
mod call;
mod call_start_queue;
mod console;
mod gateway;
mod headers;
mod health;
mod hosts;
mod identity;
mod json;
mod json_read;
mod json_values;
mod list_limits;
mod metered_body;
mod methods;
mod metrics;
mod metrics_page;
mod pages;
mod recorded_calls;
mod recorded_stream;
mod request_body;
mod response_body;
mod stream_body;
mod trace;
mod unread_body;

pub use audit::REASON_METADATA;
pub use buffers::{Buffers, Caller};
pub use call_start_queue::CallExecutor;
pub use console::ConsoleSettings;
pub use gateway::Gateway;
pub use headers::HEADERS_THAT_FIT;
pub use health::{ServerPhase, ServiceOutages};
pub use hosts::AllowedHosts;
pub use identity::Authentication;
pub use metrics::ConnectionRefusal;
pub use response_body::StallGuard;
