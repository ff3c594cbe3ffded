//! The rollup pipeline: signals, hashed queues, batches, rolls.
//!
//! A signal says that a counter has new events. It enters the Set of one of the namespace's queues, which is drained
//! every `coalesce_ms`. A counter is rolled once the limit has passed its signalled events. Signals only reduce
//! latency: the touch index knows every counter with events, and a watermark never passes a counter that still waits.

mod fold;
pub mod pacing;
pub mod pipeline;
mod recheck;
mod roll;
mod sealing;
mod settling;
mod signal_receiver;

use std::sync::Arc;

use crate::context::EngineContext;
use crate::scopes::NamespaceScopes;
use crate::served_counts::ServedCounts;
use tallystone_domain::rollup::{Checkpoint, CheckpointWriter};

pub use fold::FoldStart;
pub use pipeline::{QueueSlot, RollupQueueLoop};
pub use signal_receiver::SignalReceiver;

/// Folds the log into checkpoints, repairs them, and shows them to readers.
pub struct Roller {
    context: Arc<EngineContext>,
    /// The namespaces whose counters are rolled.
    pub scopes: Arc<NamespaceScopes>,
    /// Told about each roll.
    pub served: Arc<ServedCounts>,
}

impl Roller {
    /// Makes the roller of this process.
    pub fn new(scopes: Arc<NamespaceScopes>, served: Arc<ServedCounts>) -> Self {
        Self { context: Arc::clone(&scopes.context), scopes, served }
    }

    /// A checkpoint marked with the time and the writer. In a store of one process only the time is noted, which makes
    /// every row smaller.
    fn with_roller(&self, checkpoint: Checkpoint) -> Checkpoint {
        let server = self.scopes.fleet.as_ref().and_then(|fleet| fleet.membership.name());
        Checkpoint { writer: Some(CheckpointWriter { at: self.context.now(), server }), ..checkpoint }
    }
}
