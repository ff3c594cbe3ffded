//! The laws of `Catalog`.

use std::time::Duration;

use tallystone::domain::counter::{DatasetId, NamespaceId};
use tallystone::domain::namespace::{Dataset, DatasetSettings, Namespace, NamespaceSpec, SeriesSettings};
use tallystone::ports::{EffectOutcome, NamespaceChange, NamespaceRecord, StoreError, StoreErrorKind, Stores};
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{at, namespace_name};

/// A spec in which every field differs from its default.
fn spec(name: &str, description: &str) -> NamespaceSpec {
    let mut spec = NamespaceSpec::with_defaults(namespace_name(name));
    spec.description = description.to_owned();
    spec.ttl = Some(Duration::from_secs(90));
    spec.series = vec![SeriesSettings { step_seconds: 60, keep: Duration::from_secs(3_600) }];
    spec.storage.dataset = namespace_name("events");
    spec
}

fn record(id: u64, expected_version: Option<u64>, spec: Option<NamespaceSpec>, name: &str) -> NamespaceRecord {
    let version = expected_version.unwrap_or(0) + 1;
    let namespace = spec.clone().map(|spec| Namespace {
        id: NamespaceId(id),
        dataset_id: DatasetId(1),
        version,
        spec,
        created: at(0),
        updated: at(i64::try_from(version).expect("small")),
    });
    let change = NamespaceChange {
        namespace: NamespaceId(id),
        name: namespace_name(name),
        version,
        time: at(i64::try_from(version).expect("small")),
        actor: "ada".to_owned(),
        reason: "test".to_owned(),
        differences: vec![format!("version {version}")],
        spec,
    };
    NamespaceRecord { expected_version, namespace, new_dataset: None, change }
}

fn creation(id: u64, name: &str) -> NamespaceRecord {
    record(id, None, Some(spec(name, "new")), name)
}

fn dataset(id: u32, name: &str) -> Dataset {
    Dataset { id: DatasetId(id), name: namespace_name(name), settings: DatasetSettings::default(), cluster: None }
}

async fn commit(stores: &Stores, record: NamespaceRecord) -> Result<(), StoreError> {
    stores.catalog.commit(record).await
}

fn check_conflict(answer: Result<(), StoreError>) {
    let refused = answer.expect_err("a conflict");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
}

#[tokio::test]
async fn catalog_law_1_a_commit_applies_all_of_a_record() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let empty = stores.catalog.load().await.expect("a state");
        assert!(empty.namespaces.is_empty() && empty.datasets.is_empty());
        let mut record = creation(empty.next_namespace_id, "shop");
        record.new_dataset = Some(dataset(empty.next_dataset_id, "events"));
        commit(stores, record.clone()).await.expect("a creation");
        let state = stores.catalog.load().await.expect("a state");
        assert_eq!(state.namespaces, [record.namespace.expect("it creates")]);
        assert_eq!(state.datasets, [record.new_dataset.expect("it creates")]);
        assert!(state.next_namespace_id > empty.next_namespace_id);
        assert!(state.next_dataset_id > empty.next_dataset_id);
        let history = stores.catalog.history(&namespace_name("shop"), None, 9).await.expect("a history");
        assert_eq!(history, [record.change]);
    })
    .await;
}

