//! The laws of `NamespaceStore`, beyond those of `Catalog`.

use tallystone_domain::counter::{DatasetId, NamespaceId};
use tallystone_domain::namespace::{Dataset, DatasetSettings, Namespace};
use tallystone_ports::{NamespaceRecord, StoreError, Stores};

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::catalog::{TriedEntry, check_conflict, namespace_spec as spec};
use crate::given::namespace_name;

fn record(id: u32, expected_version: Option<u64>, text: Option<&str>, name: &str) -> NamespaceRecord {
    Namespace::record(id, expected_version, name, text)
}

fn creation(id: u32, name: &str) -> NamespaceRecord {
    record(id, None, Some("new"), name)
}

fn dataset(id: u32, name: &str) -> Dataset {
    Dataset { id: DatasetId(id), name: namespace_name(name), settings: DatasetSettings::default(), cluster: None }
}

async fn commit(stores: &Stores, record: NamespaceRecord) -> Result<(), StoreError> {
    stores.catalog.commit(record).await
}

#[tokio::test]
async fn namespace_store_law_1_a_dataset_is_made_with_its_namespace_or_not_at_all() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let empty = stores.catalog.load().await.expect("a state");
        let id = u32::try_from(empty.next_namespace_id).expect("small");
        let mut record = creation(id, "shop");
        record.companion = Some(dataset(empty.next_dataset_id, "events"));
        commit(stores, record.clone()).await.expect("a creation");
        let state = stores.catalog.load().await.expect("a state");
        assert_eq!(state.namespaces, [record.entry.expect("it creates")]);
        assert_eq!(state.datasets, [record.companion.expect("it creates")]);
        assert!(state.next_namespace_id > empty.next_namespace_id);
        assert!(state.next_dataset_id > empty.next_dataset_id);
        let history = stores.catalog.history(&namespace_name("shop"), None, 9).await.expect("a history");
        assert_eq!(history, [record.change]);
        let mut exists = creation(id + 1, "shop");
        exists.companion = Some(dataset(9, "more"));
        check_conflict(commit(stores, exists).await);
        assert_eq!(stores.catalog.load().await.expect("a state"), state);
    })
    .await;
}

#[tokio::test]
async fn namespace_store_law_1_numbers_only_grow() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let mut first = creation(10, "shop");
        first.companion = Some(dataset(5, "events"));
        commit(stores, first).await.expect("a creation");
        commit(stores, record(10, Some(1), None, "shop")).await.expect("a deletion");
        let state = stores.catalog.load().await.expect("a state");
        assert!(state.namespaces.is_empty());
        assert!(state.next_namespace_id > 10 && state.next_dataset_id > 5);
        check_conflict(commit(stores, creation(10, "shop")).await);
        check_conflict(commit(stores, creation(9, "shop")).await);
        let mut old_dataset = creation(11, "shop");
        old_dataset.companion = Some(dataset(5, "other"));
        check_conflict(commit(stores, old_dataset).await);
        commit(stores, creation(11, "shop")).await.expect("the next number");
    })
    .await;
}

#[tokio::test]
async fn namespace_store_law_2_every_version_stays_readable() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        commit(stores, creation(10, "shop")).await.expect("a creation");
        commit(stores, record(10, Some(1), Some("second"), "shop")).await.expect("a change");
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
async fn namespace_store_law_2_datasets_and_versions_outlive_the_process() {
    on_every_durable_backend(async |bench, ending| {
        let mut first = creation(10, "shop");
        first.companion = Some(dataset(3, "events"));
        commit(&bench.stores, first).await.expect("a creation");
        commit(&bench.stores, record(10, Some(1), Some("second"), "shop")).await.expect("a change");
        let before = bench.stores.catalog.load().await.expect("a state");
        let bench = bench.reopen(ending).await;
        let catalog = &bench.stores.catalog;
        assert_eq!(catalog.load().await.expect("a state"), before);
        assert_eq!(catalog.version_of(NamespaceId(10), 1).await.expect("a version"), Some(spec("shop", "new")));
    })
    .await;
}
