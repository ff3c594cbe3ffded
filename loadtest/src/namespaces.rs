//! The namespaces of the load, made through the catalog's own calls.

use std::time::Duration;

use anyhow::Result;
use tallystone_client::proto::admin::v1::{
    Cardinality, CounterType, CreateNamespaceRequest, DatasetSettings, HotCounter, Namespace, RollupSettings, Storage,
    TimePartition,
};

use crate::client::{Catalog, counter_name};

const CREATED_WITHIN: Duration = Duration::from_secs(60);

/// What a namespace of the load differs in.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Its name; also that of its dataset, so that no two scenarios meet.
    pub name: &'static str,
    /// About how many counters.
    pub cardinality: Cardinality,
    /// How old an event may be; rollups follow this far behind.
    pub accept_limit_ms: u64,
    /// How often a counter is rolled up at most.
    pub coalesce_ms: u32,
    /// What a count promises.
    pub counter_type: CounterType,
    /// The cluster of its cache; none: the server's own.
    pub cache_cluster: Option<&'static str>,
    /// How events lie in partitions; 0 stands for the default.
    pub partition: TimePartition,
    /// Event buckets of the first counter alone; none: as many as the others have.
    pub hot_buckets: Option<u32>,
}

impl Settings {
    /// As `dev` has them.
    pub fn dev(name: &'static str) -> Self {
        Self {
            name,
            cardinality: Cardinality::Medium,
            accept_limit_ms: 1_000,
            coalesce_ms: 1_000,
            counter_type: CounterType::Eventual,
            cache_cluster: None,
            partition: TimePartition { buckets_per_id: Some(1), ..TimePartition::default() },
            hot_buckets: None,
        }
    }
}

/// Creates a namespace; one that is there with the same settings stays.
pub async fn create(catalog: &mut Catalog, settings: &Settings) -> Result<()> {
    let dataset = DatasetSettings {
        accept_limit: Some(prost_types::Duration {
            seconds: i64::try_from(settings.accept_limit_ms / 1_000)?,
            nanos: i32::try_from(settings.accept_limit_ms % 1_000 * 1_000_000)?,
        }),
        ..DatasetSettings::default()
    };
    let namespace = Namespace {
        name: settings.name.to_owned(),
        description: Some("made by loadtest".to_owned()),
        counter_type: settings.counter_type.into(),
        counter_cardinality: settings.cardinality.into(),
        storage: Some(Storage {
            dataset: settings.name.to_owned(),
            cache_cluster: settings.cache_cluster.unwrap_or_default().to_owned(),
            ..Storage::default()
        }),
        dataset: Some(dataset),
        time_partition: Some(settings.partition),
        hot_counters: settings.hot_buckets.map(hot).into_iter().collect(),
        rollup: Some(RollupSettings { coalesce_ms: Some(settings.coalesce_ms), ..RollupSettings::default() }),
        ..Namespace::default()
    };
    let reason = "a load test".to_owned();
    let mut request = tonic::Request::new(CreateNamespaceRequest { namespace: Some(namespace), reason });
    // A node of Cassandra that has just begun takes its time.
    request.set_timeout(CREATED_WITHIN);
    catalog.create_namespace(request).await?;
    Ok(())
}

fn hot(buckets_per_id: u32) -> HotCounter {
    HotCounter { counter_name: counter_name(0), buckets_per_id }
}
