//! The calls in progress on this server, by class, and the callers that are refused while calls take too long.
//! `domain/call_limit` has the rule.
//!
//! A call counts from when its request has come in full until it is answered. Streams, and dequeues that may wait,
//! count for no caller while they are open. What they do counts, message by message. While there is no limit, a call
//! costs a few atomic operations. At the limit a caller also leaves as much room as it takes, so that the calls of one
//! do not refuse those of others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::access::PrincipalAccount;
use tallystone_coalesce::leaves_room;
use tallystone_domain::call_limit::{CallClass, CallLimit, CallLimitSettings, CallWindow};
use tallystone_ports::Clock;

/// Stands for no limit.
const UNLIMITED: usize = usize::MAX;
/// Of what is in progress, each class has two numbers: of calls whose time counts, and of the others.
const SLOTS: usize = 2 * CallClass::COUNT;

/// The calls in progress, and their limit.
pub struct CallLimiter {
    clock: Arc<dyn Clock>,
    limit: AtomicUsize,
    /// The end of the window, as elapsed nanoseconds.
    window_ends: AtomicU64,
    /// How long most calls may take, in nanoseconds.
    target: AtomicU64,
    in_progress: [AtomicUsize; SLOTS],
    refused: [AtomicU64; CallClass::COUNT],
    /// The timed calls that ended in the window: the number of late ones in the lower half, the number of all in the
    /// upper.
    ended: AtomicU64,
    /// How long they took together, in nanoseconds.
    took: AtomicU64,
    judge: Mutex<WindowJudge>,
}

/// The rule, with what it needs to know of the beginning of the window.
struct WindowJudge {
    rule: CallLimit,
    timed: usize,
    refused: u64,
}

/// The refusal of a call because calls take too long. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "calls take too long at the moment; one of the class {class} begins only while fewer than {limit} are in progress, and \
     one key may have no more of these than are free"
)]
pub struct CallRefusal {
    /// The class of the call.
    pub class: CallClass,
    /// The calls in progress at which the class is refused.
    pub limit: usize,
}

/// Whether the time of a call says how busy the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallTiming {
    /// It takes about as long as others of its method, unless the server is busy.
    Timed,
    /// It may wait, or be large.
    Untimed,
}

/// The place of a call among those in progress, from `begin` until this is dropped.
pub struct CallPlace {
    limiter: Arc<CallLimiter>,
    class: CallClass,
    timing: CallTiming,
    account: Option<Arc<PrincipalAccount>>,
    began: OnceLock<Duration>,
}

/// Gives the messages of a stream their places.
#[derive(Clone)]
pub struct StreamPlaces {
    limiter: Arc<CallLimiter>,
    account: Option<Arc<PrincipalAccount>>,
}

impl CallLimiter {
    /// Nothing is in progress.
    pub fn new(settings: CallLimitSettings, clock: Arc<dyn Clock>) -> Self {
        let is_off = settings.target.is_zero();
        let window_ends = if is_off { u64::MAX } else { nanos(clock.elapsed() + settings.target) };
        let rule = CallLimit::new(settings);
        Self {
            clock,
            limit: AtomicUsize::new(UNLIMITED),
            window_ends: AtomicU64::new(window_ends),
            target: AtomicU64::new(nanos(rule.target())),
            in_progress: Default::default(),
            refused: Default::default(),
            ended: AtomicU64::new(0),
            took: AtomicU64::new(0),
            judge: Mutex::new(WindowJudge { rule, timed: 0, refused: 0 }),
        }
    }

    /// Lets a call begin, or refuses it. O(1).
    pub fn admit(&self, class: CallClass, account: Option<&Arc<PrincipalAccount>>) -> Result<(), CallRefusal> {
        self.judge_if_due(self.clock.elapsed());
        let limit = self.limit.load(Ordering::Relaxed);
        let Some(share) = class.share_of(limit).filter(|_| limit != UNLIMITED) else { return Ok(()) };
        let all = self.all_in_progress();
        let own = account.map_or(0, |account| account.calls_in_progress());
        if all < share && leaves_room(own, 1, all, share) {
            return Ok(());
        }
        self.refused[class as usize].fetch_add(1, Ordering::Relaxed);
        Err(CallRefusal { class, limit: share })
    }

