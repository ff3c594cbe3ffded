//! The laws of `QueueCatalog`, beyond those of `Catalog`.

use tallystone_domain::queue::messages::lease_seal::{LEASE_KEY_BYTES, LeaseKey};
use tallystone_domain::queue::{CatalogQueue, QueueId};
use tallystone_ports::QueueRequest;

use crate::catalog::TriedEntry;
use crate::given::at;
use crate::queue_given::on_every_queue_store;

#[tokio::test]
async fn queue_catalog_law_1_load_answers_live_queues_by_name() {
    on_every_queue_store(async |bench| {
        for (id, name) in [(3, "c"), (1, "a"), (2, "b")] {
            let record = CatalogQueue::record(id, None, name, Some("new"));
            bench.stores.catalog.commit(record).await.expect("a creation");
        }
        let loaded = bench.stores.catalog.load().await.expect("a read");
        let names: Vec<&str> = loaded.iter().map(|queue| queue.spec.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    })
    .await;
}

/// A request that is kept until so many milliseconds after the beginning.
pub fn request(queue: u128, token: &str, through: u64, millis: i64) -> QueueRequest {
    let (through, ended_by) = (vec![through, u64::MAX], Some(at(millis - 1)));
    let (token, fingerprint) = (token.into(), u64::MAX - 7);
    QueueRequest { queue: QueueId(queue), token, fingerprint, through, ended_by, until: at(millis) }
}

#[tokio::test]
async fn queue_catalog_law_2_a_request_is_answered_as_it_was_kept_last_until_its_time_is_over() {
    on_every_queue_store(async |bench| {
        let catalog = &bench.stores.catalog;
        let kept = async |queue, token: &str| catalog.saved_request(QueueId(queue), token).await.expect("a read");
        assert_eq!(kept(1, "a").await, None);
        let requests = [request(1, "a", 3, 60), request(1, "b", 4, 90), request(2, "a", 5, 90)];
        for request in &requests {
            catalog.save_request(request.clone(), at(0)).await.expect("room");
        }
        for request in &requests {
            assert_eq!(kept(request.queue.0, &request.token).await.as_ref(), Some(request));
        }
        catalog.save_request(request(1, "b", 9, 90), at(59)).await.expect("room");
        assert_eq!(kept(1, "b").await, Some(request(1, "b", 9, 90)));
        assert_eq!(kept(1, "a").await.as_ref(), requests.first(), "its time is not over");
        catalog.save_request(request(3, "c", 0, 90), at(60)).await.expect("room");
        assert_eq!(kept(1, "a").await, None, "it gave way");
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_3_a_store_has_one_lease_key() {
    on_every_queue_store(async |bench| {
        let first = LeaseKey([1; LEASE_KEY_BYTES]);
        for made in [first, LeaseKey([2; LEASE_KEY_BYTES]), first] {
            assert_eq!(bench.stores.catalog.lease_key(made).await.expect("a key"), first);
        }
    })
    .await;
}
