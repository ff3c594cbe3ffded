//! Sweeps shards when time alone changes something in them: expired windows and leases, TTLs, retention.
//!
//! Of several servers on one store the owner of a shard sweeps it, and the next in rank steps in a little later: the
//! alarms have that delay. A sweep is idempotent and bounded. A shard with more to sweep is swept again at once. Ends
//! of retentions, for which no caller waits, are swept together. A failed sweep is retried after a pause.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use crate::driver::{BackgroundLoop, NextActivation};
use crate::queues::state::context::QueueContext;
use tallystone_domain::limits::{BULK_MESSAGES_MAX, SWEEPS_AT_ONCE_MAX, SWEEPS_OF_A_ROUND_MAX};
use tallystone_domain::queue::command::Completeness;
use tallystone_domain::queue::{Command, Reply, ShardId};
use tallystone_ports::ShardCommand;

/// Events within this time are swept together.
const COALESCE_WINDOW: Duration = Duration::from_millis(2);
/// The pause before the retry of a failed sweep.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The background loop of sweeps.
pub struct Sweeper {
    context: Arc<QueueContext>,
}

impl Sweeper {
    /// Creates the sweeper of these queues.
    pub fn new(shared: Arc<QueueContext>) -> Self {
        Self { context: shared }
    }

    async fn sweep(&self, shard: ShardId) {
        let Some(queue) = self.context.by_id(shard.queue) else { return };
        let sweep = ShardCommand::of(Command::Sweep { max: BULK_MESSAGES_MAX });
        let next = match self.context.call(&queue, shard.number, sweep).await.map(|answer| answer.reply) {
            Ok(Ok(Reply::Touched { completeness: Completeness::More, .. })) => Duration::ZERO,
            Ok(_) => return, // its status says when
            Err(error) => {
                tracing::debug!(%error, "cannot sweep a shard; retrying after a pause");
                RETRY_PAUSE
            }
        };
        self.context.alarms.set(shard, Some(self.context.elapsed() + next));
    }
}

#[async_trait]
impl BackgroundLoop for Sweeper {
    fn name(&self) -> &'static str {
        "queue sweeper"
    }

    async fn woken(&self) {
        self.context.alarms.earlier_alarm().await;
    }

    async fn activate(&mut self) -> NextActivation {
        let now = self.context.elapsed();
        let (due, next) = self.context.alarms.take(now, SWEEPS_OF_A_ROUND_MAX);
        if !due.is_empty() {
            stream::iter(&due).for_each_concurrent(SWEEPS_AT_ONCE_MAX, |shard| self.sweep(*shard)).await;
            return NextActivation::After(COALESCE_WINDOW);
        }
        match next {
            Some(next) => NextActivation::AfterOrWoken(next.saturating_sub(now).max(COALESCE_WINDOW)),
            None => NextActivation::Woken,
        }
    }
}
