//! Sessions of workers whose calls reach different servers of one store.

use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::limits::SESSION_END_TAKEN_OVER_AFTER;
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::messages::message::SessionId;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::queue::session_records::Ending;
use tallystone::domain::queue::{MessageState, QueueName};
use tallystone::engine::queues::{
    DequeueRequest, FreeCredit, LeasedMessage, QueueError, Queues, SentSessionCall, SettleRequest, StreamLeaseRequest,
    StreamSession,
};

use super::SharingServer;
use super::servers::{
    SECOND, SESSION_LEASE, SharedBench, call, depth, dequeue, enqueue, name, nobody, open, rest, tokens,
};
use super::watched_shards::{CallFate, WatchedShards};

fn reason_of<T>(result: Result<T, QueueError>) -> Reason {
    match result {
        Ok(_) => panic!("it is refused"),
        Err(error) => error.reason(),
    }
}

/// The same call, confirming all before it, which waits for up to 20 s.
fn waiting(ask: DequeueRequest) -> DequeueRequest {
    DequeueRequest { wait: 20 * SECOND, ..ask }
}

fn received(id: SessionId, sequence: u64, received_up_to: u64) -> DequeueRequest {
    let session = Some(SentSessionCall { id, sequence, attempt: 1, received_up_to: Some(received_up_to) });
    DequeueRequest { max: 2, session, ..DequeueRequest::default() }
}

async fn complete(queues: &Queues, lease: &LeasedMessage) {
    let sent = SettleRequest { token: lease.token.clone(), verb: SettleAction::Complete, delay: None, error: None };
    queues.work.settle(&name(), sent).await.expect("settled");
}

/// Dequeues for a stream, once.
async fn stream_leases(queues: &Queues, stream: &mut StreamSession, max: usize) -> Vec<LeasedMessage> {
    let ask = StreamLeaseRequest {
        max,
        lease: None,
        filter: Filter::default(),
        call: Some(stream.next_call()),
        credit: FreeCredit::default(),
    };
    let found = queues.work.next_leases(&[name()], ask).await.expect("leases");
    found.take()
}

#[tokio::test]
async fn a_repeat_at_another_server_gets_the_same_leases_and_no_others() {
    let (_bench, here, there) = SharedBench::with_shards(8).await;
    enqueue(&here.queues, 0..20).await;
    let session = open(&here.queues, "").await;
    let many = |attempt| DequeueRequest { max: 12, ..call(session, 1, attempt) };
    let first = dequeue(&here.queues, many(1)).await.expect("leases");
    assert!(first.len() > 8, "several of each shard: {}", first.len());
    for (server, attempt) in [(&there, 2), (&here, 3), (&there, 4)] {
        assert_eq!(dequeue(&server.queues, many(attempt)).await.map(|again| tokens(&again)).ok(), Some(tokens(&first)));
    }
    let second = dequeue(&there.queues, call(session, 2, 1)).await.expect("leases");
    assert!(!second.is_empty() && tokens(&second).is_disjoint(&tokens(&first)));
    assert_eq!(
        dequeue(&here.queues, call(session, 2, 2)).await.map(|again| tokens(&again)).ok(),
        Some(tokens(&second))
    );
    for lease in &first {
        complete(&there.queues, lease).await;
    }
    assert!(dequeue(&there.queues, many(5)).await.expect("a repeat is answered").is_empty(), "its leases have ended");
    assert_eq!(depth(&here.queues, MessageState::Running).await, second.len() as u64);
    assert_eq!(reason_of(dequeue(&here.queues, many(2)).await), Reason::TryBarred);
}

#[tokio::test]
async fn a_repeat_is_known_at_every_server_even_without_a_try() {
    let (_bench, here, there) = SharedBench::with_shards(4).await;
    enqueue(&here.queues, 0..20).await;
    let session = open(&here.queues, "").await;
    let mut answers = Vec::new();
    for sequence in 1..=6 {
        let server = if sequence % 2 == 1 { &here } else { &there };
        answers.push(tokens(&dequeue(&server.queues, call(session, sequence, 1)).await.expect("leases")));
    }
    let again = dequeue(&here.queues, call(session, 6, 1)).await.expect("leases");
    assert_eq!(tokens(&again), answers[5]);
    let late = dequeue(&here.queues, call(session, 4, 1)).await.expect("leases");
    assert_eq!(tokens(&late), answers[3]);
    assert_eq!(
        answers.iter().flatten().count(),
        answers.iter().flatten().collect::<std::collections::BTreeSet<_>>().len()
    );
}

