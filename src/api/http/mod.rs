//! One port for gRPC, gRPC-Web, JSON over HTTP and the pages of operations.
//!
//! `gateway` looks at a request and sends it to one of: `call` (gRPC, and everything else in the end), `json`
//! (transcodes to gRPC and back by descriptor), `pages`. `methods` is the table of all methods, made of the descriptors
//! once. Invariant: every call of a method, on whatever protocol, passes `call`: there it gets its deadline, there a
//! panic ends, there it is measured.

mod call;
mod gateway;
mod json;
mod json_read;
mod json_values;
mod methods;
mod metrics;
mod pages;
mod stream_body;
mod trace;

pub use gateway::{Gateway, Phase};
