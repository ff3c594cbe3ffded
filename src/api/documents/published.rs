//! The control-plane documents that Netflix published with its Distributed Counter Abstraction (2024).
//!
//! A document has blocks under `persistence_configuration`. The `id` of a block names its subject: CACHE,
//! COUNTER_ROLLUP or EVENT_STORAGE. Clusters keep their names; the server's configuration maps each cluster to a store.
//! Fields without a counterpart here are listed as unmapped, with the reason. A contradictory document is refused.

use crate::documents::document_table::DocumentTable;
use crate::documents::native::{CARDINALITIES, COUNTER_TYPES, named};
use crate::documents::{DocumentNamespace, agreed_name, reject_at};
use tallystone_domain::Reject;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::DOCUMENT_UNMAPPED_MAX;
use tallystone_domain::namespace::{Cardinality, CounterType};
use tallystone_engine::namespaces::NamespaceDraft;

/// A kind of block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PersistenceBlock {
    Cache,
    CounterRollup,
    EventStorage,
}

impl PersistenceBlock {
    const ALL: [Self; 3] = [Self::Cache, Self::CounterRollup, Self::EventStorage];

    fn id(self) -> &'static str {
        match self {
            Self::Cache => "CACHE",
            Self::CounterRollup => "COUNTER_ROLLUP",
            Self::EventStorage => "EVENT_STORAGE",
        }
    }

    /// The scope of the block in the published documents; it adds nothing to the id.
    fn scope(self) -> &'static str {
        match self {
            Self::Cache | Self::CounterRollup => "dal=counter",
            Self::EventStorage => "dal=ts",
        }
    }

    /// The types of store that a cluster of the block may have.
    fn store_types(self) -> &'static [&'static str] {
        match self {
            Self::Cache => &["EVCACHE", "MEMCACHED", "EMBEDDED"],
            Self::CounterRollup | Self::EventStorage => &["CASSANDRA", "SCYLLADB", "EMBEDDED"],
        }
    }
}

/// The settings decoded so far.
struct PublishedDocumentReader {
    draft: NamespaceDraft,
    counter_type: Option<(String, CounterType)>,
    cardinality: Option<(String, Cardinality)>,
    rollup_dataset: Option<(String, NamespaceName)>,
    unmapped: Vec<String>,
}

/// Decodes one namespace.
pub(super) fn read(mut fields: DocumentTable, name: Option<&NamespaceName>) -> Result<DocumentNamespace, Reject> {
    let place = fields.path().to_owned();
    let (said, also) = (fields.text("namespace")?, fields.text("name")?);
    let said = match (said, also) {
        (Some(said), Some(also)) if said != also => {
            return Err(reject_at(&place, &format!("namespace is {said:?} and name is {also:?}; omit one of them")));
        }
        (said, also) => said.or(also),
    };
    let mut reading = PublishedDocumentReader {
        draft: NamespaceDraft::of(agreed_name(&place, said, name)?),
        counter_type: None,
        cardinality: None,
        rollup_dataset: None,
        unmapped: Vec::new(),
    };
    let mut seen: Vec<(PersistenceBlock, String)> = Vec::new();
    for (place, node) in fields.list("persistence_configuration")?.unwrap_or_default() {
        let mut fields = DocumentTable::of(place, node)?;
        let Some(block) = reading.block_of(&mut fields)? else { continue };
        if let Some((_, first)) = seen.iter().find(|(known, _)| *known == block) {
            return Err(reject_at(fields.path(), &format!("{first} already has the id {}; use one block", block.id())));
        }
        seen.push((block, fields.path().to_owned()));
        reading.read_block(block, fields)?;
    }
    if seen.is_empty() {
        let ids = PersistenceBlock::ALL.map(PersistenceBlock::id).join(", ");
        return Err(reject_at(&place, &format!("persistence_configuration has no block with one of the ids {ids}")));
    }
    reading.record_unmapped(fields, "a namespace has no such setting");
    if reading.unmapped.len() > DOCUMENT_UNMAPPED_MAX {
        let count = reading.unmapped.len();
        return Err(reject_at(
            &place,
            &format!("{count} settings cannot be mapped; check that it is a document of counters"),
        ));
    }
    Ok(reading.finish())
}

