//! Items 44 to 59: what Netflix says of Timestone.

use std::collections::BTreeMap;

use tallystone_domain::queue::command::{BulkRequest, Completeness, Dequeue, FailureReport, MessageUpdate};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::message::{Fence, LeaseToken, Metadata, SessionId};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, Settings, ShardId, ShardSettings};
use tallystone_ports::ShardCommand;

use super::{by_id, cancel, exclusive, extend, of_value, secs, sent, settled, sweep, update};
use crate::queue_given::{
    QueueBench, SHARD, configure_with, dequeue, enqueue, enqueue_later, is_new, on_every_queue_store, settings, settle,
};

/// What each command makes of a message that is invisible, pending, running, completed, canceled, errored: the letter of
/// the state it leaves behind, after a `!` if it is refused. A settlement that repeats the one before answers as it did.
const TABLE: [(&str, &str); 11] = [
    ("complete", "!I !P C C !X !E"),
    ("cancel", "!I !P X !C !X !E"),
    ("fail", "!I !P P !C !X E"),
    ("release", "!I !P P !C !X !E"),
    ("extend", "!I !P R !C !X !E"),
    ("cancel message", "X X R !C X !E"),
    ("update", "I P !R !C !X !E"),
    ("redrive", "!I !P !R !C !X P"),
    ("dequeue", "!I R !R !C !X !E"),
    ("purge", "X X R C X E"),
    ("sweep", "I P R C X E"),
];

#[tokio::test]
async fn item_44_every_command_meets_every_state_as_the_table_says() {
    on_every_queue_store(async |bench| {
        let mut number = 0;
        for (name, row) in TABLE {
            for (state, wanted) in MessageState::ALL.into_iter().zip(row.split(' ')) {
                number += 1;
                let id = format!("m-{number}");
                let token = bring(&bench, &id, state).await;
                let sequence = token.key.sequence;
                let answer = bench.one(SHARD, asked(name, &id, token, sequence)).await;
                let refused = if answer.reply.is_err() { "!" } else { "" };
                let after = bench.state(&id).await.expect("it is kept");
                let found = format!("{refused}{}", ["I", "P", "R", "C", "X", "E"][after as usize]);
                assert_eq!(found, wanted, "{name} of a message that is {state}: {:?}", answer.reply);
                let rows = answer.transitions.iter().filter(|row| row.key == token.key).count();
                assert!(refused.is_empty() || rows == 0, "{name} was refused and changed something");
                bench.all(SHARD, vec![purge(0, sequence)]).await;
            }
        }
    })
    .await;
}

/// Makes a message of a state; answers its lease, or one that nobody ever had.
async fn bring(bench: &QueueBench, id: &str, state: MessageState) -> LeaseToken {
    let command = match state {
        MessageState::Invisible => enqueue_later(id, secs(3_600)),
        MessageState::Errored => sent(id, |message| message.max_attempts = Some(1)),
        MessageState::Pending | MessageState::Running | MessageState::Completed | MessageState::Canceled => {
            enqueue(id, 0, b"")
        }
    };
    let Ok(Reply::Enqueued { key, .. }) = bench.one(SHARD, command).await.reply else { panic!("a new message") };
    let nobody = LeaseToken { key, fence: Fence { epoch: 1, serial: 1 << 30 } };
    let verb = match state {
        MessageState::Invisible | MessageState::Pending => return nobody,
        MessageState::Canceled => {
            assert_eq!(settled(&bench.one(SHARD, cancel(id)).await.reply), state);
            return nobody;
        }
        MessageState::Running => None,
        MessageState::Completed => Some(SettleAction::Complete),
        MessageState::Errored => Some(SettleAction::Fail),
    };
    let this = Dequeue { max: 1, message: Some(by_id(id)), ..Dequeue::default() };
    let Ok(Reply::Leases { leases, .. }) = bench.one(SHARD, ShardCommand::of(Command::Dequeue(this))).await.reply
    else {
        panic!("a lease")
    };
    if let Some(verb) = verb {
        assert_eq!(settled(&bench.one(SHARD, settle(leases[0].token, verb)).await.reply), state);
    }
    leases[0].token
}

fn purge(after: u64, through: u64) -> ShardCommand {
    ShardCommand::of(Command::Purge(BulkRequest { after, through, max: 256, ..BulkRequest::default() }))
}