    /// The calls in progress of a class.
    pub fn in_progress(&self, class: CallClass) -> usize {
        [CallTiming::Timed, CallTiming::Untimed]
            .map(|timing| self.slot(class, timing).load(Ordering::Relaxed))
            .iter()
            .sum()
    }

    /// How many calls of a class were refused, or had to wait within a stream.
    pub fn refused(&self, class: CallClass) -> u64 {
        self.refused[class as usize].load(Ordering::Relaxed)
    }

    /// The limit of calls in progress; none while calls end in time. It is judged here too, so that it ends although no
    /// call comes any more.
    pub fn limit(&self) -> Option<usize> {
        self.judge_if_due(self.clock.elapsed());
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != UNLIMITED)
    }

    /// How long most calls may take before there is a limit. Zero: there is never one.
    pub fn target(&self) -> Duration {
        Duration::from_nanos(self.target.load(Ordering::Relaxed))
    }

    fn slot(&self, class: CallClass, timing: CallTiming) -> &AtomicUsize {
        &self.in_progress[class as usize + timing as usize * CallClass::COUNT]
    }

    fn all_in_progress(&self) -> usize {
        self.in_progress.iter().map(|calls| calls.load(Ordering::Relaxed)).sum()
    }

    fn judge_if_due(&self, now: Duration) {
        let now = nanos(now);
        if now < self.window_ends.load(Ordering::Relaxed) {
            return;
        }
        // Another call judges already.
        let Some(mut judge) = self.judge.try_lock() else { return };
        if now < self.window_ends.load(Ordering::Relaxed) {
            return;
        }
        let counts = self.ended.swap(0, Ordering::Relaxed);
        let (ended, late) = ((counts >> 32) as u32, counts as u32);
        let took = Duration::from_nanos(self.took.swap(0, Ordering::Relaxed));
        let timed = self.in_progress.iter().take(CallClass::COUNT).map(|calls| calls.load(Ordering::Relaxed)).sum();
        let refused = CallClass::ALL.iter().map(|class| self.refused(*class)).sum();
        let window = CallWindow {
            in_progress: self.all_in_progress(),
            ended,
            late,
            took,
            stood_still: ended == 0 && judge.timed > 0 && timed > 0,
            refused: refused > judge.refused,
        };
        let before = judge.rule.limit();
        judge.rule.judge(&window);
        (judge.timed, judge.refused) = (timed, refused);
        let (limit, target) = (judge.rule.limit(), nanos(judge.rule.target()));
        self.limit.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
        self.target.store(target, Ordering::Relaxed);
        self.window_ends.store(now.saturating_add(target), Ordering::Relaxed);
        match (before, limit) {
            (None, Some(limit)) => {
                let mean = took.checked_div(ended).unwrap_or_default();
                let in_progress = window.in_progress;
                tracing::warn!(
                    limit,
                    in_progress,
                    ended,
                    late,
                    ?mean,
                    "calls take too long; the last classes are refused"
                );
            }
            (Some(_), None) => tracing::info!("calls end in time again; none is refused"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    fn note_end(&self, took: Duration) {
        let took = nanos(took);
        let is_late = took > self.target.load(Ordering::Relaxed);
        self.ended.fetch_add((1 << 32) | u64::from(is_late), Ordering::Relaxed);
        self.took.fetch_add(took, Ordering::Relaxed);
    }
}

impl CallPlace {
    /// A place that is not taken yet.
    pub fn new(
        limiter: &Arc<CallLimiter>,
        class: CallClass,
        timing: CallTiming,
        account: Option<&Arc<PrincipalAccount>>,
    ) -> Self {
        Self { limiter: Arc::clone(limiter), class, timing, account: account.cloned(), began: OnceLock::new() }
    }

    /// Takes it, unless it is taken: the request has come in full.
    pub fn begin(&self) {
        self.began.get_or_init(|| {
            self.limiter.slot(self.class, self.timing).fetch_add(1, Ordering::Relaxed);
            if let Some(account) = &self.account {
                account.begin_call();
            }
            self.limiter.clock.elapsed()
        });
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let Some(began) = self.began.get() else { return };
        self.limiter.slot(self.class, self.timing).fetch_sub(1, Ordering::Relaxed);
        if let Some(account) = &self.account {
            account.end_call();
        }
        if self.timing == CallTiming::Timed {
            let now = self.limiter.clock.elapsed();
            self.limiter.note_end(now.saturating_sub(*began));
            self.limiter.judge_if_due(now);
        }
    }
}

impl StreamPlaces {
    /// The places of one stream.
    pub fn new(limiter: &Arc<CallLimiter>, account: Option<&Arc<PrincipalAccount>>) -> Self {
        Self { limiter: Arc::clone(limiter), account: account.cloned() }
    }

    /// Takes a place for a message that is never refused.
    pub fn take(&self, class: CallClass) -> CallPlace {
        let place = CallPlace::new(&self.limiter, class, CallTiming::Untimed, self.account.as_ref());
        place.begin();
        place
    }

    /// Takes a place as soon as a call of the class would be let in. No message of a stream is refused: it waits as
    /// long as a refused call is asked to wait.
    pub async fn wait(&self, class: CallClass) -> CallPlace {
        while self.limiter.admit(class, self.account.as_ref()).is_err() {
            self.limiter.clock.sleep(class.retry_after()).await;
        }
        self.take(class)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::access::PrincipalAccounts;
    use tallystone_domain::Timestamp;
    use tallystone_domain::access::{KeyQuotas, PrincipalName};
    use tallystone_ports::BootId;

    const TARGET: Duration = Duration::from_millis(250);
    const LEAST: usize = 64;

    /// A clock that the test moves. Nobody sleeps longer than until the next poll, but each sleep is noted.
    #[derive(Default)]
    struct MovedClock {
        elapsed: Mutex<Duration>,
        slept: Mutex<Vec<Duration>>,
    }

    #[async_trait]
    impl Clock for MovedClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_secs(0)
        }

        fn elapsed(&self) -> Duration {
            *self.elapsed.lock()
        }

        fn boot(&self) -> BootId {
            BootId(1)
        }

        async fn sleep(&self, duration: Duration) {
            self.slept.lock().push(duration);
            tokio::task::yield_now().await;
        }
    }

    struct Limited {
        clock: Arc<MovedClock>,
        limiter: Arc<CallLimiter>,
        accounts: PrincipalAccounts,
    }

    impl Limited {
        fn of(target: Duration) -> Self {
            let clock = Arc::new(MovedClock::default());
            let settings = CallLimitSettings { target, least: LEAST };
            let limiter = Arc::new(CallLimiter::new(settings, Arc::clone(&clock) as Arc<dyn Clock>));
            Self { clock, limiter, accounts: PrincipalAccounts::default() }
        }

        fn advance(&self, time: Duration) {
            *self.clock.elapsed.lock() += time;
        }

        fn account(&self, name: &str) -> Arc<PrincipalAccount> {
            self.accounts.account(&PrincipalName::new(name).expect("a valid name"), &KeyQuotas::default())
        }

        fn begin(&self, class: CallClass, account: Option<&Arc<PrincipalAccount>>, calls: usize) -> Vec<CallPlace> {
            let begun = || {
                let place = CallPlace::new(&self.limiter, class, CallTiming::Timed, account);
                place.begin();
                place
            };
            (0..calls).map(|_| begun()).collect()
        }

        /// Lets a window pass, and looks at it.
        fn pass(&self) -> Option<usize> {
            self.advance(self.limiter.target());
            self.limiter.judge_if_due(self.clock.elapsed());
            self.limiter.limit()
        }

        fn let_in(&self) -> Vec<CallClass> {
            CallClass::ALL.into_iter().filter(|class| self.limiter.admit(*class, None).is_ok()).collect()
        }
    }

    #[test]
    fn calls_that_stand_still_refuse_the_last_classes_first() {
        let limited = Limited::of(TARGET);
        let mut held = limited.begin(CallClass::Work, None, 31);
        assert_eq!((limited.pass(), limited.pass()), (None, Some(LEAST)), "the first window saw them begin");
        let mut seen = Vec::new();
        for calls in [31, 32, 40, 48, 56, 500] {
            held.extend(limited.begin(CallClass::Work, None, calls - held.len()));
            seen.push(limited.let_in().len());
        }
        assert_eq!(seen, [5, 4, 3, 2, 1, 1], "settlements are never refused");
        assert_eq!(CallClass::ALL.map(|class| limited.limiter.refused(class)), [0, 2, 3, 4, 5]);
        assert_eq!(limited.limiter.in_progress(CallClass::Work), 500);
        drop(held);
        assert_eq!(limited.limiter.in_progress(CallClass::Work), 0);
        limited.pass();
        limited.begin(CallClass::Work, None, 1);
        assert_eq!((limited.pass(), limited.let_in().len()), (None, 5));
    }

    #[test]
    fn a_limit_that_is_looked_at_ends_although_no_call_comes_any_more() {
        let limited = Limited::of(TARGET);
        let held = limited.begin(CallClass::Work, None, 31);
        assert_eq!((limited.pass(), limited.pass()), (None, Some(LEAST)));
        drop(held);
        let look = |_| {
            limited.advance(limited.limiter.target());
            limited.limiter.limit()
        };
        assert_eq!((0..3).map(look).last(), Some(None));
    }

    #[test]
    fn most_calls_that_are_late_make_a_limit_and_a_few_do_not() {
        let limited = Limited::of(TARGET);
        let late = limited.begin(CallClass::Enqueue, None, 5);
        assert_eq!(limited.pass(), None);
        limited.advance(Duration::from_nanos(1));
        drop((late, limited.begin(CallClass::Enqueue, None, 5)));
        assert_eq!(limited.pass(), None, "half of them are not most");
        let late = limited.begin(CallClass::Enqueue, None, 1);
        limited.advance(limited.limiter.target() + Duration::from_nanos(1));
        drop(late);
        assert_eq!(limited.limiter.limit(), Some(LEAST));
    }

    #[test]
    fn calls_without_a_time_make_no_limit_but_count() {
        let limited = Limited::of(TARGET);
        let places = StreamPlaces::new(&limited.limiter, None);
        let held = [places.take(CallClass::Settle), places.take(CallClass::Settle)];
        assert_eq!(limited.limiter.in_progress(CallClass::Settle), 2);
        assert_eq!([limited.pass(), limited.pass(), limited.pass()], [None; 3]);
        drop(held);
        assert_eq!(limited.limiter.in_progress(CallClass::Settle), 0);
    }

    #[test]
    fn a_request_that_has_not_come_in_full_counts_for_nothing() {
        let limited = Limited::of(TARGET);
        let place = CallPlace::new(&limited.limiter, CallClass::Work, CallTiming::Timed, None);
        assert_eq!((limited.limiter.in_progress(CallClass::Work), limited.pass(), limited.pass()), (0, None, None));
        place.begin();
        place.begin();
        assert_eq!(limited.limiter.in_progress(CallClass::Work), 1);
    }

    #[test]
    fn a_caller_at_the_limit_leaves_room_for_others() {
        let limited = Limited::of(TARGET);
        let (ann, bob) = (limited.account("ann"), limited.account("bob"));
        let held = limited.begin(CallClass::Work, Some(&ann), 24);
        assert_eq!((limited.pass(), limited.pass()), (None, Some(LEAST)));
        let reads = |who| limited.limiter.admit(CallClass::Read, Some(who)).map_err(|refusal| refusal.limit);
        assert_eq!((reads(&ann), reads(&bob)), (Err(40), Ok(())), "24 are more than the 16 that are free");
        drop(held);
        assert_eq!(ann.calls_in_progress(), 0);
    }

    #[test]
    fn without_a_target_nothing_is_refused() {
        let limited = Limited::of(Duration::ZERO);
        let _held = limited.begin(CallClass::Work, None, 10_000);
        limited.advance(Duration::from_secs(3_600));
        assert_eq!((limited.let_in().len(), limited.limiter.limit()), (5, None));
    }

    #[tokio::test]
    async fn a_message_of_a_stream_waits_where_a_call_is_refused() {
        let limited = Limited::of(TARGET);
        let held = limited.begin(CallClass::Work, None, 56);
        assert_eq!((limited.pass(), limited.pass()), (None, Some(LEAST)));
        let places = StreamPlaces::new(&limited.limiter, None);
        let makes_room = async {
            while limited.clock.slept.lock().len() < 3 {
                tokio::task::yield_now().await;
            }
            assert_eq!(limited.limiter.in_progress(CallClass::Work), 56);
            drop(held);
        };
        let (place, ()) = tokio::join!(places.wait(CallClass::Work), makes_room);
        assert_eq!(limited.limiter.in_progress(CallClass::Work), 1);
        let slept = limited.clock.slept.lock();
        assert!(slept.iter().all(|time| *time == CallClass::Work.retry_after()), "{slept:?}");
        drop(place);
    }
}
