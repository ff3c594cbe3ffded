//! One port for gRPC, gRPC-Web, JSON over HTTP and the pages of operations.
//!
//! `gateway` looks at a request and sends it to one of: `call` (gRPC, and everything else in the end), `json`
//! (transcodes to gRPC and back by descriptor), `pages`. `methods` is the table of all methods, made of the descriptors
//! once. `request_body` and `answer_body` bound what a call holds on its way in and out, `turns` how many begin at once.
//! Invariant: every call of a method, on whatever protocol, passes `call`: there it gets its deadline, there a panic ends,
//! there it is measured.

mod answer_body;
mod buffers;
mod call;
mod counts;
mod gateway;
mod health;
mod hosts;
mod json;
mod json_read;
mod json_values;
mod methods;
mod metrics;
mod pages;
mod request_body;
mod stream_body;
mod trace;
mod turns;

pub use answer_body::Watched;
pub use buffers::{Buffers, Caller};
pub use gateway::Gateway;
pub use health::{Phase, Standing};
pub use hosts::Hosts;
pub use metrics::Refused;
pub use turns::Streams;
