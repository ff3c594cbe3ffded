//! `demo backlog`: messages pile up behind a queue that somebody blocked, and are worked off.

use std::time::Duration;

use serde_json::json;

use super::demo_queue::DemoQueue;
use super::ledger::DemoLedger;
use super::seeded::SeededNumbers;
use crate::output::duration_of;
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_proto::queue::v1 as pb;

pub const BACKLOG: &str = "demo/backlog";

const MESSAGES: usize = 2_000;
/// The steps in which the messages are worked off.
const STEPS: usize = 20;
/// More dequeues than a step needs.
const DEQUEUES: usize = 1_000;

/// Shows that attention appears, that the time to drain counts down, and that all is calm again. The queue stays
/// blocked for `hold`, and is worked off within `lasts`. Rates are measured over a minute, so a time to drain needs a
/// hold of a minute.
pub async fn run(session: &ClientContext, seed: u64, hold: Duration, lasts: Duration) -> Result<DemoLedger, Failure> {
    let mut numbers = SeededNumbers::new(seed, BACKLOG);
    let mut queue = Box::pin(DemoQueue::create(session, BACKLOG, pb::Queue::default())).await?;
    let why = "the workers are being deployed (demo)".to_owned();
    Box::pin(queue.update(pb::Queue {
        dequeue_blocked: Some(true),
        dequeue_blocked_reason: why,
        ..Default::default()
    }))
    .await?;
    let messages: Vec<pb::Message> = (0..MESSAGES)
        .map(|number| pb::Message {
            message_id: format!("order-{number:05}"),
            payload: format!("{{\"order\":{number}}}").into_bytes(),
            priority: i64::try_from(numbers.below(1_000)).ok(),
            ..Default::default()
        })
        .collect();
    queue.enqueue(&messages).await?;
    let is_blocked = |attention: &pb::Attention| attention.reason() == pb::AttentionReason::DequeueBlocked;
    let blocked =
        queue.wait_until("that it needs attention", |activity| activity.attention.iter().any(is_blocked)).await?;
    let reason = blocked.attention.iter().find(|attention| is_blocked(attention));
    let reason = reason.map(|attention| attention.text.clone()).unwrap_or_default();
    print_notice(&format!("{BACKLOG}: {MESSAGES} messages wait: {reason}"));
    tokio::time::sleep(hold).await;
    Box::pin(queue.update(pb::Queue { dequeue_blocked: Some(false), ..Default::default() })).await?;
    print_notice(&format!("{BACKLOG}: unblocked; it is worked off"));
    let drain_seconds = work_off(&mut queue, lasts).await?;
    queue
        .wait_until("that it is calm again", |activity| activity.attention.is_empty() && activity.pending == Some(0))
        .await?;
    let look = session.hint(&format!("queue stats {BACKLOG}"));
    print_notice(&format!("{BACKLOG}: calm again. Look at: {look}"));
    let mut ledger = DemoLedger::default();
    queue.close(&mut ledger, json!({"attention": reason, "drain_seconds": drain_seconds})).await?;
    Ok(ledger)
}

/// Completes all messages in even steps. Returns the times to drain, in seconds, as the server reported them after each
/// step.
async fn work_off(queue: &mut DemoQueue<'_>, lasts: Duration) -> Result<Vec<u64>, Failure> {
    let pause = lasts / u32::try_from(STEPS).unwrap_or(u32::MAX);
    let mut drain_seconds = Vec::new();
    for _ in 0..STEPS {
        let mut wanted = MESSAGES / STEPS;
        for _ in 0..DEQUEUES {
            if wanted == 0 {
                break;
            }
            let leases = queue.take(wanted).await?;
            queue.complete(&leases).await?;
            wanted -= leases.len();
        }
        if let Some(left) = queue.activity().await?.time_to_drain {
            drain_seconds.push(duration_of(&left).as_secs());
            print_notice(&format!(
                "{BACKLOG}: {} wait, drained in {} s",
                queue.left.pending,
                duration_of(&left).as_secs()
            ));
        }
        tokio::time::sleep(pause).await;
    }
    Ok(drain_seconds)
}
