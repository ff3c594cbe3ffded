//! The queue catalog: creates, changes and lists queues, and creates queues from templates. `delete` has deletions.
//!
//! A creation writes the shards first and the name last, so every name has its shards; a deletion removes the name
//! first. A change is committed to the catalog, then applied to every shard, and only then acknowledged. After a crash
//! between two steps, the next start applies the settings to the shards, and `unnamed_shards` drops shards without a
//! name. `engine::catalog` commits changes, decides them again if another server was first, and follows others.

pub(in crate::queues) mod delete;
pub(in crate::queues) mod draft;
pub(in crate::queues) mod history_scope;
pub(in crate::queues) mod look_up;
pub(in crate::queues) mod retry_draft;
pub(in crate::queues) mod unnamed_shards;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use hashbrown::HashSet;

use crate::caller_quota::{CallerId, CallerQuota, QuotaExceeded, QuotaPermit};
use crate::catalog::{
    Author, CatalogView, ChangeTurn, CommitOutcome, FIRST_VERSION, FollowedCatalog, Sharing, check_etag, refuse_fixed,
};
use crate::queues::QueueEtag;
use crate::queues::catalog::draft::{QueueDraft, differences, fixed_differences};
use crate::queues::catalog::look_up::CatalogLookUps;
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use crate::queues::state::context::{QueueContext, refuse_template};
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::access::KeyQuota;
use tallystone_domain::limits::{CALLER_TEMPLATE_QUEUES_MAX, PAGE_ROWS_MAX, QUEUES_FOR_CREATION_MIN, QUEUES_MAX};
use tallystone_domain::queue::{CatalogQueue, Command, MessageState, QueueId, QueueName, QueueSpec, Refusal};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{EffectOutcome, QueueChange, QueueRecord, ShardCommand, StoreError, StoreErrorKind};

/// The result of a change of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueUpdateOutcome {
    /// The queue after the change.
    pub queue: Arc<CatalogQueue>,
    /// The changed settings, one line each; empty for a creation or if nothing changed.
    pub differences: Vec<String>,
}

/// A change in the history of a name.
pub type PastQueueChange = QueueChange;

pub(in crate::queues) enum EnqueueTarget {
    /// An existing queue.
    Live(Arc<ServedQueue>),
    /// A queue that a template creates with its first message.
    Template {
        template: QueueName,
        /// The settings of the queue.
        spec: Box<QueueSpec>,
    },
}

/// The names and settings of queues: creates, changes, lists and finds them. Cheap to clone.
#[derive(Clone)]
pub struct CatalogService {
    context: Arc<QueueContext>,
    /// Reads of the catalog for names that this server does not know.
    look_ups: Arc<CatalogLookUps>,
    /// The queues made by templates, counted by the caller of their first enqueue.
    made_by_template: CallerQuota,
    /// Whose queues those are that are made here.
    maker: CallerId,
}

impl CatalogService {
    /// The catalog of these queues.
    pub(in crate::queues) fn new(context: Arc<QueueContext>) -> Self {
        Self {
            context,
            look_ups: Arc::default(),
            made_by_template: CallerQuota::new(QUEUES_MAX, CALLER_TEMPLATE_QUEUES_MAX).of_key(KeyQuota::Queues),
            maker: CallerId::nobody(),
        }
    }

    /// Returns a queue or template, as it is in the store. If the store cannot be read, as this server knows it.
    pub async fn read(&self, name: &QueueName) -> Result<Arc<CatalogQueue>, QueueError> {
        let _ = self.read_changes().await;
        self.get(name)
    }

    /// Returns a queue or template that this server knows.
    pub fn get(&self, name: &QueueName) -> Result<Arc<CatalogQueue>, QueueError> {
        let found = self.context.find(name).ok_or_else(|| QueueError::not_found(name))?;
        Ok(found.record.load_full())
    }

    /// Lists queues and templates with a name prefix, in the order of names, after the name `above`. If servers share a
    /// store, it reads the changes of the catalog first, as `read` does.
    pub async fn list(&self, prefix: &str, above: Option<&QueueName>, limit: usize) -> Vec<Arc<CatalogQueue>> {
        let _ = self.read_changes().await;
        let listed = self.context.directory.list(prefix, above, limit.min(PAGE_ROWS_MAX));
        listed.into_iter().map(|queue| queue.record.load_full()).collect()
    }

