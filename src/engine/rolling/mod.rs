//! The rollup pipeline: signals, hashed queues, batches, rolls.
//!
//! A signal says that a counter has new events. It enters the Set of one of the namespace's queues, which is drained every
//! `coalesce_ms`. A counter is rolled once the limit has passed its signalled events. Signals only reduce latency: the touch
//! index knows every counter with events, and a watermark never passes a counter that still waits.

mod fold;
pub mod pacing;
pub mod pending;
pub mod pipeline;
pub mod queue;
mod roll;
mod signal_receiver;

pub use pipeline::{NamespaceRollupQueues, RollupQueueLoop};
pub use signal_receiver::SignalReceiver;
