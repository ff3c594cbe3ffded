//! How namespaces change. The decision of a change is a pure function of the snapshot; `engine::catalog` commits it.

use std::sync::Arc;

use crate::caller_quota::{CallerId, QuotaExceeded};
use crate::catalog::{
    Author, CatalogView, CommitOutcome, FIRST_VERSION, check_etag, check_reset, finish, refuse_fixed, reset_to,
};
use crate::namespaces::difference::{dataset_differences, fixed_differences};
use crate::namespaces::draft::{WITH_DEFAULT, WITH_PARTS};
use crate::namespaces::snapshot::CatalogSnapshot;
use crate::namespaces::{
    DryRun, NamespaceApplyOutcome, NamespaceApplyResult, NamespaceCatalog, NamespaceCatalogInner, NamespaceDefaults,
    NamespaceDraft, NamespaceError, NamespaceEtag, differences, is_reserved, never_existed, not_found, reserved_writer,
};
use tallystone_domain::access::KeyQuota;
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::limits::NAMESPACES_MAX;
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{CatalogState, NamespaceChange, NamespaceRecord, StoreError, StoreErrorKind};

const CHANGE_OP: &str = "change of a namespace";

/// The intent of a change.
#[derive(Clone, Debug)]
enum NamespaceIntent {
    /// Create, or return an existing one with the same settings.
    Create(NamespaceDraft),
    /// Create unless the name is taken, whatever its settings.
    Ensure(NamespaceDraft),
    /// Change the settings of a live namespace; these return to their defaults first.
    Update(NamespaceDraft, Vec<String>),
    /// Create or change.
    Apply(NamespaceDraft),
    Delete(NamespaceName),
}

/// The decision of a change on a snapshot.
struct NamespaceDecision {
    answer: NamespaceApplyResult,
    /// The record to commit; none if there is no difference.
    record: Option<NamespaceRecord>,
}

/// The inputs of a decision.
struct NamespaceChangeContext<'a> {
    snapshot: &'a CatalogSnapshot,
    defaults: &'a NamespaceDefaults,
    expected: Option<NamespaceEtag>,
    author: &'a Author,
    maker: &'a CallerId,
    now: Timestamp,
}

impl NamespaceCatalog {
    /// Creates a namespace, or returns an existing one with the same settings.
    pub async fn create(
        &self,
        draft: impl Into<NamespaceDraft>,
        author: Author,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        let draft = refuse_reserved_draft(draft.into())?;
        Ok(self.change(NamespaceIntent::Create(draft), None, DryRun::No, author).await?.namespace)
    }

    /// Changes the settings of the draft; `expected` is the version that the caller read.
    pub async fn update(
        &self,
        draft: impl Into<NamespaceDraft>,
        expected: Option<NamespaceEtag>,
        author: Author,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        self.update_and_reset(draft, Vec::new(), expected, author).await
    }

    /// The same, where some settings return to their defaults first.
    pub async fn update_and_reset(
        &self,
        draft: impl Into<NamespaceDraft>,
        reset: Vec<String>,
        expected: Option<NamespaceEtag>,
        author: Author,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        let draft = refuse_reserved_draft(draft.into())?;
        Ok(self.change(NamespaceIntent::Update(draft, reset), expected, DryRun::No, author).await?.namespace)
    }

    /// Creates or updates, or returns the plan of a dry run.
    pub async fn apply(
        &self,
        draft: impl Into<NamespaceDraft>,
        expected: Option<NamespaceEtag>,
        dry_run: DryRun,
        author: Author,
    ) -> Result<NamespaceApplyResult, NamespaceError> {
        let draft = refuse_reserved_draft(draft.into())?;
        self.change(NamespaceIntent::Apply(draft), expected, dry_run, author).await
    }

    /// Creates a namespace of the service itself, or the default one, unless the name is taken.
    pub async fn ensure(
        &self,
        draft: impl Into<NamespaceDraft>,
        author: Author,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        Ok(self.change(NamespaceIntent::Ensure(draft.into()), None, DryRun::No, author).await?.namespace)
    }

    /// Creates a namespace with the defaults, unless the name is taken. Names of the service itself are refused.
    pub async fn ensure_named(&self, name: NamespaceName, author: Author) -> Result<Arc<Namespace>, NamespaceError> {
        refuse_reserved(&name)?;
        self.ensure(NamespaceDraft::of(name), author).await
    }

