//! The laws of the queue store: `ShardStore`, `ShardReader`, `QueueTime`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tallystone_domain::queue::command::{Completeness, Dequeue};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::messages::message::{MessageRef, Metadata, RoutingValue, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::shard::explain::Cause;
use tallystone_domain::queue::{
    Command, MessageState, QueueId, Refusal, Reply, Settings, Shard, ShardId, ShardSettings, Trigger,
};
use tallystone_ports::{
    CreatedQueue, EffectOutcome, FinishedBodies, IdScope, MessageBody, ShardCommand, StoreError, StoreErrorKind,
};
use tokio::task::JoinSet;

use crate::given::T0;
use crate::queue_given::{
    News, OTHER_SHARD, QUEUE, QueueBench, SHARD, body, configure_with, dequeue, enqueue, enqueue_later, is_new,
    on_every_queue_store, settings, settle,
};

fn check_absent<T>(answer: Result<T, StoreError>) {
    let Err(refused) = answer else { panic!("a queue that is not there answered") };
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
}

fn by_id(id: &str) -> MessageRef {
    MessageRef::Id(MessageId::new(id).expect("a valid id"), None)
}

#[tokio::test]
async fn queue_store_law_1_the_commands_of_a_call_are_steps_in_their_order() {
    on_every_queue_store(async |bench| {
        let commands = vec![enqueue("late", 20, b"b"), dequeue(1), enqueue("soon", 10, b"a"), dequeue(5)];
        let answers = bench.apply(SHARD, commands).await;
        let ids = answers.iter().map(|answer| {
            let answer = answer.as_ref().expect("the store takes it");
            answer.messages.iter().map(|message| message.head.id.to_string()).collect::<Vec<_>>()
        });
        assert_eq!(ids.collect::<Vec<_>>(), [vec![], vec!["late".to_owned()], vec![], vec!["soon".to_owned()]]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queue_store_law_1_of_racing_dequeues_each_message_goes_to_one() {
    on_every_queue_store(async |bench| {
        for number in 0..40 {
            bench.one(SHARD, enqueue(&format!("m-{number}"), number, b"")).await;
        }
        let mut racing = JoinSet::new();
        for _ in 0..4 {
            let stores = bench.stores.clone();
            racing.spawn(async move {
                let mut taken = Vec::new();
                for _ in 0..15 {
                    for answer in stores.shards.apply(SHARD, vec![dequeue(1), dequeue(1)]).await {
                        taken.extend(answer.expect("the store takes it").messages.into_iter().map(|m| m.head.key));
                    }
                }
                taken
            });
        }
        let mut all = racing.join_all().await.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 40, "each once, none missing");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_a_shard_answers_as_the_core_does() {
    on_every_queue_store(async |bench| {
        let mut core = Shard::new(0, 1, settings()).expect("valid settings");
        let mut random = 20_261_122_u64;
        for step in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = random >> 40;
            bench.clock.advance(Duration::from_millis(draw % 1_500));
            let sent = match draw % 7 {
                0 | 1 => enqueue(&format!("m-{}", draw % 50), i64::try_from(draw % 9).expect("small"), b"x"),
                2 => enqueue_later(&format!("later-{step}"), Duration::from_secs(draw % 5)),
                3 | 4 => dequeue(1 + usize::try_from(draw % 4).expect("small")),
                5 => match core.list(MessageState::Running, 0).next().and_then(|held| Some((held.key, held.lease?))) {
                    Some((key, lease)) => {
                        let token = tallystone_domain::queue::messages::message::LeaseToken { key, fence: lease.fence };
                        settle(token, [SettleAction::Complete, SettleAction::Fail, SettleAction::Release][step % 3])
                    }
                    None => dequeue(1),
                },
                _ => ShardCommand::of(Command::Sweep { max: 3 }), // the draw is below 7
            };
            let answer = bench.one(SHARD, sent.clone()).await;
            let applied = core.apply(sent.command, answer.at);
            assert_eq!((answer.reply, answer.transitions), (applied.reply, applied.transitions), "step {step}");
            assert_eq!(answer.view.next_event_in, core.next_event_in(answer.at), "step {step}");
            assert_eq!(answer.view.ready(), core.totals().of(MessageState::Pending).messages, "step {step}");
            let of_each = MessageState::ALL.map(|state| core.totals().of(state).messages);
            assert_eq!(answer.view.messages, of_each, "step {step}");
            assert_eq!(answer.view.head, core.peek().next().map(|message| message.priority), "step {step}");
        }
        assert_eq!(bench.stores.reader.totals(SHARD).await.expect("totals").totals, *core.totals());
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_the_time_of_shards_never_goes_back() {
    on_every_queue_store(async |bench| {
        let first = bench.one(SHARD, enqueue("a", 0, b"")).await.at;
        bench.clock.set_wall(tallystone_domain::Timestamp::from_secs(0));
        let second = bench.one(SHARD, enqueue("b", 0, b"")).await.at;
        assert!(second >= first && first >= T0, "{first:?} then {second:?}");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_3_a_refused_command_changes_nothing_for_the_others() {
    on_every_queue_store(async |bench| {
        let nothing = ShardCommand::of(Command::Dequeue(Dequeue::default()));
        let answers = bench.apply(SHARD, vec![enqueue("a", 0, b"1"), nothing, enqueue("b", 0, b"2")]).await;
        let replies: Vec<_> = answers.into_iter().map(|answer| answer.expect("it is taken").reply).collect();
        assert!(is_new(&replies[0]) && is_new(&replies[2]));
        assert!(matches!(replies[1], Err(Refusal::Invalid(_))), "{:?}", replies[1]);
        assert_eq!(bench.dequeue(SHARD, 9).await.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_4_a_message_comes_out_with_its_first_body() {
    on_every_queue_store(async |bench| {
        let payload: Vec<u8> = (0..=255).cycle().take(32 * 1024).collect();
        assert!(is_new(&bench.one(SHARD, enqueue("a", 0, &payload)).await.reply));
        let mut repeat = enqueue("a", 0, &payload);
        repeat.body = body(b"something else");
        let repeat = bench.one(SHARD, repeat).await;
        assert!(matches!(repeat.reply, Ok(Reply::Enqueued { already_enqueued: true, .. })));
        assert_eq!(bench.one(SHARD, enqueue("a", 0, b"reused")).await.reply, Err(Refusal::TokenReused));
        let reader = &bench.stores.reader;
        let wanted = body(&payload);
        assert_eq!(reader.get(SHARD, by_id("a")).await.expect("a read").expect("it is there").0.body, wanted);
        assert_eq!(reader.peek(SHARD, 1).await.expect("a read").messages[0].body, wanted);
        assert_eq!(reader.list(SHARD, MessageState::Pending, 0, 1).await.expect("a read").messages[0].body, wanted);
        for attempt in 1..=2 {
            let (lease, message) = bench.dequeue(SHARD, 1).await.remove(0);
            assert_eq!((lease.attempt_number, message.body), (attempt, wanted.clone()));
            bench
                .one(SHARD, settle(lease.token, if attempt == 1 { SettleAction::Fail } else { SettleAction::Complete }))
                .await;
            bench.clock.advance(Duration::from_secs(2));
        }
        let done = reader.get(SHARD, by_id("a")).await.expect("a read").expect("it is kept for a while").0;
        let left = match bench.capabilities().finished_bodies {
            FinishedBodies::Kept => wanted,
            FinishedBodies::WithoutPayload => MessageBody { payload: Bytes::new(), ..wanted },
        };
        assert_eq!((done.head.state, done.body), (MessageState::Completed, left));
        assert_eq!(done.head.payload_bytes, 32 * 1024, "its size is known whatever is left of it");
        bench.clock.advance(Duration::from_secs(3_600));
        let swept = bench.one(SHARD, ShardCommand::of(Command::Sweep { max: 9 })).await;
        assert_eq!(swept.reply, Ok(Reply::Touched { count: 1, completeness: Completeness::Complete }));
        assert_eq!(reader.get(SHARD, by_id("a")).await.expect("a read"), None);
        assert!(is_new(&bench.one(SHARD, enqueue("a", 0, b"anew")).await.reply));
        assert_eq!(&bench.dequeue(SHARD, 1).await[0].1.body.payload[..], b"anew");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_5_a_queue_is_created_once() {
    on_every_queue_store(async |bench| {
        let shards = &bench.stores.shards;
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        shards.create(QUEUE, 2, settings().into()).await.expect("it is there already");
        assert_eq!(bench.dequeue(SHARD, 9).await.len(), 1, "what is there stays");
        let beyond = ShardId { queue: QUEUE, number: 2 };
        check_absent(bench.apply(beyond, vec![dequeue(1)]).await.remove(0));
        shards.drop_queue(QUEUE).await.expect("it is there");
        check_absent(shards.create(QUEUE, 2, settings().into()).await);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_6_nothing_of_a_dropped_queue_answers() {
    on_every_queue_store(async |bench| {
        let (shards, reader) = (&bench.stores.shards, &bench.stores.reader);
        let never = ShardId { queue: QueueId(99), number: 0 };
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        shards.drop_queue(QUEUE).await.expect("it is there");
        shards.drop_queue(QUEUE).await.expect("dropping it again changes nothing");
        shards.drop_queue(never.queue).await.expect("nor does dropping what never was");
        for shard in [SHARD, OTHER_SHARD, never] {
            for answer in bench.apply(shard, vec![enqueue("b", 0, b""), dequeue(1)]).await {
                check_absent(answer);
            }
            check_absent(reader.get(shard, by_id("a")).await);
            check_absent(reader.peek(shard, 1).await);
            check_absent(reader.list(shard, MessageState::Pending, 0, 1).await);
            check_absent(reader.totals(shard).await);
        }
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_7_listeners_hear_what_a_shard_has_to_offer() {
    on_every_queue_store(async |bench| {
        bench.one(OTHER_SHARD, enqueue("before", 5, b"")).await;
        let news = Arc::new(News::default());
        bench.stores.shards.listen(news.clone());
        bench.stores.shards.queues().await.expect("an answer that comes after the first news");
        let first = news.newest(OTHER_SHARD).expect("it is told what there is already");
        assert_eq!((first.ready(), first.head), (1, Some(5)));
        bench.one(SHARD, enqueue("a", 8, b"")).await;
        let answer = bench.one(SHARD, enqueue_later("b", Duration::from_secs(60))).await;
        let heard = news.newest(SHARD).expect("news");
        assert_eq!((heard.step, heard.ready(), heard.head), (answer.view.step, 1, Some(8)));
        assert_eq!(heard.next_event_in, Some(Duration::from_secs(60)));
        let blocked = ShardSettings { dequeue_blocked: Some("maintenance".into()), version: 1, ..settings().into() };
        bench.one(SHARD, configure_with(blocked)).await;
        assert!(news.newest(SHARD).expect("news").blocked);
        bench.stores.shards.create(QueueId(8), 1, settings().into()).await.expect("a new queue");
        let made = ShardId { queue: QueueId(8), number: 0 };
        bench.one(made, enqueue("c", 1, b"")).await;
        assert_eq!(news.newest(made).expect("news of a shard that came later").ready(), 1);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_8_reads_see_what_was_answered() {
    on_every_queue_store(async |bench| {
        for (id, priority) in [("c", 3), ("a", 1), ("b", 2)] {
            bench.one(SHARD, enqueue(id, priority, id.as_bytes())).await;
        }
        let reader = &bench.stores.reader;
        let ids = |read: tallystone_ports::MessagesAt| {
            read.messages.iter().map(|message| message.head.id.to_string()).collect::<String>()
        };
        assert_eq!(ids(reader.peek(SHARD, 2).await.expect("a read")), "ab", "in the order of service");
        assert_eq!(
            ids(reader.list(SHARD, MessageState::Pending, 0, 2).await.expect("a read")),
            "ca",
            "in that of arrival"
        );
        assert_eq!(ids(reader.list(SHARD, MessageState::Pending, 2, 2).await.expect("a read")), "b");
        assert_eq!(ids(reader.list(SHARD, MessageState::Running, 0, 2).await.expect("a read")), "");
        let totals = reader.totals(SHARD).await.expect("a read");
        assert_eq!((totals.totals.of(MessageState::Pending).messages, totals.sequence), (3, 3));
        assert_eq!(reader.get(OTHER_SHARD, by_id("a")).await.expect("a read"), None, "another shard");
        let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
        let (held, at) = reader.get(SHARD, MessageRef::Key(lease.token.key)).await.expect("a read").expect("it runs");
        assert_eq!((held.head.state, at), (MessageState::Running, T0));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_8_a_filter_is_counted_where_its_shape_is_declared() {
    on_every_queue_store(async |bench| {
        let (shards, reader) = (&bench.stores.shards, &bench.stores.reader);
        let shape = ShapeKeys::new(["team"]).expect("a valid shape");
        let settings = Settings { shapes: vec![shape.clone()], ..settings() };
        shards.create(QueueId(8), 1, settings.into()).await.expect("a new queue");
        let shard = ShardId { queue: QueueId(8), number: 0 };
        for (id, team) in [("a", "red"), ("b", "blue"), ("c", "red")] {
            let mut sent = enqueue(id, 1, b"");
            let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
            message.metadata = Metadata::new([("team", team)]).expect("valid pairs");
            bench.one(shard, sent).await;
        }
        let filter = |pairs: &[(&str, &str)]| Filter::new(pairs.iter().copied()).expect("a valid filter");
        let red = reader.depth(shard, filter(&[("team", "red")])).await.expect("a read").expect("it is declared");
        assert_eq!(red[MessageState::Pending as usize], 2);
        let other = reader.depth(shard, filter(&[("zone", "a")])).await.expect("a read").expect_err("it is not");
        assert_eq!(other.nearest, Some(shape));
        let all = reader.depth(shard, Filter::default()).await.expect("a read").expect("no filter needs no shape");
        assert_eq!(all[MessageState::Pending as usize], 3);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_8_what_a_shard_knows_of_sessions_is_read() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 1, b"")).await;
        let id = SessionId(7);
        let lease = Some(Duration::from_secs(30));
        let call = SessionCall { id, lease, sequence: 3, attempt: 1, received_up_to: None };
        let asked = Dequeue { max: 1, session: Some(call), ..Dequeue::default() };
        let first = bench.one(SHARD, ShardCommand::of(Command::Dequeue(asked))).await;
        let known = bench.stores.reader.sessions(SHARD).await.expect("a read");
        let known: Vec<_> = known.iter().map(|(id, session)| (*id, session.lease, session.answered.clone())).collect();
        assert_eq!(known, [(id, lease, [3].into())]);
        assert_eq!(bench.stores.reader.sessions(OTHER_SHARD).await.expect("a read"), [], "it was never there");
        let again = bench.one(SHARD, ShardCommand::of(Command::Recall(call))).await;
        assert_eq!((&again.reply, &again.messages), (&first.reply, &first.messages), "leases come with their messages");
        let other = SessionCall { sequence: 4, ..call };
        assert_eq!(bench.one(SHARD, ShardCommand::of(Command::Recall(other))).await.reply, Ok(Reply::Unanswered));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_8_why_a_message_waits_is_read() {
    on_every_queue_store(async |bench| {
        for (id, priority) in [("a", 1), ("b", 2)] {
            bench.one(SHARD, enqueue(id, priority, b"")).await;
        }
        let reader = &bench.stores.reader;
        let causes = async |id: &str| reader.explain(SHARD, by_id(id)).await.expect("a read").0;
        assert_eq!(causes("b").await, [Cause::Ready { ahead: 1, or_more: false }]);
        assert_eq!(causes("c").await, [Cause::Unknown]);
        bench.dequeue(SHARD, 1).await;
        let held = causes("a").await;
        assert!(matches!(&held[..], [Cause::Running(holder)] if *holder.id.text() == *"a"), "{held:?}");
        let (prospect, _) = reader.preview_dequeue(SHARD, Filter::default()).await.expect("a read");
        assert_eq!(prospect.first.map(|key| key.sequence), Some(2));
        let absent = ShardId { queue: QueueId(77), number: 0 };
        check_absent(reader.explain(absent, by_id("a")).await);
        check_absent(reader.preview_dequeue(absent, Filter::default()).await);
        check_absent(reader.sessions(absent).await);
        check_absent(reader.leases_of(absent, Vec::new()).await);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_10_the_queues_are_those_created_and_not_dropped() {
    on_every_queue_store(async |bench| {
        let shards = &bench.stores.shards;
        let hour = Duration::from_secs(3_600);
        bench.clock.advance(hour);
        shards.create(QueueId(9), 4, settings().into()).await.expect("a new queue");
        bench.clock.advance(hour);
        shards.create(QueueId(9), 4, settings().into()).await.expect("it is there already");
        let first = CreatedQueue { id: QUEUE, shards: 2, created: T0 };
        let second = CreatedQueue { id: QueueId(9), shards: 4, created: T0 + hour };
        assert_eq!(shards.queues().await.expect("a read"), [first, second]);
        shards.drop_queue(QUEUE).await.expect("it is there");
        assert_eq!(shards.queues().await.expect("a read"), [second]);
    })
    .await;
}

/// An enqueue that something else than its id routed, of a token whose time lies ahead, so that it outlives its message.
fn routed(id: &str, by: &str) -> ShardCommand {
    let mut sent = enqueue(id, 0, by.as_bytes());
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    message.routing = Some(RoutingValue::new(by).expect("a valid value"));
    message.token_time = Some(T0 + Duration::from_secs(50));
    sent
}

#[tokio::test]
async fn queue_store_law_11_an_id_is_one_message_of_its_queue() {
    on_every_queue_store(async |bench| {
        if bench.capabilities().ids == IdScope::Shard {
            return;
        }
        let other_queue = ShardId { queue: QueueId(9), number: 1 };
        bench.stores.shards.create(QueueId(9), 2, settings().into()).await.expect("a new queue");
        assert!(is_new(&bench.one(SHARD, routed("a", "eu")).await.reply));
        assert!(is_new(&bench.one(OTHER_SHARD, enqueue("b", 0, b"")).await.reply));
        let refused = async |shard, sent| bench.one(shard, sent).await.reply == Err(Refusal::TokenReused);
        for shard in [SHARD, OTHER_SHARD] {
            assert!(refused(shard, routed("a", "us")).await, "another shard key");
            assert!(refused(shard, enqueue("a", 0, b"")).await, "no shard key any more");
            assert!(refused(shard, routed("b", "us")).await, "a shard key only later");
        }
        assert_eq!(bench.stores.reader.totals(OTHER_SHARD).await.expect("totals").sequence, 1, "nothing was taken in");
        assert!(is_new(&bench.one(other_queue, routed("a", "us")).await.reply), "ids are those of one queue");
        let repeat = bench.one(SHARD, routed("a", "eu")).await.reply;
        assert!(matches!(repeat, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{repeat:?}");
        cancel_and_forget(&bench).await;
        assert!(refused(OTHER_SHARD, routed("a", "us")).await, "its answer has outlived it");
        assert!(is_new(&bench.one(SHARD, routed("b", "us")).await.reply), "without a time an id ends with its message");
    })
    .await;
}

/// Cancels the messages `a` and `b`, and lets their retention pass, but not the window of a token whose time lay ahead.
async fn cancel_and_forget(bench: &QueueBench) {
    for (shard, id) in [(SHARD, "a"), (OTHER_SHARD, "b")] {
        let message = MessageRef::Id(MessageId::new(id).expect("a valid id"), None);
        let canceled = bench.one(shard, ShardCommand::of(Command::CancelMessage { message, reason: "".into() })).await;
        assert!(matches!(canceled.reply, Ok(Reply::Settled(_))), "{:?}", canceled.reply);
    }
    bench.clock.advance(settings().retention.canceled + Duration::from_secs(1));
    for shard in [SHARD, OTHER_SHARD] {
        bench.one(shard, ShardCommand::of(Command::Sweep { max: 9 })).await;
        let left = bench.stores.reader.totals(shard).await.expect("totals").totals.all().messages;
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn transitions_of_an_answer_are_those_of_its_step() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue_later("a", Duration::from_secs(1))).await;
        bench.clock.advance(Duration::from_secs(2));
        let answer = bench.one(SHARD, dequeue(1)).await;
        let triggers: Vec<Trigger> = answer.transitions.iter().map(|row| row.trigger).collect();
        assert_eq!(triggers, [Trigger::WindowOver, Trigger::Dequeue]);
        assert_eq!(answer.messages[0].head.state, MessageState::Running);
    })
    .await;
}
