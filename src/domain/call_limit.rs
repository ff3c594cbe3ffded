//! The limit of the calls that a server has in progress at once, which follows how long calls take; and the classes of
//! calls, of which the last are refused first.
//!
//! Time is looked at in windows. If most calls of a window took longer than the target, or none ended, the limit falls
//! to three quarters of what is in progress. Otherwise it grows by a sixteenth. Once it binds no call, there is no
//! limit. Invariant: a server whose calls end in time has no limit, and no limit is below the least.
//!
//! Sources: the additive increase and multiplicative decrease of a limit of calls in progress is the `AIMDLimit` of
//! Netflix's concurrency-limits (2018). Windows, and refusing by priority, are those of DAGOR: Zhou et al., "Overload
//! Control for Scaling WeChat Microservices", SoCC 2018. That a store may be slow by itself is learned while few calls
//! are in progress, as BBR learns the delay of a path: Cardwell et al., ACM Queue 14(5), 2016.

use std::fmt;
use std::time::Duration;

use crate::limits::{CALL_REFUSAL_STEP, CALL_TARGET_TIMES_MAX};

/// A class of calls, by what is lost if they are refused. The first is never refused for the load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
pub enum CallClass {
    /// Settlements and heartbeats, which end work that was begun.
    Settle,
    /// Dequeues, adds, and changes of what exists.
    Work,
    /// Enqueues, and what else brings new work.
    Enqueue,
    /// Reads of single things.
    Read,
    /// Lists, rankings, searches and recounts.
    List,
}

/// How a limit adapts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallLimitSettings {
    /// How long most calls may take. Zero: there is never a limit.
    pub target: Duration,
    /// The calls in progress below which no limit falls.
    pub least: usize,
}

/// The limit of calls in progress, and what is known of their times.
#[derive(Clone, Debug)]
pub struct CallLimit {
    settings: CallLimitSettings,
    limit: Option<usize>,
    /// How long calls take while few are in progress, or less if they have taken less since.
    base: Duration,
}

/// The measurements of a window. Times are those of calls that do not wait because their callers ask for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallWindow {
    /// The calls in progress at its end, of all classes.
    pub in_progress: usize,
    /// The timed calls that ended.
    pub ended: u32,
    /// The calls among them that took longer than the target.
    pub late: u32,
    /// How long all of them took together.
    pub took: Duration,
    /// Whether none of the timed calls ended that were in progress at its beginning.
    pub stood_still: bool,
    /// Whether a call was refused.
    pub refused: bool,
}

impl CallClass {
    /// The number of classes.
    pub const COUNT: usize = 5;

    /// All of them, the first that is served first.
    pub const ALL: [Self; Self::COUNT] = [Self::Settle, Self::Work, Self::Enqueue, Self::Read, Self::List];

    /// The class of a number, as protos write it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u32 + 1 == number)
    }

    /// The word for it in errors and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Settle => "settle",
            Self::Work => "work",
            Self::Enqueue => "enqueue",
            Self::Read => "read",
            Self::List => "list",
        }
    }

    /// The part of a limit up to which calls of the class begin, whatever is in progress. Each class leaves an eighth
    /// to each before it. None: the class is never refused.
    pub fn share_of(self, limit: usize) -> Option<usize> {
        let before = self as usize;
        (before > 0).then(|| limit - limit.saturating_mul(before).div_ceil(8).min(limit))
    }

    /// When a refused call may come again. The last classes leave more time to the first.
    pub fn retry_after(self) -> Duration {
        CALL_REFUSAL_STEP * self as u32
    }
}

impl fmt::Display for CallClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Default for CallLimitSettings {
    fn default() -> Self {
        Self { target: Duration::from_millis(250), least: 64 }
    }
}

impl CallLimit {
    /// There is no limit yet.
    pub fn new(settings: CallLimitSettings) -> Self {
        Self { settings, limit: None, base: Duration::ZERO }
    }

    /// The limit; none while calls end in time.
    pub fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// The time that most calls may take: as the settings say; more where they take half of that while few are in
    /// progress, because then the store is slow and fewer calls would not help. It is also the length of the next
    /// window.
    pub fn target(&self) -> Duration {
        let most = self.settings.target * CALL_TARGET_TIMES_MAX;
        self.settings.target.max((2 * self.base).min(most))
    }

    /// Adapts to what was seen in a window.
    pub fn judge(&mut self, window: &CallWindow) {
        let is_late = window.stood_still || window.late > window.ended / 2;
        self.learn(window);
        let least = self.settings.least;
        self.limit = match self.limit {
            limit if is_late => {
                let held = limit.map_or(window.in_progress, |limit| limit.min(window.in_progress));
                Some((held - held.div_ceil(4)).max(least))
            }
            Some(limit) if window.refused || window.in_progress >= limit / 2 => {
                Some(limit.saturating_add(limit / 16 + 1))
            }
            Some(_) | None => None,
        };
    }

