//! More messages than one page of states has, and more ids in one bucket than one command takes.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::Retention;
use tallystone_domain::queue::{Command, MessageState, QueueId, Reply, Settings, ShardId};
use tallystone_ports::{ShardCommand, ShardReader, ShardStore};

use super::random::keys;
use super::server::{next_queue, past_clock, shared};
use crate::queue_given::{dequeue, enqueue, is_new, settings, settle};
use crate::servers::redis::Build;

/// The sequences of a page.
const PAGE: u64 = 1_024;
/// The ids of one bucket: more than one command can move.
const IDS: usize = 4_200;
/// The buckets that there are once so many ids lie in one: the last one takes over what the first one has.
const BUCKETS: u32 = 128;

fn large() -> Settings {
    let second = Duration::from_secs(1);
    let retention = Retention { completed: second, canceled: second, errored: second };
    Settings { quota_messages: 10_000, quota_bytes: 10_000_000, retention, dedupe_window: second, ..settings() }
}

#[tokio::test]
async fn a_page_keeps_the_state_of_its_last_message_when_its_first_one_is_forgotten() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let (queues, client) = (server.queues(&clock).await, server.client().await);
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, large().into()).await.expect("a new queue");
    // The first message of the second page is the best of all.
    let priority = |sequence: u64| if sequence == PAGE { -1 } else { 1 };
    let sent = (1..=2 * PAGE).map(|sequence| enqueue(&format!("m-{sequence}"), priority(sequence), b"payload"));
    assert!(queues.apply(shard, sent.collect()).await.iter().all(Result::is_ok));

    let leased = queues.apply(shard, vec![dequeue(1)]).await.remove(0).expect("the store takes it");
    let Ok(Reply::Leases { leases, .. }) = leased.reply else { panic!("it is leased: {leased:?}") };
    assert_eq!(leases[0].token.key.sequence, PAGE);
    let completed = queues.apply(shard, vec![settle(leases[0].token, SettleAction::Complete)]).await.remove(0);
    assert!(completed.is_ok_and(|answer| answer.reply.is_ok()));
    clock.advance(Duration::from_secs(2));
    queues.apply(shard, vec![ShardCommand::of(Command::Sweep { max: 256 })]).await.remove(0).expect("it is swept");

    let listed = async |after: u64| queues.list(shard, MessageState::Pending, after, 2_000).await.expect("a list");
    let last = listed(2 * PAGE - 2).await.messages;
    let sequences: Vec<u64> = last.iter().map(|message| message.head.key.sequence).collect();
    assert_eq!(sequences, [2 * PAGE - 1, 2 * PAGE], "the last of its page, and the first of the next one");
    queues.drop_queue(shard.queue).await.expect("it is there");
    let left = keys(&client, shard).await;
    assert!(left.iter().all(|key| key.ends_with("}m") || key.ends_with("}o")), "{left:?}");
}

#[tokio::test]
async fn ids_that_were_chosen_for_one_bucket_break_nothing() {
    let Some(server) = shared(Build::Redis7) else { return };
    let queues = server.queues(&past_clock()).await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, large().into()).await.expect("a new queue");
    let number_of = |id: &str| Sha256::digest(id.as_bytes())[..4].try_into().map(u32::from_le_bytes).expect("4 bytes");
    let of_one_bucket = |id: &String| number_of(id) % (2 * BUCKETS) == BUCKETS;
    let ids: Vec<String> = (0..).map(|number: u64| format!("id-{number}")).filter(of_one_bucket).take(IDS).collect();
    let sent = ids.iter().map(|id| enqueue(id, 0, b""));
    let answers = queues.apply(shard, sent.clone().collect()).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| is_new(&answer.reply))));
    let again = queues.apply(shard, sent.step_by(41).collect()).await;
    assert!(again.iter().all(|answer| answer.as_ref().is_ok_and(|answer| !is_new(&answer.reply))), "each is known");
    assert_eq!(queues.totals(shard).await.expect("totals").sequence, IDS as u64);
}
