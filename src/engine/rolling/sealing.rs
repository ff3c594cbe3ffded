//! The self-check of one time bucket: read it from every replica, compare it with its record, repair differences.

use crate::fleet::CounterFleet;
use crate::rolling::Roller;
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::limits::REPAIR_ATTEMPTS_MAX;
use tallystone_domain::rollup::{BucketComparison, Checkpoint, RepairAction, SettledClears, VerifiedBase};
use tallystone_ports::{ReadReplicas, StoreError, StoreErrorKind};

impl Roller {
    /// Seals a finished bucket of a counter that is rolled up beyond it. Costs two reads if nothing differs,
    /// otherwise also the repair of a recheck on all replicas.
    pub async fn seal_bucket(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        bucket: Timestamp,
    ) -> Result<(), StoreError> {
        let dataset = scope.dataset.id();
        let watermark = scope.dataset.watermark(counter.touch_shard());
        let row = self.scopes.stores.rollups.read(dataset, counter).await?;
        let checkpoint = row.base(watermark);
        let mut clears = SettledClears::new(row.clear, checkpoint.as_of);
        let events = self.settled_bucket(fleet, scope, counter, (bucket, ReadReplicas::All), &mut clears).await?;
        let Some(events) = events else { return Ok(()) };
        let stored = self.scopes.stores.rollups.buckets(dataset, counter, bucket, bucket.just_after()).await?;
        // A bucket without later events is still the open one of its checkpoint.
        let open = checkpoint.open_bucket.clone().filter(|open| open.start == bucket);
        let recorded = open.or_else(|| stored.into_iter().find(|record| record.start == bucket));
        let compared = BucketComparison::new(&checkpoint, (bucket, &scope.rules), recorded, &events);
        self.context.stats.buckets_sealed.increment();
        if compared.remedy(&checkpoint) == RepairAction::None {
            return Ok(());
        }
        // The two reads happened at different moments, so the difference may be apparent only. The recheck reads in
        // an order that excludes that.
        self.recheck(fleet, scope, counter, bucket, ReadReplicas::All).await
    }

    /// Notes that all buckets of a counter up to a time were compared.
    pub async fn note_verified(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        to: Timestamp,
    ) -> Result<(), StoreError> {
        let dataset = scope.dataset.id();
        for _ in 0..REPAIR_ATTEMPTS_MAX {
            let sealed = fleet.store.sealed(dataset, counter).await?;
            let next = match &sealed {
                Some(sealed) if sealed.verified_to >= to => return Ok(()),
                Some(sealed) => VerifiedBase { verified_to: to, ..sealed.clone() },
                None => {
                    let row = self.scopes.stores.rollups.read(dataset, counter).await?;
                    // A counter without a checkpoint has nothing to seal.
                    let Some(checkpoint) = row.checkpoint else { return Ok(()) };
                    let checkpoint = Checkpoint { writer: None, ..checkpoint };
                    VerifiedBase { checkpoint, repaired: Vec::new(), verified_to: to }
                }
            };
            if fleet.store.seal(dataset, counter, sealed.as_ref(), &next).await? {
                return Ok(());
            }
        }
        let error = StoreError::not_applied(StoreErrorKind::Conflict, "seal a counter");
        Err(error.with_source("another server repairs the counter at the same time"))
    }
}