    /// Deletes a namespace; `expected` is the version that the caller read. Its id and its versions are never reused.
    pub async fn delete(
        &self,
        name: &NamespaceName,
        expected: Option<NamespaceEtag>,
        author: Author,
    ) -> Result<(), NamespaceError> {
        refuse_reserved(name)?;
        self.change(NamespaceIntent::Delete(name.clone()), expected, DryRun::No, author).await?;
        Ok(())
    }

    /// Runs a change to its end, even if the caller goes away.
    async fn change(
        &self,
        intent: NamespaceIntent,
        expected: Option<NamespaceEtag>,
        dry_run: DryRun,
        author: Author,
    ) -> Result<NamespaceApplyResult, NamespaceError> {
        author.check()?;
        let (shared, maker) = (Arc::clone(&self.shared), self.maker.clone());
        let start = |work| drop(self.shared.tasks.spawn(work));
        finish(CHANGE_OP, start, async move { shared.run(intent, expected, dry_run, (author, maker)).await }).await
    }
}

/// Refuses a namespace beyond the quota of its maker's key. O(namespaces).
fn check_maker(snapshot: &CatalogSnapshot, maker: &CallerId) -> Result<(), NamespaceError> {
    let Some(name) = maker.principal() else { return Ok(()) };
    let is_own = |one: &&Arc<Namespace>| one.made_by.as_deref() == Some(name.as_str());
    let own = snapshot.ordered.iter().filter(is_own).count();
    match maker.check(KeyQuota::Namespaces, own) {
        Err(QuotaExceeded::OfKey(refusal)) => Err(refusal.into()),
        Err(QuotaExceeded::All(_) | QuotaExceeded::Own(_)) | Ok(()) => Ok(()),
    }
}

impl NamespaceCatalogInner {
    async fn run(
        &self,
        intent: NamespaceIntent,
        expected: Option<NamespaceEtag>,
        dry_run: DryRun,
        (author, maker): (Author, CallerId),
    ) -> Result<NamespaceApplyResult, NamespaceError> {
        let Some(mut turn) = self.catalog.begin(self).await else {
            return Err(StoreError::not_applied(StoreErrorKind::Closed, CHANGE_OP).into());
        };
        loop {
            let snapshot = self.snapshot.load_full();
            let facts = NamespaceChangeContext {
                snapshot: &snapshot,
                defaults: &self.defaults,
                expected,
                author: &author,
                maker: &maker,
                now: self.clock.now(),
            };
            let NamespaceDecision { answer, record } = facts.decide(intent.clone())?;
            if answer.applied == NamespaceApplyOutcome::Created {
                check_maker(&snapshot, &maker)?;
            }
            let Some(record) = record.filter(|_| dry_run == DryRun::No) else { return Ok(answer) };
            match turn.commit(record.clone()).await? {
                CommitOutcome::Overtaken => {}
                CommitOutcome::Committed => {
                    self.serve(&snapshot, record, &answer);
                    return Ok(answer);
                }
            }
        }
    }

    /// Takes a committed change into the snapshot.
    fn serve(&self, before: &CatalogSnapshot, record: NamespaceRecord, answer: &NamespaceApplyResult) {
        let NamespaceChange { name, version, actor, .. } = &record.change;
        let is_deletion = record.entry.is_none();
        let after = match is_deletion {
            true => before.without(name),
            false => before.with(Arc::clone(&answer.namespace), record.companion.map(Arc::new)),
        };
        self.snapshot.store(Arc::new(after));
        self.generation.advance();
        let action = match (is_deletion, answer.applied) {
            (true, _) => "deleted",
            (false, NamespaceApplyOutcome::Created) => "created",
            (false, NamespaceApplyOutcome::Updated | NamespaceApplyOutcome::Unchanged) => "updated",
        };
        tracing::info!(namespace = %name, version, actor, action, "a namespace was changed");
    }
}

impl CatalogView<Namespace> for NamespaceCatalogInner {
    fn take_in(&self, state: CatalogState) {
        let before = self.snapshot.load_full();
        let after = CatalogSnapshot::of(state, &before);
        let is_news = !after.agrees_with(&before);
        self.snapshot.store(Arc::new(after));
        if is_news {
            self.generation.advance();
        }
    }
}

