//! A queue of the demo: what it puts in and takes out, and what it remembers of that.

use std::time::Duration;

use serde_json::Value;

use super::ledger::{DemoDepth, DemoLedger};
use crate::{ClientContext, Exit, Failure};
use tallystone_api::time::write_duration;
use tallystone_proto::queue::v1 as pb;

/// By this description the demo knows its own queues and experiments.
pub const MADE_BY_DEMO: &str = "made by tallystone demo; tallystone demo clean removes it";

/// The messages of one call.
const CALL_MESSAGES: usize = 100;
/// Longer than a scenario holds a message.
const DEMO_LEASE: Duration = Duration::from_secs(600);
/// How long a dequeue waits for a message that is about to become ready.
const DEQUEUE_WAIT: Duration = Duration::from_millis(200);
/// The pause between two looks at the activity of a queue, and how many looks are worth a try.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOKS: u32 = 150;

/// A queue of the demo.
pub struct DemoQueue<'a> {
    session: &'a ClientContext,
    name: &'static str,
    enqueued: i64,
    failed_attempts: i64,
    /// Messages as the demo leaves them.
    pub left: DemoDepth,
}

impl<'a> DemoQueue<'a> {
    /// Creates a queue, in the place of an earlier one of the demo.
    pub async fn create(session: &'a ClientContext, name: &'static str, queue: pb::Queue) -> Result<Self, Failure> {
        remove(session, name).await?;
        let queue = pb::Queue { name: name.to_owned(), description: Some(MADE_BY_DEMO.to_owned()), ..queue };
        let request = pb::CreateQueueRequest { queue: Some(queue), reason: "demo".to_owned() };
        call!(session, queues.create_queue, &request)?;
        Ok(Self { session, name, enqueued: 0, failed_attempts: 0, left: DemoDepth::default() })
    }

    /// Enqueues messages.
    pub async fn enqueue(&mut self, messages: &[pb::Message]) -> Result<(), Failure> {
        for part in messages.chunks(CALL_MESSAGES) {
            let request = pb::BatchEnqueueRequest { queue: self.name.to_owned(), messages: part.to_vec() };
            let answer = call!(self.session, queues.batch_enqueue, &request)?;
            self.refuse(answer.results.iter().find_map(|result| result.error.as_ref()))?;
            self.enqueued += count(part.len());
            self.left.pending += count(part.len());
        }
        Ok(())
    }

    /// Leases up to so many messages, at most 100; none if none is ready.
    pub async fn take(&self, most: usize) -> Result<Vec<pb::Lease>, Failure> {
        let request = pb::DequeueRequest {
            queue: self.name.to_owned(),
            max_messages: i32::try_from(most.min(CALL_MESSAGES)).unwrap_or(1),
            lease_duration: Some(write_duration(DEMO_LEASE)),
            wait: Some(write_duration(DEQUEUE_WAIT)),
            ..Default::default()
        };
        let within = self.session.timeout + DEQUEUE_WAIT;
        let answer = self.session.dequeue(request, within).await.map_err(|error| self.session.failed(&error))?;
        Ok(answer.leases)
    }

    /// Completes messages.
    pub async fn complete(&mut self, leases: &[pb::Lease]) -> Result<(), Failure> {
        let completed = |lease: &pb::Lease| pb::Settlement {
            lease_token: lease.lease_token.clone(),
            verb: pb::Verb::Complete.into(),
            ..Default::default()
        };
        self.settle(leases.iter().map(completed).collect()).await?;
        self.left.pending -= count(leases.len());
        self.left.completed += count(leases.len());
        Ok(())
    }