fn asked(name: &str, id: &str, token: LeaseToken, sequence: u64) -> ShardCommand {
    let fail = FailureReport { delay: Some(secs(0)), ..FailureReport::default() };
    match name {
        "complete" => settle(token, SettleAction::Complete),
        "cancel" => settle(token, SettleAction::Cancel),
        "fail" => ShardCommand::of(Command::Settle { token, verb: SettleAction::Fail, failure: fail }),
        "release" => settle(token, SettleAction::Release),
        "extend" => extend(token, secs(60)),
        "cancel message" => cancel(id),
        "update" => update(id, MessageUpdate { priority: Some(1), ..MessageUpdate::default() }),
        "redrive" => ShardCommand::of(Command::Redrive { message: by_id(id) }),
        "dequeue" => {
            let this = Dequeue { max: 1, message: Some(by_id(id)), ..Dequeue::default() };
            ShardCommand::of(Command::Dequeue(this))
        }
        "purge" => purge(sequence - 1, sequence),
        "sweep" => sweep(),
        other => panic!("no command is called {other}"),
    }
}

#[tokio::test]
async fn item_45_a_message_without_attempts_left_is_errored() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        for attempt in 1..=3 {
            let (lease, message) = bench.dequeue(SHARD, 1).await.remove(0);
            assert_eq!((lease.attempt_number, message.head.attempts_left), (attempt, 3 - attempt));
            bench.clock.advance(secs(30));
            bench.all(SHARD, vec![sweep()]).await;
        }
        assert_eq!(bench.state("a").await, Some(MessageState::Errored));
        assert!(bench.served(SHARD, 1).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn item_46_of_an_exclusive_queue_two_workers_never_have_the_same_value() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(exclusive()).await;
        let commands = vec![of_value("x1", 1, "x"), of_value("x2", 2, "x"), of_value("y1", 3, "y")];
        bench.all(shard, commands).await;
        let (first, message) = bench.dequeue(shard, 1).await.remove(0);
        assert_eq!(message.head.id.to_string(), "x1");
        assert_eq!(bench.served(shard, 9).await, ["y1"], "the best of any other value, and nothing waits behind x");
        bench.all(shard, vec![settle(first.token, SettleAction::Complete)]).await;
        assert_eq!(bench.served(shard, 9).await, ["x2"]);
    })
    .await;
}

#[tokio::test]
async fn item_47_an_exclusive_queue_refuses_a_message_without_its_key() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(exclusive()).await;
        let refused = bench.one(shard, enqueue("a", 0, b"")).await.reply;
        assert_eq!(refused, Err(Refusal::Invalid(InvalidCommandPart::ExclusivityValue)));
        assert!(is_new(&bench.one(shard, of_value("a", 0, "x")).await.reply));
    })
    .await;
}

#[tokio::test]
async fn item_48_of_several_metadata_pairs_all_must_be_met_and_the_best_comes_first() {
    on_every_queue_store(async |bench| {
        let keys = ShapeKeys::new(["team", "zone"]).expect("a valid shape");
        for (number, shapes) in [(8, vec![]), (9, vec![keys])] {
            let queue = ShardId { queue: QueueId(number), number: 0 };
            let with_shapes = Settings { shapes: shapes.clone(), ..settings() };
            bench.stores.shards.create(queue.queue, 1, with_shapes.into()).await.expect("a new queue");
            for (number, (team, zone)) in [("red", "a"), ("red", "b"), ("blue", "a"), ("red", "a")].iter().enumerate() {
                let pairs = Metadata::new([("team", *team), ("zone", *zone), ("n", "1")]).expect("valid pairs");
                let command = sent(&format!("m-{number}"), |message| {
                    message.metadata = pairs;
                    message.priority = Some(10 - i64::try_from(number).expect("small"));
                });
                bench.one(queue, command).await;
            }
            let filter = Filter::new([("zone", "a"), ("team", "red")]).expect("a valid filter");
            let asked = Dequeue { max: 9, filter, ..Dequeue::default() };
            let answer = bench.one(queue, ShardCommand::of(Command::Dequeue(asked))).await;
            let ids: Vec<_> = answer.messages.iter().map(|message| message.head.id.to_string()).collect();
            assert_eq!(ids, ["m-3", "m-0"], "{shapes:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn item_49_a_block_keeps_messages_out_or_in_and_says_why() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let token = bench.lease(SHARD).await;
        let block = |version, enqueue: Option<&str>, dequeue: Option<&str>| {
            let (enqueue_blocked, dequeue_blocked) = (enqueue.map(Into::into), dequeue.map(Into::into));
            configure_with(ShardSettings { version, enqueue_blocked, dequeue_blocked, ..settings().into() })
        };
        bench.all(SHARD, vec![block(1, Some("full"), Some("repair"))]).await;
        assert_eq!(bench.one(SHARD, enqueue("b", 0, b"")).await.reply, Err(Refusal::EnqueueBlocked("full".into())));
        assert_eq!(bench.one(SHARD, dequeue(1)).await.reply, Err(Refusal::DequeueBlocked("repair".into())));
        let again = bench.one(SHARD, enqueue("a", 0, b"")).await.reply;
        assert!(matches!(again, Ok(Reply::Enqueued { already_enqueued: true, .. })), "a repeat is answered: {again:?}");
        assert_eq!(settled(&bench.one(SHARD, settle(token, SettleAction::Release)).await.reply), MessageState::Pending);
        bench.all(SHARD, vec![block(2, None, None), enqueue("b", 0, b"")]).await;
        assert_eq!(bench.served(SHARD, 9).await, ["a", "b"]);
    })
    .await;
}

#[tokio::test]
async fn item_51_a_dequeue_takes_up_to_a_hundred() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, (0..130).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        for wrong in [0, 101] {
            assert_eq!(bench.one(SHARD, dequeue(wrong)).await.reply, Err(Refusal::Invalid(InvalidCommandPart::Count)));
        }
        assert_eq!(bench.served(SHARD, 100).await.len(), 100);
        assert_eq!(bench.served(SHARD, 100).await.len(), 30);
    })
    .await;
}