#[tokio::test]
async fn each_server_lists_the_sessions_of_all_page_by_page_and_those_of_a_queue() {
    let (bench, here, there) = SharedBench::with_shards(4).await;
    enqueue(&here.queues, 0..4).await;
    let [first, second] = [open(&here.queues, "one").await, open(&there.queues, "two").await];
    let third = open(&here.queues, "three").await;
    dequeue(&there.queues, call(second, 1, 1)).await.expect("leases");
    let labels = async |server: &SharingServer, of: Option<&QueueName>| {
        let (mut labels, mut after) = (Vec::new(), 0);
        loop {
            let (listed, next) = server.queues.inspect.list_sessions(of, after, 2).await.expect("a list");
            labels.extend(listed.iter().map(|one| (one.label.to_string(), one.leases, one.alias.clone())));
            match next {
                Some(next) => after = next,
                None => return labels,
            }
        }
    };
    let all = labels(&here, None).await;
    assert_eq!(
        all.iter().map(|(label, leases, _)| (&**label, *leases)).collect::<Vec<_>>(),
        [("one", 0), ("two", 2), ("three", 0)]
    );
    assert_eq!(labels(&there, None).await, all, "with the same references");
    assert_eq!(labels(&here, Some(&name())).await, [all[1].clone()]);
    here.queues.sessions.close_session(third).await.expect("it ends");
    assert_eq!(labels(&there, None).await, all[..2]);
    // The silent one expires; the other one is heard at a server that lists it as heard.
    for _ in 0..3 {
        bench.pass(SESSION_LEASE / 2).await;
        there.queues.sessions.heartbeat(second, None).await.expect("alive");
    }
    assert_eq!(labels(&here, None).await.len(), 1, "{first:?} was silent");
    let (heard, _) = there.queues.inspect.list_sessions(None, 0, 2).await.expect("a list");
    assert_eq!(heard[0].expires_in, SESSION_LEASE);
}

#[tokio::test]
async fn a_later_try_at_another_server_bars_the_earlier_one_in_shards_that_neither_had_touched() {
    let (_bench, here, there) = SharedBench::with_shards(8).await;
    let session = open(&here.queues, "").await;
    let earlier = tokio::spawn({
        let queues = here.queues.clone();
        async move { dequeue(&queues, waiting(call(session, 1, 1))).await }
    });
    rest().await;
    assert!(dequeue(&there.queues, call(session, 1, 2)).await.expect("an answer").is_empty());
    enqueue(&there.queues, [1]).await;
    assert_eq!(reason_of(earlier.await.expect("it ends")), Reason::TryBarred);
    assert_eq!(
        depth(&here.queues, MessageState::Pending).await,
        1,
        "nothing was leased for an answer that nobody reads"
    );
    assert_eq!(dequeue(&here.queues, call(session, 1, 3)).await.expect("leases").len(), 1);
}

#[tokio::test]
async fn a_label_opened_at_another_server_ends_the_earlier_session_everywhere() {
    let (bench, here, there) = SharedBench::with_shards(4).await;
    enqueue(&here.queues, 0..2).await;
    let first = open(&here.queues, "worker-7").await;
    assert_eq!(dequeue(&here.queues, call(first, 1, 1)).await.expect("leases").len(), 2);
    let stream = here.queues.work.join_session(first).await.expect("alive");
    let waits = tokio::spawn({
        let queues = here.queues.clone();
        async move { dequeue(&queues, waiting(call(first, 1 << 40, 1))).await }
    });
    rest().await;
    let second = open(&there.queues, "worker-7").await;
    let taken = dequeue(&there.queues, call(second, 1, 1)).await.expect("leases");
    assert_eq!(taken.iter().map(|lease| lease.lease.attempt_number).collect::<Vec<_>>(), [2, 2], "at once");
    bench.pass(SECOND).await;
    assert!(waits.is_finished(), "within a second");
    assert_eq!(reason_of(waits.await.expect("it ends")), Reason::SessionReplaced);
    assert_eq!(stream.wait_for_end().await.reason(), Reason::SessionReplaced);
    for server in [&here, &there] {
        assert_eq!(reason_of(dequeue(&server.queues, call(first, 2, 1)).await), Reason::SessionReplaced);
        assert_eq!(reason_of(server.queues.sessions.heartbeat(first, None).await), Reason::SessionReplaced);
        assert_eq!(reason_of(server.queues.sessions.close_session(first).await), Reason::SessionReplaced);
        server.queues.sessions.heartbeat(second, None).await.expect("alive");
    }
    let third = open(&here.queues, "worker-7").await;
    bench.pass(SECOND).await;
    assert_eq!(reason_of(dequeue(&there.queues, call(second, 2, 1)).await), Reason::SessionReplaced);
    assert_eq!(dequeue(&there.queues, call(third, 1, 1)).await.expect("leases").len(), 2, "ended once each");
}

