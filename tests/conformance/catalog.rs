//! The laws of `Catalog`, for namespaces, for API keys, for experiments and for queues.

use std::sync::Arc;
use std::time::Duration;

use tallystone_domain::access::{
    AccessKey, AccessKeySecret, AccessKeySpec, Grant, GrantEffect, KeyId, KeyQuota, PrincipalName, SecretHash,
};
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Namespace, NamespaceSpec, SeriesSettings};
use tallystone_domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone_experiments::{
    ArmWeights, CatalogExperiment, ExperimentDesign, ExperimentId, ExperimentMode, ExperimentSettings, ExperimentSpec,
    ExperimentUnit, ExperimentWord, FallenCounter, SignificanceLevel,
};
use tallystone_ports::{
    Catalog, CatalogChange, CatalogEntry, CatalogRecord, CatalogState, EffectOutcome, QueueDeletion, StoreError,
    StoreErrorKind,
};
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{at, namespace_name};
use crate::queue_given::{self, on_every_durable_queue_store, on_every_queue_store};

/// How the laws try a kind of entries.
pub trait TriedEntry: CatalogEntry {
    /// The change that makes the next version of an entry; without text it deletes it.
    fn record(id: u32, expected_version: Option<u64>, name: &str, text: Option<&str>) -> CatalogRecord<Self>;
    /// The live entries, by name.
    fn live(state: Self::State) -> Vec<Self>;
    /// The number of an id.
    fn number(id: Self::Id) -> u32;
    /// The start of the page after these changes.
    fn after(read: &[CatalogChange<Self>]) -> Self::HistoryStart;
}

/// A spec in which every field differs from its default.
pub fn namespace_spec(name: &str, description: &str) -> NamespaceSpec {
    let mut spec = NamespaceSpec::with_defaults(namespace_name(name));
    spec.description = description.to_owned();
    spec.ttl = Some(Duration::from_secs(90));
    spec.series = vec![SeriesSettings { step_seconds: 60, keep: Duration::from_secs(3_600) }];
    spec.storage.dataset = namespace_name("events");
    spec
}

/// The change to the next version, at the second of that version.
fn change<E: CatalogEntry>(
    id: E::Id,
    expected_version: Option<u64>,
    name: E::Name,
    spec: Option<E::Spec>,
    deletion: E::Deletion,
) -> CatalogChange<E> {
    let version = expected_version.unwrap_or(0) + 1;
    let (actor, reason, differences) = ("ada".to_owned(), "test".to_owned(), vec![format!("version {version}")]);
    let time = at(i64::try_from(version).expect("small"));
    CatalogChange { id, name, version, time, actor, reason, differences, spec, deletion }
}

impl TriedEntry for Namespace {
    fn record(id: u32, expected_version: Option<u64>, name: &str, text: Option<&str>) -> CatalogRecord<Self> {
        let spec = text.map(|text| namespace_spec(name, text));
        let id = NamespaceId(id.into());
        let change = change::<Self>(id, expected_version, namespace_name(name), spec.clone(), ());
        let (dataset_id, version, created, updated) = (DatasetId(1), change.version, at(0), change.time);
        let made_by: Option<Box<str>> = Some("ann".into());
        let entry = spec.map(|spec| Self { id, dataset_id, version, spec, created, updated, made_by });
        CatalogRecord { expected_version, entry, companion: None, change }
    }

    fn live(state: CatalogState) -> Vec<Self> {
        let mut namespaces = state.namespaces;
        namespaces.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        namespaces
    }

    fn number(id: NamespaceId) -> u32 {
        id.0.try_into().expect("small")
    }

    fn after(read: &[CatalogChange<Self>]) -> Option<(NamespaceId, u64)> {
        read.last().map(|last| (last.id, last.version))
    }
}

impl TriedEntry for CatalogQueue {
    fn record(id: u32, expected_version: Option<u64>, name: &str, text: Option<&str>) -> CatalogRecord<Self> {
        let spec = text.map(|text| queue_given::spec(name, text));
        let (id, name) = (QueueId(id.into()), QueueName::new(name).expect("a valid name"));
        // A creation and a change have none.
        let deletion = text.is_none().then(|| QueueDeletion { token: Some("once".into()), messages: 3 });
        let change = change::<Self>(id, expected_version, name, spec.clone(), deletion);
        let (version, updated, made_by) = (change.version, change.time, Some("ann".into()));
        let entry = spec.map(|spec| Self { id, spec, version, created: at(0), updated, made_by });
        CatalogRecord { expected_version, entry, companion: (), change }
    }

