//! The machine's clock and random bytes: the only place that reads either.
//!
//! Invariant: `elapsed` counts suspended time too (boot-time clock), so a lease measured with it is never longer than it
//! seems to the rest of the world.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use crate::domain::time::Timestamp;
use crate::ports::{BootId, Clock, Entropy};

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        };
        Timestamp::from_micros(micros)
    }

    fn elapsed(&self) -> Duration {
        boot_time()
    }

    fn boot(&self) -> BootId {
        *BOOT.get_or_init(|| read_boot_id().unwrap_or_else(process_boot_id))
    }

    async fn sleep(&self, duration: Duration) {
        // The runtime's timer stands still while the machine is suspended, so it can only be late on `elapsed`.
        tokio::time::sleep(duration).await;
    }
}

static BOOT: OnceLock<BootId> = OnceLock::new();

/// The name that Linux gives each boot; a container has that of its machine, and its clock.
fn read_boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(BootId(uuid::Uuid::parse_str(text.trim()).ok()?.as_u128()))
}

/// Where boots have no names, each process counts as one: what counts from boots then never goes on over a restart.
fn process_boot_id() -> BootId {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes);
    BootId(u128::from_be_bytes(bytes))
}

/// Time since the machine booted, suspended time included.
fn boot_time() -> Duration {
    // Elsewhere the monotonic clock is the nearest; on macOS it counts suspended time as well.
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;

    let time = clock_gettime(CLOCK);
    let secs = u64::try_from(time.tv_sec).expect("time since boot is not negative");
    let nanos = u32::try_from(time.tv_nsec).expect("nanoseconds are below one second");
    Duration::new(secs, nanos)
}

/// The random bytes of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))
                .expect("the operating system must provide random bytes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_never_goes_back() {
        let readings: Vec<_> = (0..1_000).map(|_| SystemClock.elapsed()).collect();
        assert!(readings.is_sorted());
    }

    #[test]
    fn wall_time_is_of_this_era() {
        assert!(SystemClock.now() > Timestamp::from_secs(1_700_000_000));
    }

    #[tokio::test]
    async fn sleep_takes_at_least_its_time_on_elapsed() {
        let before = SystemClock.elapsed();
        SystemClock.sleep(Duration::from_millis(5)).await;
        assert!(SystemClock.elapsed() - before >= Duration::from_millis(5));
    }

    #[test]
    fn every_byte_is_filled() {
        let mut seen = [0_u8; 300];
        for _ in 0..8 {
            let mut bytes = [0_u8; 300];
            SystemEntropy.fill(&mut bytes);
            for (seen, byte) in seen.iter_mut().zip(bytes) {
                *seen |= byte;
            }
        }
        assert!(seen.iter().all(|byte| *byte != 0), "eight draws leave a zero byte with odds of 2^-64 each");
    }
}
