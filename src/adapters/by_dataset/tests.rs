//! Tests of two in-memory stores combined into one.

use std::collections::BTreeMap;

use super::by_dataset;
use crate::memory;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{
    Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, NamespaceName, Provenance,
};
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone_domain::rollup::{SliceStatus, TailLookup, TimeSlice};
use tallystone_ports::{EffectOutcome, NamespaceChange, NamespaceRecord, NewEvent, StoreErrorKind, Stores};

const NEAR: (NamespaceId, DatasetId) = (NamespaceId(1), DatasetId(1));
const FAR: (NamespaceId, DatasetId) = (NamespaceId(2), DatasetId(2));

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).expect("a valid name")
}

fn counter(namespace: NamespaceId) -> Counter {
    Counter::new(namespace, CounterName::new("views").expect("a valid name"))
}

fn event() -> Event {
    Event {
        key: EventKey { time: Timestamp::from_secs(5), id: EventId::text("token") },
        change: Change::Add(3),
        provenance: Provenance::default(),
    }
}

/// Creates a namespace and its dataset, stored in a cluster.
async fn made(stores: &Stores, (id, dataset): (NamespaceId, DatasetId), text: &str, cluster: Option<&str>) {
    let mut spec = NamespaceSpec::with_defaults(name(text));
    spec.storage.dataset = name(text);
    let new_dataset = Dataset { id: dataset, name: name(text), settings: spec.dataset, cluster: cluster.map(name) };
    let time = Timestamp::from_secs(0);
    let namespace = Namespace {
        id,
        dataset_id: dataset,
        version: 1,
        spec: spec.clone(),
        created: time,
        updated: time,
        made_by: None,
    };
    let change = NamespaceChange {
        id,
        name: name(text),
        version: 1,
        time,
        actor: String::new(),
        reason: String::new(),
        differences: Vec::new(),
        spec: Some(spec),
        deletion: (),
    };
    let record =
        NamespaceRecord { expected_version: None, entry: Some(namespace), companion: Some(new_dataset), change };
    stores.catalog.commit(record).await.expect("it is committed");
}

/// A primary store, a second store, and their combination, with a dataset in each; returns the combination first.
async fn two() -> (Stores, Stores, Stores) {
    let (home, far) = (memory::stores(), memory::stores());
    let all = by_dataset(home.clone(), BTreeMap::from([(name("far"), far.clone())]));
    made(&all, NEAR, "near-one", None).await;
    made(&all, FAR, "far-one", Some("far")).await;
    for (namespace, dataset) in [NEAR, FAR] {
        let (start, end) = (Timestamp::from_secs(0), Timestamp::from_secs(1_000));
        let versions = BTreeMap::from([(namespace, 1)]);
        let slice = TimeSlice { dataset, start, end, status: SliceStatus::Open, versions };
        all.slices.create(slice).await.expect("a slice");
    }
    (all, home, far)
}

async fn append(stores: &Stores, (namespace, dataset): (NamespaceId, DatasetId)) {
    let events = vec![NewEvent { counter: counter(namespace), event: event() }];
    let appended = stores.log.append(dataset, events, Box::new(())).await;
    assert!(appended.iter().all(Result::is_ok), "{appended:?}");
}

async fn holds(stores: &Stores, (namespace, dataset): (NamespaceId, DatasetId)) -> bool {
    let counter = counter(namespace);
    let found = stores.log.find(dataset, &counter, &event().key).await.expect("it is read");
    let names = stores.rollups.names(namespace, "", None, 10).await.expect("they are read");
    assert_eq!(found.is_some(), !names.is_empty(), "a row and its name are together");
    found.is_some()
}

#[tokio::test]
async fn what_a_dataset_holds_is_in_its_store_alone() {
    let (all, home, far) = two().await;
    for place in [NEAR, FAR] {
        append(&all, place).await;
        assert!(holds(&all, place).await);
    }
    assert!(holds(&home, NEAR).await && !holds(&home, FAR).await);
    assert!(holds(&far, FAR).await && !holds(&far, NEAR).await);
    assert_eq!(far.slices.list(NEAR.1).await.expect("they are read"), []);
    for ((_, dataset), of, other) in [(NEAR, &home, &far), (FAR, &far, &home)] {
        let closed = Timestamp::from_secs(20);
        assert_eq!(all.progress.publish(dataset, closed).await.expect("it is published"), closed);
        assert_eq!(of.progress.limit(dataset).await.expect("it is read"), closed);
        assert_eq!(other.progress.limit(dataset).await.expect("it is read"), Timestamp::MIN);
        all.touches.put_watermarks(dataset, vec![(3, closed)]).await.expect("it is kept");
        assert!(of.touches.watermarks(dataset).await.expect("they are read").contains(&Some(closed)));
        assert!(!other.touches.watermarks(dataset).await.expect("they are read").contains(&Some(closed)));
    }
    let everywhere = all.rollups.namespaces(None, 10).await.expect("they are read");
    assert_eq!(everywhere, [NEAR.0, FAR.0]);
    all.rollups.remove_namespace(FAR.0).await.expect("it is forgotten");
    assert!(far.rollups.names(FAR.0, "", None, 10).await.expect("they are read").is_empty());
    assert!(holds(&all, NEAR).await);
}

#[tokio::test]
async fn a_dataset_of_a_store_that_is_not_there_is_refused_and_begun_nowhere() {
    let (all, home, _) = two().await;
    append(&all, FAR).await;
    let without = by_dataset(home.clone(), BTreeMap::new());
    let events = vec![NewEvent { counter: counter(FAR.0), event: event() }];
    let refused = without.log.append(FAR.1, events, Box::new(())).await.remove(0).expect_err("it is elsewhere");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Unavailable, EffectOutcome::NotApplied));
    let why = refused.source.expect("it says why").to_string();
    assert!(why.contains("cluster far") && why.contains("[clusters.far]"), "{why}");
    assert_eq!(without.log.tail(FAR.1, &counter(FAR.0), Timestamp::MIN), TailLookup::Unknown);
    assert!(without.rollups.names(FAR.0, "", None, 10).await.is_err(), "no names is not what is known");
    assert!(!holds(&home, FAR).await);
    let unknown = without.slices.list(DatasetId(9)).await.expect_err("the catalog has none of that number");
    assert_eq!((unknown.kind, unknown.outcome), (StoreErrorKind::Unavailable, EffectOutcome::NotApplied));
}

#[tokio::test]
async fn a_dataset_that_was_made_after_the_first_look_is_found() {
    let (all, _, far) = two().await;
    append(&all, NEAR).await;
    let late = (NamespaceId(3), DatasetId(3));
    made(&all, late, "late-one", Some("far")).await;
    assert!(all.slices.list(late.1).await.expect("it is found").is_empty());
    assert!(far.rollups.names(late.0, "", None, 10).await.expect("they are read").is_empty());
}