impl NamespaceChangeContext<'_> {
    fn decide(&self, intent: NamespaceIntent) -> Result<NamespaceDecision, Reject> {
        let name = match &intent {
            NamespaceIntent::Create(draft)
            | NamespaceIntent::Ensure(draft)
            | NamespaceIntent::Update(draft, _)
            | NamespaceIntent::Apply(draft) => &draft.name,
            NamespaceIntent::Delete(name) => name,
        };
        let live = self.snapshot.by_name(name).cloned();
        match (intent, live) {
            (NamespaceIntent::Create(draft) | NamespaceIntent::Ensure(draft), None) => self.creation(draft),
            (NamespaceIntent::Create(draft), Some(live)) => self.repeated_creation(draft, live),
            (NamespaceIntent::Ensure(_), Some(live)) => Ok(unchanged(live)),
            (NamespaceIntent::Update(draft, reset), Some(live)) => self.replacement(draft, &reset, live),
            (NamespaceIntent::Apply(draft), Some(live)) => self.replacement(draft, &[], live),
            (NamespaceIntent::Apply(draft), None) if self.expected.is_none() => self.creation(draft),
            (NamespaceIntent::Delete(_), Some(live)) => self.deletion(live),
            (NamespaceIntent::Apply(draft), None) => Err(Reject::new(
                Reason::EtagMismatch,
                format!(
                    "namespace {} does not exist, but the call has an etag; omit the etag to create the namespace",
                    draft.name
                ),
            )),
            (NamespaceIntent::Update(draft, _), None) => Err(not_found(&draft.name)),
            (NamespaceIntent::Delete(name), None) => Err(never_existed(&name)),
        }
    }

    fn creation(&self, draft: NamespaceDraft) -> Result<NamespaceDecision, Reject> {
        if self.snapshot.ordered.len() >= NAMESPACES_MAX {
            return Err(Reject::new(
                Reason::InvalidArgument,
                format!("the catalog has {NAMESPACES_MAX} namespaces, the maximum; delete one first"),
            ));
        }
        let (spec, dataset) = self.resolve(draft, None, None)?;
        self.defaults.clusters.check(&spec.storage)?;
        refuse_other_dataset_settings(dataset, &spec)?;
        let cluster = self.defaults.clusters.attached(&spec.storage.event_cluster).cloned();
        refuse_other_cluster(dataset, cluster.as_ref())?;
        let dataset_id = dataset.as_ref().map_or(DatasetId(self.snapshot.next_dataset_id.max(1)), |dataset| dataset.id);
        let new_dataset = dataset.is_none().then(|| Dataset {
            id: dataset_id,
            name: spec.storage.dataset.clone(),
            settings: spec.dataset,
            cluster,
        });
        let namespace = Namespace {
            id: NamespaceId(self.snapshot.next_namespace_id.max(1)),
            dataset_id,
            version: FIRST_VERSION,
            spec,
            created: self.now,
            updated: self.now,
            made_by: self.maker.principal().map(|maker| maker.as_str().into()),
        };
        let record = NamespaceRecord {
            expected_version: None,
            change: self.author.change(&namespace, self.now, Vec::new()),
            entry: Some(namespace.clone()),
            companion: new_dataset,
        };
        let answer = NamespaceApplyResult {
            applied: NamespaceApplyOutcome::Created,
            namespace: Arc::new(namespace),
            differences: Vec::new(),
        };
        Ok(NamespaceDecision { answer, record: Some(record) })
    }

    fn repeated_creation(&self, draft: NamespaceDraft, live: Arc<Namespace>) -> Result<NamespaceDecision, Reject> {
        let (spec, _) = self.resolve(draft, Some(&live), None)?;
        let lines = differences(&live.spec, &spec);
        if lines.is_empty() {
            return Ok(unchanged(live));
        }
        Err(Reject::new(
            Reason::NamespaceExists,
            format!("namespace {} exists with other settings: {}", live.spec.name, lines.join("; ")),
        ))
    }

    fn replacement(
        &self,
        draft: NamespaceDraft,
        reset: &[String],
        live: Arc<Namespace>,
    ) -> Result<NamespaceDecision, Reject> {
        check_etag(&*live, self.expected)?;
        let fresh = self.defaults_over(&live);
        let mut kept = live.spec.clone();
        reset_to(&mut kept, &fresh, &WITH_DEFAULT, reset)?;
        let (spec, dataset) = self.resolve(draft, Some(&live), Some(&kept))?;
        check_reset(&spec, &fresh, &WITH_DEFAULT, &WITH_PARTS, reset)?;
        refuse_fixed::<Namespace>(&fixed_differences(&live.spec, &spec))?;
        refuse_other_dataset_settings(dataset, &spec)?;
        let lines = differences(&live.spec, &spec);
        if lines.is_empty() {
            return Ok(unchanged(live));
        }
        let namespace = Namespace { version: live.version + 1, spec, updated: self.now, ..(*live).clone() };
        let record = NamespaceRecord {
            expected_version: Some(live.version),
            change: self.author.change(&namespace, self.now, lines.clone()),
            entry: Some(namespace.clone()),
            companion: None,
        };
        let answer = NamespaceApplyResult {
            applied: NamespaceApplyOutcome::Updated,
            namespace: Arc::new(namespace),
            differences: lines,
        };
        Ok(NamespaceDecision { answer, record: Some(record) })
    }

    fn deletion(&self, live: Arc<Namespace>) -> Result<NamespaceDecision, Reject> {
        check_etag(&*live, self.expected)?;
        let mut change = self.author.deletion(&*live, self.now, ());
        change.differences.push("the namespace was deleted".to_owned());
        let record = NamespaceRecord { expected_version: Some(live.version), entry: None, companion: None, change };
        let answer =
            NamespaceApplyResult { applied: NamespaceApplyOutcome::Updated, namespace: live, differences: Vec::new() };
        Ok(NamespaceDecision { answer, record: Some(record) })
    }

    /// The settings of a live namespace where all that can change is at its default.
    fn defaults_over(&self, live: &Namespace) -> NamespaceSpec {
        let dataset = self.snapshot.dataset_by_name(&live.spec.storage.dataset);
        let fresh = NamespaceDraft::of(live.spec.name.clone());
        fresh.resolve(Some(&live.spec), None, dataset.map(AsRef::as_ref), self.defaults)
    }

    /// The complete and valid settings, and the dataset if it exists.
    fn resolve(
        &self,
        draft: NamespaceDraft,
        live: Option<&Namespace>,
        kept: Option<&NamespaceSpec>,
    ) -> Result<(NamespaceSpec, Option<&Arc<Dataset>>), Reject> {
        let live = live.map(|live| &live.spec);
        let dataset_name = draft.dataset_name(live.map(|live| &live.storage), self.defaults);
        let dataset = self.snapshot.dataset_by_name(&dataset_name);
        let spec = draft.resolve(live, kept, dataset.map(AsRef::as_ref), self.defaults);
        spec.validate()?;
        Ok((spec, dataset))
    }
}

