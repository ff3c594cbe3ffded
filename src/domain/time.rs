//! Points in time, as microseconds since 1970. Durations are `std::time::Duration`.

use std::fmt;
use std::time::Duration;

/// A point in time in microseconds since 1970-01-01T00:00:00Z; negative before that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Below the time of every event that a server can admit.
    pub const MIN: Self = Self(i64::MIN);
    /// Above the time of every event that a server can admit.
    pub const MAX: Self = Self(i64::MAX);

    /// Makes a time from microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Makes a time from milliseconds since 1970, saturating.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Makes a time from seconds since 1970, saturating.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Returns microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns milliseconds since 1970, rounded down.
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// Rounds down to a multiple of `width`, counted from 1970. A width of 0 leaves the time unchanged.
    pub fn floor_to(self, width: Duration) -> Self {
        let width = micros_of(width);
        if width == 0 {
            return self;
        }
        Self(self.0.div_euclid(width).saturating_mul(width))
    }

    /// Rounds up to a multiple of `width`, counted from 1970, saturating.
    pub fn ceil_to(self, width: Duration) -> Self {
        let floor = self.floor_to(width);
        if floor == self { self } else { floor + width }
    }

    /// Returns the duration since `earlier`; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the time one microsecond earlier, saturating.
    pub const fn just_before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the time one microsecond later, saturating.
    pub const fn just_after(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(duration)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(duration)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// Converts a duration to whole microseconds, saturating.
pub fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_down_also_before_1970() {
        let ten = Duration::from_secs(10);
        assert_eq!(Timestamp::from_secs(-1).floor_to(ten), Timestamp::from_secs(-10));
        assert_eq!(Timestamp::from_secs(19).floor_to(ten), Timestamp::from_secs(10));
        assert_eq!(Timestamp::from_secs(19).ceil_to(ten), Timestamp::from_secs(20));
        assert_eq!(Timestamp::from_secs(20).ceil_to(ten), Timestamp::from_secs(20));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::MIN - Duration::from_secs(1), Timestamp::MIN);
        assert_eq!(Timestamp::MIN.since(Timestamp::MAX), Duration::ZERO);
    }
}
