//! When the reporter begins and rests: by the right of this server to report.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::bridge::orphan_cleanup::OrphanCleanup;
use crate::bridge::reporter::{Bridge, REST};
use crate::report_right::ReportStanding;
use tallystone_ports::{StoreError, StoreErrorKind};

impl Bridge {
    /// Whether this server may report now. Begins from nothing when it got the right, and forgets all when it lost it.
    pub(super) fn may_report(&mut self) -> bool {
        let standing = self.right.standing();
        match standing {
            ReportStanding::Reports if !self.is_on => {
                self.is_on = true;
                self.context.queue_reports.start(&*self.context.clock);
            }
            ReportStanding::Waits | ReportStanding::Apart => self.rest(),
            ReportStanding::Reports | ReportStanding::Unsure => {}
        }
        standing == ReportStanding::Reports
    }

    /// Forgets what was reported: another queue store may report to the counters until the next begin.
    fn rest(&mut self) {
        drop(self.dirty.take()); // all shards are compared at the next begin
        if !self.is_on {
            return;
        }
        self.is_on = false;
        (self.tracked, self.deleted) = (HashMap::new(), BTreeSet::new());
        (self.generation, self.has_started, self.failures) = (None, false, 0);
        self.orphan_cleanup = OrphanCleanup::default();
        self.context.queue_reports.set(None, &*self.context.clock);
        self.show_waiting(0);
    }

    /// Fails unless this server may write now.
    pub(super) async fn still_holds(&self) -> Result<(), StoreError> {
        tokio::select! {
            biased;
            () = self.right.sure() => {}
            () = self.context.clock.sleep(REST) => {}
        }
        match self.right.holds() {
            true => Ok(()),
            false => Err(StoreError::not_applied(StoreErrorKind::Busy, "report queues")
                .with_source("it is not sure whether the counters still belong to this queue store")),
        }
    }
}
