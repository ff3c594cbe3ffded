//! `demo poison`: messages that fail whatever is done, in three groups, and a redrive of one group.

use serde_json::json;

use super::demo_queue::DemoQueue;
use super::ledger::DemoLedger;
use super::seeded::SeededNumbers;
use crate::operations::OperationFollower;
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_engine::namespaces::DryRun;
use tallystone_proto::queue::v1 as pb;

pub const POISON: &str = "demo/poison";

/// The errors of the scenario, each with its text.
const ERRORS: [(&str, &str); 3] = [
    ("timeout", "the mail server did not answer within 5 s"),
    ("bad-address", "the address has no domain"),
    ("no-template", "there is no template in this language"),
];
const GOOD: &str = "good";
const GOOD_MESSAGES: usize = 24;
const MESSAGES_OF_AN_ERROR: usize = 12;
const ATTEMPTS: i32 = 3;
/// More dequeues than the scenario needs.
const DEQUEUES: usize = 1_000;

/// Shows three groups of errors with their attempts at the limit, and that the dry run of a redrive equals its result.
pub async fn run(session: &ClientContext, seed: u64) -> Result<DemoLedger, Failure> {
    let settings = pb::Queue {
        default_max_attempts: Some(ATTEMPTS),
        filter_shapes: vec![pb::FilterShape { keys: vec!["kind".to_owned()] }],
        ..Default::default()
    };
    let mut queue = Box::pin(DemoQueue::create(session, POISON, settings)).await?;
    queue.enqueue(&messages(seed)).await?;
    work(&mut queue, &ERRORS).await?;
    let groups = ERRORS.map(|(kind, _)| kind);
    let look = session.hint(&format!("dlq ls -q {POISON}"));
    print_notice(&format!(
        "{POISON}: {} messages failed {ATTEMPTS} times each: {}. Look at: {look}",
        queue.left.errored,
        groups.join(", ")
    ));
    let mended = ERRORS[0].0;
    let planned = redrive(session, mended, DryRun::Yes).await?;
    let redriven = redrive(session, mended, DryRun::No).await?;
    if planned != redriven {
        let what = format!("the dry run of the redrive said {planned} messages, and {redriven} were redriven");
        return Err(Failure::other(what));
    }
    queue.left.errored -= redriven;
    queue.left.pending += redriven;
    // The mail server is back, so what timed out goes through.
    work(&mut queue, &ERRORS[1..]).await?;
    print_notice(&format!("{POISON}: the dry run said {planned}, and {redriven} messages were redriven and completed"));
    let seen = json!({"error_groups": groups, "attempts": ATTEMPTS, "dry_run": planned, "redriven": redriven});
    let mut ledger = DemoLedger::default();
    queue.close(&mut ledger, seen).await?;
    Ok(ledger)
}

/// Works until no message is ready: fails messages of these kinds, and completes the others.
async fn work(queue: &mut DemoQueue<'_>, errors: &[(&str, &str)]) -> Result<(), Failure> {
    for _ in 0..DEQUEUES {
        if queue.left.pending == 0 {
            return Ok(());
        }
        for lease in queue.take(100).await? {
            let kind = lease.message.as_ref().and_then(|message| message.metadata.get("kind")).cloned();
            let error = errors.iter().find(|(name, _)| kind.as_deref() == Some(*name));
            match error {
                Some((signature, text)) => {
                    let error = pb::WorkerError { signature: (*signature).to_owned(), text: (*text).to_owned() };
                    queue.fail(&lease, ATTEMPTS, error).await?;
                }
                None => queue.complete(&[lease]).await?,
            }
        }
    }
    Err(Failure::other(format!("queue {POISON} still has {} messages", queue.left.pending)))
}

/// Redrives the dead letters of a kind, or only says how many there are. Returns their number.
async fn redrive(session: &ClientContext, kind: &str, dry_run: DryRun) -> Result<i64, Failure> {
    let request = pb::RedriveMessagesRequest {
        queue: POISON.to_owned(),
        filter: [("kind".to_owned(), kind.to_owned())].into(),
        dry_run: dry_run == DryRun::Yes,
        request_token: session.client.message_id(),
        ..Default::default()
    };
    let begun = call!(session, queues.redrive_messages, &request)?;
    let begun = begun.operation.ok_or_else(|| Failure::other("the server returned no operation"))?;
    let ended = OperationFollower::new(session).follow(begun).await?;
    let done = ended.done;
    OperationFollower::refuse_incomplete(ended)?;
    Ok(done)
}

/// The messages in the order of a seed.
fn messages(seed: u64) -> Vec<pb::Message> {
    let of_kind = |kind: &'static str, messages: usize| std::iter::repeat_n(kind, messages);
    let mut kinds: Vec<&str> = of_kind(GOOD, GOOD_MESSAGES).collect();
    kinds.extend(ERRORS.iter().flat_map(|(kind, _)| of_kind(kind, MESSAGES_OF_AN_ERROR)));
    SeededNumbers::new(seed, POISON).shuffle(&mut kinds);
    let message = |(number, kind): (usize, &str)| pb::Message {
        message_id: format!("mail-{number:05}"),
        payload: format!("{{\"mail\":{number}}}").into_bytes(),
        metadata: [("kind".to_owned(), kind.to_owned())].into(),
        ..Default::default()
    };
    kinds.into_iter().enumerate().map(message).collect()
}
