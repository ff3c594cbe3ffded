//! Receives the rollup signals of other servers.
//!
//! Signals may arrive late, twice, or from a server with another view of the members. No signal can make a count wrong,
//! and none may keep a watermark back for longer than the limit needs to reach the present.

use std::sync::Arc;

use crate::scopes::{NamespaceScope, NamespaceScopes};
use tallystone_domain::Timestamp;
use tallystone_domain::fleet::FleetSecret;
use tallystone_ports::{CounterSignal, StoreError};

/// The rollup queues as other servers reach them. Cheap to clone.
#[derive(Clone)]
pub struct SignalReceiver {
    scopes: Arc<NamespaceScopes>,
}

impl SignalReceiver {
    /// Offers the counters of these namespaces.
    pub fn new(scopes: Arc<NamespaceScopes>) -> Self {
        Self { scopes }
    }

    /// Whether the secret of a call with signals is that of a member of the fleet.
    pub fn is_of_member(&self, shown: Option<&FleetSecret>) -> bool {
        let fleet = self.scopes.fleet.as_ref();
        shown.is_some_and(|shown| fleet.is_some_and(|fleet| fleet.membership.is_member_secret(shown)))
    }

    /// Offers counters to the rollup queues, if this server rolls counters up for a fleet. Returns the number of
    /// accepted counters. Counters of unknown namespaces, and counters already rolled up that far, are skipped.
    pub async fn take(&self, signals: Vec<CounterSignal>) -> Result<usize, StoreError> {
        if self.scopes.fleet.as_ref().is_none_or(|fleet| !fleet.membership.roles().roller) {
            return Ok(0);
        }
        let mut taken = 0;
        for signal in signals {
            let Some(scope) = self.scopes.scope_by_id(signal.counter.namespace()).await? else { continue };
            if let Some((oldest, newest)) = self.range(&scope, &signal) {
                scope.enqueue(&signal.counter, oldest, newest);
                taken += 1;
            }
        }
        self.scopes.context.stats.signals_taken.add(taken as u64);
        Ok(taken)
    }

    /// The part of a signal that is not rolled up yet and no later than an event can be. The touch index covers the
    /// rest.
    fn range(&self, scope: &NamespaceScope, signal: &CounterSignal) -> Option<(Timestamp, Timestamp)> {
        let rolled = scope.dataset.watermark(signal.counter.touch_shard());
        let oldest = signal.oldest.max(rolled.just_after()).max(scope.first_time());
        let newest = signal.newest.min(self.scopes.context.now() + scope.dataset.dataset.settings.future_limit);
        (oldest <= newest).then_some((oldest, newest))
    }
}
