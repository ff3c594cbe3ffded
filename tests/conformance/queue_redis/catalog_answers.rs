//! The catalog on a Redis server: commits of two servers at once, and commits whose answers are lost.

use std::time::Duration;

use tallystone_domain::queue::{CatalogQueue, QueueName};
use tallystone_ports::{EffectOutcome, QueueStores, StoreErrorKind};
use tokio::task::JoinSet;

use super::server::{QueueServer, on_every_redis};
use crate::catalog::TriedEntry;
use crate::servers::proxy::{Fault, Proxy, Wire};

/// A deadline that a test can wait out, and that a busy machine keeps.
const SHORT: Duration = Duration::from_secs(2);

async fn names(stores: &QueueStores) -> Vec<(u128, u64)> {
    let queues = stores.catalog.load().await.expect("a read");
    queues.into_iter().map(|queue| (queue.id.0, queue.version)).collect()
}

async fn changes(stores: &QueueStores) -> usize {
    let name = QueueName::new("mail").expect("a valid name");
    stores.catalog.history(&name, 0, 99).await.expect("a history").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_servers_that_create_a_queue_of_one_name_one_does() {
    on_every_redis(async |server, clock| {
        let servers = [server.stores(&clock).await, server.stores(&clock).await];
        for round in 0..20_u32 {
            let mut racing = JoinSet::new();
            for (at, stores) in servers.iter().enumerate() {
                let stores = stores.clone();
                let id = 2 * round + 1 + u32::try_from(at).expect("two servers");
                let record = CatalogQueue::record(id, None, &format!("mail-{round}"), Some("new"));
                racing.spawn(async move { stores.catalog.commit(record).await.map(|()| id) });
            }
            let answers = racing.join_all().await;
            let created: Vec<u32> = answers.iter().filter_map(|answer| answer.as_ref().ok()).copied().collect();
            assert_eq!(created.len(), 1, "{answers:?}");
            let refused = answers.iter().find_map(|answer| answer.as_ref().err()).expect("one is refused");
            assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
            for stores in &servers {
                let queues = stores.catalog.load().await.expect("a read");
                let of_round = queues.iter().find(|queue| queue.spec.name.as_str() == format!("mail-{round}"));
                assert_eq!(of_round.map(|queue| queue.id.0), Some(u128::from(created[0])));
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_was_lost_is_found_in_the_history_and_done_once() {
    on_every_redis(async |server, clock| {
        let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
        let client = QueueServer::client_at(proxy.address(), Duration::from_secs(10)).await;
        let stores = QueueServer::stores_of(client, &clock);
        assert_eq!(names(&stores).await, []);
        for (version, text) in [(None, Some("new")), (Some(1), Some("second")), (Some(2), None)] {
            let lost = proxy.lost();
            proxy.set(Fault::LoseOne);
            let record = CatalogQueue::record(7, version, "mail", text);
            stores.catalog.commit(record).await.expect("it is found");
            assert_eq!(proxy.lost(), lost + 1, "the answer was lost");
            let now = version.unwrap_or(0) + 1;
            let live = if text.is_some() { vec![(7, now)] } else { Vec::new() };
            assert_eq!(names(&stores).await, live);
            assert_eq!(changes(&stores).await as u64, now, "each change is there once");
        }
        proxy.set(Fault::LoseOne);
        let stale = CatalogQueue::record(7, Some(1), "mail", Some("stale"));
        let refused = stores.catalog.commit(stale).await.expect_err("it is not there any more");
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_any_answer_is_unknown() {
    on_every_redis(async |server, clock| {
        let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
        let stores = QueueServer::stores_of(QueueServer::client_at(proxy.address(), SHORT).await, &clock);
        // So that the functions are loaded: a lost refusal is not what this is about.
        stores.catalog.commit(CatalogQueue::record(6, None, "other", Some("new"))).await.expect("a creation");
        proxy.set(Fault::LoseAnswers);
        let record = CatalogQueue::record(7, None, "mail", Some("new"));
        let unknown = stores.catalog.commit(record.clone()).await.expect_err("nothing is answered");
        assert_eq!((unknown.kind, unknown.outcome), (StoreErrorKind::Unavailable, EffectOutcome::Unknown));
        proxy.set(Fault::None);
        let other = server.stores(&clock).await;
        assert_eq!(names(&other).await, [(7, 1), (6, 1)], "this one was applied");
        let repeated = other.catalog.commit(record).await.expect_err("another caller cannot know");
        assert_eq!(repeated.kind, StoreErrorKind::Conflict);
    })
    .await;
}
