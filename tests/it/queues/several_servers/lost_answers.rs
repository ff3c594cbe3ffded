//! Dequeues on a store that loses requests and answers: no attempt is spent on a lease that nobody gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::limits::LEASE_MAX;
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::messages::message::MessageRef;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::{MessageState, Refusal};
use tallystone::engine::queues::{
    DequeueRequest, FreeCredit, LeaseBatch, LeasedMessage, QueueError, Queues, StreamLeaseRequest,
};

use super::SharingServer;
use super::servers::{SECOND, SharedBench, depth, dequeue, enqueue, name, open, rest};
use super::watched_shards::{CallFate, WatchedShards};

/// A server on a store that loses what it is told to lose.
async fn lossy(
    shards: u32,
    otherwise: impl Fn() -> CallFate + Send + Sync + 'static,
) -> (SharedBench, SharingServer, Arc<WatchedShards>) {
    let (SharedBench { clock, stores }, first, second) = SharedBench::with_shards(shards).await;
    first.kill().await;
    second.kill().await;
    let (stores, watched) = WatchedShards::over(stores, otherwise);
    let bench = SharedBench { clock, stores };
    let server = bench.server(3).await;
    (bench, server, watched)
}

fn up_to(max: usize) -> DequeueRequest {
    DequeueRequest { max, lease: Some(LEASE_MAX), ..DequeueRequest::default() }
}

/// Makes a dequeue while time passes, for the pauses between its repeats.
async fn patiently(
    bench: &SharedBench,
    queues: &Queues,
    ask: DequeueRequest,
) -> Result<Vec<LeasedMessage>, QueueError> {
    let queues = queues.clone();
    let call = tokio::spawn(async move { dequeue(&queues, ask).await });
    rest().await;
    while !call.is_finished() {
        bench.pass(Duration::from_millis(250)).await;
    }
    call.await.expect("it ends")
}

fn id(number: u64) -> MessageRef {
    MessageRef::Id(MessageId::new(&format!("m-{number}")).expect("an id"), None)
}

#[tokio::test]
async fn each_message_is_leased_exactly_once_whatever_is_lost() {
    for seed in 0..8_u64 {
        println!("seed {seed}");
        let draw = AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut fates = [CallFate::Answered; 8];
        (fates[0], fates[1]) = (CallFate::AnswerLost, CallFate::RequestLost);
        let next = move || {
            let step =
                |word: u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
            let word = draw.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).expect("it always steps");
            fates[usize::try_from(word >> 61).expect("small")]
        };
        let (bench, server, _watched) = lossy(4, next).await;
        enqueue(&server.queues, 0..200).await;
        let mut given: BTreeMap<MessageId, u32> = BTreeMap::new();
        for round in 0.. {
            assert!(round < 400, "it ends");
            // Several at once, so that they share store calls.
            let calls = (0..8).map(|number| patiently(&bench, &server.queues, up_to(1 + number % 3)));
            for leased in futures_util::future::join_all(calls).await {
                for leased in leased.expect("the outcome becomes known") {
                    let before = given.insert(leased.message.head.id, leased.lease.attempt_number);
                    assert_eq!(before, None, "nothing is leased twice");
                }
            }
            if given.len() == 200 {
                break;
            }
        }
        assert!(given.values().all(|attempt| *attempt == 1), "no attempt was lost");
        assert_eq!(depth(&server.queues, MessageState::Running).await, 200);
    }
}

#[tokio::test]
async fn the_leases_of_a_lost_answer_are_released_if_the_caller_has_gone() {
    let (bench, server, watched) = lossy(1, || CallFate::Answered).await;
    enqueue(&server.queues, 0..3).await;
    watched.next([CallFate::AnswerLost, CallFate::RequestLost]);
    let queues = server.queues.clone();
    let call = tokio::spawn(async move { dequeue(&queues, up_to(3)).await.map(drop) });
    rest().await;
    assert_eq!(depth(&server.queues, MessageState::Running).await, 3, "nobody knows of them yet");
    call.abort();
    bench.pass(SECOND).await;
    assert_eq!(depth(&server.queues, MessageState::Pending).await, 3);
    let again = dequeue(&server.queues, up_to(3)).await.expect("leases");
    assert!(again.len() == 3 && again.iter().all(|lease| lease.lease.attempt_number == 1));
}

