//! Counters: names, tokens and events.

pub mod event;
pub mod name;
pub mod token;

pub use event::{Change, Event, EventId, EventKey, Provenance};
pub use name::{Counter, CounterName, DatasetId, NamespaceId, NamespaceName, touch_shard_of};
pub use token::{ClientToken, IdempotencyToken, ReportSource, SEQUENCES_PER_MS, uuid_v7};