    fn live(state: Vec<Self>) -> Vec<Self> {
        state
    }

    fn number(id: QueueId) -> u32 {
        id.0.try_into().expect("small")
    }

    fn after(read: &[CatalogChange<Self>]) -> usize {
        read.len()
    }
}

impl TriedEntry for AccessKey {
    fn record(id: u32, expected_version: Option<u64>, name: &str, text: Option<&str>) -> CatalogRecord<Self> {
        let name = PrincipalName::new(name).expect("a valid name");
        let secret = |number: u8, expires| AccessKeySecret { hash: SecretHash([number; 32]), created: at(1), expires };
        let spec = text.map(|text| AccessKeySpec {
            name: name.clone(),
            description: text.to_owned(),
            grants: ["worker:queue:orders/*", "viewer"]
                .map(|text| Grant::parse(GrantEffect::Allow, text).expect("a grant"))
                .into_iter()
                .collect(),
            quotas: [(KeyQuota::Sessions, 7), (KeyQuota::Queues, 0)].into_iter().collect(),
            secrets: vec![secret(1, Some(at(7))), secret(2, None)],
        });
        // Ids are random: also those above the greatest signed number are kept.
        let id = KeyId(u64::MAX - u64::from(id));
        let change = change::<Self>(id, expected_version, name, spec.clone(), ());
        let entry = spec.map(|spec| Self { id, version: change.version, spec, created: at(0), updated: change.time });
        CatalogRecord { expected_version, entry, companion: (), change }
    }

    fn live(state: Vec<Self>) -> Vec<Self> {
        state
    }

    fn number(id: KeyId) -> u32 {
        (u64::MAX - id.0).try_into().expect("small")
    }

    fn after(read: &[CatalogChange<Self>]) -> usize {
        read.len()
    }
}

impl TriedEntry for CatalogExperiment {
    fn record(id: u32, expected_version: Option<u64>, name: &str, text: Option<&str>) -> CatalogRecord<Self> {
        let word = |text: &str| ExperimentWord::new(text, "name").expect("a valid name");
        let design = || ExperimentDesign {
            weights: ArmWeights::new(&[9, 1]).expect("valid weights"),
            level: SignificanceLevel::new(0.05).expect("a valid level"),
            planned: u64::MAX,
            mode: ExperimentMode::AlwaysValid,
        };
        let settings = text.map(|text| ExperimentSettings {
            spec: ExperimentSpec {
                name: word(name),
                namespace: NamespaceName::new("default").expect("a valid name"),
                arms: vec![word("A"), word("B")],
                metrics: vec![word("bought")],
                unit: ExperimentUnit::User,
                design: design(),
            },
            description: text.to_owned(),
            stopped: Some(at(7)),
            falls: vec![FallenCounter { counter: "B/exposures".into(), time: at(5), lost: 8_112 }],
            exposures_before: Some(9),
        });
        // Ids are random: also those above the greatest signed number are kept.
        let id = ExperimentId(u64::MAX - u64::from(id));
        let change = change::<Self>(id, expected_version, word(name), settings.clone(), ());
        let version = change.version;
        let entry = settings.map(|settings| Self { id, version, settings, created: at(0), updated: change.time });
        CatalogRecord { expected_version, entry, companion: (), change }
    }

    fn live(state: Vec<Self>) -> Vec<Self> {
        state
    }

    fn number(id: ExperimentId) -> u32 {
        (u64::MAX - id.0).try_into().expect("small")
    }

    fn after(read: &[CatalogChange<Self>]) -> usize {
        read.len()
    }
}

type Shared<E> = Arc<dyn Catalog<E>>;

