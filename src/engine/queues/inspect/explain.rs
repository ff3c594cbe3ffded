//! Explains why a message is not being served: one sentence and a next step for each cause.

use std::sync::Arc;

use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::inspect::MessageView;
use crate::queues::inspect::cause_text::{CauseText, QueueExplanation, counted, explanation, no_worker_waits};
use crate::queues::inspect::next_steps::NextSteps;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::limits::EXPLAIN_POSITION_MAX;
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::shard::explain::Cause;
use tallystone_domain::queue::{MessageState, QueueName};

impl InspectService {
    /// Explains why a message is not being served.
    pub async fn explain_message(
        &self,
        name: &QueueName,
        message: MessageRef,
    ) -> Result<(Vec<QueueExplanation>, Option<MessageView>), QueueError> {
        let found = self.get_message(name, message).await;
        // That read has also noticed whether another server replaced the queue.
        let queue = self.catalog.queue(name).await?;
        let found = match found {
            Ok(found) => found,
            Err(QueueError::Refused(Refusal::NotFound)) => {
                let text = "the queue has no message with this id: it was never enqueued, its retention is over, \
                    or it was purged or discarded; check the response of its enqueue, and omit shard_key to search all shards";
                return Ok((vec![explanation("unknown_id", text)], None));
            }
            Err(error) => return Err(error),
        };
        let shard = found.message.head.key.shard;
        let key = MessageRef::Key(found.message.head.key);
        let told = self.context.stores.reader.explain(queue.shard(shard).id, key).await;
        let (causes, at) = told.map_err(|error| self.context.translate_store_error(&queue, error))?;
        let mut explained = Vec::with_capacity(causes.len() + 1);
        let is_blocked = causes.iter().any(|cause| matches!(cause, Cause::DequeueBlocked(_)));
        let words =
            CauseText { context: &self.context, steps: NextSteps(name), about: Some(&found.message.head.id), at };
        for cause in &causes {
            match cause {
                Cause::Ready { ahead, or_more } if !is_blocked => {
                    let ahead = (queue.shards() == 1).then_some((*ahead, *or_more));
                    explained.extend(self.explain_pending(name, &queue, &found, ahead).await?);
                }
                told => explained.push(words.describe(told)),
            }
        }
        Ok((explained, Some(found)))
    }

    /// Explains a pending message and its position. For a queue of one shard `ahead` is known and excludes blocked
    /// messages. For several shards the number of messages before it is approximate.
    async fn explain_pending(
        &self,
        name: &QueueName,
        queue: &Arc<ServedQueue>,
        found: &MessageView,
        ahead: Option<(usize, bool)>,
    ) -> Result<Vec<QueueExplanation>, QueueError> {
        let head = &found.message.head;
        let (ahead, or_more) = match ahead {
            Some(known) => known,
            None => {
                let next = self.peek(name, EXPLAIN_POSITION_MAX).await?;
                let ahead = next.iter().take_while(|other| other.message.head.key != head.key).count();
                (ahead, ahead == next.len())
            }
        };
        let (waiting, matching) = (queue.waiters.len(), queue.waiters.matching(&head.metadata));
        if waiting > 0 && matching == 0 {
            return Ok(vec![explanation("no_matching_worker", unmatched(waiting))]);
        }
        let running = self.context.depth_of(queue).await?.of(MessageState::Running);
        let mut causes: Vec<QueueExplanation> =
            no_worker_waits(NextSteps(name), queue, running, self.context.elapsed()).into_iter().collect();
        causes.push(match (ahead, waiting) {
            (0, 0) => explanation("next", "it is the next to be served: a dequeue returns it at once"),
            (0, _) => explanation("next", "it is the next to be served; a worker is being woken for it"),
            (ahead, _) if or_more => explanation(
                "position",
                format!(
                    "at least {} served before it; add workers, or lower its priority number with {}",
                    counted(ahead as u64, "message is", "messages are"),
                    NextSteps(name).reprioritise(&head.id)
                ),
            ),
            (ahead, 0) => explanation("position", format!("it is about number {} in line", ahead + 1)),
            (ahead, waiting) => explanation(
                "position",
                format!(
                    "it is about number {} in line, and {} at this server",
                    ahead + 1,
                    counted(waiting as u64, "worker waits", "workers wait")
                ),
            ),
        });
        Ok(causes)
    }
}

/// The text for waiting workers with filters that do not match the message.
fn unmatched(waiting: usize) -> String {
    let who = match waiting {
        1 => "1 worker waits at this server, and its filter does not match the message".to_owned(),
        _ => format!("{waiting} workers wait at this server, and none of their filters matches the message"),
    };
    format!("{who}; start a worker with a matching filter")
}
