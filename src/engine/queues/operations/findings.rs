//! The findings of checks, kept with their operations.

use parking_lot::Mutex;

use tallystone_domain::history::audit::Finding;
use tallystone_domain::limits::CHECK_FINDINGS_MAX;
use tallystone_domain::queue::QueueName;

/// A finding, with the name that its queue had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueFinding {
    pub queue: QueueName,
    pub finding: Finding,
}

/// Some findings of a check, in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FindingsPage {
    pub findings: Vec<QueueFinding>,
    /// The place at which the next page begins; none if there is none yet.
    pub next: Option<usize>,
}

/// The findings of an operation, at most `CHECK_FINDINGS_MAX`.
#[derive(Default)]
pub(super) struct KeptFindings(Mutex<Vec<QueueFinding>>);

impl KeptFindings {
    /// Keeps a finding. Beyond the bound it is dropped.
    pub fn keep(&self, found: QueueFinding) {
        let mut findings = self.0.lock();
        if findings.len() < CHECK_FINDINGS_MAX {
            findings.push(found);
        }
    }

    /// The findings from an index on, at most some. O(limit).
    pub fn page(&self, from: usize, limit: usize) -> FindingsPage {
        let kept = self.0.lock();
        let findings: Vec<QueueFinding> = kept.iter().skip(from).take(limit).cloned().collect();
        let end = from.saturating_add(findings.len());
        FindingsPage { findings, next: (end < kept.len()).then_some(end) }
    }
}
