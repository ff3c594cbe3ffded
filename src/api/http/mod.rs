//! One port for gRPC, gRPC-Web, JSON over HTTP and the pages of operations.
//!
//! `gateway` looks at a request and sends it to one of: `call` (gRPC, and everything else in the end), `json`
//! (transcodes to gRPC and back by descriptor), `pages`. `methods` is the table of all methods, made of the descriptors
//! once. `request_body` and `answer_body` bound what a call holds on its way in and out, `turns` how many begin at once.
//! Invariant: every call of a method, on whatever protocol, passes `call`: there it gets its deadline, there a panic ends,
//! there it is measured.

mod buffers;
mod call;
mod call_start_queue;
mod gateway;
mod health;
mod hosts;
mod json;
mod json_read;
mod json_values;
mod list_limits;
mod methods;
mod metrics;
mod pages;
mod request_body;
mod response_body;
mod stream_body;
mod trace;

pub use buffers::{Buffers, Caller};
pub use call_start_queue::CallExecutor;
pub use gateway::Gateway;
pub use health::{ServerPhase, ServiceOutages};
pub use hosts::AllowedHosts;
pub use metrics::ConnectionRefusal;
pub use response_body::StallGuard;
