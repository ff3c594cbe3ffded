//! Since when rows are kept, and for how long: from this follows the time from which on no row has left.

use std::time::Duration;

use crate::limits::{HISTORY_TTL_SECONDS_MAX, HISTORY_TTL_SPARE};
use tallystone_domain::time::Timestamp;

/// Rows written from a time on are kept at least so long, until the next such row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeptSince {
    pub since: Timestamp,
    pub retention: Duration,
}

/// The lifetime of rows in seconds: the retention and what clocks may err.
pub fn ttl_of(retention: Duration) -> i32 {
    let seconds = retention.saturating_add(HISTORY_TTL_SPARE).as_secs();
    i32::try_from(seconds).map_or(HISTORY_TTL_SECONDS_MAX, |seconds| seconds.min(HISTORY_TTL_SECONDS_MAX))
}

/// The time from which on no row has left; none if none ever left. A server may write under an earlier setting for a
/// while after another server has changed it.
pub fn starts_at(mut kept: Vec<KeptSince>, now: Timestamp) -> Option<Timestamp> {
    kept.sort_unstable();
    let ends = kept.iter().skip(1).map(|next| next.since + HISTORY_TTL_SPARE).chain([Timestamp::MAX]);
    let left = kept.iter().zip(ends).filter_map(|(kept, end)| {
        let oldest = now - kept.retention;
        (oldest > kept.since).then(|| oldest.min(end))
    });
    left.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn day(days: i64) -> Timestamp {
        Timestamp::from_secs(days * 86_400)
    }

    fn kept(since: i64, days: u32) -> KeptSince {
        KeptSince { since: day(since), retention: DAY * days }
    }

    #[test]
    fn rows_leave_once_the_history_is_older_than_its_retention() {
        assert_eq!(starts_at(Vec::new(), day(100)), None, "nothing was written");
        assert_eq!(starts_at(vec![kept(100, 7)], day(107)), None);
        assert_eq!(starts_at(vec![kept(100, 7)], day(108)), Some(day(101)));
        assert_eq!(starts_at(vec![kept(100, 7)], day(90)), None, "the clock stepped back");
    }

    #[test]
    fn a_longer_retention_brings_no_row_back() {
        let grown = || vec![kept(200, 30), kept(100, 7)];
        assert_eq!(starts_at(grown(), day(200)), Some(day(193)));
        assert_eq!(starts_at(grown(), day(220)), Some(day(200) + HISTORY_TTL_SPARE));
        assert_eq!(starts_at(grown(), day(240)), Some(day(210)));
    }

    #[test]
    fn a_shorter_retention_holds_for_rows_written_under_it() {
        let shrunk = || vec![kept(100, 30), kept(110, 7)];
        assert_eq!(starts_at(shrunk(), day(117)), None);
        assert_eq!(starts_at(shrunk(), day(120)), Some(day(113)));
    }

    #[test]
    fn rows_live_longer_than_clocks_err_and_never_for_ever() {
        assert_eq!(ttl_of(DAY * 7), 7 * 86_400 + 6 * 3_600);
        assert_eq!(ttl_of(Duration::MAX), HISTORY_TTL_SECONDS_MAX);
        assert!(ttl_of(Duration::ZERO) > 0, "0 means that a row never expires");
    }
}
