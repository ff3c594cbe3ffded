//! Tallystone: distributed counters, and priority queues that feed them.
//!
//! One service, one binary. Each layer is a crate that lies where its folder lies; their manifests say which uses
//! which. From the bottom: `domain` (pure rules), `ports` (the seams), `engine` (use cases and loops), `adapters`
//! (stores, clock), `api` (gRPC, JSON), `app` (composition), `cli` (the command line). `coalesce` (batches of many
//! callers) is next to `domain`. `docs/architecture.md` has the map.
//!
//! This crate is the binary, and the layers under one name for tests and benchmarks. An application depends on
//! `tallystone-client` alone.

pub use tallystone_api as api;
pub use tallystone_client as client;
pub use tallystone_coalesce as coalesce;
pub use tallystone_engine as engine;
pub use tallystone_ports as ports;
pub use tallystone_proto as proto;

/// Values and rules.
pub mod domain {
    pub use tallystone_domain::*;
    pub use tallystone_experiments as experiment;
}

/// Implementations of the ports.
pub mod adapters {
    pub use tallystone_adapters::*;
    pub use tallystone_cassandra as cassandra;
    pub use tallystone_embedded as embedded;
    pub use tallystone_redis as redis;
}

/// The composition root, and the command line in front of it.
pub mod app {
    pub use tallystone_app::*;
    pub use tallystone_cli as cli;
}