    /// The history of a name, newest first; a name without history is refused.
    pub async fn history(
        &self,
        name: &QueueName,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<PastQueueChange>, QueueError> {
        let changes = self.context.stores.catalog.history(name, skip, limit.min(PAGE_ROWS_MAX)).await?;
        if changes.is_empty() && skip == 0 { Err(QueueError::not_found(name)) } else { Ok(changes) }
    }

    /// Creates a queue. If it exists with the same settings it is returned; with other settings the call is refused.
    pub async fn create(&self, draft: QueueDraft, author: Author) -> Result<Arc<CatalogQueue>, QueueError> {
        author.check()?;
        let catalog = self.clone();
        self.context.finish(async move { catalog.create_now(draft, &author).await }).await
    }

    /// Creates a queue or template unless the name was ever used, so that changes and deletions by users persist.
    pub async fn ensure(&self, draft: QueueDraft, author: Author) -> Result<(), QueueError> {
        let known = self.context.find(&draft.name).is_some()
            || !self.context.stores.catalog.history(&draft.name, 0, 1).await?.is_empty();
        if known { Ok(()) } else { self.create(draft, author).await.map(drop) }
    }

    /// Changes the settings named in the draft; `expected` is the etag that the caller read.
    pub async fn update(
        &self,
        draft: QueueDraft,
        reset: Vec<String>,
        expected: Option<QueueEtag>,
        author: Author,
    ) -> Result<QueueUpdateOutcome, QueueError> {
        author.check()?;
        let catalog = self.clone();
        self.context.finish(async move { catalog.update_now(draft, &reset, expected, &author).await }).await
    }

    /// Resolves the target of an enqueue, of a caller who may make its queue by a template or not.
    pub(in crate::queues) async fn enqueue_target(
        &self,
        name: &QueueName,
        makes_queues: bool,
    ) -> Result<EnqueueTarget, QueueError> {
        self.look_up(name).await?;
        if let Some(found) = self.context.find(name) {
            let live = refuse_template(found)?;
            if self.context.stores.shards.capabilities().durability_may_fall {
                self.check_durability(&live.record.load().spec)?;
            }
            return Ok(EnqueueTarget::Live(live));
        }
        let Some(template) = self.context.template_of(name).filter(|_| makes_queues) else {
            return Err(QueueError::NoTemplate { name: name.to_string() });
        };
        if let Some(why) = &template.spec.enqueue_blocked {
            // The new queue would be blocked too; a refused enqueue must not create a queue.
            return Err(Refusal::EnqueueBlocked(why.clone()).into());
        }
        let spec = QueueSpec { name: name.clone(), template_for: None, ..template.spec.clone() };
        Ok(EnqueueTarget::Template { template: template.spec.name.clone(), spec: Box::new(spec) })
    }

    /// The same catalog on behalf of a caller, whose the queues are that it creates.
    #[must_use]
    pub fn of_maker(&self, maker: CallerId) -> Self {
        Self { maker, ..self.clone() }
    }

    /// Refuses a queue beyond the quota of its maker's key. O(queues).
    fn check_maker(&self) -> Result<(), QueueError> {
        let Some(maker) = self.maker.principal() else { return Ok(()) };
        let is_own = |live: &&Arc<ServedQueue>| live.record.load().made_by.as_deref() == Some(maker.as_str());
        let own = self.context.all().iter().filter(is_own).count();
        let no_room = |why| QueueError::LimitReached { of: LimitedResource::TemplateQueue, why };
        self.maker.check(KeyQuota::Queues, own).map_err(no_room)
    }

    /// Creates the queue of a first enqueue.
    pub(in crate::queues) async fn create_from_template(
        &self,
        caller: &CallerId,
        template: &QueueName,
        spec: QueueSpec,
    ) -> Result<Arc<ServedQueue>, QueueError> {
        let author =
            Author { actor: "tallystone".to_owned(), reason: format!("the first enqueue, by template {template}") };
        let most = QUEUES_MAX - QUEUES_FOR_CREATION_MIN;
        let no_room = |why| QueueError::LimitReached { of: LimitedResource::TemplateQueue, why };
        if self.context.len() >= most {
            return Err(no_room(QuotaExceeded::All(most)));
        }
        let share = self.made_by_template.take(caller).map_err(no_room)?;
        let (catalog, name) = (self.of_maker(caller.clone()), spec.name.clone());
        self.context.finish(async move { catalog.make(spec, &author, Some(share)).await }).await?;
        self.context.queue(&name)
    }

    /// Loads the catalog, and repairs what a crash left incomplete.
    pub(in crate::queues) async fn load(&self) -> Result<(), StoreError> {
        let queues = self.named_queues().await?;
        self.context.take_in(queues);
        for live in self.context.all().iter().filter(|live| live.holds_messages()) {
            match self.apply_settings(live).await {
                // Another server deleted it meanwhile; `follow` sees that too.
                Ok(()) | Err(QueueError::QueueNotFound { .. }) => {}
                Err(QueueError::Store(error)) => return Err(error),
                Err(other) => {
                    let error = StoreError::unknown(StoreErrorKind::Corrupt, "open queues");
                    return Err(error.with_source(other.to_string()));
                }
            }
        }
        Ok(())
    }

    /// The queues of the catalog, each of which has its shards.
    async fn named_queues(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        let (catalog, shards) = (&self.context.stores.catalog, &self.context.stores.shards);
        let queues = catalog.load().await?;
        let known: HashSet<QueueId> = shards.queues().await?.into_iter().map(|queue| queue.id).collect();
        let mut holders = queues.iter().filter(|queue| queue.spec.template_for.is_none());
        let Some(missing) = holders.find(|queue| !known.contains(&queue.id)) else { return Ok(queues) };
        // Another server may have deleted it between the two reads. A deletion removes the name first.
        let again = catalog.load().await?;
        if again.iter().all(|queue| queue.id != missing.id) {
            return Ok(again);
        }
        Err(StoreError::not_applied(StoreErrorKind::Corrupt, "open queues")
            .with_source(format!("queue {} has no shards", missing.spec.name)))
    }

    /// Waits for the permit to change the catalog.
    async fn begin_change(&self) -> Result<ChangeTurn<'_, CatalogQueue>, QueueError> {
        // What other servers changed before this call, so that it is not decided on an older view.
        self.read_changes().await?;
        self.context.catalog.begin(&*self.context).await.ok_or(QueueError::ShuttingDown)
    }

