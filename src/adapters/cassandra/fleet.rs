//! What the servers of a keyspace tell each other: heartbeats and frontiers, registers all of them, recheck marks, and
//! sealed values, which are changed by compare-and-set.

use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::place::{bucket_width, stored_counter, stored_dataset, stored_shard};
use crate::adapters::cassandra::rollups::Rollups;
use crate::adapters::cassandra::scan::Scanning;
use crate::adapters::cassandra::slices::Slices;
use crate::adapters::cassandra::store::{Decision, Level};
use crate::adapters::cassandra::touches::{by_shard, stored_bucket};
use crate::adapters::cassandra::touching::Touching;
use crate::adapters::stored;
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, Event};
use crate::domain::fleet::{Beat, MemberId};
use crate::domain::limits::STEP;
use crate::domain::rollup::Sealed;
use crate::ports::{Copies, FleetStore, StoreError};

/// The part of a keyspace that only servers among each other use.
pub struct Fleet {
    link: Arc<Link>,
    slices: Arc<Slices>,
    touching: Arc<Touching>,
    scanning: Arc<Scanning>,
    rollups: Arc<Rollups>,
}

impl Fleet {
    /// Puts the parts together.
    pub fn new(
        link: Arc<Link>,
        slices: Arc<Slices>,
        touching: Arc<Touching>,
        scanning: Arc<Scanning>,
        rollups: Arc<Rollups>,
    ) -> Self {
        Self { link, slices, touching, scanning, rollups }
    }
}

#[async_trait]
impl FleetStore for Fleet {
    async fn beat(&self, member: MemberId, beat: &Beat) -> Result<(), StoreError> {
        let number = i64::try_from(beat.number).unwrap_or(i64::MAX);
        let at = self.link.register_time(number);
        let values = (at, stored::encode_beat(beat), Uuid::from_bytes(member.0));
        self.link.write("beat", self.link.statement("beat"), values).await
    }

    async fn members(&self) -> Result<Vec<(MemberId, Beat)>, StoreError> {
        const OP: &str = "read members";
        let rows: Vec<(Uuid, Option<Vec<u8>>)> = self.link.rows(OP, self.link.statement("list_members"), ()).await?;
        let member = |(id, beat): (Uuid, Option<Vec<u8>>)| {
            let beat = stored::decode_beat(&beat?).map_err(|damaged| damaged.during(OP));
            Some(beat.map(|beat| (MemberId(id.into_bytes()), beat)))
        };
        rows.into_iter().filter_map(member).collect()
    }

    async fn remove(&self, member: MemberId) -> Result<(), StoreError> {
        let values = (Uuid::from_bytes(member.0),);
        self.link.write("remove member", self.link.statement("delete_member"), values).await
    }

    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError> {
        let at = self.link.register_time(frontier.micros());
        let values = (at, frontier.micros(), stored_dataset(dataset));
        self.link.write("raise frontier", self.link.statement("set_frontier"), values).await
    }

    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        let statement = self.link.statement("read_frontier");
        let row: Option<(Option<i64>,)> =
            self.link.first_row("read frontier", statement, (stored_dataset(dataset),)).await?;
        Ok(row.and_then(|(frontier,)| frontier).map_or(Timestamp::MIN, Timestamp::from_micros))
    }

    async fn mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        const OP: &str = "leave a recheck mark";
        let of_event = self.slices.taking(dataset, event, OP).await?;
        let settings = self.slices.settings(&of_event, counter.namespace()).await?;
        let bucket = event.floor_to(bucket_width(settings.partition_of(counter)));
        let slice = self.slices.taking(dataset, time, OP).await?;
        let step = time.floor_to(STEP);
        self.touching.store_step(dataset, &slice, step).await?;
        let shard = stored_shard(counter.touch_shard());
        let (ns, name) = stored_counter(counter);
        let values = (shard, step.micros(), ns, name, stored_bucket(Some(bucket)));
        self.link.write(OP, self.slices.tables(&slice, OP).await?.named("insert_mark"), values).await
    }

    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: Copies,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let level = match copies {
            Copies::Quorum => Level::Quorum,
            Copies::All => Level::All,
        };
        self.scanning.whole_bucket(dataset, counter, start, level).await
    }

    async fn look_again(&self, dataset: DatasetId) -> Result<(), StoreError> {
        self.slices.forget_steps(dataset).await
    }

    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let rows = self.link.rows("read sealing", self.link.statement("list_sealing"), (stored_dataset(dataset),));
        Ok(by_shard(rows.await?))
    }

    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError> {
        let at = self.link.register_time(to.micros());
        let values = (at, to.micros(), stored_dataset(dataset), stored_shard(shard));
        self.link.write("note sealing", self.link.statement("set_sealing"), values).await
    }

    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<Sealed>, StoreError> {
        self.rollups.sealed(dataset, counter).await
    }

    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&Sealed>,
        sealed: &Sealed,
    ) -> Result<bool, StoreError> {
        const OP: &str = "seal";
        let (ns, name) = stored_counter(counter);
        let dataset = stored_dataset(dataset);
        let new = stored::encode_sealed(sealed);
        let decision = match expected {
            None => self.link.decide(OP, self.link.statement("seal_first"), (&new, dataset, ns, name)).await?,
            Some(expected) => {
                let values = (&new, dataset, ns, name, stored::encode_sealed(expected));
                self.link.decide(OP, self.link.statement("seal_again"), values).await?
            }
        };
        Ok(match decision {
            Decision::Applied => true,
            // An answer that was lost may have been that of this very change.
            Decision::Held(row) => row.bytes("sealed").is_some_and(|held| held == new),
        })
    }
}