#[tokio::test]
async fn item_52_a_message_may_have_its_own_lease_delay_attempts_and_ttl() {
    on_every_queue_store(async |bench| {
        let command = sent("a", |message| {
            message.invisibility = Some(secs(5));
            message.lease_duration = Some(secs(2));
            message.max_attempts = Some(2);
            message.ttl = Some(secs(100));
        });
        bench.one(SHARD, command).await;
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(secs(5));
        for attempt in 1..=2 {
            let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
            assert_eq!((lease.attempt_number, lease.expires_in), (attempt, secs(2)));
            bench.clock.advance(secs(2));
        }
        bench.all(SHARD, vec![sweep()]).await;
        assert_eq!(bench.state("a").await, Some(MessageState::Errored));
        bench.one(SHARD, sent("b", |message| message.ttl = Some(secs(3)))).await;
        bench.clock.advance(secs(3));
        assert!(bench.served(SHARD, 1).await.is_empty());
        assert_eq!(bench.state("b").await, Some(MessageState::Canceled));
    })
    .await;
}

#[tokio::test]
async fn item_53_every_change_that_is_repeated_answers_as_the_first_and_changes_nothing() {
    on_every_queue_store(async |bench| {
        for verb in [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail, SettleAction::Release] {
            let id = format!("{verb:?}");
            let first = bench.one(SHARD, enqueue(&id, 0, b"")).await.reply;
            let again = bench.one(SHARD, enqueue(&id, 0, b"")).await;
            let (Ok(Reply::Enqueued { key, state, .. }), Ok(Reply::Enqueued { key: other, state: same, .. })) =
                (first, again.reply)
            else {
                panic!("both are taken")
            };
            assert_eq!((key, state, again.transitions), (other, same, vec![]));
            let token = bench.lease(SHARD).await;
            let first = bench.one(SHARD, settle(token, verb)).await.reply;
            for _ in 0..2 {
                let again = bench.one(SHARD, settle(token, verb)).await;
                assert_eq!((again.reply, again.transitions), (first.clone(), vec![]), "{verb:?}");
            }
            let canceled = bench.one(SHARD, cancel(&id)).await.reply;
            let again = bench.one(SHARD, cancel(&id)).await;
            assert_eq!((again.reply, again.transitions), (canceled, vec![]), "{verb:?}");
        }
        let deleted = bench.one(SHARD, ShardCommand::of(Command::Delete)).await.reply;
        assert_eq!(bench.one(SHARD, ShardCommand::of(Command::Delete)).await.reply, deleted);
    })
    .await;
}