/// Runs a law on the catalogs of all kinds of every backend. A function cannot be generic over a generic law.
macro_rules! on_every_catalog {
    ($law:ident) => {
        on_every_backend(async |bench| $law::<Namespace>(bench.stores.catalog.clone()).await).await;
        on_every_backend(async |bench| $law::<AccessKey>(bench.stores.keys.clone()).await).await;
        on_every_backend(async |bench| $law::<CatalogExperiment>(bench.stores.experiments.clone()).await).await;
        on_every_queue_store(async |bench| $law::<CatalogQueue>(bench.stores.catalog.clone()).await).await;
    };
}

pub fn check_conflict(answer: Result<(), StoreError>) {
    let refused = answer.expect_err("a conflict");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
}

async fn commit<E: TriedEntry>(
    catalog: &Shared<E>,
    (id, expected_version, name, text): (u32, Option<u64>, &str, Option<&str>),
) {
    catalog.commit(E::record(id, expected_version, name, text)).await.expect("a commit");
}

async fn refuse<E: TriedEntry>(
    catalog: &Shared<E>,
    (id, expected_version, name, text): (u32, Option<u64>, &str, Option<&str>),
) {
    check_conflict(catalog.commit(E::record(id, expected_version, name, text)).await);
}

async fn load<E: TriedEntry>(catalog: &Shared<E>) -> Vec<E> {
    E::live(catalog.load().await.expect("a state"))
}

/// Changes of a name after those that were read.
async fn history<E: TriedEntry>(
    catalog: &Shared<E>,
    name: &str,
    read: &[CatalogChange<E>],
    limit: usize,
) -> Vec<CatalogChange<E>> {
    let name = E::record(1, None, name, None).change.name;
    catalog.history(&name, E::after(read), limit).await.expect("a history")
}

#[tokio::test]
async fn catalog_law_1_a_record_is_applied_whole_or_not_at_all() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        assert_eq!(load(&catalog).await, []);
        let (first, second) =
            (E::record(10, None, "shop", Some("new")), E::record(10, Some(1), "shop", Some("second")));
        catalog.commit(first.clone()).await.expect("a creation");
        assert_eq!(load(&catalog).await, [first.entry.expect("it creates")]);
        catalog.commit(second.clone()).await.expect("a change");
        for (id, stale) in [(11, None), (10, None), (10, Some(1)), (10, Some(3))] {
            refuse(&catalog, (id, stale, "shop", Some("stale"))).await;
        }
        refuse(&catalog, (10, Some(1), "shop", None)).await;
        refuse(&catalog, (12, Some(1), "nobody", Some("absent"))).await;
        assert_eq!(load(&catalog).await, [second.entry.expect("it changes")]);
        assert_eq!(history(&catalog, "shop", &[], 9).await, [second.change, first.change]);
        assert_eq!(history(&catalog, "nobody", &[], 9).await, []);
    }
    on_every_catalog!(law);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn catalog_law_1_of_racing_changes_of_a_version_one_is_committed() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        commit(&catalog, (10, None, "shop", Some("new"))).await;
        for version in 1..=10 {
            let mut racing = JoinSet::new();
            for task in 0..4 {
                let catalog = catalog.clone();
                let record = E::record(10, Some(version), "shop", Some(&format!("task {task}")));
                racing.spawn(async move { catalog.commit(record).await.is_ok() });
            }
            let committed = racing.join_all().await.into_iter().filter(|committed| *committed).count();
            assert_eq!(committed, 1, "of version {version}");
        }
    }
    on_every_catalog!(law);
}