impl PublishedDocumentReader {
    fn block_of(&mut self, fields: &mut DocumentTable) -> Result<Option<PersistenceBlock>, Reject> {
        let Some(id) = fields.text("id")? else {
            return Err(reject_at(fields.path(), "id is missing; it names the subject of the block"));
        };
        let block = PersistenceBlock::ALL.into_iter().find(|block| block.id() == id);
        if block.is_none() {
            self.unmapped.push(format!("{}: counters do not use a block with the id {id}", fields.path()));
        }
        Ok(block)
    }

    fn read_block(&mut self, block: PersistenceBlock, mut fields: DocumentTable) -> Result<(), Reject> {
        if let Some(scope) = fields.text("scope")?.filter(|scope| scope != block.scope()) {
            let place = fields.path_of("scope");
            self.unmapped.push(format!("{place}: {} has the scope {} here, not {scope}", block.id(), block.scope()));
        }
        if let Some(storage) = fields.table("physical_storage")? {
            self.read_storage(block, storage)?;
        }
        let place = fields.path_of("counter_cardinality");
        if let Some(said) = fields.word("counter_cardinality", "CARDINALITY_", CARDINALITIES)? {
            set_once(&mut self.cardinality, place, said, "cardinality")?;
        }
        if let Some(config) = fields.table("config")? {
            self.read_config(block, config)?;
        }
        if let Some(lifecycle) = fields.table("lifecycle_configs")? {
            self.read_lifecycle(block, lifecycle)?;
        }
        self.record_unmapped(fields, "a block has no such setting");
        Ok(())
    }

    fn read_storage(&mut self, block: PersistenceBlock, mut fields: DocumentTable) -> Result<(), Reject> {
        if let Some(store) = fields.text("type")?.filter(|store| !block.store_types().contains(&store.as_str())) {
            self.unmapped.push(format!(
                "{}: {store} is not one of {}; the server's configuration sets the kind of the cluster",
                fields.path_of("type"),
                block.store_types().join(", ")
            ));
        }
        let cluster = named(&mut fields, "cluster")?;
        let dataset_place = fields.path_of("dataset");
        match block {
            PersistenceBlock::Cache => self.draft.storage.cache_cluster = cluster,
            PersistenceBlock::CounterRollup => {
                self.draft.storage.rollup_cluster = cluster;
                self.rollup_dataset = named(&mut fields, "dataset")?.map(|dataset| (dataset_place, dataset));
            }
            PersistenceBlock::EventStorage => {
                self.draft.storage.event_cluster = cluster;
                self.draft.storage.dataset = named(&mut fields, "dataset")?;
            }
        }
        self.record_unmapped(fields, "a cluster has no such setting");
        Ok(())
    }

    fn read_config(&mut self, block: PersistenceBlock, mut fields: DocumentTable) -> Result<(), Reject> {
        let place = fields.path_of("counter_type");
        if let Some(said) = fields.word("counter_type", "COUNTER_TYPE_", COUNTER_TYPES)? {
            set_once(&mut self.counter_type, place, said, "counter type")?;
        }
        if block == PersistenceBlock::CounterRollup
            && let Some(eventual) = fields.table("eventual_counter_config")?
        {
            self.read_eventual(eventual)?;
        }
        if block == PersistenceBlock::EventStorage {
            if let Some(partition) = fields.table("time_partition")? {
                self.read_partition(partition)?;
            }
            self.draft.dataset.accept_limit = fields.duration("accept_limit")?;
        }
        self.record_unmapped(fields, "this block has no such setting");
        Ok(())
    }

