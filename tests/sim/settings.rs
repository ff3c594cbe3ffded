//! The settings of the one namespace: a catalog that all servers share, and an operator who changes them under load.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tallystone_adapters::memory;
use tallystone_cassandra::{RowSettings, SettingsSource};
use tallystone_domain::counter::{NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Cardinality, HotCounter, Namespace, NamespaceSpec};
use tallystone_engine::catalog::Author;
use tallystone_ports::{
    Catalog, CatalogState, NamespaceChange, NamespaceRecord, NamespaceStore, StoreError, StoreErrorKind,
};

use crate::chance::Chance;
use crate::client::name_of;
use crate::server::Machines;
use crate::world::World;

/// The catalog: always there, because what is tried here is what servers make of its changes.
#[derive(Default)]
pub struct SharedCatalog {
    inner: memory::Catalog,
    commits: AtomicI64,
}

#[async_trait]
impl Catalog<Namespace> for SharedCatalog {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        self.inner.load().await
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        Ok(Some(self.commits.load(Ordering::Relaxed)))
    }

    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        self.inner.commit(record).await?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        self.inner.history(name, beyond, limit).await
    }
}

#[async_trait]
impl NamespaceStore for SharedCatalog {
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        self.inner.version_of(namespace, version).await
    }
}

#[async_trait]
impl SettingsSource for SharedCatalog {
    async fn settings(&self, namespace: NamespaceId, version: u64) -> Result<RowSettings, StoreError> {
        let missing = || StoreError::not_applied(StoreErrorKind::Corrupt, "read frozen settings");
        let spec = self.inner.version_of(namespace, version).await?.ok_or_else(missing)?;
        Ok(spec.into())
    }
}

/// Chooses what may change at run time. None of it changes what counts.
pub fn vary(spec: &mut NamespaceSpec, chance: &mut Chance) {
    spec.rollup.coalesce_ms = [500, 2_000][chance.index(2)];
    spec.rollup.num_queues = [1, 2, 3][chance.index(3)];
    spec.cardinality = [Cardinality::Low, Cardinality::Medium][chance.index(2)];
    spec.partition.buckets_per_id = [1, 2][chance.index(2)];
    spec.partition.seconds_per_bucket = [10, 20, 60][chance.index(3)];
    if !spec.hot_counters.is_empty() {
        heat(spec, chance);
    }
}

/// Gives some counters event buckets of their own.
pub fn heat(spec: &mut NamespaceSpec, chance: &mut Chance) {
    let hot = |counter| HotCounter { counter_name: name_of(counter), buckets_per_id: [1, 3, 5][chance.index(3)] };
    spec.hot_counters = [0, 1].map(hot).into_iter().collect();
}

/// Changes settings now and then, on some server, until a time.
pub async fn change(
    world: World,
    machines: Machines,
    mut spec: NamespaceSpec,
    mut chance: Chance,
    (mean, until): (Duration, Duration),
) {
    loop {
        let pause = chance.between(Duration::ZERO, mean * 2);
        if world.now() + pause >= until {
            return;
        }
        world.sleep(pause).await;
        vary(&mut spec, &mut chance);
        let Some((process, running)) = machines.running(chance.index(machines.count())) else { continue };
        let (namespaces, wanted) = (running.engine.namespaces(), spec.clone());
        world.run_in(process, async move {
            // A change that does not come through is none; another follows.
            let _ = namespaces.update(wanted, None, Author::default()).await;
        });
    }
}
