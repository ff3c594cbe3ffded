//! Opens the Cassandra keyspaces that the settings name; `dev` makes and migrates them first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use scylla::client::session::Session;
use uuid::Uuid;

use crate::config::{ClusterConfig, Config, attached_clusters, cassandra_options, counter_cluster};
use crate::server::preset::Preset;
use tallystone_adapters::Opened;
use tallystone_adapters::by_dataset::by_dataset;
use tallystone_adapters::system::SystemEntropy;
use tallystone_cassandra::schema::{self, Replication, SchemaState};
use tallystone_cassandra::{Cassandra, OpenError, Options, SettingsSource, StartupDeadline, within_deadline};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::namespace::Dataset;
use tallystone_ports::{Clock, Entropy, FastCounts, HistoryStore, StoreHandle, Stores};

/// A setting cannot be used, which shows only when it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnusableSetting(pub String);

/// The keyspace with the catalog, and those beside it that keep datasets.
pub struct Keyspaces {
    primary: Arc<Cassandra>,
    attached: BTreeMap<NamespaceName, Arc<Cassandra>>,
}

/// The parts that keyspaces offer together.
pub struct OpenedKeyspaces {
    pub stores: Stores,
    /// In the order of `Keyspaces::all`.
    pub handles: Vec<Arc<dyn StoreHandle>>,
    pub history: Option<Arc<dyn HistoryStore>>,
}

impl Keyspaces {
    /// All of them, that with the catalog first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Cassandra>> {
        std::iter::once(&self.primary).chain(self.attached.values())
    }

    /// Their names, as texts name them.
    pub fn names(&self) -> String {
        self.all().map(|keyspace| keyspace.keyspace()).collect::<Vec<_>>().join(" or keyspace ")
    }

    /// Their stores as one, with best-effort counters in `fast`, and their handles in the order of `all`. The stores
    /// are combined even for one keyspace, so that a dataset of another one is refused and not begun again.
    ///
    /// The history of messages is that of the keyspace with the catalog. Its rows are kept for `history_retention`.
    pub fn opened(&self, fast: &Arc<dyn FastCounts>, history_retention: Duration) -> OpenedKeyspaces {
        let open = |keyspace: &Arc<Cassandra>| {
            let Opened { counters, handle, history, .. } = keyspace.opened(Arc::clone(fast), history_retention);
            (counters.expect("a keyspace has counters"), handle, history)
        };
        let (primary, first, history) = open(&self.primary);
        let (attached, handles): (BTreeMap<_, _>, Vec<_>) = self
            .attached
            .iter()
            .map(|(name, keyspace)| {
                let (stores, handle, _) = open(keyspace);
                ((name.clone(), stores), handle)
            })
            .unzip();
        let handles = std::iter::once(first).chain(handles).collect();
        OpenedKeyspaces { stores: by_dataset(primary, attached), handles, history }
    }
}

/// Opens the keyspaces, one after the other, within what is left of a start. All are looked at before any is settled: a
/// start that is refused for one of them leaves no mark on another.
pub async fn open(
    config: &Config,
    preset: Preset,
    clock: &Arc<dyn Clock>,
    startup_deadline: &Arc<StartupDeadline>,
) -> anyhow::Result<Keyspaces> {
    let (_, cluster) = counter_cluster(config).context("counters.cluster names no Cassandra cluster")?;
    let home = open_one(cluster, None, preset, clock, startup_deadline).await?;
    let catalog = within_deadline(startup_deadline, &cluster.keyspace, home.check_primary()).await?;
    let mut beside = BTreeMap::new();
    for (name, cluster) in attached_clusters(config) {
        let opened = open_one(cluster, Some(home.catalog()), preset, clock, startup_deadline).await;
        let opened = opened.with_context(|| unusable_cluster(name))?;
        // What is no name was refused when the settings were checked.
        let name = NamespaceName::new(name).map_err(|reject| UnusableSetting(reject.message))?;
        let looked =
            within_deadline(startup_deadline, &cluster.keyspace, inspect_attached(&home, &opened, catalog, &name))
                .await;
        looked.with_context(|| unusable_cluster(name.as_str()))?;
        beside.insert(name, opened);
    }
    let datasets = within_deadline(startup_deadline, &cluster.keyspace, home.datasets())
        .await
        .context("cannot read the catalog")?;
    let is_unlisted = |dataset: &&Dataset| dataset.cluster.as_ref().is_some_and(|name| !beside.contains_key(name));
    if let Some(dataset) = datasets.iter().find(is_unlisted) {
        return Err(unlisted_cluster(dataset).into());
    }
    let catalog = within_deadline(startup_deadline, &cluster.keyspace, home.claim_primary(new_id())).await?;
    for (name, opened) in &beside {
        let kept = within_deadline(startup_deadline, opened.keyspace(), opened.claim_attached(catalog, name)).await;
        kept.with_context(|| unusable_cluster(name.as_str()))?;
    }
    Ok(Keyspaces { primary: home, attached: beside })
}

