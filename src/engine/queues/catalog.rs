//! The queue catalog: creates, changes and lists queues, and creates queues from templates. `delete` has deletions.
//!
//! A creation writes the shards first and the name last, so every name has its shards; a deletion removes the name
//! first. A change is committed to the catalog, then applied to every shard, and only then acknowledged. The next
//! startup repairs a crash between two steps. It drops shards without a name, and applies settings and blocks to the
//! shards again.

use std::sync::Arc;

use futures_util::future::join_all;
use hashbrown::HashSet;
use tokio::sync::oneshot;

use crate::domain::limits::{
    ACTOR_BYTES_MAX, DESCRIPTION_BYTES_MAX, PAGE_ROWS_MAX, QUEUES_FOR_CREATION_MIN, QUEUES_MAX,
};
use crate::domain::queue::{CatalogQueue, Command, MessageState, QueueId, QueueName, QueueSpec, Refusal};
use crate::domain::{Reason, Reject};
use crate::engine::caller_quota::{CallerId, QuotaExceeded, QuotaPermit};
use crate::engine::namespaces::Author;
use crate::engine::queues::Queues;
use crate::engine::queues::draft::{QueueDraft, QueueEtag, differences, fixed_differences};
use crate::engine::queues::error::QueueError;
use crate::engine::queues::limited_resource::LimitedResource;
use crate::engine::queues::registry::{not_found, refuse_template};
use crate::engine::queues::served_queue::ServedQueue;
use crate::ports::{QueueChange, QueueRecord, ShardCommand, StoreError, StoreErrorKind};

/// The version of a new queue.
const FIRST_VERSION: u64 = 1;

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

/// The target of an enqueue.
pub(super) enum EnqueueTarget {
    /// An existing queue.
    Live(Arc<ServedQueue>),
    /// A queue that a template creates with its first message.
    Template {
        /// The name of the template.
        template: QueueName,
        /// The settings of the queue.
        spec: Box<QueueSpec>,
    },
}

impl Queues {
    /// Returns a queue or template.
    pub fn get(&self, name: &QueueName) -> Result<Arc<CatalogQueue>, QueueError> {
        let found = self.context.find(name).ok_or_else(|| not_found(name))?;
        Ok(found.record.load_full())
    }

    /// Lists queues and templates with a name prefix, in the order of names, after the name `above`.
    pub fn list(&self, prefix: &str, above: Option<&QueueName>, limit: usize) -> Vec<Arc<CatalogQueue>> {
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
        if changes.is_empty() && skip == 0 { Err(not_found(name)) } else { Ok(changes) }
    }

    /// Creates a queue. If it exists with the same settings it is returned; with other settings the call is refused.
    pub async fn create(&self, draft: QueueDraft, author: Author) -> Result<Arc<CatalogQueue>, QueueError> {
        check_author(&author)?;
        let queues = self.clone();
        self.finish(async move { queues.create_now(draft, &author).await }).await
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
        check_author(&author)?;
        let queues = self.clone();
        self.finish(async move { queues.update_now(draft, &reset, expected, &author).await }).await
    }

    /// Resolves the target of an enqueue.
    pub(super) fn enqueue_target(&self, name: &QueueName) -> Result<EnqueueTarget, QueueError> {
        if let Some(found) = self.context.find(name) {
            return refuse_template(found).map(EnqueueTarget::Live);
        }
        let Some(template) = self.context.template_of(name) else {
            return Err(QueueError::NoTemplate { name: name.to_string() });
        };
        if let Some(why) = &template.spec.enqueue_blocked {
            // The new queue would be blocked too; a refused enqueue must not create a queue.
            return Err(Refusal::EnqueueBlocked(why.clone()).into());
        }
        let spec = QueueSpec { name: name.clone(), template_for: None, ..template.spec.clone() };
        Ok(EnqueueTarget::Template { template: template.spec.name.clone(), spec: Box::new(spec) })
    }

