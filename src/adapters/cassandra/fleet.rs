//! State that the servers of a keyspace share: heartbeats and frontiers (both registers), recheck marks, and sealed
//! values, which change by compare-and-set.

use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use crate::request_runner::RequestRunner;
use crate::rollups::Rollups;
use crate::row_keys::{bucket_width, stored_counter, stored_dataset, stored_shard};
use crate::scan::LogReader;
use crate::slices::CqlSlices;
use crate::store::{ConditionalResult, ReadConsistency};
use crate::touch_writer::TouchWriter;
use crate::touches::{by_shard, stored_bucket};
use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, Event};
use tallystone_domain::fleet::{Heartbeat, MemberId};
use tallystone_domain::limits::STEP;
use tallystone_domain::rollup::VerifiedBase;
use tallystone_ports::{FleetStore, Membership, ReadReplicas, StoreError};

/// The tables that only servers use among themselves.
pub struct CqlFleetStore {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touch_writer: Arc<TouchWriter>,
    log_reader: Arc<LogReader>,
    rollups: Arc<Rollups>,
}

impl CqlFleetStore {
    /// Creates the fleet store from its parts.
    pub fn new(
        requests: Arc<RequestRunner>,
        slices: Arc<CqlSlices>,
        touching: Arc<TouchWriter>,
        scanning: Arc<LogReader>,
        rollups: Arc<Rollups>,
    ) -> Self {
        Self { requests, slices, touch_writer: touching, log_reader: scanning, rollups }
    }
}

#[async_trait]
impl Membership for CqlFleetStore {
    async fn beat(&self, member: MemberId, beat: &Heartbeat) -> Result<(), StoreError> {
        let number = i64::try_from(beat.number).unwrap_or(i64::MAX);
        let at = self.requests.register_time(number);
        let values = (at, codec::encode_beat(beat), Uuid::from_bytes(member.0));
        self.requests.write("beat", self.requests.statement("beat"), values).await
    }

    async fn members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError> {
        const OP: &str = "read members";
        let rows: Vec<(Uuid, Option<Vec<u8>>)> =
            self.requests.rows(OP, self.requests.statement("list_members"), ()).await?;
        let member = |(id, beat): (Uuid, Option<Vec<u8>>)| {
            let beat = codec::decode_beat(&beat?).map_err(|damaged| damaged.into_store_error(OP));
            Some(beat.map(|beat| (MemberId(id.into_bytes()), beat)))
        };
        rows.into_iter().filter_map(member).collect()
    }

    async fn remove(&self, member: MemberId) -> Result<(), StoreError> {
        let values = (Uuid::from_bytes(member.0),);
        self.requests.write("remove member", self.requests.statement("delete_member"), values).await
    }
}

#[async_trait]
impl FleetStore for CqlFleetStore {
    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError> {
        let at = self.requests.register_time(frontier.micros());
        let values = (at, frontier.micros(), stored_dataset(dataset));
        self.requests.write("raise frontier", self.requests.statement("set_frontier"), values).await
    }

    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        let statement = self.requests.statement("read_frontier");
        let row: Option<(Option<i64>,)> =
            self.requests.first_row("read frontier", statement, (stored_dataset(dataset),)).await?;
        Ok(row.and_then(|(frontier,)| frontier).map_or(Timestamp::MIN, Timestamp::from_micros))
    }

    async fn put_recheck_mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        const OP: &str = "leave a recheck mark";
        let of_event = self.slices.writable_slice_at(dataset, event, OP).await?;
        let settings = self.slices.settings(&of_event, counter.namespace()).await?;
        let bucket = event.floor_to(bucket_width(settings.partition_of(counter)));
        let slice = self.slices.writable_slice_at(dataset, time, OP).await?;
        let step = time.floor_to(STEP);
        self.touch_writer.store_step(dataset, &slice, step).await?;
        let shard = stored_shard(counter.touch_shard());
        let (ns, name) = stored_counter(counter);
        let values = (shard, step.micros(), ns, name, stored_bucket(Some(bucket)));
        self.requests.write(OP, self.slices.tables(&slice, OP).await?.get("insert_mark"), values).await
    }

    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: ReadReplicas,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let level = match copies {
            ReadReplicas::Quorum => ReadConsistency::Quorum,
            ReadReplicas::All => ReadConsistency::All,
        };
        self.log_reader.read_time_bucket(dataset, counter, start, level).await
    }

    async fn rescan_late_events(&self, dataset: DatasetId) -> Result<(), StoreError> {
        self.slices.invalidate_steps(dataset).await
    }

    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let rows =
            self.requests.rows("read sealing", self.requests.statement("list_sealing"), (stored_dataset(dataset),));
        Ok(by_shard(rows.await?))
    }

    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError> {
        let at = self.requests.register_time(to.micros());
        let values = (at, to.micros(), stored_dataset(dataset), stored_shard(shard));
        self.requests.write("note sealing", self.requests.statement("set_sealing"), values).await
    }

    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<VerifiedBase>, StoreError> {
        self.rollups.sealed(dataset, counter).await
    }

    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&VerifiedBase>,
        sealed: &VerifiedBase,
    ) -> Result<bool, StoreError> {
        const OP: &str = "seal";
        let (ns, name) = stored_counter(counter);
        let dataset = stored_dataset(dataset);
        let new = codec::encode_sealed(sealed);
        let decision = match expected {
            None => {
                self.requests
                    .apply_conditionally(OP, self.requests.statement("seal_first"), (&new, dataset, ns, name))
                    .await?
            }
            Some(expected) => {
                let values = (&new, dataset, ns, name, codec::encode_sealed(expected));
                self.requests.apply_conditionally(OP, self.requests.statement("seal_again"), values).await?
            }
        };
        Ok(match decision {
            ConditionalResult::Applied => true,
            // A retry after a lost answer may find the effect of its own first attempt.
            ConditionalResult::NotApplied(row) => row.bytes("sealed").is_some_and(|held| held == new),
        })
    }
}
