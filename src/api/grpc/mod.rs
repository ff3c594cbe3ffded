//! The gRPC services. Each method decodes and validates once, calls one use case, and encodes its answer.

pub mod counters;
mod decode;
mod encode;
mod namespace_convert;
pub mod namespaces;
mod stream_adds;
