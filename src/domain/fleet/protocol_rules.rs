//! The rules of the protocol that can be left out, to show that a simulation notices.

/// A rule without which counts would be lost, doubled or told too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolRule {
    /// An add is acknowledged only while the lease it was taken under is valid.
    AcknowledgeUnderLease,
    /// A lapsed lease is never renewed: the process joins again under a new id.
    LapsedStaysLapsed,
    /// Above the published limit a verdict is PENDING.
    PendingAboveLimit,
    /// Where no row is found, a verdict leaves a void.
    Void,
    /// The void is written once more, plainly, above the event's time.
    SecondVoid,
    /// Whoever finds a row below the limit, or voids a token there, leaves a recheck mark.
    RecheckMark,
    /// A watermark moves only behind the checkpoints of its counters.
    CheckpointBeforeWatermark,
    /// Registers carry their own value as the cell timestamp.
    MaxRegisters,
    /// A count is put into a shared cache only under a right that was taken before the store was read.
    FillUnderRight,
    /// From a shared cache only what is as new as what this server told is taken.
    NoOlderThanTold,
}

impl ProtocolRule {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AcknowledgeUnderLease,
        Self::LapsedStaysLapsed,
        Self::PendingAboveLimit,
        Self::Void,
        Self::SecondVoid,
        Self::RecheckMark,
        Self::CheckpointBeforeWatermark,
        Self::MaxRegisters,
        Self::FillUnderRight,
        Self::NoOlderThanTold,
    ];
}

/// The rules that hold. A server has all of them; `without` is for simulations alone, and a test of the house keeps it
/// out of the service.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProtocolRules {
    without: Option<ProtocolRule>,
}

impl ProtocolRules {
    /// All rules but one.
    pub const fn without(rule: ProtocolRule) -> Self {
        Self { without: Some(rule) }
    }

    /// Whether a rule holds.
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
