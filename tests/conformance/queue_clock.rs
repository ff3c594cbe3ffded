//! The laws of the queue store about its time: tokens beside a wall clock that is wrong, and what is done about it.

use std::time::Duration;

use tallystone_domain::Timestamp;
use tallystone_domain::queue::command::MessageUpdate;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{Command, Refusal, Reply, Settings};
use tallystone_ports::{Clock, EffectOutcome, ShardCommand, StoreErrorKind};

use crate::backends::Ending;
use crate::given::T0;
use crate::queue_given::{
    QueueBench, SHARD, configure, dequeue, enqueue, is_new, on_every_durable_queue_store, on_every_queue_store,
    on_the_embedded_store, settings, settle,
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

fn made_at(id: &str, time: Timestamp) -> ShardCommand {
    let mut sent = enqueue(id, 0, b"");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    message.token_time = Some(time);
    sent
}

async fn answered(bench: &QueueBench, id: &str, time: Timestamp) -> Result<Reply, Refusal> {
    bench.one(SHARD, made_at(id, time)).await.reply
}

async fn reset(bench: &QueueBench) -> Option<Timestamp> {
    bench.stores.time.reset_clock().await.expect("the store answers")
}

fn is_repeat(reply: &Result<Reply, Refusal>) -> bool {
    matches!(reply, Ok(Reply::Enqueued { already_enqueued: true, .. }))
}

#[tokio::test]
async fn queue_store_law_2_tokens_of_now_are_taken_whichever_way_the_wall_clock_steps() {
    on_every_queue_store(async |bench| {
        assert!(is_new(&answered(&bench, "first", T0).await));
        for (id, wall) in [("ahead", T0 + 9 * HOUR), ("behind", T0 - HOUR / 2), ("back", T0)] {
            bench.clock.set_wall(wall);
            assert!(is_new(&answered(&bench, id, wall).await), "{id}");
            let too_far = answered(&bench, "far", wall.max(T0) + 2 * MINUTE).await;
            assert_eq!(too_far, Err(InvalidCommandPart::TokenTime.into()), "{id}");
        }
        bench.clock.advance(HOUR / 4);
        for (id, time) in [("first", T0), ("ahead", T0 + 9 * HOUR), ("behind", T0 - HOUR / 2), ("back", T0)] {
            let repeat = answered(&bench, id, time).await;
            assert!(is_repeat(&repeat), "{id}: {repeat:?}");
        }
        assert_eq!(answered(&bench, "old", T0 - 2 * HOUR).await, Err(Refusal::TokenExpired));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_13_a_reset_takes_tokens_of_now_again_and_refuses_all_of_before() {
    on_the_embedded_store(async |bench, ending| {
        assert!(is_new(&answered(&bench, "first", T0).await));
        assert_eq!(reset(&bench).await, None, "nothing to reset");
        let real = T0 - 5 * HOUR;
        bench.clock.set_wall(real);
        // What a server does with each shard when it starts.
        bench.one(SHARD, configure(1, settings())).await.reply.expect("configured");
        let locked_out = answered(&bench, "locked out", real).await;
        assert_eq!(locked_out, Err(Refusal::TokenExpired), "what was refused for its age stays refused");
        let clock = bench.stores.time.clock().await.expect("the times");
        assert_eq!((clock.now, clock.token_age_clock), (T0, T0));
        assert_eq!(reset(&bench).await, Some(real + MINUTE));
        assert_eq!(bench.stores.time.clock().await.expect("the times").token_age_clock, real);
        bench.clock.advance(2 * MINUTE);
        let bench = bench.reopen(ending).await;
        assert_eq!(answered(&bench, "locked out", real).await, Err(Refusal::TokenExpired), "over a restart too");
        let now = bench.clock.now();
        assert!(is_new(&answered(&bench, "new", now).await));
        assert!(is_repeat(&answered(&bench, "new", now).await));
        assert!(is_repeat(&answered(&bench, "first", T0).await), "what is kept is known");
        assert_eq!(reset(&bench).await, None, "once is enough");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_13_a_reset_takes_no_token_that_is_ahead_of_the_clock_which_is_right_now() {
    on_every_durable_queue_store(async |bench, ending| {
        // By the right clock this is ten days later; the message goes, and so does the answer to its token.
        assert!(is_new(&answered(&bench, "done", T0).await));
        let (leased, _) = bench.dequeue(SHARD, 1).await.remove(0);
        bench.one(SHARD, settle(leased.token, SettleAction::Complete)).await.reply.expect("settled");
        bench.clock.advance(3 * HOUR);
        bench.one(SHARD, ShardCommand::of(Command::Sweep { max: 9 })).await.reply.expect("swept");
        assert_eq!(answered(&bench, "done", T0).await, Err(Refusal::TokenExpired));
        assert!(is_new(&answered(&bench, "later", T0 + 3 * HOUR).await), "which lets the answer go");
        bench.clock.set_wall(T0 - 240 * HOUR);
        reset(&bench).await.expect("days ahead");
        let mut bench = bench;
        for _ in 0..2 {
            let again = answered(&bench, "done", T0).await;
            let is_known = is_repeat(&again); // by a store that has read an answer again which was not off its disk yet
            assert!(is_known || again == Err(InvalidCommandPart::TokenTime.into()), "{again:?}");
            bench.clock.advance(2 * MINUTE);
            let now = bench.clock.now();
            assert!(is_new(&answered(&bench, &format!("at {}", now.micros()), now).await));
            bench = bench.reopen(ending).await;
        }
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_13_a_reset_takes_tokens_of_now_where_answers_of_an_ahead_time_went_for_want_of_room() {
    on_every_queue_store(async |bench| {
        let scarce = Settings { dedupe_max_bytes: 65_536, ..settings() };
        bench.one(SHARD, configure(1, scarce)).await.reply.expect("configured");
        let ahead = T0 + 24 * HOUR;
        bench.clock.set_wall(ahead);
        let mut full = 0;
        while is_new(&answered(&bench, &format!("n {full}"), ahead).await) {
            full += 1;
        }
        bench.clock.advance(HOUR / 2);
        assert!(is_new(&answered(&bench, "next", ahead + HOUR / 2).await), "in place of those before");
        bench.clock.set_wall(T0 + HOUR);
        assert_eq!(answered(&bench, "locked out", T0 + HOUR).await, Err(Refusal::TokenExpired));
        assert_eq!(
            reset(&bench).await,
            Some(bench.stores.time.clock().await.expect("the times").token_age_clock + MINUTE)
        );
        bench.clock.advance(2 * MINUTE);
        let now = bench.clock.now();
        assert!(is_new(&answered(&bench, "now", now).await));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_an_update_hides_a_message_for_as_long_as_it_says_whatever_the_wall_clock_is() {
    on_every_queue_store(async |bench| {
        for (id, wall) in [("ahead", T0 + HOUR), ("behind", T0 - HOUR)] {
            bench.clock.set_wall(wall);
            assert!(is_new(&bench.one(SHARD, enqueue(id, 0, b"")).await.reply));
            let update = MessageUpdate { invisibility: Some(MINUTE), ..MessageUpdate::default() };
            let message = MessageRef::Id(MessageId::new(id).expect("an id"), None);
            bench.one(SHARD, ShardCommand::of(Command::Update { message, update })).await.reply.expect("updated");
            bench.clock.advance(MINUTE / 2);
            assert_eq!(bench.dequeue(SHARD, 1).await.len(), 0, "{id}");
            bench.clock.advance(MINUTE);
            assert_eq!(bench.dequeue(SHARD, 1).await.len(), 1, "{id}");
        }
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_13_what_the_reset_lets_go_was_promised_to_nobody() {
    on_every_queue_store(async |bench| {
        let shorter = Settings { dedupe_window: MINUTE, ..settings() };
        bench.one(SHARD, configure(1, shorter)).await.reply.expect("configured");
        assert!(is_new(&answered(&bench, "done", T0).await));
        // The clock leaps a year ahead and back; meanwhile the message goes and so may the answer to its token.
        bench.clock.set_wall(T0 + 24 * 365 * HOUR);
        bench.clock.advance(HOUR);
        let (leased, _) = bench.dequeue(SHARD, 1).await.remove(0);
        bench.one(SHARD, settle(leased.token, SettleAction::Complete)).await.reply.expect("settled");
        bench.clock.advance(2 * HOUR);
        bench.one(SHARD, ShardCommand::of(Command::Sweep { max: 9 })).await.reply.expect("swept");
        assert!(is_new(&answered(&bench, "later", T0 + 24 * 365 * HOUR).await), "which lets older answers go");
        bench.clock.set_wall(T0 + MINUTE / 2);
        reset(&bench).await.expect("hours ahead");
        assert_eq!(answered(&bench, "done", T0).await, Err(Refusal::TokenExpired), "and never taken in again");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_a_token_that_was_refused_for_its_age_is_refused_after_a_restart_with_an_earlier_clock() {
    on_every_durable_queue_store(async |bench, ending| {
        assert!(is_new(&answered(&bench, "first", T0).await));
        bench.clock.advance(3 * HOUR);
        assert_eq!(answered(&bench, "late", T0).await, Err(Refusal::TokenExpired));
        bench.clock.set_wall(T0);
        let bench = bench.reopen(ending).await;
        assert_eq!(answered(&bench, "late", T0).await, Err(Refusal::TokenExpired));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_1_an_answer_that_went_by_a_wrong_clock_is_never_given_anew() {
    on_every_durable_queue_store(async |bench, _| {
        assert!(is_new(&answered(&bench, "done", T0).await));
        let (leased, _) = bench.dequeue(SHARD, 1).await.remove(0);
        bench.one(SHARD, settle(leased.token, SettleAction::Complete)).await.reply.expect("settled");
        // The clock stands still while the message's retention goes by: of its answer only what was kept is left.
        bench.clock.advance(48 * HOUR);
        bench.clock.set_wall(T0);
        bench.one(SHARD, ShardCommand::of(Command::Sweep { max: 9 })).await.reply.expect("swept");
        assert_eq!(bench.stores.time.clock().await.expect("the times").token_age_clock, T0);
        assert!(is_repeat(&answered(&bench, "done", T0).await));
        // A server starts while the clock is a day ahead, and only reads.
        bench.clock.set_wall(T0 + 24 * HOUR);
        let bench = bench.reopen(Ending::Closed).await;
        for _ in 0..2 {
            bench.stores.time.clock().await.expect("the times");
        }
        bench.clock.set_wall(T0 + MINUTE / 2);
        let bench = bench.reopen(Ending::Closed).await;
        let again = answered(&bench, "done", T0).await;
        assert!(is_repeat(&again) || again == Err(Refusal::TokenExpired), "{again:?}");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_9_without_room_nothing_comes_in_and_what_is_there_goes_out() {
    on_the_embedded_store(async |bench, ending| {
        for sent in [enqueue("a", 1, b"1"), enqueue("b", 2, b"2")] {
            assert!(is_new(&bench.one(SHARD, sent).await.reply));
        }
        let bench = bench.reopen_without_room(ending).await;
        let mut both = bench.apply(SHARD, vec![enqueue("c", 0, b"3"), dequeue(2)]).await;
        let (leased, refused) = (both.remove(1).expect("leases go on"), both.remove(0).expect_err("no room"));
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
        let Ok(Reply::Leases { leases, .. }) = leased.reply else { panic!("{:?}", leased.reply) };
        assert_eq!(leases.len(), 2);
        bench.one(SHARD, settle(leases[0].token, SettleAction::Complete)).await.reply.expect("settlements go on");
        bench.one(SHARD, settle(leases[1].token, SettleAction::Release)).await.reply.expect("settlements go on");
        let bench = bench.reopen(ending).await;
        assert!(is_new(&bench.one(SHARD, enqueue("c", 0, b"3")).await.reply), "the refused one left nothing");
        assert_eq!(bench.dequeue(SHARD, 9).await.len(), 2);
    })
    .await;
}
