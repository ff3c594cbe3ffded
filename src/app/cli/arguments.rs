//! Parses values on the command line: times, durations, words of enums.

use std::collections::HashMap;
use std::time::Duration;

use crate::Failure;
use tallystone_app::notices::single_line;
use tallystone_app::suggestions::closest_name;
use tallystone_app::units;
use tallystone_domain::limits::{LEASE_MAX, LEASE_MIN};
use tallystone_domain::queue::activity::AttentionReason;
use tallystone_domain::{Reason, Timestamp};
use tallystone_proto::counter::v1::Freshness;
use tallystone_proto::queue::v1::MessageState;

/// A time on the command line: absolute, or relative to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeArg {
    /// At this time.
    At(Timestamp),
    /// This long before now.
    Ago(Duration),
}

impl TimeArg {
    /// Converts to a protobuf time.
    pub fn to_proto(self, now: Timestamp) -> prost_types::Timestamp {
        tallystone_api::time::write(match self {
            Self::At(time) => time,
            Self::Ago(duration) => now - duration,
        })
    }
}

/// Parses `now`, `1h` (one hour ago), or an RFC 3339 time.
pub fn when(text: &str) -> Result<TimeArg, String> {
    if text == "now" {
        return Ok(TimeArg::Ago(Duration::ZERO));
    }
    if let Ok(ago) = duration(text.strip_prefix('-').unwrap_or(text)) {
        return Ok(TimeArg::Ago(ago));
    }
    time(text).map(TimeArg::At).map_err(|refusal| format!("{refusal}, as now, or as 1h for one hour ago"))
}

/// The first and the last time that requests carry and this program reads.
const TIME_FIRST: &str = "0001-01-01T00:00:00Z";
const TIME_LAST: &str = "9999-12-30T22:00:00Z";

/// Parses an RFC 3339 time.
pub fn time(text: &str) -> Result<Timestamp, String> {
    let read =
        |text: &str| text.parse::<jiff::Timestamp>().ok().map(|time| Timestamp::from_micros(time.as_microsecond()));
    let taken = read(text).filter(|time| read(TIME_FIRST).is_some_and(|first| *time >= first));
    taken.ok_or_else(|| format!("not a time from {TIME_FIRST} to {TIME_LAST}; write it as 2026-01-31T12:00:00Z"))
}

/// Parses a duration such as `500ms`, `5s`, `1m30s`, `24h` or `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    units::read_span(text).ok_or_else(|| "not a duration; write it as 500ms, 5s, 1m30s, 24h or 7d".to_owned())
}

/// Parses the time that a call may take. In none, no call can end.
pub fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a timeout is above 0; write it as 500ms, 5s or 1m30s".to_owned()),
        timeout => Ok(timeout),
    }
}

/// Parses the name of a setting, as options or as the protocol write it: `default-lease` or `default_lease`.
pub fn setting(text: &str) -> Result<String, String> {
    Ok(text.replace('-', "_"))
}

/// Parses a share. 0 is refused, because it would stand for the default in a request; the server checks the range.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share != 0.0);
    share.ok_or_else(|| "not a share above 0; write it as 0.05 for 5 %".to_owned())
}

/// Parses a size such as `256MiB`, `1.5KiB`, or a number of bytes.
pub fn bytes<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let what = "not a size; write it as 512KiB, 256MiB, 1.5GiB, or as a number of bytes";
    let bytes = units::read_size(text).ok_or_else(|| what.to_owned())?;
    T::try_from(bytes).map_err(|_| format!("{text} is too large"))
}

/// Parses the lease duration of a message or session.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    match (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        true => Ok(lease),
        false => Err("a lease lasts 1s to 12h".to_owned()),
    }
}

/// Parses a freshness, with or without its prefix, in any letter case.
pub fn freshness(text: &str) -> Result<Freshness, String> {
    let name = text.to_ascii_uppercase().replace('-', "_");
    let name = match name.starts_with("FRESHNESS_") {
        true => name,
        false => format!("FRESHNESS_{name}"),
    };
    Freshness::from_str_name(&name)
        .filter(|freshness| *freshness != Freshness::Unspecified)
        .ok_or_else(|| "must be ROLLED_UP or UP_TO_DATE".to_owned())
}

/// Parses `NAME=TOTAL`.
pub fn total(text: &str) -> Result<(String, i64), String> {
    // A counter name may contain an equals sign, a number cannot.
    let (name, total) = text.rsplit_once('=').ok_or("write it as NAME=TOTAL")?;
    let total = total.parse().map_err(|_| format!("{total:?} is not a 64-bit integer"))?;
    Ok((name.to_owned(), total))
}

/// Parses `KEY=VALUE`; the value may contain equals signs.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    match key.is_empty() {
        true => Err("the key is empty; write it as KEY=VALUE".to_owned()),
        false => Ok((key.to_owned(), value.to_owned())),
    }
}

/// Parses the signature of an error. An empty one is refused, because it would stand for every message in a request.
pub fn named_error(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => {
            Err("an empty text is no signature; leave the option out for messages with any error or none".to_owned())
        }
        false => Ok(text.to_owned()),
    }
}