    async fn create_now(&self, draft: QueueDraft, author: &Author) -> Result<Arc<CatalogQueue>, QueueError> {
        // A setting that predates a rule is no fault of a caller that creates the queue again.
        let known = self.context.find(&draft.name).map(|live| live.record.load_full());
        let spec = draft.resolve_new(known.as_ref().map(|known| &known.spec))?;
        self.make(spec, author, None).await
    }

    /// Creates a queue with these settings, unless it exists. The queue holds `share` for its lifetime.
    async fn make(
        &self,
        spec: QueueSpec,
        author: &Author,
        share: Option<QuotaPermit>,
    ) -> Result<Arc<CatalogQueue>, QueueError> {
        let mut turn = self.begin_change().await?;
        loop {
            if let Some(live) = self.context.find(&spec.name) {
                let queue = live.record.load_full();
                // A first enqueue takes the queue that another one created, also if the template changed in between.
                return if share.is_some() { Ok(queue) } else { repeated_creation(queue, &spec) };
            }
            self.refuse_second_template(&spec)?;
            self.check_durability(&spec)?;
            self.check_maker()?;
            if self.context.len() >= QUEUES_MAX {
                let what = format!("there are already {QUEUES_MAX} queues, the maximum; delete some first");
                return Err(Reject::new(Reason::QueueFull, what).into());
            }
            let id = QueueId(u128::from_be_bytes(self.context.random()));
            let now = self.context.now();
            let (spec, version) = (spec.clone(), FIRST_VERSION);
            let made_by = self.maker.principal().map(|maker| maker.as_str().into());
            let queue = CatalogQueue { id, spec, version, created: now, updated: now, made_by };
            let live = Arc::new(ServedQueue::new(queue.clone()));
            self.create_shards(&live).await?;
            let change = author.change(&queue, now, Vec::new());
            let committed = turn.commit(record_of(None, Some(queue.clone()), change)).await;
            let may_be_applied = match &committed {
                Ok(outcome) => *outcome == CommitOutcome::Committed,
                Err(error) => error.outcome == EffectOutcome::Unknown,
            };
            if !may_be_applied {
                // If the drop fails too, the shards are dropped once they are old.
                let _ = self.context.stores.shards.drop_queue(id).await;
            }
            if committed? == CommitOutcome::Overtaken {
                continue;
            }
            if let Some(share) = share {
                live.occupy(share);
            }
            self.context.put(&live);
            return Ok(Arc::new(queue));
        }
    }

