//! Settles clears before a fold takes them: the one place through which the events of every fold pass.
//!
//! `domain/rollup/settled_clears.rs` says which clears have to be settled, and why. Events without such a clear cost no
//! request. Only a shared store has rows that a verdict may still replace.

use crate::fleet::CounterFleet;
use crate::rolling::Roller;
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, Event};
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::rollup::SettledClears;
use tallystone_ports::{EffectOutcome, ReadReplicas, StoreError, VerdictOutcome};

impl Roller {
    /// Settles the clears among events that were read after the clear register, oldest first. A clear that the store
    /// refuses becomes a tombstone. A clear that is found counts from now on, so its bucket is rechecked: other folds
    /// may lack it. The mark for that comes first. Once the register names the clear, no later fold asks, and none
    /// would leave the mark.
    pub(super) async fn settle_clears(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        clears: &mut SettledClears,
        events: &mut Vec<Event>,
    ) -> Result<(), StoreError> {
        let fleet = self.scopes.fleet.as_ref();
        if !fleet.is_some_and(|fleet| fleet.membership.keeps(ProtocolRule::SettleClears)) {
            return Ok(());
        }
        clears.leave_out_open(events);
        // Whoever folds asked for no verdict. If it fails, nothing of the fold was done.
        let failed = |error: StoreError| StoreError { outcome: EffectOutcome::NotApplied, ..error };
        while let Some(at) = clears.next_unsettled(events) {
            let event = &mut events[at];
            let key = event.key.clone();
            let settling = self.scopes.stores.log.settle(scope.dataset.id(), counter, &key);
            match self.under_recheck_mark(scope, counter, &key, settling).await.map_err(failed)? {
                VerdictOutcome::Found(found) => {
                    self.context.stats.verdicts_applied.increment();
                    clears.note(event, Some(found));
                }
                VerdictOutcome::Voided => {
                    self.context.stats.verdicts_void.increment();
                    clears.note(event, None);
                }
            }
        }
        Ok(())
    }

    /// Reads the events of a time bucket, with settled clears. None if its slice no longer exists.
    pub(super) async fn settled_bucket(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        (bucket, copies): (Timestamp, ReadReplicas),
        clears: &mut SettledClears,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let read = fleet.store.bucket(scope.dataset.id(), counter, bucket, copies).await?;
        let Some(mut events) = read else { return Ok(None) };
        self.settle_clears(scope, counter, clears, &mut events).await?;
        Ok(Some(events))
    }
}
