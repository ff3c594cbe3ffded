//! The rules of the protocol that a simulation can disable, to show that it detects the resulting error.

/// A rule without which counts would be lost, counted twice or served too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolRule {
    /// An add is acknowledged only while the lease under which it was admitted is valid.
    AcknowledgeUnderLease,
    /// A lapsed lease is never renewed: the process joins again under a new id.
    LapsedStaysLapsed,
    /// Above the published limit a verdict is PENDING.
    PendingAboveLimit,
    /// A verdict that finds no row writes a void.
    Void,
    /// The void is written a second time, as a plain write, with a timestamp above the event's time.
    SecondVoid,
    /// A server that finds a row below the limit, or voids a token there, writes a recheck mark.
    RecheckMark,
    /// A fold takes a clear above the clear register only after the store has settled that it counts.
    SettleClears,
    /// A watermark advances only after the checkpoints of its counters are stored.
    CheckpointBeforeWatermark,
    /// Registers carry their own value as the cell timestamp.
    MaxRegisters,
    /// A count is put into a shared cache only under a lease that was acquired before the store was read.
    FillUnderLease,
    /// A value from a shared cache is used only if it is at least as new as the newest value that this server has
    /// served.
    NoOlderThanTold,
}

impl ProtocolRule {
    /// All rules, in order.
    pub const ALL: [Self; 11] = [
        Self::AcknowledgeUnderLease,
        Self::LapsedStaysLapsed,
        Self::PendingAboveLimit,
        Self::Void,
        Self::SecondVoid,
        Self::RecheckMark,
        Self::SettleClears,
        Self::CheckpointBeforeWatermark,
        Self::MaxRegisters,
        Self::FillUnderLease,
        Self::NoOlderThanTold,
    ];
}

/// The rules in force. A server has all of them; `without` is for simulations only, and a repository test keeps it out
/// of the service.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProtocolRules {
    without: Option<ProtocolRule>,
}

impl ProtocolRules {
    /// Makes the set of all rules except one.
    pub const fn without(rule: ProtocolRule) -> Self {
        Self { without: Some(rule) }
    }

    /// Returns whether a rule is in force.
    pub fn keeps(self, rule: ProtocolRule) -> bool {
        self.without != Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_hold_unless_one_is_taken_out() {
        for rule in ProtocolRule::ALL {
            assert!(ProtocolRules::default().keeps(rule));
            let kept = ProtocolRule::ALL.iter().filter(|other| ProtocolRules::without(rule).keeps(**other)).count();
            assert!(!ProtocolRules::without(rule).keeps(rule) && kept == ProtocolRule::ALL.len() - 1, "{rule:?}");
        }
    }
}