    /// Creates the queue of a first enqueue.
    pub(super) async fn create_from_template(
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
        let share = self.context.made_by_template.take(caller).map_err(no_room)?;
        let (queues, name) = (self.clone(), spec.name.clone());
        self.finish(async move { queues.make(spec, &author, Some(share)).await }).await?;
        self.context.queue(&name)
    }

    /// Loads the catalog, and repairs what a crash left incomplete.
    pub(super) async fn load(&self) -> Result<(), StoreError> {
        let queues = self.context.stores.catalog.load().await?;
        let known: HashSet<QueueId> =
            self.context.stores.shards.queues().await?.into_iter().map(|(id, _)| id).collect();
        let named: HashSet<QueueId> = queues.iter().map(|queue| queue.id).collect();
        for orphan in known.difference(&named) {
            self.context.stores.shards.drop_queue(*orphan).await?;
        }
        for queue in queues {
            let is_template = queue.spec.template_for.is_some();
            if !is_template && !known.contains(&queue.id) {
                return Err(StoreError::not_applied(StoreErrorKind::Corrupt, "open queues")
                    .with_source(format!("queue {} has no shards", queue.spec.name)));
            }
            let live = Arc::new(ServedQueue::new(queue));
            self.context.put(&live);
            if !is_template {
                self.apply_settings(&live).await.map_err(|error| match error {
                    QueueError::Store(error) => error,
                    other => StoreError::unknown(StoreErrorKind::Corrupt, "open queues").with_source(other.to_string()),
                })?;
            }
        }
        Ok(())
    }