#[tokio::test]
async fn catalog_law_1_a_record_whose_expectation_does_not_hold_changes_nothing() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        commit(stores, creation(10, "shop")).await.expect("a creation");
        commit(stores, record(10, Some(1), Some(spec("shop", "second")), "shop")).await.expect("a change");
        let before = stores.catalog.load().await.expect("a state");
        let mut exists = creation(11, "shop");
        exists.new_dataset = Some(dataset(9, "more"));
        check_conflict(commit(stores, exists).await);
        check_conflict(commit(stores, record(10, Some(1), Some(spec("shop", "stale")), "shop")).await);
        check_conflict(commit(stores, record(10, Some(3), Some(spec("shop", "early")), "shop")).await);
        check_conflict(commit(stores, record(12, Some(1), Some(spec("nobody", "absent")), "nobody")).await);
        check_conflict(commit(stores, record(10, Some(1), None, "shop")).await);
        assert_eq!(stores.catalog.load().await.expect("a state"), before);
        assert_eq!(stores.catalog.history(&namespace_name("shop"), None, 9).await.expect("a history").len(), 2);
        assert_eq!(stores.catalog.history(&namespace_name("nobody"), None, 9).await.expect("a history"), []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn catalog_law_1_of_racing_changes_of_a_version_one_is_committed() {
    on_every_backend(async |bench| {
        commit(&bench.stores, creation(10, "shop")).await.expect("a creation");
        for version in 1..=10 {
            let mut racing = JoinSet::new();
            for task in 0..4 {
                let stores = bench.stores.clone();
                racing.spawn(async move {
                    let text = format!("task {task}");
                    commit(&stores, record(10, Some(version), Some(spec("shop", &text)), "shop")).await.is_ok()
                });
            }
            let committed = racing.join_all().await.into_iter().filter(|committed| *committed).count();
            assert_eq!(committed, 1, "of version {version}");
        }
    })
    .await;
}

#[tokio::test]
async fn catalog_law_1_commits_outlive_the_process() {
    on_every_durable_backend(async |bench, ending| {
        let mut first = creation(10, "shop");
        first.new_dataset = Some(dataset(3, "events"));
        commit(&bench.stores, first).await.expect("a creation");
        commit(&bench.stores, record(10, Some(1), Some(spec("shop", "second")), "shop")).await.expect("a change");
        commit(&bench.stores, creation(11, "gone")).await.expect("a creation");
        commit(&bench.stores, record(11, Some(1), None, "gone")).await.expect("a deletion");
        let before = bench.stores.catalog.load().await.expect("a state");
        let bench = bench.reopen(ending).await;
        let catalog = &bench.stores.catalog;
        assert_eq!(catalog.load().await.expect("a state"), before);
        assert_eq!(catalog.version_of(NamespaceId(10), 1).await.expect("a version"), Some(spec("shop", "new")));
        assert_eq!(catalog.history(&namespace_name("gone"), None, 9).await.expect("a history").len(), 2);
        check_conflict(commit(&bench.stores, creation(11, "again")).await);
    })
    .await;
}

#[tokio::test]
async fn catalog_law_2_numbers_are_never_given_twice() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let mut first = creation(10, "shop");
        first.new_dataset = Some(dataset(5, "events"));
        commit(stores, first).await.expect("a creation");
        commit(stores, record(10, Some(1), None, "shop")).await.expect("a deletion");
        let state = stores.catalog.load().await.expect("a state");
        assert!(state.namespaces.is_empty());
        assert!(state.next_namespace_id > 10 && state.next_dataset_id > 5);
        check_conflict(commit(stores, creation(10, "shop")).await);
        check_conflict(commit(stores, creation(9, "shop")).await);
        let mut old_dataset = creation(11, "shop");
        old_dataset.new_dataset = Some(dataset(5, "other"));
        check_conflict(commit(stores, old_dataset).await);
        commit(stores, creation(11, "shop")).await.expect("the next number");
    })
    .await;
}

#[tokio::test]
async fn catalog_law_3_every_version_stays_readable() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        commit(stores, creation(10, "shop")).await.expect("a creation");
        commit(stores, record(10, Some(1), Some(spec("shop", "second")), "shop")).await.expect("a change");
        commit(stores, record(10, Some(2), None, "shop")).await.expect("a deletion");
        let version_of = |version| stores.catalog.version_of(NamespaceId(10), version);
        assert_eq!(version_of(1).await.expect("a version"), Some(spec("shop", "new")));
        assert_eq!(version_of(2).await.expect("a version"), Some(spec("shop", "second")));
        assert_eq!(version_of(3).await.expect("a version"), None, "the deletion has no settings");
        assert_eq!(version_of(0).await.expect("a version"), None);
        let nobody = stores.catalog.version_of(NamespaceId(99), 1).await;
        assert_eq!(nobody.expect("a version"), None);
    })
    .await;
}

#[tokio::test]
async fn catalog_law_4_the_history_of_a_name_goes_over_all_that_had_it_newest_first() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        commit(stores, creation(10, "shop")).await.expect("a creation");
        commit(stores, creation(11, "other")).await.expect("a creation");
        commit(stores, record(10, Some(1), Some(spec("shop", "second")), "shop")).await.expect("a change");
        commit(stores, record(10, Some(2), None, "shop")).await.expect("a deletion");
        commit(stores, creation(12, "shop")).await.expect("a creation");
        let shop = namespace_name("shop");
        let places = |changes: &[NamespaceChange]| {
            changes.iter().map(|change| (change.namespace.0, change.version)).collect::<Vec<_>>()
        };
        let all = stores.catalog.history(&shop, None, 9).await.expect("a history");
        assert_eq!(places(&all), [(12, 1), (10, 3), (10, 2), (10, 1)]);
        assert_eq!(all[1].spec, None);
        let page = stores.catalog.history(&shop, None, 2).await.expect("a history");
        assert_eq!(page, all[..2]);
        let rest = stores.catalog.history(&shop, Some((NamespaceId(10), 3)), 9).await.expect("a history");
        assert_eq!(rest, all[2..]);
    })
    .await;
}
