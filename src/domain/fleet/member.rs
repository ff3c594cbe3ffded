//! The heartbeat that a member publishes: one cell, whose number only grows.

use std::collections::BTreeMap;
use std::fmt;

use crate::Timestamp;
use crate::counter::DatasetId;
use crate::fleet::FleetSecret;

/// One incarnation of one process in the fleet. Random for each join; a lapsed one never comes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub [u8; 16]);

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Roles {
    /// It accepts writes.
    pub writer: bool,
    /// It rolls counters up.
    pub roller: bool,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Heartbeat {
    /// Its number: 1 for the first, and one more for each further one. The greater one counts.
    pub number: u64,
    pub roles: Roles,
    /// The address for rollup signals, HOST:PORT, or https://HOST:PORT with TLS; empty if it accepts none.
    pub address: String,
    /// The secret that it sends with its rollup signals; none for builds without secrets.
    pub secret: Option<FleetSecret>,
    /// Its closed timestamp, by dataset. `Timestamp::MIN` while it joins one. A dataset that is not listed does not
    /// count this member, and this member admits no event into it.
    pub closed: BTreeMap<DatasetId, Timestamp>,
    /// All mutations of the member's queues up to this time are in the log of their counters. `Timestamp::MIN` while
    /// the member does not know the time; none if it reports for no queue.
    pub queues_reported_to: Option<Timestamp>,
}
