//! The gRPC services. Each method decodes and validates once, calls one use case, and encodes its answer.

mod namespace_convert;
pub mod namespaces;
