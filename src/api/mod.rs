//! The wire: gRPC and JSON over HTTP.

pub mod documents;
