//! The wire: gRPC and JSON over HTTP.
