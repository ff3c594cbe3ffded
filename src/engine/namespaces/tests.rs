//! The laws of the catalog use cases, on a simple catalog in memory with injectable faults.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::*;
use crate::catalog::Author;
use crate::counting::CountingError;
use tallystone_domain::Timestamp;
use tallystone_domain::namespace::{CounterType, Temporality};
use tallystone_ports::{BootId, Catalog, CatalogState, NamespaceRecord, StoreErrorKind};

#[derive(Default)]
struct PlainCatalog {
    state: Mutex<CatalogState>,
    changes: Mutex<Vec<NamespaceChange>>,
    /// The faults of the next commits; the last element applies first.
    faults: Mutex<Vec<Fault>>,
    /// If set, commits wait for a permit.
    gate: Option<Semaphore>,
}

enum Fault {
    /// Another server changes the catalog first.
    Overtaken(Box<NamespaceRecord>),
    /// The commit happens, but its answer is lost.
    AnswerLost,
}

impl PlainCatalog {
    fn apply(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let at = state.namespaces.iter().position(|one| one.spec.name == record.change.name);
        if record.expected_version != at.map(|at| state.namespaces[at].version) {
            return Err(StoreError::not_applied(StoreErrorKind::Conflict, "commit"));
        }
        if let Some(dataset) = record.companion {
            if dataset.id.0 < state.next_dataset_id {
                return Err(StoreError::not_applied(StoreErrorKind::Conflict, "commit"));
            }
            state.next_dataset_id = dataset.id.0 + 1;
            state.datasets.push(dataset);
        }
        match (at, record.entry) {
            (Some(at), Some(namespace)) => state.namespaces[at] = namespace,
            (Some(at), None) => drop(state.namespaces.remove(at)),
            (None, Some(namespace)) if namespace.id.0 >= state.next_namespace_id => {
                state.next_namespace_id = namespace.id.0 + 1;
                state.namespaces.push(namespace);
            }
            (None, _) => return Err(StoreError::not_applied(StoreErrorKind::Conflict, "commit")),
        }
        self.changes.lock().push(record.change);
        Ok(())
    }
}

#[async_trait]
impl Catalog<Namespace> for PlainCatalog {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        Ok(self.state.lock().clone())
    }

    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        if let Some(gate) = &self.gate {
            gate.acquire().await.expect("the gate is never closed").forget();
        }
        let fault = self.faults.lock().pop();
        match fault {
            None => self.apply(record),
            Some(Fault::Overtaken(other)) => {
                self.apply(*other)?;
                self.apply(record)
            }
            Some(Fault::AnswerLost) => {
                self.apply(record)?;
                Err(StoreError::unknown(StoreErrorKind::Unavailable, "commit"))
            }
        }
    }

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        let is_older = |change: &&NamespaceChange| beyond.is_none_or(|key| (change.id, change.version) < key);
        let changes = self.changes.lock();
        let of_name = changes.iter().rev().filter(|change| change.name == *name);
        Ok(of_name.filter(is_older).take(limit).cloned().collect())
    }
}

#[async_trait]
impl NamespaceStore for PlainCatalog {
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        let changes = self.changes.lock();
        let found = changes.iter().find(|change| change.id == namespace && change.version == version);
        Ok(found.and_then(|change| change.spec.clone()))
    }
}

struct StillClock;

#[async_trait]
impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000)
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn boot(&self) -> BootId {
        BootId(1)
    }

    async fn sleep(&self, _duration: Duration) {
        std::future::pending::<()>().await;
    }
}

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).expect("a valid name")
}

fn draft(text: &str) -> NamespaceDraft {
    NamespaceDraft::of(name(text))
}

fn author() -> Author {
    Author { actor: "test".to_owned(), reason: "because".to_owned() }
}

async fn open(catalog: &Arc<PlainCatalog>) -> NamespaceCatalog {
    NamespaceCatalog::open(Arc::clone(catalog) as Arc<dyn NamespaceStore>, Arc::new(StillClock))
        .await
        .expect("an open catalog")
}

async fn fresh() -> (Arc<PlainCatalog>, NamespaceCatalog) {
    let catalog = Arc::new(PlainCatalog::default());
    let namespaces = open(&catalog).await;
    (catalog, namespaces)
}

fn reason_of<T: std::fmt::Debug>(result: Result<T, NamespaceError>) -> Reason {
    result.expect_err("a refusal").reason()
}