    async fn create_shards(&self, live: &Arc<ServedQueue>) -> Result<(), QueueError> {
        let queue = live.record.load_full();
        if live.holds_messages() {
            self.context.stores.shards.create(queue.id, queue.spec.shards, queue.shard_settings()).await?;
            live.record_created(queue.version);
        }
        Ok(())
    }

    async fn update_now(
        &self,
        draft: QueueDraft,
        reset: &[String],
        expected: Option<QueueEtag>,
        author: &Author,
    ) -> Result<QueueUpdateOutcome, QueueError> {
        let mut turn = self.begin_change().await?;
        loop {
            let live = self.context.find(&draft.name).ok_or_else(|| QueueError::not_found(&draft.name))?;
            let before = live.record.load_full();
            check_etag(&*before, expected)?;
            let spec = draft.clone().resolve(Some(&before.spec), reset)?;
            let lines = differences(&before.spec, &spec);
            if !lines.is_empty() {
                refuse_fixed::<CatalogQueue>(&fixed_differences(&before.spec, &spec))?;
                self.check_durability(&spec)?;
                self.refuse_type_of_full(&live, &before.spec, &spec).await?;
                // Shards never go back, but the store may have lost changes of the catalog that they still have.
                let version = before.version.max(live.newest_settings()) + 1;
                let updated = self.context.now();
                let queue = CatalogQueue { spec, version, updated, ..(*before).clone() };
                let change = author.change(&queue, updated, lines.clone());
                let record = record_of(Some(before.version), Some(queue.clone()), change);
                if turn.commit(record).await? == CommitOutcome::Overtaken {
                    continue;
                }
                live.record.store(Arc::new(queue));
            }
            // Whatever is known of the shards: what was committed reaches them.
            if (!lines.is_empty() && live.holds_messages()) || live.may_differ() {
                self.apply_settings(&live).await?;
                // Waiters must look again: the change may have set or removed a block.
                live.waiters.wake_all();
            }
            return Ok(QueueUpdateOutcome { queue: live.record.load_full(), differences: lines });
        }
    }

    /// Refuses a second template with the same prefix: the template of a queue would be ambiguous.
    fn refuse_second_template(&self, spec: &QueueSpec) -> Result<(), QueueError> {
        let Some(prefix) = &spec.template_for else { return Ok(()) };
        let Some(first) = self.context.directory.template_for(prefix) else { return Ok(()) };
        let what = format!(
            "template {} already has the prefix {prefix}: update that template, or delete it first",
            first.record.load().spec.name
        );
        Err(Reject::new(Reason::QueueExists, what.as_str()).at("queue.template_for", what.as_str()).into())
    }

    /// Refuses a queue or template that requires more durability than the store offers, whatever the outcome would
    /// be.
    fn check_durability(&self, spec: &QueueSpec) -> Result<(), QueueError> {
        let offered = self.context.stores.shards.durability();
        let Some(required) = spec.required_durability.filter(|required| offered.is_none_or(|offer| offer < *required))
        else {
            return Ok(());
        };
        let offers = offered.map_or_else(
            || "none, because its queues are in memory and end with the process".to_owned(),
            |offered| offered.to_string(),
        );
        let what =
            format!("{} requires the durability {required}; the store of this server offers {offers}", spec.name);
        Err(Reject::new(Reason::DurabilityNotOffered, what).into())
    }

