//! The steps of a series: a fixed width, or the days, weeks and months of a time zone.
//!
//! The zones are those of the IANA database that is compiled in, so every server cuts a day at the same moment, with
//! nothing installed. A day of a zone begins at its midnight, or at the first moment after it where clocks leap over
//! midnight. Days therefore last 23 to 25 hours, and months 28 to 31 days.

use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, ToSpan as _};

use crate::limits::{SERIES_ROWS_MAX, TIME_ZONE_BYTES_MAX};
use crate::reason::{Reason, Reject};
use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of seconds of which every offset of a zone is a multiple. Stored steps must divide it, or they would lie
/// on both sides of a midnight.
const OFFSETS: u64 = 15 * 60;

/// The width of the rows of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeriesStep {
    /// All rows have this width. They begin at multiples of it, counted from 1970 in UTC.
    Fixed(Duration),
    /// The rows are days, weeks or months of a time zone.
    Calendar(CalendarUnit, TimeZone),
}

/// A unit of the calendar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalendarUnit {
    Day,
    /// Begins on Monday.
    Week,
    Month,
}

impl SeriesStep {
    /// Reads a step and its time zone, both as a caller wrote them; empty means absent.
    ///
    /// A step is a number of seconds, minutes or hours (`600s`, `15m`, `6h`), or `1d`, `1w` or `1mo`. Only the last
    /// three may have a zone, and are those of UTC without one. Seven days are a week, and begin on Monday.
    pub fn read(step: &str, time_zone: &str) -> Result<Option<Self>, Reject> {
        let zone = (!time_zone.is_empty()).then(|| zone(time_zone)).transpose()?;
        if step.is_empty() {
            return match zone {
                None => Ok(None),
                Some(_) => Err(zone_needs("a time zone needs a step; send step 1d, 1w or 1mo with it")),
            };
        }
        let unit = unit(step);
        let width = width(step);
        let day = width == Some(DAY) && zone.is_some();
        match (unit, width) {
            (Some(unit), _) => Ok(Some(Self::Calendar(unit, zone.unwrap_or(TimeZone::UTC)))),
            (None, Some(width)) if width == DAY * 7 => {
                Ok(Some(Self::Calendar(CalendarUnit::Week, zone.unwrap_or(TimeZone::UTC))))
            }
            (None, Some(_)) if day => Ok(zone.map(|zone| Self::Calendar(CalendarUnit::Day, zone))),
            (None, Some(_)) if zone.is_some() => {
                Err(zone_needs("a time zone is for whole days; send step 1d, 1w or 1mo with it, or omit time_zone"))
            }
            (None, Some(width)) => Ok(Some(Self::Fixed(width))),
            (None, None) => {
                let what = "step is not valid; send a width above 0 such as 600s, 15m or 6h, or 1d, 1w or 1mo";
                Err(Reject::new(Reason::InvalidRange, what).at("step", what))
            }
        }
    }

    /// The shortest time that a step of this kind lasts.
    pub const fn shortest(&self) -> Duration {
        match self {
            Self::Fixed(width) => *width,
            Self::Calendar(CalendarUnit::Day, _) => DAY.saturating_sub(Duration::from_secs(60 * 60)),
            Self::Calendar(CalendarUnit::Week, _) => Duration::from_secs(7 * 24 * 60 * 60 - 60 * 60),
            Self::Calendar(CalendarUnit::Month, _) => Duration::from_secs(28 * 24 * 60 * 60 - 60 * 60),
        }
    }

