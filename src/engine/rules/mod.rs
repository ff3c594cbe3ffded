//! The use cases of counter rules, and the loop that evaluates them.
//!
//! `create`, `list` and `delete` are calls; `evaluate` runs one rule; `rounds` is the loop; `adopt` gives rules to
//! another queue store. Invariant: progress is read before the count, and stored by compare-and-set before a message is
//! sent. So several servers, kills and retries send one message for each claim.

mod adopt;
mod create;
mod delete;
mod error;
mod evaluate;
mod list;
mod rounds;

use std::sync::Arc;

use crate::context::EngineContext;
use crate::counting::Counting;
use crate::queues::Queues;
use tallystone_ports::RuleStore;

pub use error::RuleError;
pub(super) use rounds::RulesLoop;

/// The use cases of rules. Cheap to clone.
#[derive(Clone)]
pub struct Rules {
    context: Arc<EngineContext>,
    store: Arc<dyn RuleStore>,
    counting: Counting,
    /// The queues of this process, if it has some. Without them it keeps rules and runs none.
    queues: Option<Queues>,
}

impl Rules {
    pub(super) fn new(
        context: Arc<EngineContext>,
        store: Arc<dyn RuleStore>,
        counting: Counting,
        queues: Option<Queues>,
    ) -> Self {
        Self { context, store, counting, queues }
    }
}
