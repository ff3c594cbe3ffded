//! `demo hot-key`: one exclusivity value holds back its messages while the depth of the queue looks healthy.

use serde_json::json;

use super::demo_queue::DemoQueue;
use super::ledger::DemoLedger;
use super::seeded::SeededNumbers;
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_proto::queue::v1 as pb;

pub const HOT_KEY: &str = "demo/hot-key";

/// The exclusivity value with most messages.
const HOT: &str = "account-7";
const HOT_MESSAGES: usize = 150;
const OTHER_MESSAGES: usize = 50;
/// The limit that cures it.
const RAISED: i32 = 50;
/// More dequeues than the scenario needs.
const DEQUEUES: usize = 1_000;

/// Shows that the value is named, and that a raised limit cures it.
pub async fn run(session: &ClientContext, seed: u64) -> Result<DemoLedger, Failure> {
    let settings = pb::Queue {
        r#type: pb::QueueType::Exclusive.into(),
        exclusivity_key: "account".to_owned(),
        ..Default::default()
    };
    let mut queue = Box::pin(DemoQueue::create(session, HOT_KEY, settings)).await?;
    queue.enqueue(&messages(seed)).await?;
    // The worker of the first hot message takes long; the others do all that they get.
    let mut held = Vec::new();
    for _ in 0..DEQUEUES {
        let leases = queue.take(100).await?;
        if leases.is_empty() {
            break;
        }
        let (hot, others): (Vec<_>, Vec<_>) = leases.into_iter().partition(is_hot);
        queue.complete(&others).await?;
        held.extend(hot);
    }
    print_notice(&format!(
        "{HOT_KEY}: {} pending, {} running, none errored, and yet nobody gets a message",
        queue.left.pending - i64::try_from(held.len()).unwrap_or_default(),
        held.len()
    ));
    let request = pb::ExplainQueueRequest { queue: HOT_KEY.to_owned(), ..Default::default() };
    let causes = call!(ask session, queues.explain_queue, &request)?.explanations;
    let named = causes.into_iter().find(|cause| cause.cause == "value_held" && cause.text.contains(HOT));
    let named = named.ok_or_else(|| Failure::other(format!("queue {HOT_KEY}: value {HOT} is not named")))?.text;
    print_notice(&format!("{HOT_KEY}: {named}"));
    let request = pb::SetValueLimitRequest { queue: HOT_KEY.to_owned(), value: HOT.to_owned(), limit: Some(RAISED) };
    call!(session, queues.set_value_limit, &request)?;
    let at_once = queue.take(100).await?;
    let most = at_once.len();
    queue.complete(&held).await?;
    queue.complete(&at_once).await?;
    for _ in 0..DEQUEUES {
        if queue.left.pending == 0 {
            break;
        }
        let leases = queue.take(100).await?;
        queue.complete(&leases).await?;
    }
    let look = session.hint(&format!("queue explain {HOT_KEY}"));
    print_notice(&format!(
        "{HOT_KEY}: with a limit of {RAISED}, {most} messages of {HOT} were leased at once, and all are done. Look at: {look}"
    ));
    let mut ledger = DemoLedger::default();
    let seen = json!({"named": named, "held": held.len(), "limit": RAISED, "leased_at_once": most});
    queue.close(&mut ledger, seen).await?;
    Ok(ledger)
}

fn is_hot(lease: &pb::Lease) -> bool {
    let message = lease.message.as_ref();
    message.is_some_and(|message| message.metadata.get("account").is_some_and(|account| account == HOT))
}

/// The messages in the order of a seed.
fn messages(seed: u64) -> Vec<pb::Message> {
    let hot = (0..HOT_MESSAGES).map(|_| HOT.to_owned());
    let mut accounts: Vec<String> =
        hot.chain((0..OTHER_MESSAGES).map(|other| format!("account-{}", 100 + other))).collect();
    SeededNumbers::new(seed, HOT_KEY).shuffle(&mut accounts);
    let message = |(number, account): (usize, String)| pb::Message {
        message_id: format!("payment-{number:05}"),
        payload: format!("{{\"payment\":{number}}}").into_bytes(),
        metadata: [("account".to_owned(), account)].into(),
        ..Default::default()
    };
    accounts.into_iter().enumerate().map(message).collect()
}
