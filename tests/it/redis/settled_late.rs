//! Work that is done while Redis is away is settled once it is back, although the session of its worker is over by then.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tallystone::client::queues::{Job, Message, Outcome, Queue, Shutdown, StopReason, WorkerEvent};
use tallystone::client::{Client, RetryPolicy};
use tokio::sync::{Notify, mpsc};

use super::*;

/// One attempt for each call, so that what goes on trying is the worker.
const ONCE: RetryPolicy = RetryPolicy {
    attempts_max: 1,
    total: BACK_WITHIN,
    pause_first: Duration::from_millis(100),
    pause_max: Duration::from_secs(2),
    attempt_max: BACK_WITHIN,
    hedge_after: None,
};
/// So long that a busy machine keeps it alive while Redis is there.
const SESSION: Duration = Duration::from_secs(10);

/// Ends Redis, or starts it again.
async fn with_redis(redis: &Arc<Mutex<RedisServer>>, act: fn(&mut RedisServer)) {
    let redis = Arc::clone(redis);
    let acted = tokio::task::spawn_blocking(move || act(&mut redis.lock().unwrap_or_else(PoisonError::into_inner)));
    acted.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_was_done_during_an_outage_is_settled_after_the_session_of_its_worker() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let server = dev_on(&redis).start();
    let created =
        server.post("/tallystone.queue.v1.QueueService/CreateQueue", &json!({"queue": {"name": "mail"}}).to_string());
    assert_eq!(created.status, 200, "{}", created.body);
    let client = Client::new(&server.address.to_string(), ONCE).expect("a valid address");
    let queue: Queue<u32> = client.queue("mail");
    let messages = (0..2).map(|n| Message::new(&n).expect("a number").id(format!("m-{n}"))).collect();
    queue.send_all(messages).await.expect("they are taken in");
    let (redis, both, shutdown) = (Arc::new(Mutex::new(redis)), Arc::new(Notify::new()), Shutdown::default());
    let (end, _runs) = (shutdown.clone(), Arc::clone(&redis));
    let work = move |number: u32, mut job: Job| {
        let (redis, both, end) = (Arc::clone(&redis), Arc::clone(&both), end.clone());
        async move {
            if number == 0 {
                both.notified().await;
                with_redis(&redis, RedisServer::kill).await;
                return Outcome::Complete;
            }
            both.notify_one();
            // The session of both is over, and with it their leases, as far as the worker knows.
            assert_eq!(job.must_end().await, StopReason::LeaseLost);
            with_redis(&redis, |redis| redis.restart().expect("it starts")).await;
            end.stop_leasing();
            Outcome::Release
        }
    };
    let (events, mut heard) = mpsc::channel(16);
    let worker = queue.worker().concurrency(2).session_lease(SESSION).grace(BACK_WITHIN).observed(move |event| {
        let told = match event {
            WorkerEvent::SettleDelayed { message_id, .. } => format!("{message_id} later"),
            WorkerEvent::SettleFailed { message_id, error } => format!("{message_id} never: {error}"),
            _ => return, // nothing else is about settlements
        };
        events.try_send(told).expect("the test hears it");
    });
    let summary = tokio::time::timeout(3 * BACK_WITHIN, queue.run(&worker, work, &shutdown)).await;
    let summary = summary.expect("it ends").expect("outages pass");
    assert_eq!((summary.completed, summary.others), (1, 1), "{summary:?}");
    assert_eq!((heard.recv().await.as_deref(), heard.try_recv().ok()), (Some("m-0 later"), None));
    let depth = server.post("/tallystone.queue.v1.QueueService/GetDepth", &json!({"queue": "mail"}).to_string()).json();
    assert_eq!(depth["completed"], "1", "{depth}");
}
