//! Purges, redrives and discards are known at every server, and go on when theirs dies.

use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::queue::MessageState;
use tallystone::domain::queue::command::FailureReport;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::queue::{Command, ShardId};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::FollowedCatalog;
use tallystone::engine::queues::{DeletionRequest, Operation, OperationState, QueueDraft, RedriveRequest};
use tallystone::ports::{Clock as _, ShardCommand};

use super::{SharedStore, SharingServer, author, draft, name};

const SECOND: Duration = Duration::from_secs(1);
const ERRORED: usize = 20;

fn caller() -> CallerId {
    CallerId::of_address([192, 0, 2, 1].into())
}

/// Two servers, and a queue with errored messages.
async fn two_servers(store: &SharedStore) -> [SharingServer; 2] {
    let [one, other] = [store.server().await, store.server().await];
    one.create(QueueDraft { default_attempts: Some(1), shards: Some(2), ..draft("mail") }).await.expect("created");
    other.queues.catalog.follow().await.expect("a read");
    for _ in 0..ERRORED {
        one.enqueue("mail").await.expect("enqueued");
    }
    let queue = one.queues.catalog.get(&name("mail")).expect("it is there").id;
    for leased in one.dequeue("mail", ERRORED).await {
        let token = leased.lease.token;
        let failed = Command::Settle { token, verb: SettleAction::Fail, failure: FailureReport::default() };
        let shard = ShardId { queue, number: token.key.shard };
        let answer = store.stores.shards.apply(shard, vec![ShardCommand::of(failed)]).await.remove(0);
        assert!(answer.expect("taken").reply.is_ok());
    }
    [one, other]
}

async fn errored(server: &SharingServer) -> u64 {
    let depth = server.queues.inspect.depth(&name("mail"), Default::default()).await.expect("a depth");
    depth.of(MessageState::Errored)
}

/// A redrive of two messages a second, so that it takes ten.
async fn slow_redrive(server: &SharingServer, token: Option<&str>) -> Operation {
    let asked = RedriveRequest { rate: 2, token: token.map(str::to_owned), ..RedriveRequest::default() };
    server.queues.operations.redrive(caller(), &name("mail"), asked).await.expect("it begins")
}

/// Lets time pass in small steps, until it is so.
async fn pass_until(store: &SharedStore, within: Duration, what: &str, is_so: impl AsyncFn() -> bool) -> Duration {
    let step = Duration::from_millis(50);
    let mut passed = Duration::ZERO;
    while !is_so().await {
        assert!(passed < within, "not within {within:?}: {what}");
        store.clock.advance(step);
        passed += step;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
    passed
}

#[tokio::test]
async fn an_operation_is_found_at_every_server_with_its_progress_and_its_end() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, None).await;
    let seen = other.queues.operations.operation(&begun.id).await.expect("it is known at once");
    assert_eq!((&seen.state, seen.total, seen.kind), (&OperationState::Running, ERRORED as u64, "redrive"));
    pass_until(&store, 5 * SECOND, "some progress is seen", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.done > 0)
    })
    .await;
    pass_until(&store, 20 * SECOND, "it ends", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.state == OperationState::Done)
    })
    .await;
    let (here, there) =
        (one.queues.operations.operation(&begun.id).await, other.queues.operations.operation(&begun.id).await);
    assert_eq!(here.expect("it is known"), there.expect("it is known"));
    assert_eq!(errored(&other).await, 0);
    let unknown = other.queues.operations.operation("no such operation").await.expect_err("unknown");
    assert_eq!(unknown.reason(), Reason::OperationNotFound);
}

#[tokio::test]
async fn an_operation_is_in_the_list_of_every_server_with_its_progress_and_its_author() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let asked = RedriveRequest { rate: 2, author: "Ann".into(), ..RedriveRequest::default() };
    let begun = one.queues.operations.redrive(caller(), &name("mail"), asked).await.expect("it begins");
    let seen = async |server: &SharingServer| {
        let page = server.queues.operations.list_operations(&name("mail"), None, 10).await.expect("a list");
        assert_eq!((page.operations.len(), page.next), (1, None));
        page.operations.into_iter().next().expect("it is listed at once")
    };
    for server in [&one, &other] {
        let shown = seen(server).await;
        assert_eq!((&shown.id, &shown.state, &*shown.author.text), (&begun.id, &OperationState::Running, "Ann"));
        assert_eq!((shown.began, shown.work.map(|work| work.rate)), (begun.began, Some(2)));
    }
    pass_until(&store, 5 * SECOND, "some progress is seen", async || seen(&other).await.done > 0).await;
    one.driver.abandon().await;
    pass_until(&store, 60 * SECOND, "it ends at the other server", async || {
        seen(&other).await.state == OperationState::Done
    })
    .await;
    let ended = seen(&other).await;
    assert_eq!((ended.id, &*ended.author.text, errored(&other).await), (begun.id, "Ann", 0));
}