    /// The type can change only while the queue is empty; each shard checks that again.
    async fn refuse_type_of_full(
        &self,
        live: &Arc<ServedQueue>,
        before: &QueueSpec,
        after: &QueueSpec,
    ) -> Result<(), QueueError> {
        let kind = |spec: &QueueSpec| {
            let own = spec.settings.exclusivity.as_ref();
            own.map(|own| (own.key.clone(), own.strict_order_per_value))
        };
        if kind(before) == kind(after) || before.template_for.is_some() {
            return Ok(());
        }
        let depth = self.context.depth_of(live).await?;
        if MessageState::ALL.into_iter().any(|state| depth.of(state) > 0) {
            let what = "type, exclusivity_key and strict_order_per_value change only while the queue is empty, \
                        finished messages included";
            return Err(Reject::new(Reason::SettingIsFixed, what).into());
        }
        Ok(())
    }

    /// Applies settings and blocks of the catalog to every shard that has an older version.
    async fn apply_settings(&self, live: &Arc<ServedQueue>) -> Result<(), QueueError> {
        let queue = live.record.load_full();
        self.on_every_shard(live, &Command::Configure(Box::new(queue.shard_settings()))).await
    }

    /// Applies the settings of queues that other servers created or changed: a server may have died before it did so.
    /// The answers also bring the statuses of shards that this server has not heard of. What fails is done at the next
    /// call.
    async fn apply_followed(&self) {
        let followed = std::mem::take(&mut *self.context.followed.lock());
        for id in followed {
            let Some(live) = self.context.by_id(id).filter(|live| live.may_differ()) else { continue };
            match self.apply_settings(&live).await {
                Ok(()) => live.waiters.wake_all(),
                // It was deleted meanwhile.
                Err(QueueError::QueueNotFound { .. }) => {}
                Err(error) => {
                    tracing::debug!(%error, queue = %id, "cannot apply the settings of another server; trying again");
                    self.context.followed.lock().insert(id);
                }
            }
        }
    }

    /// Sends a command to all shards concurrently, so that they share the commits of the store.
    async fn on_every_shard(&self, live: &Arc<ServedQueue>, command: &Command) -> Result<(), QueueError> {
        let send = |shard| self.context.call(live, shard, ShardCommand::of(command.clone()));
        for answer in join_all((0..live.shards()).map(send)).await {
            answer?.reply?;
        }
        Ok(())
    }
}

impl CatalogView<CatalogQueue> for QueueContext {
    fn take_in(&self, queues: Vec<CatalogQueue>) {
        let named: HashSet<QueueId> = queues.iter().map(|queue| queue.id).collect();
        for gone in self.all().iter().filter(|live| !named.contains(&live.record.load().id)) {
            self.remove(gone);
        }
        for queue in queues {
            let id = queue.id;
            match self.by_id(id) {
                None => self.put(&Arc::new(ServedQueue::new(queue))),
                Some(live) if **live.record.load() != queue => {
                    live.record.store(Arc::new(queue));
                    // The change may have set or removed a block.
                    live.waiters.wake_all();
                }
                Some(_) => continue,
            }
            self.followed.lock().insert(id);
        }
    }
}

#[async_trait]
impl FollowedCatalog for CatalogService {
    async fn follow(&self) -> Result<Sharing, StoreError> {
        let sharing = self.context.catalog.follow(&*self.context).await?;
        self.apply_followed().await;
        Ok(sharing)
    }
}

/// The record of a change. A queue is committed alone.
fn record_of(expected_version: Option<u64>, entry: Option<CatalogQueue>, change: QueueChange) -> QueueRecord {
    QueueRecord { expected_version, entry, companion: (), change }
}

fn repeated_creation(live: Arc<CatalogQueue>, spec: &QueueSpec) -> Result<Arc<CatalogQueue>, QueueError> {
    let lines = differences(&live.spec, spec);
    if lines.is_empty() {
        return Ok(live);
    }
    let what = format!("queue {} exists with other settings (existing -> requested): {}", spec.name, lines.join("; "));
    Err(Reject::new(Reason::QueueExists, what).into())
}