    /// Fails the attempt of a message; it is ready again at once, unless it has no attempt left.
    pub async fn fail(&mut self, lease: &pb::Lease, attempts: i32, error: pb::WorkerError) -> Result<(), Failure> {
        let failed = pb::Settlement {
            lease_token: lease.lease_token.clone(),
            verb: pb::Verb::Fail.into(),
            delay: Some(write_duration(Duration::ZERO)),
            error: Some(error),
            ..Default::default()
        };
        self.settle(vec![failed]).await?;
        self.failed_attempts += 1;
        if lease.attempt_number >= attempts {
            self.left.pending -= 1;
            self.left.errored += 1;
        }
        Ok(())
    }

    async fn settle(&self, items: Vec<pb::Settlement>) -> Result<(), Failure> {
        for part in items.chunks(CALL_MESSAGES) {
            let request = pb::SettleMessagesRequest { queue: self.name.to_owned(), items: part.to_vec() };
            let answer = call!(self.session, queues.settle_messages, &request)?;
            self.refuse(answer.results.iter().find_map(|result| result.error.as_ref()))?;
        }
        Ok(())
    }

    fn refuse(&self, error: Option<&tallystone_proto::error::v1::ItemError>) -> Result<(), Failure> {
        match error {
            None => Ok(()),
            Some(error) => {
                let what = format!("queue {} refused a message: {} ({})", self.name, error.message, error.reason);
                Err(Failure::other(what))
            }
        }
    }

    /// Changes the settings that are given.
    pub async fn update(&self, queue: pb::Queue) -> Result<(), Failure> {
        let queue = pb::Queue { name: self.name.to_owned(), ..queue };
        let request = pb::UpdateQueueRequest { queue: Some(queue), reason: "demo".to_owned(), reset: Vec::new() };
        call!(self.session, queues.update_queue, &request)?;
        Ok(())
    }

    /// The present activity of the queue.
    pub async fn activity(&self) -> Result<pb::QueueActivity, Failure> {
        let request = pb::GetQueueActivityRequest { queue: self.name.to_owned() };
        let answer = call!(ask self.session, queues.get_queue_activity, &request)?;
        answer.activity.ok_or_else(|| Failure::other("the server returned no activity"))
    }

    /// Waits until the activity of the queue shows something.
    pub async fn wait_until(
        &self,
        what: &str,
        shows: impl Fn(&pb::QueueActivity) -> bool,
    ) -> Result<pb::QueueActivity, Failure> {
        for _ in 0..LOOKS {
            let activity = self.activity().await?;
            if shows(&activity) {
                return Ok(activity);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(Failure::other(format!("queue {} never showed {what}", self.name)))
    }

    /// Writes what was done into a ledger, beside what the server counts.
    pub async fn close(self, ledger: &mut DemoLedger, seen: Value) -> Result<(), Failure> {
        let request = pb::GetDepthRequest { queue: self.name.to_owned(), ..Default::default() };
        let depth = call!(ask self.session, queues.get_depth, &request)?;
        let moved = (self.enqueued, self.failed_attempts);
        ledger.add_queue(self.name, moved, self.left, DemoDepth::of(&depth), seen);
        Ok(())
    }
}

/// Removes a queue of the demo; returns whether there was one. A queue of somebody else is refused.
pub async fn remove(session: &ClientContext, name: &str) -> Result<bool, Failure> {
    let request = pb::GetQueueRequest { queue: name.to_owned() };
    let queue = match call!(ask session, queues.get_queue, &request) {
        Ok(found) => found.queue.unwrap_or_default(),
        Err(failure) if failure.exit() == Exit::NotFound => return Ok(false),
        Err(failure) => return Err(failure),
    };
    if queue.description() != MADE_BY_DEMO {
        return Err(Failure::new(Exit::Precondition, format!("queue {name} exists, and the demo did not make it")));
    }
    let request = pb::DeleteQueueRequest {
        queue: name.to_owned(),
        etag: queue.etag,
        reason: "demo".to_owned(),
        request_token: session.client.message_id(),
        queue_id: queue.id,
    };
    call!(session, queues.delete_queue, &request)?;
    Ok(true)
}

fn count(messages: usize) -> i64 {
    i64::try_from(messages).unwrap_or(i64::MAX)
}
