//! A rule as a store keeps it: what it is, how far it has fired, and the stamp by which a change is conditional.

use crate::rules::progress::RuleProgress;
use crate::rules::rule::RuleSpec;
use crate::time::Timestamp;

/// The queue store that a rule enqueues into, and whose queues some counters count, by a mark that no other store has.
/// Only its servers run the rule and report to the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueHome(pub [u8; 12]);

/// One state of one life of a rule. A rule that was deleted and made again has another `born`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RuleStamp {
    /// The generation with which the rule was made.
    pub born: u32,
    /// Counted from 1; each change of the progress raises it.
    pub version: u64,
}

/// A stored rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    pub spec: RuleSpec,
    pub home: QueueHome,
    pub created: Timestamp,
    pub stamp: RuleStamp,
    pub progress: RuleProgress,
}

impl Rule {
    /// A new rule of a generation.
    pub fn new(spec: RuleSpec, home: QueueHome, created: Timestamp, generation: u32) -> Self {
        let stamp = RuleStamp { born: generation, version: 1 };
        Self { spec, home, created, stamp, progress: RuleProgress::new(generation) }
    }

    /// The same rule with the messages of another queue store. The new store has no message of the rule, so the message
    /// of a pending claim is sent to it, as after a refusal.
    #[must_use]
    pub fn moved_to(mut self, home: QueueHome) -> Self {
        self.home = home;
        self.progress = self.progress.refused();
        self
    }

    /// The same rule with the next version.
    #[must_use]
    pub fn next_version(mut self) -> Self {
        self.stamp.version += 1;
        self
    }
}