#[tokio::test]
async fn a_created_namespace_is_found_by_name_and_by_number_and_after_a_restart() {
    let (catalog, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    assert_eq!((made.version, made.created), (1, Timestamp::from_secs(1_000)));
    for namespaces in [namespaces, open(&catalog).await] {
        assert_eq!(namespaces.get(&name("shop")).expect("found"), made);
        assert_eq!(namespaces.by_id(made.id), Some(Arc::clone(&made)));
        assert_eq!(namespaces.dataset(made.dataset_id).expect("made with it").settings, made.spec.dataset);
        assert_eq!(namespaces.all().len(), 1);
    }
}

#[tokio::test]
async fn creating_again_answers_the_same_and_refuses_other_settings() {
    let (_, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    assert_eq!(namespaces.create(draft("shop"), author()).await.expect("the same"), made);
    let mut other = draft("shop");
    other.rollup.num_queues = Some(16);
    let error = namespaces.create(other, author()).await.expect_err("other settings");
    assert_eq!(error.reason(), Reason::NamespaceExists);
    assert!(error.to_string().contains("rollup.num_queues: 8 -> 16"), "{error}");
}

#[tokio::test]
async fn the_first_namespace_sets_the_dataset_and_others_inherit_it() {
    let (_, namespaces) = fresh().await;
    let mut first = draft("first");
    first.dataset.accept_limit = Some(Duration::from_secs(1));
    let first = namespaces.create(first, author()).await.expect("created");
    let second = namespaces.create(draft("second"), author()).await.expect("inherits");
    assert_eq!(second.spec.dataset, first.spec.dataset);
    assert_eq!(second.dataset_id, first.dataset_id);

    let mut third = draft("third");
    third.dataset.accept_limit = Some(Duration::from_secs(2));
    let error = namespaces.create(third.clone(), author()).await.expect_err("it disagrees");
    assert_eq!(error.reason(), Reason::DatasetDiffers);
    assert!(error.to_string().contains("dataset.accept_limit: 1s -> 2s"), "{error}");

    third.storage.dataset = Some(name("other"));
    let third = namespaces.create(third, author()).await.expect("a dataset of its own");
    assert_ne!(third.dataset_id, first.dataset_id);
    assert_eq!(third.spec.dataset.future_limit, Duration::from_secs(5));
}

#[tokio::test]
async fn an_update_makes_the_next_version_and_keeps_the_one_before() {
    let (_, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    let mut next = draft("shop");
    next.rollup.num_queues = Some(16);
    let updated = namespaces.update(next, Some(NamespaceEtag::of(&*made)), author()).await.expect("updated");
    assert_eq!((updated.id, updated.version, updated.spec.rollup.num_queues), (made.id, 2, 16));
    assert_eq!(namespaces.changes().get(), 2);

    let before = namespaces.version_of(made.id, 1).await.expect("read").expect("kept");
    assert_eq!(*before, made.spec);
    assert_eq!(namespaces.version_in_memory(made.id, 1), Some(before));
    let history = namespaces.history(&name("shop"), None, 10).await.expect("read");
    assert_eq!(history.iter().map(|past| past.change.version).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(history[0].change.differences, ["rollup.num_queues: 8 -> 16"]);
    assert_eq!((history[0].change.actor.as_str(), history[0].change.reason.as_str()), ("test", "because"));
}

#[tokio::test]
async fn an_update_without_a_difference_makes_no_version() {
    let (_, namespaces) = fresh().await;
    namespaces.create(draft("shop"), author()).await.expect("created");
    let generation = namespaces.changes().get();
    let same = namespaces.update(draft("shop"), None, author()).await.expect("nothing to do");
    assert_eq!((same.version, namespaces.changes().get()), (1, generation));
}

#[tokio::test]
async fn a_stale_etag_is_refused_and_an_empty_one_overwrites() {
    let (_, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    let mut next = draft("shop");
    next.rollup.num_queues = Some(16);
    namespaces.update(next.clone(), None, author()).await.expect("overwrites");
    next.rollup.num_queues = Some(32);
    let stale = Some(NamespaceEtag::of(&*made));
    assert_eq!(reason_of(namespaces.update(next, stale, author()).await), Reason::EtagMismatch);
    assert_eq!(reason_of(namespaces.delete(&name("shop"), stale, author()).await), Reason::EtagMismatch);
    namespaces.delete(&name("shop"), None, author()).await.expect("deleted");
    namespaces.create(draft("shop"), author()).await.expect("created again, at version 1");
    assert_eq!(reason_of(namespaces.delete(&name("shop"), stale, author()).await), Reason::EtagMismatch);
}

#[tokio::test]
async fn fixed_settings_do_not_change_and_unsaid_ones_stay() {
    let (_, namespaces) = fresh().await;
    let mut first = draft("shop");
    first.storage.dataset = Some(name("sales"));
    first.storage.cache_cluster = Some(name("near"));
    namespaces.create(first, author()).await.expect("created");

    let mut accurate = draft("shop");
    accurate.counter_type = Some(CounterType::Accurate);
    let updated = namespaces.update(accurate, None, author()).await.expect("EVENTUAL to ACCURATE is allowed");
    assert_eq!(updated.spec.storage.dataset, name("sales"));
    assert_eq!(updated.spec.storage.cache_cluster, name("near"));

    let mut best_effort = draft("shop");
    best_effort.counter_type = Some(CounterType::BestEffort);
    let mut cumulative = draft("shop");
    cumulative.temporality = Some(Temporality::Cumulative);
    let mut moved = draft("shop");
    moved.storage.event_cluster = Some(name("far"));
    for change in [best_effort, cumulative, moved] {
        assert_eq!(reason_of(namespaces.update(change, None, author()).await), Reason::SettingIsFixed);
    }
}

#[tokio::test]
async fn a_dataset_stays_in_the_cluster_of_its_first_namespace() {
    let catalog = Arc::new(PlainCatalog::default());
    let listed = [("embedded", ClusterUse::Store), ("far", ClusterUse::Attached)];
    let listed = listed.map(|(text, usage)| (name(text), usage)).into();
    let defaults = NamespaceDefaults {
        clusters: Clusters { listed, unlisted: UnlistedClusters::Refused },
        ..NamespaceDefaults::default()
    };
    let namespaces =
        NamespaceCatalog::open_with(Arc::clone(&catalog) as _, Arc::new(StillClock), defaults).await.expect("opened");
    let kept_in = |text: &str, cluster: &str, dataset: &str| {
        let mut draft = draft(text);
        (draft.storage.rollup_cluster, draft.storage.event_cluster) = (Some(name(cluster)), Some(name(cluster)));
        draft.storage.dataset = Some(name(dataset));
        draft
    };
    namespaces.create(kept_in("shop", "far", "sales"), author()).await.expect("created");
    namespaces.create(kept_in("shop2", "far", "sales"), author()).await.expect("the same cluster is allowed");
    let mut unsaid = draft("shop3");
    unsaid.storage.dataset = Some(name("sales"));
    let made = namespaces.create(unsaid, author()).await.expect("settings that the dataset fixes come from it");
    assert_eq!([&made.spec.storage.event_cluster, &made.spec.storage.rollup_cluster], [&name("far"); 2]);
    namespaces.create(kept_in("blog", "embedded", "reads"), author()).await.expect("created");
    for (text, cluster, dataset) in [("a", "embedded", "sales"), ("b", "far", "reads")] {
        let refused = namespaces.create(kept_in(text, cluster, dataset), author()).await;
        assert_eq!(reason_of(refused), Reason::DatasetDiffers, "{text}");
    }
    let datasets = catalog.load().await.expect("read").datasets;
    let kept: Vec<_> = datasets.iter().map(|dataset| (dataset.name.as_str(), dataset.cluster.clone())).collect();
    assert_eq!(kept, [("sales", Some(name("far"))), ("reads", None)]);
    namespaces.delete(&name("shop"), None, author()).await.expect("deleted");
    namespaces.delete(&name("shop2"), None, author()).await.expect("deleted");
    let refused = namespaces.create(kept_in("shop", "embedded", "sales"), author()).await;
    assert_eq!(reason_of(refused), Reason::DatasetDiffers, "its slices are still there");
}

#[tokio::test]
async fn a_deleted_name_is_gone_but_its_history_stays_and_its_number_is_never_used_again() {
    let (_, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    namespaces.delete(&name("shop"), Some(NamespaceEtag::of(&*made)), author()).await.expect("deleted");
    assert_eq!(reason_of(namespaces.get(&name("shop"))), Reason::NamespaceNotFound);
    assert_eq!(reason_of(namespaces.delete(&name("shop"), None, author()).await), Reason::NamespaceNotFound);
    assert_eq!(namespaces.by_id(made.id), None);
    let again = namespaces.create(draft("shop"), author()).await.expect("created again");
    assert!(again.id > made.id);
    let history = namespaces.history(&name("shop"), None, 10).await.expect("read");
    let keys: Vec<_> =
        history.iter().map(|past| (past.change.id, past.change.version, past.change.spec.is_some())).collect();
    assert_eq!(keys, [(again.id, 1, true), (made.id, 2, false), (made.id, 1, true)]);
    let rest = namespaces.history(&name("shop"), Some((made.id, 2)), 10).await.expect("read");
    assert_eq!(rest.len(), 1);
}

#[tokio::test]
async fn reserved_names_are_read_only_to_users() {
    let (_, namespaces) = fresh().await;
    let own = name("tallystone.queues");
    assert_eq!(
        reason_of(namespaces.create(NamespaceDraft::of(own.clone()), author()).await),
        Reason::NamespaceReadOnly
    );
    namespaces.ensure(NamespaceDraft::of(own.clone()), author()).await.expect("the service makes its own");
    assert!(namespaces.get(&own).is_ok());
    assert_eq!(reason_of(namespaces.delete(&own, None, author()).await), Reason::NamespaceReadOnly);
    let update = namespaces.update(NamespaceDraft::of(own.clone()), None, author()).await;
    assert_eq!(reason_of(update), Reason::NamespaceReadOnly);
    let mut guest = NamespaceDraft::of(name("shop"));
    guest.storage.dataset = Some(own);
    assert_eq!(reason_of(namespaces.create(guest, author()).await), Reason::NamespaceReadOnly);
}

#[tokio::test]
async fn ensure_leaves_what_is_there_alone() {
    let (_, namespaces) = fresh().await;
    let made = namespaces.create(draft("default"), author()).await.expect("created");
    let mut other = draft("default");
    other.rollup.num_queues = Some(16);
    assert_eq!(namespaces.ensure(other, author()).await.expect("ensured"), made);
}

#[tokio::test]
async fn an_apply_says_what_it_does_and_a_dry_run_does_nothing() {
    let (_, namespaces) = fresh().await;
    let said = namespaces.apply(draft("shop"), None, DryRun::Yes, author()).await.expect("said");
    assert_eq!((said.applied, namespaces.all().len()), (NamespaceApplyOutcome::Created, 0));
    let done = namespaces.apply(draft("shop"), None, DryRun::No, author()).await.expect("done");
    assert_eq!((done.applied, namespaces.all().len()), (NamespaceApplyOutcome::Created, 1));
    assert_eq!(said.namespace, done.namespace);
    let same = namespaces.apply(draft("shop"), None, DryRun::No, author()).await.expect("nothing to do");
    assert_eq!(same.applied, NamespaceApplyOutcome::Unchanged);
    let mut next = draft("shop");
    next.ttl = Some(Duration::from_secs(60));
    let said = namespaces.apply(next.clone(), None, DryRun::Yes, author()).await.expect("said");
    assert_eq!(
        (said.applied, said.differences.as_slice()),
        (NamespaceApplyOutcome::Updated, ["ttl: none -> 60s".to_owned()].as_slice())
    );
    assert_eq!(namespaces.get(&name("shop")).expect("found").version, 1);
    assert_eq!(namespaces.apply(next, None, DryRun::No, author()).await.expect("done").namespace.version, 2);
}

#[tokio::test]
async fn invalid_settings_never_reach_the_store() {
    let (catalog, namespaces) = fresh().await;
    let mut bad = draft("shop");
    bad.partition.seconds_per_bucket = Some(7);
    assert_eq!(reason_of(namespaces.create(bad, author()).await), Reason::InvalidSettings);
    let long = Author { actor: String::new(), reason: "x".repeat(1_025) };
    assert_eq!(reason_of(namespaces.create(draft("shop"), long).await), Reason::InvalidArgument);
    assert!(catalog.changes.lock().is_empty());
}

#[tokio::test]
async fn a_change_that_was_overtaken_is_decided_again() {
    let (catalog, namespaces) = fresh().await;
    let made = namespaces.create(draft("shop"), author()).await.expect("created");
    let elsewhere = || {
        let mut other = (*made).clone();
        other.version += 1;
        other.spec.rollup.num_queues = 64;
        let change = NamespaceChange {
            id: other.id,
            name: other.spec.name.clone(),
            version: other.version,
            time: Timestamp::from_secs(999),
            actor: "other".to_owned(),
            reason: String::new(),
            differences: Vec::new(),
            spec: Some(other.spec.clone()),
            deletion: (),
        };
        NamespaceRecord { expected_version: Some(1), entry: Some(other), companion: None, change }
    };
    let mut next = draft("shop");
    next.rollup.num_queues = Some(16);

    catalog.faults.lock().push(Fault::Overtaken(Box::new(elsewhere())));
    let stale = namespaces.update(next.clone(), Some(NamespaceEtag::of(&*made)), author()).await;
    assert_eq!(reason_of(stale), Reason::EtagMismatch);
    assert_eq!(namespaces.get(&name("shop")).expect("found").spec.rollup.num_queues, 64);

    let updated = namespaces.update(next, None, author()).await.expect("decided again");
    assert_eq!((updated.version, updated.spec.rollup.num_queues), (3, 16));
}

#[tokio::test]
async fn an_unknown_outcome_is_told_and_served_as_the_store_has_it() {
    let (catalog, namespaces) = fresh().await;
    catalog.faults.lock().push(Fault::AnswerLost);
    assert_eq!(reason_of(namespaces.create(draft("shop"), author()).await), Reason::OutcomeUnknown);
    assert!(namespaces.get(&name("shop")).is_ok(), "the store has it");
    namespaces.create(draft("shop"), author()).await.expect("a retry is answered");
}

#[tokio::test]
async fn refresh_brings_what_another_server_changed() {
    let (catalog, here) = fresh().await;
    let there = open(&catalog).await;
    let before = here.changes().get();
    let made = there.create(draft("shop"), author()).await.expect("created there");
    assert!(here.find(&name("shop")).is_none());
    here.refresh().await.expect("read");
    assert_eq!(here.find(&name("shop")), Some(made));
    assert_eq!(here.changes().get(), before + 1);
    here.refresh().await.expect("read");
    assert_eq!(here.changes().get(), before + 1, "nothing is new");
    let other = here.create(draft("cart"), author()).await.expect("numbers were read too");
    assert_eq!(other.id.0, 2);
}

#[tokio::test]
async fn a_change_goes_on_when_its_caller_goes_away() {
    let catalog = Arc::new(PlainCatalog { gate: Some(Semaphore::new(0)), ..PlainCatalog::default() });
    let namespaces = open(&catalog).await;
    let before = namespaces.changes().get();
    {
        let call = namespaces.create(draft("shop"), author());
        tokio::pin!(call);
        assert!(futures_util::poll!(&mut call).is_pending());
    }
    catalog.gate.as_ref().expect("a gate").add_permits(1);
    namespaces.changes().reach(before + 1).await;
    assert!(namespaces.get(&name("shop")).is_ok());
    namespaces.drain().await;
    assert_eq!(reason_of(namespaces.create(draft("late"), author()).await), Reason::ShuttingDown);
}

#[tokio::test]
async fn lists_go_on_above_a_name() {
    let (_, namespaces) = fresh().await;
    for text in ["b", "a", "d", "c"] {
        namespaces.create(draft(text), author()).await.expect("created");
    }
    let names = |above: Option<&str>, limit| -> Vec<String> {
        let listed = namespaces.list(above.map(name).as_ref(), limit);
        listed.iter().map(|one| one.spec.name.as_str().to_owned()).collect()
    };
    assert_eq!(names(None, 3), ["a", "b", "c"]);
    assert_eq!(names(Some("b"), 3), ["c", "d"]);
    assert_eq!(names(Some("bb"), 1), ["c"]);
    assert!(names(Some("d"), 3).is_empty());
}

#[tokio::test]
async fn concurrent_changes_of_many_namespaces_lose_nothing() {
    let (catalog, namespaces) = fresh().await;
    let calls = (0..50).map(|i| {
        let namespaces = namespaces.clone();
        async move {
            namespaces.create(draft(&format!("n{i}")), author()).await.expect("created");
            namespaces.apply(draft(&format!("n{}", i / 2)), None, DryRun::No, author()).await.expect("applied")
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(namespaces.all().len(), 50);
    let reopened = open(&catalog).await;
    assert_eq!(reopened.all(), namespaces.all());
    let numbers: HashMap<_, _> = namespaces.all().iter().map(|one| (one.id, Arc::clone(one))).collect();
    assert_eq!(numbers.len(), 50);
}

#[test]
fn a_failed_store_is_told_of_once() {
    let failed = || StoreError::not_applied(StoreErrorKind::Full, "commit");
    let told = failed().to_string();
    for error in [anyhow::Error::from(NamespaceError::from(failed())), CountingError::from(failed()).into()] {
        assert_eq!(format!("{error:#}"), told);
    }
}
