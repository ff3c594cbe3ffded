//! Findings of the audit: counted and logged, each once for as long as it lasts.

use std::collections::BTreeSet;

use crate::stats::Stats;
use tallystone_domain::history::audit::{Finding, FindingKind};
use tallystone_domain::queue::{MessageState, QueueName};

/// The findings about a shard that still hold.
pub type LastingFindings = BTreeSet<(FindingKind, Option<MessageState>)>;

/// Logs a finding as an error and counts it.
pub fn raise(stats: &Stats, queue: &QueueName, finding: &Finding) {
    stats.audit_findings[finding.kind as usize].increment();
    let Finding { kind, shard, state, message, version, expected, found, text } = finding;
    tracing::error!(
        %queue,
        shard = shard.number,
        %kind,
        state = state.map(|state| state.to_string()),
        message = message.map(|message| message.to_string()),
        version,
        expected,
        found,
        "audit of queues: {text}"
    );
}

/// Leaves the findings that were not there before, and remembers the present ones.
pub fn new_findings(lasting: &mut LastingFindings, present: Vec<Finding>) -> Vec<Finding> {
    let before = std::mem::take(lasting);
    *lasting = present.iter().map(|finding| (finding.kind, finding.state)).collect();
    present.into_iter().filter(|finding| !before.contains(&(finding.kind, finding.state))).collect()
}