#[tokio::test]
async fn a_label_opened_at_two_servers_at_once_has_one_session() {
    let (bench, here, there) = SharedBench::with_shards(1).await;
    let opened = futures_util::future::join_all((0..10).map(|number| {
        let queues = if number % 2 == 0 { &here.queues } else { &there.queues };
        open(queues, "worker-7")
    }));
    let opened = opened.await;
    bench.pass(SECOND).await;
    for server in [&here, &there] {
        let mut alive = 0;
        for session in &opened {
            alive += usize::from(server.queues.sessions.heartbeat(*session, None).await.is_ok());
        }
        assert_eq!(alive, 1);
    }
}

#[tokio::test]
async fn a_session_lives_while_any_server_hears_of_it_and_ends_for_all() {
    let (bench, here, there) = SharedBench::with_shards(2).await;
    enqueue(&here.queues, 0..2).await;
    let session = open(&here.queues, "").await;
    dequeue(&here.queues, call(session, 1, 1)).await.expect("leases");
    for _ in 0..6 {
        bench.pass(SESSION_LEASE / 2).await;
        there.queues.sessions.heartbeat(session, Some(1)).await.expect("alive");
    }
    assert!(dequeue(&here.queues, call(session, 2, 1)).await.expect("alive").is_empty());
    assert_eq!(depth(&here.queues, MessageState::Running).await, 2, "heartbeats reach the shards of the other server");
    bench.pass(SESSION_LEASE + SECOND).await;
    assert_eq!(depth(&here.queues, MessageState::Pending).await, 2, "its messages have returned");
    bench.pass(SESSION_LEASE / 4 + SECOND).await;
    for server in [&there, &here] {
        assert_eq!(reason_of(server.queues.sessions.heartbeat(session, None).await), Reason::SessionEnded);
        assert_eq!(reason_of(dequeue(&server.queues, call(session, 3, 1)).await), Reason::SessionEnded);
        assert_eq!(reason_of(server.queues.sessions.close_session(session).await), Reason::SessionEnded);
    }
}

#[tokio::test]
async fn an_open_stream_keeps_its_session_for_calls_at_other_servers() {
    let (bench, here, there) = SharedBench::with_shards(2).await;
    let session = open(&here.queues, "").await;
    let stream = here.queues.work.join_session(session).await.expect("alive");
    bench.pass(4 * SESSION_LEASE).await;
    there.queues.sessions.heartbeat(session, None).await.expect("the directory heard of the stream");
    drop(stream);
    bench.pass(SESSION_LEASE + SESSION_LEASE / 2).await;
    assert_eq!(reason_of(there.queues.sessions.heartbeat(session, None).await), Reason::SessionEnded);
}

#[tokio::test]
async fn closing_through_any_server_releases_all_leases_once() {
    let (bench, here, there) = SharedBench::with_shards(8).await;
    enqueue(&here.queues, 0..6).await;
    let session = open(&here.queues, "").await;
    let mut leased = 0;
    for (sequence, server) in [(1, &here), (2, &there), (3, &here)] {
        leased += dequeue(&server.queues, call(session, sequence, 1)).await.expect("leases").len();
    }
    assert_eq!(leased, 6);
    let third = bench.server(3).await;
    assert_eq!(third.queues.sessions.close_session(session).await.expect("closed"), 6);
    assert_eq!(here.queues.sessions.close_session(session).await.expect("a repeat"), 0);
    assert_eq!(depth(&here.queues, MessageState::Pending).await, 6);
    assert_eq!(reason_of(dequeue(&there.queues, call(session, 4, 1)).await), Reason::SessionEnded);
    let again = dequeue(&there.queues, DequeueRequest { max: 6, ..DequeueRequest::default() }).await.expect("leases");
    assert!(again.iter().all(|lease| lease.lease.attempt_number == 1), "the attempts were given back");
}

#[tokio::test]
async fn the_sessions_of_a_killed_server_go_on_at_another() {
    let (bench, here, there) = SharedBench::with_shards(4).await;
    enqueue(&here.queues, 0..4).await;
    let session = open(&here.queues, "worker-7").await;
    let first = dequeue(&here.queues, call(session, 1, 1)).await.expect("leases");
    here.kill().await;
    assert_eq!(
        dequeue(&there.queues, call(session, 1, 2)).await.map(|again| tokens(&again)).ok(),
        Some(tokens(&first))
    );
    let second = dequeue(&there.queues, received(session, 2, 1)).await.expect("leases");
    assert_eq!(second.len(), 2);
    for _ in 0..4 {
        bench.pass(SESSION_LEASE / 2).await;
        there.queues.sessions.heartbeat(session, Some(2)).await.expect("alive");
    }
    assert_eq!(depth(&there.queues, MessageState::Running).await, 4);
    let again = bench.server(3).await;
    let next = open(&again.queues, "worker-7").await;
    assert_eq!(dequeue(&there.queues, call(next, 1, 1)).await.expect("leases").len(), 2, "the label ended the other");
    assert_eq!(reason_of(again.queues.sessions.heartbeat(session, None).await), Reason::SessionReplaced);
}

