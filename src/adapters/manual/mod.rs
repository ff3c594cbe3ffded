//! A clock that does not move until it is moved, and random bytes that repeat: time and chance for tests and
//! simulations.
//!
//! Invariant: nothing here moves by itself. `advance` moves wall time and elapsed time together, `set_wall` steps wall
//! time alone, and a sleeper wakes exactly when `elapsed` reaches its moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use tallystone_domain::time::Timestamp;
use tallystone_ports::{BootId, Clock, Entropy};

/// A clock moved by hand. Clones share the time.
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualClockShared>,
}

struct ManualClockShared {
    state: Mutex<ManualClockState>,
    sleepers_changed: Notify,
}

struct ManualClockState {
    wall: Timestamp,
    elapsed: Duration,
    boot: BootId,
    next_sleeper: u64,
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
}

impl ManualClock {
    /// A clock that shows this wall time, with nothing elapsed.
    pub fn at(wall: Timestamp) -> Self {
        let (elapsed, boot) = (Duration::ZERO, BootId(1));
        let state = ManualClockState { wall, elapsed, boot, next_sleeper: 0, sleepers: BTreeMap::new() };
        Self { shared: Arc::new(ManualClockShared { state: Mutex::new(state), sleepers_changed: Notify::new() }) }
    }

    /// Moves wall time and elapsed time forward and wakes the sleepers whose moment has come, the earliest first.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.shared.state.lock();
        state.wall = state.wall + duration;
        state.elapsed += duration;
        let first_asleep = (state.elapsed + Duration::from_nanos(1), 0);
        let still_asleep = state.sleepers.split_off(&first_asleep);
        let due = std::mem::replace(&mut state.sleepers, still_asleep);
        drop(state);
        for wake in due.into_values() {
            // A sleeper that was cancelled is not there to be woken.
            let _ = wake.send(());
        }
        self.shared.sleepers_changed.notify_waiters();
    }

    /// Steps wall time to any moment, forward or back; elapsed time does not feel it.
    pub fn set_wall(&self, wall: Timestamp) {
        self.shared.state.lock().wall = wall;
    }

    /// Lets elapsed time count from another moment, as after a boot; for clocks that nobody sleeps on.
    pub fn reboot(&self) {
        let mut state = self.shared.state.lock();
        assert!(state.sleepers.is_empty(), "a sleeper does not outlive its boot");
        state.elapsed = Duration::ZERO;
        state.boot.0 += 1;
    }

    /// How many tasks sleep on this clock.
    pub fn sleepers(&self) -> usize {
        self.shared.state.lock().sleepers.len()
    }

    /// The elapsed time at which the earliest sleeper wakes.
    pub fn next_wake(&self) -> Option<Duration> {
        self.shared.state.lock().sleepers.keys().next().map(|(moment, _)| *moment)
    }

    /// Waits until at least this many tasks sleep, so that a test moves the clock only when everybody has come to rest.
    pub async fn wait_for_sleepers(&self, count: usize) {
        loop {
            let changed = self.shared.sleepers_changed.notified();
            if self.sleepers() >= count {
                return;
            }
            changed.await;
        }
    }

    fn register(&self, duration: Duration) -> (SleeperGuard<'_>, oneshot::Receiver<()>) {
        let (wake, woken) = oneshot::channel();
        let mut state = self.shared.state.lock();
        let place = (state.elapsed + duration, state.next_sleeper);
        state.next_sleeper += 1;
        state.sleepers.insert(place, wake);
        drop(state);
        self.shared.sleepers_changed.notify_waiters();
        (SleeperGuard { clock: self, key: place }, woken)
    }
}

/// Strikes a sleeper off the list when its task is cancelled.
struct SleeperGuard<'a> {
    clock: &'a ManualClock,
    key: (Duration, u64),
}

impl Drop for SleeperGuard<'_> {
    fn drop(&mut self) {
        self.clock.shared.state.lock().sleepers.remove(&self.key);
        self.clock.shared.sleepers_changed.notify_waiters();
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.shared.state.lock().wall
    }

    fn elapsed(&self) -> Duration {
        self.shared.state.lock().elapsed
    }

    fn boot(&self) -> BootId {
        self.shared.state.lock().boot
    }

    async fn sleep(&self, duration: Duration) {
        if duration.is_zero() {
            return;
        }
        let (_sleeper, woken) = self.register(duration);
        woken.await.expect("the clock outlives its sleepers and drops no waker unsent");
    }
}

/// Random bytes that a seed determines (SplitMix64). Clones share the sequence.
#[derive(Clone)]
pub struct SeededEntropy {
    state: Arc<Mutex<u64>>,
}

impl SeededEntropy {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(seed)) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock();
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = *state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_sleeper_wakes_when_its_moment_is_reached_and_not_before() {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(SECOND).await }
        });
        clock.wait_for_sleepers(1).await;
        clock.advance(SECOND - Duration::from_nanos(1));
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_nanos(1));
        sleeper.await.expect("the sleeper does not panic");
        assert_eq!(clock.sleepers(), 0);
        assert_eq!(clock.elapsed(), SECOND);
    }

    #[tokio::test]
    async fn a_cancelled_sleeper_is_struck_off() {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(SECOND).await }
        });
        clock.wait_for_sleepers(1).await;
        sleeper.abort();
        assert!(sleeper.await.expect_err("it was aborted").is_cancelled());
        assert_eq!(clock.next_wake(), None);
    }

    #[test]
    fn a_wall_step_is_not_felt_by_elapsed() {
        let clock = ManualClock::at(Timestamp::from_secs(100));
        clock.advance(SECOND);
        clock.set_wall(Timestamp::from_secs(50));
        assert_eq!((clock.now(), clock.elapsed()), (Timestamp::from_secs(50), SECOND));
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let draw = |seed| {
            let entropy = SeededEntropy::new(seed);
            let mut bytes = [0; 20];
            entropy.fill(&mut bytes);
            bytes
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
