//! What a member writes about itself: one cell, whose number only grows.

use std::collections::BTreeMap;
use std::fmt;

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::FleetSecret;

/// One life of one process in the fleet. Drawn anew at each join; a lapsed one never comes back.
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

/// What a member does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Roles {
    /// It takes writes.
    pub writer: bool,
    /// It rolls counters up.
    pub roller: bool,
}

/// A heartbeat.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Heartbeat {
    /// Its number: 1 for the first, one more for each further one. The greater one counts.
    pub number: u64,
    /// What the member does.
    pub roles: Roles,
    /// Where it takes rollup signals, HOST:PORT; empty where it takes none.
    pub address: String,
    /// What it shows with its rollup signals; none of a member that shows nothing, as of builds before there were secrets.
    pub secret: Option<FleetSecret>,
    /// What it has closed, by dataset. `Timestamp::MIN` while it is joining one; a dataset that is not listed does not
    /// count this member, and this member admits nothing into it.
    pub closed: BTreeMap<DatasetId, Timestamp>,
}
