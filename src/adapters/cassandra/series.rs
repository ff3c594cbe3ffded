//! The resolutions of stored series, and the time to which each was trimmed.
//!
//! Rows of series expire by themselves; a trim only sets the first step that reads return. It never passes the end of
//! the newest stored step. So a resolution that is enabled again later begins with its next step.

use std::collections::BTreeMap;
use std::time::Duration;

use tallystone_domain::Timestamp;

/// The state of each resolution, by its step in seconds.
#[derive(Default)]
pub struct Resolutions(BTreeMap<i32, Resolution>);

#[derive(Clone, Copy)]
struct Resolution {
    /// The newest step ever stored, by its beginning.
    newest_start: Timestamp,
    /// Reads omit steps that begin earlier.
    trimmed_before: Timestamp,
}

impl Resolutions {
    /// Builds the state from rows of the store: (resolution, newest_start, trimmed_before).
    pub fn stored(rows: Vec<(i32, Option<i64>, Option<i64>)>) -> Self {
        let time = |micros: Option<i64>| micros.map_or(Timestamp::MIN, Timestamp::from_micros);
        let known = |(resolution, newest, trimmed)| {
            (resolution, Resolution { newest_start: time(newest), trimmed_before: time(trimmed) })
        };
        Self(rows.into_iter().map(known).collect())
    }

    /// Returns all resolutions that were ever stored.
    pub fn all(&self) -> Vec<i32> {
        self.0.keys().copied().collect()
    }

    /// Returns the resolutions that have steps to read, finest first.
    pub fn with_steps(&self) -> Vec<u32> {
        let kept = self.0.iter().filter(|(_, known)| known.trimmed_before <= known.newest_start);
        kept.filter_map(|(resolution, _)| u32::try_from(*resolution).ok()).collect()
    }

    /// Whether a step begins after every stored step.
    pub fn is_newer(&self, resolution: i32, start: Timestamp) -> bool {
        self.0.get(&resolution).is_none_or(|known| known.newest_start < start)
    }

    /// Records the beginning of a step that is about to be stored.
    pub fn note_newest(&mut self, resolution: i32, start: Timestamp) {
        let known =
            self.0.entry(resolution).or_insert(Resolution { newest_start: start, trimmed_before: Timestamp::MIN });
        known.newest_start = known.newest_start.max(start);
    }

    /// Returns the trim bound: reads omit steps that begin earlier.
    pub fn trimmed_before(&self, resolution: i32) -> Timestamp {
        self.0.get(&resolution).map_or(Timestamp::MIN, |known| known.trimmed_before)
    }

    /// Returns the bound that a trim reaches; none if it changes nothing.
    pub fn trim_target(&self, resolution: i32, before: Timestamp) -> Option<Timestamp> {
        let known = self.0.get(&resolution)?;
        let width = Duration::from_secs(u64::try_from(resolution).unwrap_or(0));
        let before = before.min(known.newest_start + width);
        (before > known.trimmed_before).then_some(before)
    }

    /// Records a stored trim.
    pub fn note_trimmed(&mut self, resolution: i32, before: Timestamp) {
        if let Some(known) = self.0.get_mut(&resolution) {
            known.trimmed_before = known.trimmed_before.max(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolution_that_was_trimmed_whole_begins_anew_with_its_next_step() {
        let at = Timestamp::from_secs;
        let mut resolutions = Resolutions::stored(vec![(10, Some(at(100).micros()), None)]);
        assert_eq!(resolutions.with_steps(), [10]);
        let before = resolutions.trim_target(10, Timestamp::MAX).expect("the resolution has a step");
        assert_eq!(before, at(110));
        resolutions.note_trimmed(10, before);
        assert!(resolutions.with_steps().is_empty());
        assert_eq!(resolutions.trim_target(10, Timestamp::MAX), None);
        resolutions.note_newest(10, at(110));
        assert_eq!(resolutions.with_steps(), [10]);
        assert!(resolutions.trimmed_before(10) <= at(110), "the new step is answered");
    }
}
