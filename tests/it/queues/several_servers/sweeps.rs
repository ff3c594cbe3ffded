//! The owner of a shard sweeps it. Another server steps in where the owner does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tallystone::domain::queue::{Command, MessageState};
use tallystone::engine::catalog::FollowedCatalog;
use tallystone::engine::queues::{QueueDraft, SentMessage};

use super::{LOOPS, SharedStore, SharingServer, draft, eventually, name};
use crate::support::judging::{Judged, Judging};

const SHARDS: u32 = 16;
const STEP: Duration = Duration::from_millis(10);

/// A server that counts its sweeps.
struct CountedServer {
    server: SharingServer,
    sweeps: Arc<AtomicU64>,
}

impl CountedServer {
    async fn start(store: &SharedStore) -> Self {
        let sweeps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sweeps);
        let stores = Judging::before(store.stores.clone(), move |command| {
            if matches!(command, Command::Sweep { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Judged::Taken
        });
        Self { server: store.server_on(stores).await, sweeps }
    }

    fn sweeps(&self) -> u64 {
        self.sweeps.load(Ordering::SeqCst)
    }

    fn of_state(&self, state: MessageState) -> u64 {
        self.server.queues.backlogs().iter().map(|backlog| backlog.messages[state as usize]).sum()
    }
}

/// Two servers that know each other, and a message in every shard that becomes visible in a second.
async fn two_servers(store: &SharedStore) -> [CountedServer; 2] {
    let [one, other] = [CountedServer::start(store).await, CountedServer::start(store).await];
    store.clock.advance(Duration::from_secs(1));
    store.clock.wait_for_sleepers(2 * LOOPS).await;
    one.server.create(QueueDraft { shards: Some(SHARDS), ..draft("mail") }).await.expect("created");
    other.server.queues.catalog.follow().await.expect("a read");
    for shard in 0..SHARDS {
        // Each shard key selects some shard; more keys than shards fill all of them.
        for key in 0..8 {
            let shard_key = Some(format!("{shard}/{key}").into());
            let sent = SentMessage { shard_key, invisibility: Some(Duration::from_secs(1)), ..SentMessage::default() };
            one.server.send("mail", sent).await.expect("enqueued");
        }
    }
    let depth = one.server.queues.inspect.depth(&name("mail"), Default::default()).await.expect("a depth");
    assert!(depth.by_shard.iter().all(|totals| totals[MessageState::Invisible as usize].messages > 0));
    [one, other]
}

const MESSAGES: u64 = 8 * SHARDS as u64;

#[tokio::test]
async fn while_both_servers_live_each_shard_is_swept_once_by_its_owner() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    store.clock.advance(Duration::from_secs(1));
    eventually("all are visible", async || one.of_state(MessageState::Pending) == MESSAGES).await;
    store.clock.wait_for_sleepers(2 * LOOPS).await;
    for _ in 0..100 {
        store.clock.advance(STEP);
        tokio::task::yield_now().await;
    }
    let (first, second) = (one.sweeps(), other.sweeps());
    assert_eq!(first + second, u64::from(SHARDS), "one sweep for each shard: {first} and {second}");
    assert!(first > 0 && second > 0, "both own shards: {first} and {second}");
}

#[tokio::test]
async fn the_shards_of_a_dead_owner_are_swept_within_a_second() {
    let store = SharedStore::new();
    let [one, other] = two_servers(&store).await;
    other.server.driver.abandon().await;
    store.clock.advance(Duration::from_secs(1));
    let mut waited = Duration::ZERO;
    while one.of_state(MessageState::Pending) < MESSAGES {
        assert!(waited < Duration::from_secs(1), "{} of {MESSAGES}", one.of_state(MessageState::Pending));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        store.clock.advance(STEP);
        waited += STEP;
    }
    assert!(waited >= Duration::from_millis(200), "the shards of the other server are not swept at once: {waited:?}");
    assert_eq!((one.sweeps(), other.sweeps()), (u64::from(SHARDS), 0));
}