fn unchanged(live: Arc<Namespace>) -> NamespaceDecision {
    let answer =
        NamespaceApplyResult { applied: NamespaceApplyOutcome::Unchanged, namespace: live, differences: Vec::new() };
    NamespaceDecision { answer, record: None }
}

fn refuse_reserved_draft(draft: NamespaceDraft) -> Result<NamespaceDraft, Reject> {
    refuse_reserved(&draft.name)?;
    match draft.storage.dataset.as_ref().filter(|dataset| is_reserved(dataset)) {
        None => Ok(draft),
        Some(dataset) => Err(Reject::new(
            Reason::NamespaceReadOnly,
            format!("the service maintains dataset {dataset} for its own namespaces: set another storage.dataset"),
        )),
    }
}

fn refuse_reserved(name: &NamespaceName) -> Result<(), Reject> {
    if !is_reserved(name) {
        return Ok(());
    }
    Err(Reject::new(
        Reason::NamespaceReadOnly,
        format!("{} namespace {name}; callers can only read it: choose another name", reserved_writer(name)),
    ))
}

fn refuse_other_dataset_settings(dataset: Option<&Arc<Dataset>>, wanted: &NamespaceSpec) -> Result<(), Reject> {
    let Some(dataset) = dataset else { return Ok(()) };
    let lines = dataset_differences(&dataset.settings, &wanted.dataset);
    if lines.is_empty() {
        return Ok(());
    }
    Err(Reject::new(
        Reason::DatasetDiffers,
        format!("dataset {} exists with other settings (dataset -> wanted): {}", dataset.name, lines.join("; ")),
    ))
}

/// All rows of a dataset are in one store.
fn refuse_other_cluster(dataset: Option<&Arc<Dataset>>, wanted: Option<&NamespaceName>) -> Result<(), Reject> {
    let Some(dataset) = dataset.filter(|dataset| dataset.cluster.as_ref() != wanted) else { return Ok(()) };
    let is_in = match &dataset.cluster {
        Some(cluster) => format!("in cluster {cluster}"),
        None => "in the store of this server".to_owned(),
    };
    let what = format!(
        "dataset {} is stored {is_in}, with all its namespaces: set storage.event_cluster and storage.rollup_cluster \
         to the same cluster, or use another storage.dataset",
        dataset.name
    );
    Err(Reject::new(Reason::DatasetDiffers, what))
}