#[tokio::test]
async fn an_operation_is_cancelled_from_another_server() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, None).await;
    let queues = other.queues.clone();
    let id = begun.id.clone();
    let cancelled = tokio::spawn(async move { queues.operations.cancel_operation(&id).await });
    pass_until(&store, 5 * SECOND, "the cancel is answered", async || cancelled.is_finished()).await;
    let answer = cancelled.await.expect("no panic").expect("it is known");
    assert_eq!(answer.state, OperationState::Cancelled);
    assert_eq!(one.queues.operations.operation(&begun.id).await.expect("it is known").state, OperationState::Cancelled);
    let left = errored(&one).await;
    assert!(left > 0, "it was cancelled before its end");
    let until = store.clock.elapsed() + 3 * SECOND;
    pass_until(&store, 5 * SECOND, "time passes", async || store.clock.elapsed() >= until).await;
    assert_eq!(errored(&one).await, left, "nothing goes on");
}

#[tokio::test]
async fn a_repeat_at_another_server_finds_the_operation_of_its_token() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, Some("once")).await;
    let again = slow_redrive(&other, Some("once")).await;
    assert_eq!((&again.id, again.state, again.began), (&begun.id, OperationState::Running, begun.began));
    let different = RedriveRequest { token: Some("once".to_owned()), ..RedriveRequest::default() };
    let refused =
        other.queues.operations.redrive(caller(), &name("mail"), different).await.expect_err("another request");
    assert_eq!(refused.reason(), Reason::TokenReused);
    pass_until(&store, 20 * SECOND, "both see its end", async || {
        let ends =
            [one.queues.operations.operation(&begun.id).await, other.queues.operations.operation(&begun.id).await];
        ends.iter().all(|end| end.as_ref().is_ok_and(|end| end.state == OperationState::Done))
    })
    .await;
    let done = other.queues.operations.operation(&begun.id).await.expect("it is known").done;
    assert_eq!(done, ERRORED as u64, "each message was redriven once");
}

#[tokio::test]
async fn an_operation_goes_on_at_another_server_when_its_server_dies() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, Some("once")).await;
    pass_until(&store, 5 * SECOND, "some progress is seen", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.done > 0)
    })
    .await;
    one.driver.abandon().await;
    let left = errored(&other).await;
    assert!(left > 0, "it has not ended");
    let took = pass_until(&store, 60 * SECOND, "it ends", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.state == OperationState::Done)
    })
    .await;
    assert!(took > 30 * SECOND, "a server is dead when its lease is over: {took:?}");
    assert_eq!(errored(&other).await, 0);
}

#[tokio::test]
async fn an_operation_goes_on_at_another_server_soon_after_its_server_has_stopped() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, None).await;
    one.queues.stop_leasing();
    one.driver.drain(store.clock.elapsed()).await;
    pass_until(&store, 20 * SECOND, "it ends", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.state == OperationState::Done)
    })
    .await;
    assert_eq!(errored(&other).await, 0);
}

#[tokio::test]
async fn an_operation_on_a_queue_that_another_server_deletes_fails_as_not_found() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    let begun = slow_redrive(&one, None).await;
    let deletion = DeletionRequest { name: name("mail"), id: None, expected: None, token: None };
    other.queues.catalog.delete(deletion, author()).await.expect("deleted");
    pass_until(&store, 20 * SECOND, "it ends", async || {
        other.queues.operations.operation(&begun.id).await.is_ok_and(|seen| seen.ended.is_some())
    })
    .await;
    let state = other.queues.operations.operation(&begun.id).await.expect("it is known").state;
    assert!(matches!(state, OperationState::Failed(Reason::QueueNotFound, _)), "{state:?}");
}
