//! Tallystone: distributed counters, and priority queues that feed them.
//!
//! One service, one binary. The layers, from the bottom: `domain` (pure rules), `ports` (the seams), `engine` (use cases
//! and loops), `adapters` (stores, clock), `api` (gRPC, JSON), `app` (composition). A layer uses only those named before
//! it. `coalesce` (batches of many callers) stands beside `domain`. `docs/architecture.md` has the map,
//! `tests/it/repository/tidy` keeps it true.
//!
//! Without the feature `server` the crate is the protocol and the client only.

pub mod client;
pub mod proto;

#[cfg(feature = "server")]
pub mod adapters;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "server")]
pub mod coalesce;
#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod ports;
