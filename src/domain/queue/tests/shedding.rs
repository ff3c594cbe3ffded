//! A shard whose heads of messages that are over leave memory after some commands, as a store lets them after a group.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::queue::clock::StepTime;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::id_hash::IdKey;
use crate::queue::shard::restore::ShardRestoreError;
use crate::queue::{ApplyResult, Command, MessageHead, Settings, Shard};

/// The shard, and the heads as a store has them.
pub(super) struct Shedding {
    pub shard: Shard,
    heads: BTreeMap<u64, MessageHead>,
    /// Decides after which commands heads leave: three of four.
    drawn: u64,
}

impl Shedding {
    pub fn of(settings: &Settings) -> Self {
        let shard = Shard::new(0, 1, settings.clone()).expect("legal settings").with_stubs(IdKey::default());
        Self { shard, heads: BTreeMap::new(), drawn: 1 }
    }

    /// Applies a command as a store does: with the heads that it needs, which leave again afterwards.
    pub fn apply(&mut self, command: Command, at: StepTime) -> ApplyResult {
        for sequence in self.shard.heads_needed(&command, at.now) {
            let head = self.heads[&sequence].clone();
            self.shard.restore_head(head).expect("the head that was stored");
        }
        let applied = self.shard.apply(command, at);
        for sequence in applied.changed_sequences() {
            match self.shard.message(sequence) {
                Some(head) => self.heads.insert(sequence, head.clone()),
                None => self.heads.remove(&sequence),
            };
        }
        self.drawn = self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if !(self.drawn >> 33).is_multiple_of(4) {
            self.shard.shed_heads();
        }
        applied
    }

    /// The shard with all its heads.
    pub fn whole(&self) -> Shard {
        let mut whole = self.shard.clone();
        for stub in self.shard.messages.stubs() {
            whole.restore_head(self.heads[&stub.key.sequence].clone()).expect("the head that was stored");
        }
        whole.keeping_heads()
    }

    /// Puts a shard restored from stubs in the place of this one, which it must equal. Shapes count messages by their
    /// metadata, so a store restores a queue with shapes from heads.
    pub fn restore(
        &mut self,
        restore: impl FnOnce(&BTreeMap<u64, Stub>) -> Result<Shard, ShardRestoreError>,
    ) -> Result<(), TestCaseError> {
        self.shard.shed_heads();
        let has_shapes = !self.shard.settings().shapes.is_empty();
        let stubs = self.shard.messages.stubs().filter(|_| !has_shapes);
        let mut restored = restore(&stubs.map(|stub| (stub.key.sequence, stub)).collect()).expect("parts of a shard");
        restored.shed_heads();
        prop_assert_eq!(&restored, &self.shard);
        self.shard = restored;
        Ok(())
    }
}