    /// The beginning of a step as RFC 3339: with the offset of its zone where steps are days, weeks or months of one,
    /// else in UTC.
    pub fn start_text(&self, start: Timestamp) -> Option<String> {
        let start = jiff::Timestamp::from_microsecond(start.micros()).ok()?;
        match self {
            Self::Calendar(_, zone) if *zone != TimeZone::UTC => {
                Some(start.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
            }
            Self::Calendar(..) | Self::Fixed(_) => Some(start.to_string()),
        }
    }

    /// Whether steps of this kind consist of whole stored steps.
    pub fn consists_of(&self, stored_seconds: u32) -> bool {
        let stored = Duration::from_secs(u64::from(stored_seconds));
        let divides = |whole: Duration| whole.as_micros().is_multiple_of(stored.as_micros());
        match self {
            Self::Fixed(width) => !width.is_zero() && divides(*width),
            Self::Calendar(_, zone) if *zone == TimeZone::UTC => divides(DAY),
            Self::Calendar(..) => divides(Duration::from_secs(OFFSETS)),
        }
    }

    /// The beginnings of the steps that [from, to) touches, oldest first, and then the end of the last one. Refused if
    /// they are more than `SERIES_ROWS_MAX` steps.
    pub fn bounds(&self, from: Timestamp, to: Timestamp) -> Result<Vec<Timestamp>, Reject> {
        match self {
            Self::Fixed(width) => {
                let (first, end) = (from.floor_to(*width), to.ceil_to(*width));
                let steps = end.since(first).as_micros() / width.as_micros().max(1);
                if steps > SERIES_ROWS_MAX as u128 {
                    return Err(too_many(steps));
                }
                let next = |start: &Timestamp| Some(*start + *width).filter(|next| *next <= end);
                Ok(std::iter::successors(Some(first), next).collect())
            }
            Self::Calendar(unit, zone) => {
                // Before anything is built: no step is much shorter than its shortest.
                let steps = to.since(from).as_micros() / self.shortest().as_micros();
                if steps > SERIES_ROWS_MAX as u128 {
                    return Err(too_many(steps));
                }
                calendar_bounds(*unit, zone, from, to).ok_or_else(|| {
                    Reject::new(Reason::InvalidRange, "the range is outside of the calendar; send years 1 to 9998")
                })
            }
        }
    }
}

impl fmt::Display for SeriesStep {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(width) => write!(form, "{}s", width.as_secs_f64()),
            Self::Calendar(CalendarUnit::Day, _) => form.write_str("1d"),
            Self::Calendar(CalendarUnit::Week, _) => form.write_str("1w"),
            Self::Calendar(CalendarUnit::Month, _) => form.write_str("1mo"),
        }
    }
}

fn too_many(steps: u128) -> Reject {
    let what = format!("the range has {steps} steps; at most {SERIES_ROWS_MAX} are allowed: use a longer step");
    Reject::new(Reason::InvalidRange, what)
}

fn zone_needs(what: &str) -> Reject {
    Reject::new(Reason::InvalidRange, what).at("time_zone", what)
}

fn zone(name: &str) -> Result<TimeZone, Reject> {
    let found = (name.len() <= TIME_ZONE_BYTES_MAX).then(|| TimeZoneDatabase::bundled().get(name).ok()).flatten();
    found.ok_or_else(|| {
        let what = "time_zone is not known; send a name of the IANA database such as Europe/Berlin or America/New_York";
        zone_needs(what)
    })
}

fn unit(step: &str) -> Option<CalendarUnit> {
    match step {
        "1d" => Some(CalendarUnit::Day),
        "1w" => Some(CalendarUnit::Week),
        "1mo" => Some(CalendarUnit::Month),
        _ => None,
    }
}

/// Reads a width above 0 in seconds, with a fraction if need be, or in whole minutes, hours or days.
fn width(step: &str) -> Option<Duration> {
    let (number, unit) = step.split_at(step.len().checked_sub(1).filter(|at| step.is_char_boundary(*at))?);
    let seconds = match unit {
        "s" => return seconds(number).filter(|width| !width.is_zero()),
        "m" => 60,
        "h" => 60 * 60,
        "d" => DAY.as_secs(),
        _ => return None,
    };
    let number: u64 = number.bytes().all(|digit| digit.is_ascii_digit()).then(|| number.parse().ok()).flatten()?;
    number.checked_mul(seconds).filter(|seconds| (1..=WIDEST_SECONDS).contains(seconds)).map(Duration::from_secs)
}