/// Gathers pairs under their keys. A key that occurs twice is refused: of two values one would be dropped in silence,
/// and a filter would be about other messages than its writer meant.
pub fn distinct(pairs: &[(String, String)]) -> Result<HashMap<String, String>, Failure> {
    let mut distinct = HashMap::new();
    for (key, value) in pairs {
        if distinct.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("the key {} is given twice; a key has one value", single_line(key))));
        }
    }
    Ok(distinct)
}

/// Parses the state of a message, with or without its prefix, in any letter case.
pub fn message_state(text: &str) -> Result<MessageState, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("MESSAGE_STATE_") { name } else { format!("MESSAGE_STATE_{name}") };
    MessageState::from_str_name(&name)
        .filter(|state| *state != MessageState::Unspecified)
        .ok_or_else(|| "must be INVISIBLE, PENDING, RUNNING, COMPLETED, CANCELED or ERRORED".to_owned())
}

/// Parses a reason of a refusal.
pub fn reason(text: &str) -> Result<Reason, String> {
    Reason::from_name(text).ok_or_else(|| {
        let of_queues = AttentionReason::ALL.into_iter().map(AttentionReason::name);
        let guess = closest_name(text, Reason::ALL.iter().map(|reason| reason.info().name).chain(of_queues));
        let guess = guess.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        format!("no such reason; {guess}`tallystone explain-error` lists them all")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_so_long_ago() {
        let at = Timestamp::from_micros(1_728_139_680_000_000);
        assert_eq!(when("2024-10-05T14:48:00Z"), Ok(TimeArg::At(at)));
        assert_eq!(when("2024-10-05T16:48:00+02:00"), Ok(TimeArg::At(at)));
        assert_eq!(when("now"), Ok(TimeArg::Ago(Duration::ZERO)));
        for text in ["1h", "-1h"] {
            assert_eq!(when(text), Ok(TimeArg::Ago(Duration::from_secs(3_600))));
        }
        for text in ["", "yesterday", "5", "2024-10-05", "--1h"] {
            assert!(when(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refused_time_is_told_what_is_taken_here() {
        for taken in ["2026-01-31T12:00:00Z", "now", "1h"] {
            assert!(when("soon").expect_err("no time").contains(taken) && when(taken).is_ok(), "{taken}");
        }
        assert!(time("soon").expect_err("no time").ends_with("2026-01-31T12:00:00Z"), "neither now nor 1h");
    }

    #[test]
    fn a_time_out_of_range_is_told_the_range() {
        for taken in [TIME_FIRST, TIME_LAST, "1969-12-31T23:59:59Z"] {
            assert!(time(taken).is_ok() && when(taken).is_ok(), "{taken}");
        }
        for other in
            ["9999-12-31T23:59:59Z", "0000-12-31T23:59:59Z", "-000001-01-01T00:00:00Z", "10000-01-01T00:00:00Z"]
        {
            let told = when(other).expect_err(other);
            assert!(told.contains(TIME_FIRST) && told.contains(TIME_LAST), "{other}: {told}");
        }
    }

    #[test]
    fn a_lease_that_no_server_gives_is_refused_here() {
        assert_eq!((lease("1s"), lease("12h")), (Ok(LEASE_MIN), Ok(LEASE_MAX)));
        for text in ["100ms", "0s", "43201s", "1d"] {
            assert!(lease(text).expect_err(text).contains("1s to 12h"), "{text}");
        }
    }

    #[test]
    fn words_come_with_and_without_their_prefix() {
        for text in ["UP_TO_DATE", "FRESHNESS_UP_TO_DATE", "up-to-date", "freshness_up_to_date"] {
            assert_eq!(freshness(text), Ok(Freshness::UpToDate), "{text}");
        }
        for text in ["", "UNSPECIFIED", "FRESHNESS_UNSPECIFIED", "new"] {
            assert!(freshness(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_equals_sign_ends_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair("=b").is_err() && pair("").is_err());
    }

    #[test]
    fn states_come_with_and_without_their_prefix() {
        for text in ["errored", "ERRORED", "MESSAGE_STATE_ERRORED"] {
            assert_eq!(message_state(text), Ok(MessageState::Errored), "{text}");
        }
        assert!(message_state("unspecified").is_err() && message_state("dead").is_err());
    }

    #[test]
    fn the_last_equals_sign_ends_a_name() {
        assert_eq!(total("a=b=-5"), Ok(("a=b".to_owned(), -5)));
        assert!(total("a").is_err() && total("a=").is_err() && total("a=9223372036854775808").is_err());
    }

    #[test]
    fn a_mistyped_reason_gets_a_suggestion() {
        assert_eq!(reason("too_old"), Ok(Reason::TooOld));
        assert!(reason("TO_OLD").expect_err("mistyped").contains("did you mean TOO_OLD?"));
        assert!(!reason("NOPE").expect_err("nothing like it").contains("did you mean"));
    }
}
