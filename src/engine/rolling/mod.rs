//! The rollup pipeline: signals, hashed queues, batches, rolls.
//!
//! A signal says that a counter has new events. It goes into the Set of one of the namespace's queues; every coalesce_ms
//! the Set is drained; a counter is rolled once the limit has passed what it waits for. Signals are latency only: the
//! touch index knows every counter with events, and a watermark never passes one that still waits.

mod fold;
pub mod pacing;
pub mod pending;
pub mod pipeline;
pub mod queue;
mod roll;
mod signal_receiver;

pub use pipeline::{NamespaceRollupQueues, RollupQueueLoop};
pub use roll::cached;
pub use signal_receiver::SignalReceiver;
