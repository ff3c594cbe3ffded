//! The wire protocols: gRPC, gRPC-Web and JSON over HTTP on one port.
//!
//! Requests are decoded and validated once, here, into domain values. No layer below sees a wire type, and every error
//! leaves through `errors`. No backend is named in this layer.

mod connection_limits;
pub mod documents;
pub mod errors;
pub mod grpc;
pub mod http;
pub mod metric_units;
pub mod paging;
pub mod serve;
pub mod time;
pub mod tls;
mod transport;
pub mod unseen;
mod yield_before_write;