#[tokio::test]
async fn item_54_a_dequeue_of_a_session_that_is_tried_again_gets_the_same_leases() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, (0..6).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        let call = |sequence, attempt| {
            let id = SessionId(5);
            let session = SessionCall { id, lease: Some(secs(30)), sequence, attempt, received_up_to: None };
            ShardCommand::of(Command::Dequeue(Dequeue { max: 2, session: Some(session), ..Dequeue::default() }))
        };
        let tokens = async |sequence, attempt| {
            let answer = bench.one(SHARD, call(sequence, attempt)).await;
            let Ok(Reply::Leases { leases, .. }) = answer.reply else { panic!("leases: {:?}", answer.reply) };
            leases.into_iter().map(|lease| lease.token).collect::<Vec<_>>()
        };
        let first = tokens(1, 1).await;
        assert_eq!(first.len(), 2);
        assert_eq!(tokens(1, 2).await, first);
        assert_eq!(bench.one(SHARD, call(1, 1)).await.reply, Err(Refusal::TryBarred), "an older try comes too late");
        let second = tokens(2, 1).await;
        assert!(second.iter().all(|token| !first.contains(token)) && second.len() == 2);
    })
    .await;
}

#[tokio::test]
async fn item_55_versions_of_a_message_grow_by_one_and_order_its_history() {
    on_every_queue_store(async |bench| {
        let mut history = BTreeMap::<u64, Vec<_>>::new();
        let mut note = |rows: Vec<tallystone_domain::queue::Transition>| {
            rows.into_iter().for_each(|row| history.entry(row.key.sequence).or_default().push(row));
        };
        for number in 0..4 {
            note(bench.one(SHARD, enqueue_later(&format!("m-{number}"), secs(number))).await.transitions);
        }
        for step in 0..40_usize {
            bench.clock.advance(secs(step as u64 % 4));
            let answer = bench.one(SHARD, dequeue(1)).await;
            note(answer.transitions);
            if let Ok(Reply::Leases { leases, .. }) = answer.reply
                && let Some(lease) = leases.first()
            {
                let verb = [SettleAction::Release, SettleAction::Fail, SettleAction::Release, SettleAction::Complete]
                    [step % 4];
                note(bench.one(SHARD, settle(lease.token, verb)).await.transitions);
            }
        }
        assert_eq!(history.len(), 4);
        for rows in history.values() {
            let versions: Vec<u64> = rows.iter().map(|row| row.version).collect();
            assert_eq!(versions, (1..=rows.len() as u64).collect::<Vec<_>>());
            let joined = rows.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].at <= pair[1].at);
            assert!(joined && rows[0].from.is_none(), "{rows:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn item_57_a_payload_has_at_most_32_kib() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(settings()).await;
        for (bytes, wanted) in [(0, true), (32_768, true), (32_769, false)] {
            let reply = bench.one(shard, enqueue(&format!("of-{bytes}"), 0, &vec![7; bytes])).await.reply;
            assert_eq!(is_new(&reply), wanted, "{bytes}: {reply:?}");
            assert!(wanted || reply == Err(Refusal::Invalid(InvalidCommandPart::Payload)));
        }
    })
    .await;
}

#[tokio::test]
async fn item_58_what_is_enqueued_or_falls_due_is_served_by_the_next_dequeue() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![enqueue("now", 0, b""), enqueue_later("soon", secs(1))]).await;
        assert_eq!(bench.served(SHARD, 9).await, ["now"]);
        bench.clock.advance(secs(1));
        assert_eq!(bench.served(SHARD, 9).await, ["soon"]);
    })
    .await;
}

#[tokio::test]
async fn item_59_messages_that_are_over_are_kept_for_their_retention_and_then_gone() {
    on_every_queue_store(async |bench| {
        for state in [MessageState::Completed, MessageState::Canceled, MessageState::Errored] {
            bring(&bench, &format!("{state}"), state).await;
        }
        bench.clock.advance(secs(3_599));
        bench.all(SHARD, vec![sweep()]).await;
        assert_eq!(
            bench.count(SHARD, MessageState::Completed).await + bench.count(SHARD, MessageState::Canceled).await,
            2
        );
        bench.clock.advance(secs(1));
        let swept = bench.one(SHARD, sweep()).await.reply;
        assert_eq!(swept, Ok(Reply::Touched { count: 2, completeness: Completeness::Complete }));
        assert_eq!(bench.state("errored").await, Some(MessageState::Errored), "it is kept for longer");
        bench.clock.advance(secs(3_600));
        bench.all(SHARD, vec![sweep()]).await;
        assert_eq!(bench.stores.reader.totals(SHARD).await.expect("a read").totals.all().messages, 0);
    })
    .await;
}
