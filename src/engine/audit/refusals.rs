//! The choice of the refused calls that are written down. Any caller can have calls refused, at any rate, and the audit
//! keeps its room for acts.

use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::audit::OperatorAct;
use tallystone_domain::limits::{REFUSALS_KNOWN_MAX, REFUSALS_WINDOW, REFUSALS_WRITTEN_MAX};

/// The refusals of the current window of time.
#[derive(Default)]
pub(super) struct RefusalSample(Mutex<RefusalWindow>);

#[derive(Default)]
struct RefusalWindow {
    /// When it began, by elapsed time.
    began: Duration,
    written: usize,
    /// How often each was left out, in this window and in the one before.
    left_out: HashMap<SampledRefusal, u64>,
    left_out_before: HashMap<SampledRefusal, u64>,
}

/// The actor, the call and the outcome of a refusal.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SampledRefusal {
    actor: String,
    action: String,
    outcome: String,
}

impl RefusalSample {
    /// Notes a refusal. Answers whether it is to be written: then how many of its kind were not, in the window before.
    pub fn note(&self, refused: &OperatorAct, elapsed: Duration) -> Option<u64> {
        let mut window = self.0.lock();
        let age = elapsed.saturating_sub(window.began);
        if age >= REFUSALS_WINDOW {
            let is_next = age < REFUSALS_WINDOW * 2;
            let before = std::mem::take(&mut window.left_out);
            *window = RefusalWindow {
                began: elapsed,
                left_out_before: if is_next { before } else { HashMap::new() },
                ..RefusalWindow::default()
            };
        }
        let OperatorAct { actor, action, outcome, .. } = refused;
        // Without what the caller named in brackets, which may differ with each call.
        let actor = actor.split_once(" (").map_or(&**actor, |(principal, _)| principal).to_owned();
        let kind = SampledRefusal { actor, action: action.clone(), outcome: outcome.clone() };
        if let Some(left_out) = window.left_out.get_mut(&kind) {
            *left_out += 1;
            return None;
        }
        if window.left_out.len() >= REFUSALS_KNOWN_MAX {
            return None;
        }
        let is_written = window.written < REFUSALS_WRITTEN_MAX;
        window.left_out.insert(kind.clone(), u64::from(!is_written));
        window.written += usize::from(is_written);
        is_written.then(|| window.left_out_before.remove(&kind).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(actor: &str, action: &str) -> OperatorAct {
        let outcome = "ROLE_MISSING".to_owned();
        OperatorAct { actor: actor.to_owned(), action: action.to_owned(), outcome, ..OperatorAct::default() }
    }

    #[test]
    fn one_of_a_kind_is_written_in_a_window_and_the_next_tells_of_the_others() {
        let sample = RefusalSample::default();
        let note = |action: &str, secs| sample.note(&refused("ann", action), Duration::from_secs(secs));
        assert_eq!((note("A", 0), note("A", 1), note("A", 59)), (Some(0), None, None));
        assert_eq!(note("B", 59), Some(0), "another call");
        assert_eq!((note("A", 60), note("B", 61)), (Some(2), Some(0)));
        assert_eq!(note("A", 62), None);
        assert_eq!(note("A", 200), Some(0), "what was left out is older than a minute");
        let claimed = |word: &str| sample.note(&refused(&format!("ann ({word})"), "A"), Duration::from_secs(300));
        assert_eq!((claimed("x"), claimed("y")), (Some(0), None), "a claim makes no other caller");
    }

    #[test]
    fn a_flood_of_kinds_is_bounded() {
        let sample = RefusalSample::default();
        let flood = |secs| {
            let all = (0..REFUSALS_KNOWN_MAX * 2)
                .filter_map(|number| sample.note(&refused(&format!("n{number}"), "A"), Duration::from_secs(secs)));
            all.collect::<Vec<_>>()
        };
        assert_eq!(flood(0), vec![0; REFUSALS_WRITTEN_MAX]);
        assert_eq!(sample.0.lock().left_out.len(), REFUSALS_KNOWN_MAX);
        assert_eq!(flood(60).len(), REFUSALS_WRITTEN_MAX, "a new window writes again");
        assert_eq!(
            sample.note(&refused("n50", "A"), Duration::from_secs(120)),
            Some(1),
            "it was left out in the window before"
        );
    }
}