    /// Learns how long calls take by themselves.
    fn learn(&mut self, window: &CallWindow) {
        let Some(mean) = window.took.checked_div(window.ended) else { return };
        if mean < self.base || window.in_progress <= self.settings.least {
            self.base = mean;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const TARGET: Duration = Duration::from_millis(250);
    const LEAST: usize = 64;

    fn limit() -> CallLimit {
        CallLimit::new(CallLimitSettings { target: TARGET, least: LEAST })
    }

    fn window() -> impl Strategy<Value = CallWindow> {
        (0..100_000_usize, 0..1_000_u32, 0..=100_u32, 0..5_000_u64, any::<bool>(), any::<bool>()).prop_map(
            |(in_progress, ended, late_percent, mean, stood_still, refused)| CallWindow {
                in_progress,
                ended,
                late: ended * late_percent / 100,
                took: Duration::from_millis(mean) * ended,
                stood_still: stood_still && ended == 0,
                refused,
            },
        )
    }

    /// A server of which a number of calls is always wanted. Beyond its capacity each further call makes all of them
    /// slower.
    #[derive(Clone, Copy, Debug)]
    struct ServerModel {
        wanted: usize,
        capacity: usize,
        alone: Duration,
        /// By how much a call beyond the capacity makes each call slower.
        slower: Duration,
    }

    impl ServerModel {
        fn time(&self, in_progress: usize) -> Duration {
            self.alone + self.slower * u32::try_from(in_progress.saturating_sub(self.capacity)).expect("a small number")
        }

        /// Lets a window pass. Answers the calls in progress.
        fn run(&self, limit: &mut CallLimit) -> usize {
            let in_progress = limit.limit().map_or(self.wanted, |limit| limit.min(self.wanted));
            let (time, ended) = (self.time(in_progress), 100);
            let late = if time > limit.target() { ended } else { 0 };
            let refused = in_progress < self.wanted;
            limit.judge(&CallWindow { in_progress, ended, late, took: time * ended, stood_still: false, refused });
            in_progress
        }
    }

    fn model() -> impl Strategy<Value = ServerModel> {
        (1..20_000_usize, 1..5_000_usize, 1..900_u64, 10..2_000_u64).prop_map(|(wanted, capacity, alone, slower)| {
            ServerModel { wanted, capacity, alone: Duration::from_millis(alone), slower: Duration::from_micros(slower) }
        })
    }

    proptest! {
        #[test]
        fn no_limit_is_below_the_least_and_no_target_beyond_its_bounds(windows in vec(window(), 0..60)) {
            let mut limit = limit();
            for window in windows {
                limit.judge(&window);
                prop_assert!(limit.limit().is_none_or(|limit| limit >= LEAST));
                prop_assert!((TARGET..=TARGET * CALL_TARGET_TIMES_MAX).contains(&limit.target()));
            }
        }

        #[test]
        fn a_server_whose_calls_end_in_time_has_no_limit(windows in vec(window(), 0..60)) {
            let mut limit = limit();
            for window in windows {
                limit.judge(&CallWindow { late: window.late.min(window.ended / 2), stood_still: false, ..window });
                prop_assert_eq!(limit.limit(), None);
            }
        }

        #[test]
        fn a_class_is_refused_only_if_those_behind_it_are(limit in 1..200_000_usize, in_progress in 0..200_000_usize) {
            let has_room = |class: CallClass| class.share_of(limit).is_none_or(|share| in_progress < share);
            for pair in CallClass::ALL.windows(2) {
                prop_assert!(has_room(pair[0]) || !has_room(pair[1]), "{} and {}", pair[0], pair[1]);
            }
            prop_assert!(has_room(CallClass::Settle));
        }

        #[test]
        fn it_comes_to_as_many_calls_as_end_in_time(model in model()) {
            let mut limit = limit();
            for _ in 0..600 {
                model.run(&mut limit);
            }
            let (mut target, mut seen) = (limit.target(), Vec::new());
            for _ in 0..200 {
                seen.push(model.run(&mut limit));
                target = target.max(limit.target());
            }
            let (fewest, most) = (*seen.iter().min().expect("many"), *seen.iter().max().expect("many"));
            let in_time = (0..=model.wanted).rev().find(|calls| model.time(*calls) <= target).unwrap_or(0);
            prop_assert!(most <= (in_time + in_time / 16 + 1).max(LEAST), "{most} of {in_time}");
            let wanted = model.wanted.min(LEAST.max(in_time - in_time.div_ceil(4)));
            prop_assert!(fewest >= wanted, "{fewest} of {in_time}, {target:?}");
        }

        #[test]
        fn a_store_that_is_slow_by_itself_bounds_nothing(wanted in 1..20_000_usize, alone in 1..1_000_u64) {
            let model =
                ServerModel { wanted, capacity: wanted, alone: Duration::from_millis(alone), slower: Duration::ZERO };
            let mut limit = limit();
            for _ in 0..600 {
                model.run(&mut limit);
            }
            prop_assert_eq!(limit.limit(), None);
        }
    }

    #[test]
    fn a_server_that_stands_still_falls_to_the_least_and_one_that_recovers_has_no_limit() {
        let mut limit = limit();
        let still = CallWindow { in_progress: 1_000, stood_still: true, ..CallWindow::default() };
        limit.judge(&still);
        assert_eq!(limit.limit(), Some(750));
        (0..20).for_each(|_| limit.judge(&still));
        assert_eq!(limit.limit(), Some(LEAST));
        let quick = CallWindow { ended: 900, took: TARGET, in_progress: 60, refused: true, ..CallWindow::default() };
        limit.judge(&quick);
        assert_eq!(limit.limit(), Some(69), "it grows while it refuses");
        limit.judge(&CallWindow { in_progress: 3, refused: false, ..quick });
        assert_eq!(limit.limit(), None);
    }

    #[test]
    fn each_class_leaves_an_eighth_to_each_before_it() {
        let shares = CallClass::ALL.map(|class| class.share_of(64));
        assert_eq!(shares, [None, Some(56), Some(48), Some(40), Some(32)]);
        let numbers: Vec<_> = (0..=6).map(CallClass::from_number).collect();
        assert_eq!(numbers, [&[None][..], &CallClass::ALL.map(Some)[..], &[None][..]].concat());
        assert!(CallClass::ALL.windows(2).all(|pair| pair[0].retry_after() < pair[1].retry_after()));
    }
}
