//! Members that live in this process.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::fleet::{Heartbeat, MemberId};
use tallystone_ports::{Membership, StoreError};

/// The members of servers that share stores in the memory of this process.
#[derive(Default)]
pub struct MemoryMembership {
    state: Mutex<MemberList>,
}

#[derive(Default)]
struct MemberList {
    beats: BTreeMap<MemberId, Heartbeat>,
    removed: BTreeSet<MemberId>,
}

#[async_trait]
impl Membership for MemoryMembership {
    async fn beat(&self, member: MemberId, beat: &Heartbeat) -> Result<(), StoreError> {
        let MemberList { beats, removed } = &mut *self.state.lock();
        let is_newer = beats.get(&member).is_none_or(|known| known.number < beat.number);
        if is_newer && !removed.contains(&member) {
            beats.insert(member, beat.clone());
        }
        Ok(())
    }

    async fn members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError> {
        Ok(self.state.lock().beats.iter().map(|(id, beat)| (*id, beat.clone())).collect())
    }

    async fn remove(&self, member: MemberId) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        state.beats.remove(&member);
        state.removed.insert(member);
        Ok(())
    }
}