/// Looks at a keyspace other than the one with the catalog. Another server that starts for the first time as well may
/// have settled both since the catalog was looked at.
async fn inspect_attached(
    home: &Cassandra,
    beside: &Cassandra,
    catalog: Option<Uuid>,
    name: &NamespaceName,
) -> Result<(), OpenError> {
    match beside.check_attached(catalog, name).await {
        Err(OpenError::Owned { .. }) if catalog.is_none() => {
            let catalog = home.check_primary().await?;
            beside.check_attached(catalog, name).await
        }
        looked => looked,
    }
}

fn unusable_cluster(cluster: &str) -> String {
    format!("cannot use [clusters.{cluster}]")
}

fn new_id() -> Uuid {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// A server without the cluster of a dataset would own shards of it, and its counts would stand still.
fn unlisted_cluster(Dataset { name, cluster, .. }: &Dataset) -> UnusableSetting {
    let cluster = cluster.as_ref().map(NamespaceName::as_str).unwrap_or_default();
    UnusableSetting(format!(
        "dataset {name} is stored in cluster {cluster}, but the settings have no [clusters.{cluster}] of kind \
         \"cassandra\"; add it, because every server of this catalog needs it"
    ))
}

async fn open_one(
    cluster: &ClusterConfig,
    settings: Option<Arc<dyn SettingsSource>>,
    preset: Preset,
    clock: &Arc<dyn Clock>,
    startup_deadline: &Arc<StartupDeadline>,
) -> anyhow::Result<Arc<Cassandra>> {
    let options = cassandra_options(cluster).map_err(UnusableSetting)?;
    if preset == Preset::Dev {
        let session = tallystone_cassandra::connect(&options, startup_deadline).await?;
        let making = make(&session, &options, clock.as_ref(), startup_deadline);
        within_deadline(startup_deadline, &options.keyspace, Box::pin(making)).await?;
    }
    Ok(Arc::new(Cassandra::open(&options, settings, Arc::clone(clock), startup_deadline).await?))
}

/// Makes a keyspace with one copy in the nearest data centre, and brings its schema up to this release.
async fn make(
    session: &Session,
    options: &Options,
    clock: &dyn Clock,
    startup_deadline: &StartupDeadline,
) -> Result<(), OpenError> {
    let keyspace = &options.keyspace;
    let of = |fault| OpenError::of(fault, keyspace);
    let found = schema::state(session, keyspace, clock).await.map_err(of)?;
    let missing = match &found {
        SchemaState::NoKeyspace => schema::MIGRATIONS,
        SchemaState::Behind(missing) => missing,
        // Whatever else is wrong is said by the opening.
        SchemaState::Current | SchemaState::Ahead(_) | SchemaState::Differs(_) => return Ok(()),
    };
    // Also when its description was there already: another server may be making it, and only the statement waits for
    // it.
    let known = tallystone_cassandra::data_centers(session);
    let nearest = options.data_center.clone().or_else(|| known.first().cloned()).unwrap_or_default();
    let replication = Replication::new(vec![(nearest, 1)]);
    schema::make_keyspace(session, keyspace, &replication, clock).await.map_err(of)?;
    startup_deadline.extend();
    if found == SchemaState::NoKeyspace {
        tracing::info!(keyspace, "the keyspace was created with one replica");
    }
    schema::apply(session, keyspace, missing, clock, &|| startup_deadline.extend()).await.map_err(of)
}