#[tokio::test]
async fn catalog_law_1_commits_outlive_the_process() {
    async fn before<E: TriedEntry>(catalog: Shared<E>) -> Vec<E> {
        commit(&catalog, (10, None, "shop", Some("new"))).await;
        commit(&catalog, (10, Some(1), "shop", Some("second"))).await;
        commit(&catalog, (11, None, "gone", Some("new"))).await;
        commit(&catalog, (11, Some(1), "gone", None)).await;
        load(&catalog).await
    }
    async fn after<E: TriedEntry>(catalog: Shared<E>, before: Vec<E>) {
        assert_eq!(load(&catalog).await, before);
        assert_eq!(history(&catalog, "shop", &[], 9).await.len(), 2);
        assert_eq!(history(&catalog, "gone", &[], 9).await.len(), 2);
        refuse(&catalog, (11, None, "again", Some("new"))).await;
    }
    on_every_durable_backend(async |bench, ending| {
        let live = before::<Namespace>(bench.stores.catalog.clone()).await;
        after(bench.reopen(ending).await.stores.catalog.clone(), live).await;
    })
    .await;
    on_every_durable_backend(async |bench, ending| {
        let live = before::<AccessKey>(bench.stores.keys.clone()).await;
        after(bench.reopen(ending).await.stores.keys.clone(), live).await;
    })
    .await;
    on_every_durable_backend(async |bench, ending| {
        let live = before::<CatalogExperiment>(bench.stores.experiments.clone()).await;
        after(bench.reopen(ending).await.stores.experiments.clone(), live).await;
    })
    .await;
    on_every_durable_queue_store(async |bench, ending| {
        let live = before::<CatalogQueue>(bench.stores.catalog.clone()).await;
        let bench = bench.reopen(ending).await;
        after(bench.stores.catalog.clone(), live).await;
    })
    .await;
}

#[tokio::test]
async fn catalog_law_2_a_number_stands_for_one_entry_for_ever() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        commit(&catalog, (10, None, "shop", Some("new"))).await;
        refuse(&catalog, (10, None, "post", Some("same number"))).await;
        refuse(&catalog, (11, Some(1), "shop", Some("other number"))).await;
        commit(&catalog, (10, Some(1), "shop", None)).await;
        refuse(&catalog, (10, None, "shop", Some("again"))).await;
        commit(&catalog, (11, None, "shop", Some("the name is free"))).await;
    }
    on_every_catalog!(law);
}

#[tokio::test]
async fn catalog_law_3_load_answers_every_live_entry() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        for (id, name) in [(1, "c"), (2, "a"), (3, "b")] {
            commit(&catalog, (id, None, name, Some("new"))).await;
        }
        commit(&catalog, (2, Some(1), "a", None)).await;
        let names: Vec<String> = load(&catalog).await.iter().map(|entry| entry.name().to_string()).collect();
        assert_eq!(names, ["b", "c"]);
    }
    on_every_catalog!(law);
}

#[tokio::test]
async fn catalog_law_4_the_history_of_a_name_goes_over_all_that_had_it_newest_first() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        commit(&catalog, (10, None, "shop", Some("new"))).await;
        commit(&catalog, (11, None, "other", Some("new"))).await;
        commit(&catalog, (10, Some(1), "shop", Some("second"))).await;
        commit(&catalog, (10, Some(2), "shop", None)).await;
        let mut again = E::record(12, None, "shop", Some("again"));
        again.change.time = at(9);
        catalog.commit(again).await.expect("a creation");
        let all = history(&catalog, "shop", &[], 9).await;
        let places: Vec<_> =
            all.iter().map(|change| (E::number(change.id), change.version, change.spec.is_some())).collect();
        assert_eq!(places, [(12, 1, true), (10, 3, false), (10, 2, true), (10, 1, true)]);
        assert_eq!(history(&catalog, "shop", &[], 2).await, all[..2]);
        assert_eq!(history(&catalog, "shop", &all[..1], 2).await, all[1..3]);
        assert_eq!(history(&catalog, "shop", &all[..2], 9).await, all[2..]);
        assert_eq!(history(&catalog, "shop", &all, 2).await, []);
    }
    on_every_catalog!(law);
}

#[tokio::test]
async fn catalog_law_5_every_commit_changes_the_revision_of_a_shared_catalog() {
    async fn law<E: TriedEntry>(catalog: Shared<E>) {
        let mut seen = vec![catalog.revision().await.expect("a revision")];
        commit(&catalog, (10, None, "shop", Some("new"))).await;
        seen.push(catalog.revision().await.expect("a revision"));
        commit(&catalog, (10, Some(1), "shop", None)).await;
        seen.push(catalog.revision().await.expect("a revision"));
        refuse(&catalog, (10, Some(1), "shop", None)).await;
        assert_eq!(catalog.revision().await.expect("a revision"), seen[2], "a refused record is no commit");
        match seen[0] {
            None => assert_eq!(seen, [None; 3]),
            Some(_) => assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}"),
        }
    }
    on_every_catalog!(law);
}