/// A thousand years: no step is wider than all times that a count can have.
const WIDEST_SECONDS: u64 = 1_000 * 366 * 24 * 60 * 60;

fn seconds(number: &str) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    (whole <= WIDEST_SECONDS).then(|| Duration::new(whole, nanos))
}

/// None outside of the calendar.
fn calendar_bounds(unit: CalendarUnit, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Option<Vec<Timestamp>> {
    let date = jiff::Timestamp::from_microsecond(from.micros()).ok()?.to_zoned(zone.clone()).date();
    let (mut day, width): (Date, Span) = match unit {
        CalendarUnit::Day => (date, 1.day()),
        CalendarUnit::Week => {
            let since_monday = date.weekday().to_monday_zero_offset();
            (date.checked_sub(i64::from(since_monday).days()).ok()?, 1.week())
        }
        CalendarUnit::Month => (date.first_of_month(), 1.month()),
    };
    let mut bounds: Vec<Timestamp> = Vec::new();
    loop {
        let start = day.to_zoned(zone.clone()).ok()?.timestamp();
        let start = Timestamp::from_micros(start.as_microsecond());
        // A zone that changed sides of the date line has left out a day.
        if bounds.last().is_none_or(|last| *last < start) {
            bounds.push(start);
        }
        if start >= to {
            return Some(bounds);
        }
        day = day.checked_add(width).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().expect("a time").as_microsecond())
    }

    fn step(step: &str, zone: &str) -> SeriesStep {
        SeriesStep::read(step, zone).expect("a valid step").expect("a step")
    }

    fn starts(of: &SeriesStep, from: &str, to: &str) -> Vec<String> {
        let text = |time: Timestamp| jiff::Timestamp::from_microsecond(time.micros()).expect("in range").to_string();
        of.bounds(at(from), at(to)).expect("bounds").into_iter().map(text).collect()
    }

    #[test]
    fn the_beginning_of_a_day_of_a_zone_is_written_with_its_offset() {
        let text = |step: &str, zone: &str, start: &str| {
            let step = SeriesStep::read(step, zone).expect("a step").expect("given");
            step.start_text(at(start)).expect("in range")
        };
        assert_eq!(text("1mo", "Europe/Berlin", "2026-10-31T23:00:00Z"), "2026-11-01T00:00:00+01:00");
        assert_eq!(text("1d", "Europe/Berlin", "2026-06-30T22:00:00Z"), "2026-07-01T00:00:00+02:00");
        assert_eq!(text("1d", "", "2026-07-01T00:00:00Z"), "2026-07-01T00:00:00Z");
        assert_eq!(text("15m", "", "2026-07-01T00:15:00Z"), "2026-07-01T00:15:00Z");
    }

    #[test]
    fn days_of_a_zone_begin_at_its_midnight_and_last_23_or_25_hours_when_clocks_change() {
        let day = step("1d", "Europe/Berlin");
        let spring = starts(&day, "2026-03-28T12:00:00Z", "2026-03-29T23:00:00Z");
        assert_eq!(
            spring,
            ["2026-03-27T23:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"]
        );
        let autumn = starts(&day, "2026-10-24T22:00:00Z", "2026-10-25T22:00:00Z");
        assert_eq!(autumn, ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]);
        // Clocks leap over midnight: the day begins at 01:00.
        let leap = starts(&step("1d", "Africa/Cairo"), "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z");
        assert_eq!(leap, ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]);
        // Samoa had no 30 December 2011.
        let left_out = starts(&step("1d", "Pacific/Apia"), "2011-12-29T20:00:00Z", "2011-12-31T09:00:00Z");
        assert_eq!(left_out, ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]);
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first_with_a_zone_and_without() {
        let weeks = ["2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"];
        for week in ["1w", "7d", "604800s"] {
            assert_eq!(starts(&step(week, ""), "2026-11-28T00:00:00Z", "2026-11-30T00:00:00Z"), weeks, "{week}");
        }
        let of_zone = starts(&step("1w", "Asia/Kolkata"), "2026-11-28T00:00:00Z", "2026-11-28T00:00:01Z");
        assert_eq!(of_zone, ["2026-11-22T18:30:00Z", "2026-11-29T18:30:00Z"]);
        let months = starts(&step("1mo", "America/New_York"), "2026-02-11T00:00:00Z", "2026-04-01T03:59:59Z");
        assert_eq!(months, ["2026-02-01T05:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"]);
    }

    #[test]
    fn what_is_no_step_or_no_zone_is_refused_by_its_field() {
        let refused = |step: &str, zone: &str| SeriesStep::read(step, zone).expect_err("refused").message;
        for bad in ["0s", "-1s", "d", "1y", "2w", "1.5h", "s", "ä", "1e3s", "99999999999999d"] {
            assert!(refused(bad, "").starts_with("step is not valid"), "{bad}");
        }
        assert!(refused("1d", "Berlin").contains("IANA"));
        assert!(refused("1d", &"x".repeat(10_000)).contains("IANA"));
        assert!(refused("600s", "Europe/Berlin").contains("whole days"));
        assert!(refused("", "Europe/Berlin").contains("needs a step"));
        assert_eq!(SeriesStep::read("", ""), Ok(None));
        assert_eq!(step("600s", ""), SeriesStep::Fixed(Duration::from_secs(600)));
        assert_eq!(step("86400s", "UTC"), step("1d", "UTC"), "a day of the zone, however it is written");
    }

    #[test]
    fn days_of_a_zone_need_stored_steps_of_a_quarter_of_an_hour_at_most() {
        let (zoned, utc) = (step("1d", "Europe/Berlin"), step("1d", ""));
        assert!(zoned.consists_of(900) && zoned.consists_of(60) && !zoned.consists_of(3_600) && !zoned.consists_of(80));
        assert!(utc.consists_of(3_600) && utc.consists_of(86_400) && !utc.consists_of(7));
    }

    #[test]
    fn a_range_of_too_many_steps_is_refused_before_it_is_built() {
        for step in [step("1s", ""), step("1d", "Europe/Berlin")] {
            let refused =
                step.bounds(Timestamp::from_secs(0), Timestamp::from_secs(9_000_000_000)).expect_err("refused");
            assert!(refused.message.contains("at most 10000 are allowed"), "{}", refused.message);
        }
        let outside =
            step("1mo", "").bounds(Timestamp::MIN, Timestamp::from_micros(i64::MIN + 1)).expect_err("refused");
        assert!(outside.message.contains("outside of the calendar"), "{}", outside.message);
    }

    proptest! {
        /// Whatever the zone and the range are, the steps touch each other, hold the range, and begin at multiples of a
        /// quarter.
        #[test]
        fn the_steps_hold_their_range_without_a_gap(
            zone in prop::sample::select(vec!["", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"]),
            unit in prop::sample::select(vec!["1d", "1w", "1mo"]),
            from in 1_577_836_800_i64..1_893_456_000,
            seconds in 1_i64..40_000_000,
        ) {
            let step = step(unit, zone);
            let (from, to) = (Timestamp::from_secs(from), Timestamp::from_secs(from + seconds));
            let bounds = step.bounds(from, to).expect("bounds");
            prop_assert!(bounds.len() >= 2 && bounds[0] <= from && bounds[1] > from);
            prop_assert!(bounds[bounds.len() - 2] < to && bounds[bounds.len() - 1] >= to);
            for pair in bounds.windows(2) {
                prop_assert!(pair[1].since(pair[0]) >= step.shortest(), "{pair:?}");
                prop_assert_eq!(pair[0].floor_to(Duration::from_secs(OFFSETS)), pair[0]);
            }
        }
    }
}
