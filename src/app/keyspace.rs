//! Opens the Cassandra keyspace that the settings name; `dev` makes and migrates it first.

use std::sync::Arc;

use anyhow::Context;

use crate::adapters::cassandra::schema::{self, Replication, SchemaState};
use crate::adapters::cassandra::{self, Cassandra, OpenError, Options};
use crate::app::config::{Config, cassandra_options, storage_cluster};
use crate::app::run::Preset;
use crate::ports::Clock;

/// A setting cannot be used, which shows only when it is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

/// Opens the keyspace.
pub async fn open(config: &Config, preset: Preset, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<Cassandra>> {
    let (_, cluster) = storage_cluster(config).context("storage.cluster names no Cassandra cluster")?;
    let options = cassandra_options(cluster).map_err(Unusable)?;
    if preset == Preset::Dev {
        make(&options, clock.as_ref()).await?;
    }
    Ok(Arc::new(Cassandra::open(&options, None, Arc::clone(clock)).await?))
}

/// Makes a keyspace with one copy in the nearest data centre, and brings its schema up to this release.
async fn make(options: &Options, clock: &dyn Clock) -> Result<(), OpenError> {
    let session = cassandra::connect(options, clock).await?;
    let keyspace = &options.keyspace;
    let of = |fault| OpenError::of(fault, keyspace);
    let found = schema::state(&session, keyspace, clock).await.map_err(of)?;
    let missing = match &found {
        SchemaState::NoKeyspace => schema::MIGRATIONS,
        SchemaState::Behind(missing) => missing,
        // Whatever else is wrong is said by the opening.
        SchemaState::Current | SchemaState::Ahead(_) | SchemaState::Differs(_) => return Ok(()),
    };
    // Also when its description was there already: another server may be making it, and only the statement waits for it.
    let known = cassandra::data_centers(&session);
    let nearest = options.data_center.clone().or_else(|| known.first().cloned()).unwrap_or_default();
    let replication = Replication::new(vec![(nearest, 1)]);
    schema::make_keyspace(&session, keyspace, &replication, clock).await.map_err(of)?;
    if found == SchemaState::NoKeyspace {
        tracing::info!(keyspace, "the keyspace was made, with one copy");
    }
    schema::apply(&session, keyspace, missing, clock).await.map_err(of)
}
