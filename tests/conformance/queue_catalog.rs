//! The laws of `QueueCatalog`.

use tallystone::domain::queue::messages::lease_seal::{LEASE_KEY_BYTES, LeaseKey};
use tallystone::domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone::ports::{
    EffectOutcome, QueueChange, QueueDeletion, QueueRecord, QueueRequest, StoreError, StoreErrorKind,
};
use tokio::task::JoinSet;

use crate::given::at;
use crate::queue_given::{QueueBench, on_every_queue_store, spec};

/// The change that makes the next version of a queue; without text it deletes it.
pub fn record(id: u128, expected_version: Option<u64>, name: &str, text: Option<&str>) -> QueueRecord {
    let version = expected_version.unwrap_or(0) + 1;
    let spec = text.map(|text| spec(name, text));
    let time = at(i64::try_from(version).expect("small"));
    let queue = spec.clone().map(|spec| CatalogQueue { id: QueueId(id), spec, version, created: at(0), updated: time });
    let change = QueueChange {
        queue: QueueId(id),
        name: QueueName::new(name).expect("a valid name"),
        version,
        time,
        actor: "ada".to_owned(),
        reason: "test".to_owned(),
        differences: vec![format!("version {version}")],
        // A creation and a change have none.
        deletion: text.is_none().then(|| QueueDeletion { token: Some("once".into()), messages: 3 }),
        spec,
    };
    QueueRecord { expected_version, queue, change }
}

async fn commit(bench: &QueueBench, record: QueueRecord) -> Result<(), StoreError> {
    bench.stores.catalog.commit(record).await
}

fn check_conflict(answer: Result<(), StoreError>) {
    let refused = answer.expect_err("a conflict");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
}

#[tokio::test]
async fn queue_catalog_law_1_a_record_is_applied_whole_or_not_at_all() {
    on_every_queue_store(async |bench| {
        assert_eq!(bench.stores.catalog.load().await.expect("a read"), []);
        let first = record(1, None, "mail", Some("new"));
        commit(&bench, first.clone()).await.expect("a creation");
        let second = record(1, Some(1), "mail", Some("changed"));
        commit(&bench, second.clone()).await.expect("a change");
        for stale in [None, Some(1), Some(3)] {
            check_conflict(commit(&bench, record(1, stale, "mail", Some("stale"))).await);
        }
        check_conflict(commit(&bench, record(1, Some(1), "mail", None)).await);
        check_conflict(commit(&bench, record(2, Some(1), "absent", Some("absent"))).await);
        assert_eq!(bench.stores.catalog.load().await.expect("a read"), [second.queue.expect("it changes")]);
        let history = bench.stores.catalog.history(&first.change.name, 0, 9).await.expect("a read");
        assert_eq!(history, [second.change, first.change]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queue_catalog_law_1_of_racing_changes_of_a_version_one_is_committed() {
    on_every_queue_store(async |bench| {
        commit(&bench, record(1, None, "mail", Some("new"))).await.expect("a creation");
        for version in 1..=10 {
            let mut racing = JoinSet::new();
            for task in 0..4 {
                let catalog = bench.stores.catalog.clone();
                let record = record(1, Some(version), "mail", Some(&format!("task {task}")));
                racing.spawn(async move { catalog.commit(record).await.is_ok() });
            }
            let committed = racing.join_all().await.into_iter().filter(|committed| *committed).count();
            assert_eq!(committed, 1, "of version {version}");
        }
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_2_a_number_stands_for_one_queue_for_ever() {
    on_every_queue_store(async |bench| {
        commit(&bench, record(1, None, "mail", Some("new"))).await.expect("a creation");
        check_conflict(commit(&bench, record(1, None, "post", Some("same number"))).await);
        check_conflict(commit(&bench, record(2, Some(1), "mail", Some("other number"))).await);
        commit(&bench, record(1, Some(1), "mail", None)).await.expect("a deletion");
        check_conflict(commit(&bench, record(1, None, "mail", Some("again"))).await);
        commit(&bench, record(2, None, "mail", Some("another queue"))).await.expect("the name is free");
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_3_load_answers_live_queues_by_name() {
    on_every_queue_store(async |bench| {
        for (id, name) in [(3, "c"), (1, "a"), (2, "b")] {
            commit(&bench, record(id, None, name, Some("new"))).await.expect("a creation");
        }
        commit(&bench, record(1, Some(1), "a", None)).await.expect("a deletion");
        let loaded = bench.stores.catalog.load().await.expect("a read");
        let names: Vec<&str> = loaded.iter().map(|queue| queue.spec.name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_4_the_history_of_a_name_is_that_of_all_who_had_it() {
    on_every_queue_store(async |bench| {
        commit(&bench, record(1, None, "mail", Some("new"))).await.expect("a creation");
        commit(&bench, record(5, None, "other", Some("new"))).await.expect("a creation");
        commit(&bench, record(1, Some(1), "mail", Some("second"))).await.expect("a change");
        commit(&bench, record(1, Some(2), "mail", None)).await.expect("a deletion");
        let mut again = record(2, None, "mail", Some("again"));
        again.change.time = at(9);
        commit(&bench, again).await.expect("a creation");
        let name = QueueName::new("mail").expect("a valid name");
        let places = async |skip, limit| {
            let changes = bench.stores.catalog.history(&name, skip, limit).await.expect("a read");
            changes.iter().map(|change| (change.queue.0, change.version, change.spec.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(places(0, 9).await, [(2, 1, true), (1, 3, false), (1, 2, true), (1, 1, true)]);
        assert_eq!(places(1, 2).await, [(1, 3, false), (1, 2, true)]);
        assert_eq!(places(4, 2).await, []);
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
async fn queue_catalog_law_5_a_request_is_answered_as_it_was_kept_last_until_its_time_is_over() {
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
async fn queue_catalog_law_6_a_store_has_one_lease_key() {
    on_every_queue_store(async |bench| {
        let first = LeaseKey([1; LEASE_KEY_BYTES]);
        for made in [first, LeaseKey([2; LEASE_KEY_BYTES]), first] {
            assert_eq!(bench.stores.catalog.lease_key(made).await.expect("a key"), first);
        }
    })
    .await;
}