#[tokio::test]
async fn an_end_that_its_server_did_not_finish_is_finished_by_another() {
    let (bench, here, there) = SharedBench::with_shards(4).await;
    enqueue(&here.queues, 0..2).await;
    let session = open(&here.queues, "").await;
    assert_eq!(dequeue(&here.queues, call(session, 1, 1)).await.expect("leases").len(), 2);
    let directory = bench.stores.shared.as_ref().expect("they share it").sessions.clone();
    directory.end(session, Ending::Closed).await.expect("an answer");
    here.kill().await;
    bench.pass(SESSION_END_TAKEN_OVER_AFTER - SECOND).await;
    assert_eq!(depth(&there.queues, MessageState::Running).await, 2);
    bench.pass(SESSION_END_TAKEN_OVER_AFTER + SECOND).await;
    assert_eq!(depth(&there.queues, MessageState::Pending).await, 2);
    assert_eq!(directory.unfinished(Duration::ZERO, 9).await.expect("an answer"), []);
}

#[tokio::test]
async fn a_recall_asks_only_shards_that_the_session_has_touched() {
    let (bench, here, there) = SharedBench::with_shards(16).await;
    let SharedBench { clock, stores } = bench;
    drop((here, there));
    let (stores, watched) = WatchedShards::over(stores, || CallFate::Answered);
    let bench = SharedBench { clock, stores };
    let (here, there) = (bench.server(3).await, bench.server(4).await);
    let session = open(&here.queues, "").await;
    assert!(dequeue(&there.queues, call(session, 1, 2)).await.expect("an answer").is_empty());
    assert!(watched.recalled().is_empty(), "it has touched none");
    enqueue(&here.queues, [1]).await;
    assert_eq!(dequeue(&here.queues, call(session, 2, 1)).await.expect("a lease").len(), 1);
    assert!(watched.recalled().is_empty(), "it is no repeat");
    assert_eq!(dequeue(&there.queues, call(session, 2, 2)).await.expect("a lease").len(), 1);
    assert_eq!(watched.recalled().len(), 1);
}

#[tokio::test]
async fn streams_of_one_session_at_two_servers_never_share_a_call() {
    let (_bench, here, there) = SharedBench::with_shards(1).await;
    let session = open(&here.queues, "").await;
    let mut first = here.queues.work.join_session(session).await.expect("alive");
    let mut second = there.queues.work.join_session(session).await.expect("alive");
    let mut seen = std::collections::BTreeSet::new();
    let mut given = 0;
    for round in 0..12 {
        enqueue(&here.queues, 10 * round..10 * round + 2).await;
        for lease in stream_leases(&there.queues, &mut second, 1).await.into_iter().chain(
            // A shard forgets the calls of the first stream once the second had eight: it goes on with other numbers.
            if round % 11 == 0 { stream_leases(&here.queues, &mut first, 1).await } else { Vec::new() },
        ) {
            given += 1;
            seen.insert(lease.token);
        }
    }
    assert_eq!((given, seen.len()), (14, 14), "each lease was given once");
}

#[tokio::test]
async fn a_session_whose_directory_has_no_room_is_refused_and_its_label_keeps_the_older_one() {
    let clock = tallystone::adapters::manual::ManualClock::at(tallystone::domain::Timestamp::from_secs(1_000));
    let sessions = std::sync::Arc::new(tallystone::adapters::memory::MemorySessions::with_room(
        std::sync::Arc::new(clock.clone()),
        1,
    ));
    let stores = super::servers::shared_stores(&clock);
    let shared = stores.shared.map(|shared| tallystone::ports::SharedQueues { sessions, ..shared });
    let stores = tallystone::ports::QueueStores { shared, ..stores };
    let (_bench, here, there) = SharedBench { clock, stores }.with_servers(1).await;
    let session = open(&here.queues, "worker-7").await;
    let refused = there.queues.sessions.open_session(&nobody(), "worker-7", None).await;
    assert_eq!(reason_of(refused), Reason::RetryLater);
    here.queues.sessions.heartbeat(session, None).await.expect("alive");
}