    fn read_eventual(&mut self, mut fields: DocumentTable) -> Result<(), Reject> {
        if let Some(mut internal) = fields.table("internal_config")? {
            if let Some(mut queue) = internal.table("queue_config")? {
                self.draft.rollup.num_queues = queue.whole("num_queues")?;
                self.draft.rollup.coalesce_ms = queue.whole("coalesce_ms")?;
                self.draft.rollup.capacity_bytes = queue.whole("capacity_bytes")?;
                self.record_unmapped(queue, "a rollup queue has no such setting");
            }
            self.draft.rollup.rollup_batch_count = internal.whole("rollup_batch_count")?;
            self.record_unmapped(internal, "rollups have no such setting");
        }
        self.record_unmapped(fields, "eventual counters have no such setting");
        Ok(())
    }

    fn read_partition(&mut self, mut fields: DocumentTable) -> Result<(), Reject> {
        self.draft.partition.buckets_per_id = fields.whole("buckets_per_id")?;
        self.draft.partition.seconds_per_bucket = fields.whole("seconds_per_bucket")?;
        self.draft.dataset.seconds_per_slice = fields.whole("seconds_per_slice")?;
        self.record_unmapped(fields, "time partitions have no such setting");
        Ok(())
    }

    /// Retention of events is the only lifecycle rule that counters support.
    fn read_lifecycle(&mut self, block: PersistenceBlock, mut fields: DocumentTable) -> Result<(), Reject> {
        let mut first: Option<String> = None;
        for (place, node) in fields.list("lifecycle_config")?.unwrap_or_default() {
            let mut fields = DocumentTable::of(place.clone(), node)?;
            let kind = fields.text("type")?;
            if block != PersistenceBlock::EventStorage || kind.as_deref() != Some("retention") {
                let kind = kind.unwrap_or_else(|| "without a type".to_owned());
                self.unmapped.push(format!("{place}: {} has no life cycle {kind}", block.id()));
                continue;
            }
            if let Some(first) = &first {
                return Err(reject_at(&place, &format!("{first} is also a retention; use one of them")));
            }
            first = Some(place);
            if let Some(mut config) = fields.table("config")? {
                self.draft.dataset.close_after = config.duration("close_after")?;
                self.draft.dataset.delete_after = config.duration("delete_after")?;
                self.record_unmapped(config, "retention has no such setting");
            }
            self.record_unmapped(fields, "a life cycle has no such setting");
        }
        self.record_unmapped(fields, "life cycles belong under lifecycleConfig");
        Ok(())
    }

    /// Lists the fields that were not taken.
    fn record_unmapped(&mut self, fields: DocumentTable, why: &str) {
        self.unmapped.extend(fields.rest().into_iter().map(|place| format!("{place}: {why}")));
    }

    fn finish(mut self) -> DocumentNamespace {
        self.draft.counter_type = self.counter_type.map(|(_, counter_type)| counter_type);
        self.draft.cardinality = self.cardinality.map(|(_, cardinality)| cardinality);
        match (self.rollup_dataset, &self.draft.storage.dataset) {
            (Some((_, dataset)), None) => self.draft.storage.dataset = Some(dataset),
            (Some((place, dataset)), Some(of_events)) if dataset != *of_events => self.unmapped.push(format!(
                "{place}: rollups are stored in the dataset of the events, {of_events}, not in {dataset}"
            )),
            (Some(_) | None, _) => {}
        }
        DocumentNamespace { draft: self.draft, etag: None, unmapped: self.unmapped }
    }
}

/// Sets a value from a block, unless an earlier block gave a different one.
fn set_once<T: PartialEq>(known: &mut Option<(String, T)>, place: String, said: T, what: &str) -> Result<(), Reject> {
    match known {
        Some((first, other)) if *other != said => {
            Err(reject_at(&place, &format!("contradicts {first}; use one {what}")))
        }
        Some(_) => Ok(()),
        None => {
            *known = Some((place, said));
            Ok(())
        }
    }
}