#[tokio::test]
async fn a_request_that_arrives_after_its_repeat_leases_nothing_more() {
    let (_bench, server, watched) = lossy(1, || CallFate::Answered).await;
    enqueue(&server.queues, 0..2).await;
    watched.next([CallFate::Late]);
    let leased = dequeue(&server.queues, up_to(1)).await.expect("the repeat is answered");
    assert_eq!(leased.len(), 1);
    let late = watched.arrive().await;
    assert_eq!(late.iter().map(|answer| answer.reply.clone()).collect::<Vec<_>>(), [Err(Refusal::TryBarred)]);
    assert_eq!(depth(&server.queues, MessageState::Pending).await, 1);
}

#[tokio::test]
async fn a_request_that_arrives_after_an_empty_repeat_leases_nothing() {
    let (_bench, server, watched) = lossy(1, || CallFate::Answered).await;
    enqueue(&server.queues, [0]).await;
    watched.next([CallFate::Late, CallFate::Answered]);
    let filtered = DequeueRequest { filter: Filter::new([("team", "red")]).expect("a filter"), ..up_to(1) };
    assert!(dequeue(&server.queues, filtered).await.expect("an answer").is_empty());
    let late = watched.arrive().await;
    assert_eq!(late.iter().map(|answer| answer.reply.clone()).collect::<Vec<_>>(), [Err(Refusal::TryBarred)]);
    assert_eq!(depth(&server.queues, MessageState::Pending).await, 1);
}

#[tokio::test]
async fn a_store_that_stays_silent_is_told_as_an_unknown_outcome_and_the_lease_ends_by_itself() {
    let (bench, server, watched) = lossy(1, || CallFate::Answered).await;
    enqueue(&server.queues, [0]).await;
    watched.next([CallFate::AnswerLost]);
    watched.next([CallFate::RequestLost; 12]);
    let ask = DequeueRequest { lease: Some(30 * SECOND), ..up_to(1) };
    let lost = patiently(&bench, &server.queues, ask.clone()).await.expect_err("it never learns");
    assert_eq!(lost.reason(), Reason::OutcomeUnknown);
    bench.pass(31 * SECOND).await;
    let again = dequeue(&server.queues, ask).await.expect("a lease");
    assert_eq!(again.iter().map(|lease| lease.lease.attempt_number).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn a_stream_gets_the_leases_of_an_answer_that_was_lost() {
    let (bench, server, watched) = lossy(4, || CallFate::Answered).await;
    enqueue(&server.queues, 0..4).await;
    let session = open(&server.queues, "").await;
    let mut stream = server.queues.work.join_session(session).await.expect("alive");
    watched.next([CallFate::AnswerLost, CallFate::RequestLost]);
    let call = Some(stream.next_call());
    let queues = server.queues.clone();
    let leases = tokio::spawn(async move {
        let ask =
            StreamLeaseRequest { max: 4, lease: None, filter: Filter::default(), call, credit: FreeCredit::default() };
        queues.work.next_leases(&[name()], ask).await.map(LeaseBatch::take)
    });
    bench.pass(SECOND).await;
    let leases = leases.await.expect("it ends").expect("leases");
    assert!(!leases.is_empty() && leases.iter().all(|lease| lease.lease.attempt_number == 1));
    assert_eq!(depth(&server.queues, MessageState::Running).await, leases.len() as u64, "nothing else is leased");
}

#[tokio::test]
async fn the_sessions_of_a_server_are_not_shown_and_a_store_that_loses_nothing_has_none() {
    let (_bench, server, _watched) = lossy(1, || CallFate::Answered).await;
    let (_other, plain, _second) = SharedBench::with_shards(1).await;
    for (queues, is_lossy) in [(&server.queues, true), (&plain.queues, false)] {
        enqueue(queues, [0]).await;
        assert_eq!(dequeue(queues, up_to(1)).await.expect("a lease").len(), 1);
        let seen = queues.inspect.get_message(&name(), id(0)).await.expect("it is there");
        let lease = seen.message.head.lease.expect("it is leased");
        assert_eq!(lease.session.is_some_and(|own| own.id.is_of_server()), is_lossy);
        assert_eq!((seen.worker, queues.sessions.count()), (None, 0));
    }
}