    /// Runs a change to completion, even if the caller goes away.
    pub(super) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, QueueError>> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (answer, receiver) = oneshot::channel();
        self.context.driver.start_once(async move {
            // The caller has gone; it can read the outcome later.
            let _ = answer.send(work.await);
        });
        let gone = |_stopped| StoreError::unknown(StoreErrorKind::Closed, "change of a queue").into();
        receiver.await.unwrap_or_else(|stopped| Err(gone(stopped)))
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
        let _turn = self.context.change_permit.acquire().await.map_err(|_closed| QueueError::ShuttingDown)?;
        if let Some(live) = self.context.find(&spec.name) {
            let live = live.record.load_full();
            let lines = differences(&live.spec, &spec);
            if lines.is_empty() {
                return Ok(live);
            }
            let what =
                format!("queue {} exists with other settings (existing -> requested): {}", spec.name, lines.join("; "));
            return Err(Reject::new(Reason::QueueExists, what).into());
        }
        self.refuse_second_template(&spec)?;
        self.check_durability(&spec)?;
        if self.context.len() >= QUEUES_MAX {
            let what = format!("there are already {QUEUES_MAX} queues, the maximum; delete some first");
            return Err(Reject::new(Reason::QueueFull, what).into());
        }
        let id = QueueId(u128::from_be_bytes(self.context.random()));
        let now = self.context.now();
        let queue = CatalogQueue { id, spec, version: FIRST_VERSION, created: now, updated: now };
        let live = Arc::new(ServedQueue::with_share(queue.clone(), share));
        let is_template = queue.spec.template_for.is_some();
        if !is_template {
            self.context.stores.shards.create(id, queue.spec.shards, queue.spec.shard_settings()).await?;
            if queue.spec.enqueue_blocked.is_some() || queue.spec.dequeue_blocked.is_some() {
                self.block(&live).await?;
            }
        }
        let record = record_of(None, Some(queue.clone()), entry(&queue, author, Vec::new()));
        if let Err(error) = self.context.stores.catalog.commit(record).await {
            if error.outcome == crate::ports::EffectOutcome::NotApplied {
                // If the drop fails too, the next startup drops shards without a name.
                let _ = self.context.stores.shards.drop_queue(id).await;
            }
            return Err(error.into());
        }
        self.context.put(&live);
        Ok(Arc::new(queue))
    }

    async fn update_now(
        &self,
        draft: QueueDraft,
        reset: &[String],
        expected: Option<QueueEtag>,
        author: &Author,
    ) -> Result<QueueUpdateOutcome, QueueError> {
        let _turn = self.context.change_permit.acquire().await.map_err(|_closed| QueueError::ShuttingDown)?;
        let live = self.context.find(&draft.name).ok_or_else(|| not_found(&draft.name))?;
        let before = live.record.load_full();
        check_etag(&before, expected)?;
        let spec = draft.resolve(Some(&before.spec), reset)?;
        let lines = differences(&before.spec, &spec);
        if lines.is_empty() {
            return Ok(QueueUpdateOutcome { queue: before, differences: lines });
        }
        let fixed = fixed_differences(&before.spec, &spec);
        if !fixed.is_empty() {
            let what = format!("cannot change on a live queue: {}", fixed.join("; "));
            return Err(Reject::new(Reason::SettingIsFixed, what).into());
        }
        self.check_durability(&spec)?;
        self.refuse_type_of_full(&live, &before.spec, &spec).await?;
        let queue =
            CatalogQueue { spec, version: before.version + 1, updated: self.context.now(), ..(*before).clone() };
        let record = record_of(Some(before.version), Some(queue.clone()), entry(&queue, author, lines.clone()));
        self.context.stores.catalog.commit(record).await?;
        live.record.store(Arc::new(queue));
        if before.spec.template_for.is_none() {
            self.apply_settings(&live).await?;
        }
        // Waiters must look again: the change may have set or removed a block.
        live.waiters.wake_all();
        Ok(QueueUpdateOutcome { queue: live.record.load_full(), differences: lines })
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
        let depth = self.depth_of(live).await?;
        if MessageState::ALL.into_iter().any(|state| depth.of(state) > 0) {
            let what = "type, exclusivity_key and strict_order_per_value change only while the queue is empty, \
                        finished messages included";
            return Err(Reject::new(Reason::SettingIsFixed, what).into());
        }
        Ok(())
    }

    /// Applies the settings of the catalog to every shard.
    async fn apply_settings(&self, live: &Arc<ServedQueue>) -> Result<(), QueueError> {
        let settings = live.record.load().spec.shard_settings();
        self.on_every_shard(live, &Command::Configure(Box::new(settings))).await?;
        self.block(live).await
    }

    async fn block(&self, live: &Arc<ServedQueue>) -> Result<(), QueueError> {
        let spec = live.spec();
        let (enqueue, dequeue) = (spec.enqueue_blocked, spec.dequeue_blocked);
        self.on_every_shard(live, &Command::Block { enqueue, dequeue }).await
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

pub(super) fn record_of(
    expected_version: Option<u64>,
    queue: Option<CatalogQueue>,
    change: QueueChange,
) -> QueueRecord {
    QueueRecord { expected_version, queue, change }
}

pub(super) fn entry(queue: &CatalogQueue, author: &Author, differences: Vec<String>) -> QueueChange {
    QueueChange {
        queue: queue.id,
        name: queue.spec.name.clone(),
        version: queue.version,
        time: queue.updated,
        actor: author.actor.clone(),
        reason: author.reason.clone(),
        differences,
        spec: Some(queue.spec.clone()),
        deletion: None,
    }
}

pub(super) fn check_etag(live: &CatalogQueue, expected: Option<QueueEtag>) -> Result<(), QueueError> {
    let own = QueueEtag::of(live);
    match expected {
        Some(expected) if expected != own => {
            let name = &live.spec.name;
            let what = format!("queue {name} changed since it was read: its etag is {own}, the call has {expected}");
            Err(Reject::new(Reason::EtagMismatch, what).into())
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn check_author(author: &Author) -> Result<(), QueueError> {
    for (what, text, most) in
        [("actor", &author.actor, ACTOR_BYTES_MAX), ("reason", &author.reason, DESCRIPTION_BYTES_MAX)]
    {
        if text.len() > most {
            let what = format!("{what} has {} bytes; at most {most} are allowed", text.len());
            return Err(Reject::new(Reason::InvalidArgument, what).into());
        }
    }
    Ok(())
}
