//! Laws about time, on a machine that others use too.
//!
//! A wait lasts as long as the service needs, and what the machine kept from it. A law is about the first alone. So a test makes
//! empty calls of the same server beside its wait, one after the other: the wait may take the bound of the law, and as much
//! longer as the longest of these took in that time, or as one thread of the server stood ready without a core. On a machine at
//! rest that is next to nothing. The bound is the documented one, and no test widens it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two empty calls, and between two looks.
const CALL_EVERY: Duration = Duration::from_millis(20);
/// How long a wait may last until nobody looks any more, whatever its bound.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);

/// Empty calls beside the waits of a test, until it goes.
pub struct Yardstick {
    calls: Arc<Mutex<Vec<EmptyCall>>>,
    cores: Option<Cores>,
    /// The thread ends with it.
    _ends: SyncSender<()>,
}

/// When it began and when it ended, if it has.
type EmptyCall = (Instant, Option<Instant>);

/// What the threads of a process waited for a core, since this was made.
pub struct Cores {
    pid: u32,
    before: BTreeMap<String, Duration>,
}

impl Yardstick {
    /// Makes empty calls, one after the other.
    pub fn of(empty_call: impl Fn() + Send + 'static) -> Self {
        let calls: Arc<Mutex<Vec<EmptyCall>>> = Arc::default();
        let (ends, ended) = sync_channel(1);
        let noted = Arc::clone(&calls);
        thread::spawn(move || {
            while ended.recv_timeout(CALL_EVERY) == Err(RecvTimeoutError::Timeout) {
                noted.lock().expect("no holder panics").push((Instant::now(), None));
                empty_call();
                if let Some((_, end)) = noted.lock().expect("no holder panics").last_mut() {
                    *end = Some(Instant::now());
                }
            }
        });
        Self { calls, cores: None, _ends: ends }
    }

    /// The same, of a process that is called.
    pub fn of_process(pid: u32, empty_call: impl Fn() + Send + 'static) -> Self {
        Self { cores: Some(Cores::of(pid)), ..Self::of(empty_call) }
    }

    /// Fails if more than the bound has passed since a moment, and more than the machine kept.
    pub fn holds(&self, since: Instant, bound: Duration, what: impl Display) {
        self.judge(since, since.elapsed(), bound, what);
    }

    /// Waits until it is so. Fails if a look that began later than the bound after a moment found that it was not.
    pub fn comes(&self, since: Instant, bound: Duration, what: impl Display, mut is_so: impl FnMut() -> bool) {
        let mut last_look_without = since;
        // Nobody sends: it ends a pause at its time.
        let (_pauses, pause) = sync_channel::<()>(1);
        loop {
            let began = Instant::now();
            if is_so() {
                break;
            }
            last_look_without = began;
            assert!(since.elapsed() < bound + GIVEN_UP_AFTER, "{what}: never");
            let _ = pause.recv_timeout(CALL_EVERY); // it is over
        }
        self.judge(since, last_look_without.saturating_duration_since(since), bound, what);
    }

    fn judge(&self, since: Instant, waited: Duration, bound: Duration, what: impl Display) {
        let kept = self.kept(since);
        assert!(waited <= bound + kept, "{what}: after {waited:?}, of which the machine kept {kept:?}");
    }

    /// What the machine kept from one wait since a moment, at most. The waits for a core count since the yardstick was made, so each
    /// wait has a yardstick of its own.
    pub fn kept(&self, since: Instant) -> Duration {
        self.slowest_call(since).max(self.cores.as_ref().map_or(Duration::ZERO, Cores::longest_wait))
    }

    /// The time of the slowest empty call since a moment: what the machine kept from one of many calls, at most.
    pub fn slowest_call(&self, since: Instant) -> Duration {
        let now = Instant::now();
        let calls = self.calls.lock().expect("no holder panics");
        let took = |&(began, end): &EmptyCall| end.unwrap_or(now).saturating_duration_since(began.max(since));
        calls.iter().map(took).max().unwrap_or_default()
    }
}

impl Cores {
    /// Those of a process.
    pub fn of(pid: u32) -> Self {
        Self { pid, before: waits_of(pid) }
    }

    /// The wait of the thread that waited longest.
    pub fn longest_wait(&self) -> Duration {
        let since = |(thread, wait): (String, Duration)| {
            wait.saturating_sub(self.before.get(&thread).copied().unwrap_or_default())
        };
        waits_of(self.pid).into_iter().map(since).max().unwrap_or_default()
    }
}

/// What the thread that makes it waited for a core, since then. It tells of no other thread.
pub struct OwnWait {
    before: Duration,
}

impl OwnWait {
    /// From now on.
    pub fn begin() -> Self {
        Self { before: Self::of_life() }
    }

    /// The wait until now.
    pub fn so_far(&self) -> Duration {
        Self::of_life().saturating_sub(self.before)
    }

    fn of_life() -> Duration {
        wait_of(Path::new("/proc/thread-self")).unwrap_or_default()
    }
}

/// How long each thread of a process stood ready without a core, in its life. None of a kernel that does not say so.
fn waits_of(pid: u32) -> BTreeMap<String, Duration> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let wait = |path: PathBuf| Some((path.display().to_string(), wait_of(&path)?));
    threads.flatten().filter_map(|thread| wait(thread.path())).collect()
}

/// The same of one thread.
fn wait_of(thread: &Path) -> Option<Duration> {
    // The time on a core and the time without one, in nanoseconds, and the turns.
    let told = fs::read_to_string(thread.join("schedstat")).ok()?;
    told.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod laws {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::Receiver;

    use super::*;

    /// A yardstick whose first empty call lasts until it is told to end, and a moment after which that call has begun.
    fn stands() -> (Yardstick, SyncSender<()>, Instant) {
        let (ends, told): (_, Receiver<()>) = sync_channel(1);
        let (begins, begun) = sync_channel(1);
        let told = Mutex::new(told);
        let yardstick = Yardstick::of(move || {
            // Both fail when the law has ended, and then nobody asks.
            let _ = begins.try_send(());
            let _ = told.lock().expect("no holder panics").recv_timeout(GIVEN_UP_AFTER);
        });
        begun.recv().expect("a call begins");
        (yardstick, ends, Instant::now())
    }

    /// A yardstick on a machine that keeps nothing.
    fn at_rest() -> Yardstick {
        Yardstick { calls: Arc::default(), cores: None, _ends: sync_channel(1).0 }
    }

    #[test]
    fn a_wait_is_in_time_beside_a_call_that_takes_as_long_and_late_beside_none() {
        let (yardstick, _ends, since) = stands();
        yardstick.holds(since, Duration::ZERO, "the machine stands still");
        let late = || at_rest().holds(since, Duration::ZERO, "it is late");
        assert!(catch_unwind(AssertUnwindSafe(late)).is_err());
    }

    #[test]
    fn a_look_that_begins_in_time_may_end_late_and_one_that_begins_late_sees_it() {
        let since = Instant::now();
        at_rest().comes(since, Duration::ZERO, "the first look sees it", || true);
        let late = || {
            let mut looks = 0;
            at_rest().comes(since, Duration::ZERO, "it is late", || {
                looks += 1;
                looks > 2
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(late)).is_err());
    }

    #[test]
    fn the_waits_of_this_process_are_read() {
        let are_told = fs::exists("/proc/self/schedstat").is_ok_and(|exists| exists);
        assert_eq!(waits_of(std::process::id()).is_empty(), !are_told);
    }
}
