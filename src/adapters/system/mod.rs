//! The machine's clock and random bytes: the only place that reads either.
//!
//! Invariant: `elapsed` counts suspended time too (boot-time clock), so a lease measured with it is never longer than
//! it seems to the rest of the world.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

use tallystone_domain::time::Timestamp;
use tallystone_ports::{BootId, Clock, Entropy};

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

/// The id of the boot where boots have no names: each process counts as one boot. So what counts from boots never goes
/// on over a restart.
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

/// The random bytes of the operating system. Short ones, such as those of ids, come from a supply of the thread,
/// because a call of the system for each id of a batch takes as long as the rest of its work. Longer ones come from the
/// system directly.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

/// The longest request that is served from the supply of a thread, in bytes.
const SUPPLIED_BYTES: usize = 16;
/// The supply of a thread, in bytes.
const SUPPLY_BYTES: usize = 1_024;

thread_local! {
    static SUPPLY: RefCell<RandomSupply> = const { RefCell::new(RandomSupply { bytes: [0; SUPPLY_BYTES], used: SUPPLY_BYTES }) };
}

/// Random bytes that were not given out yet. Each is given once.
struct RandomSupply {
    bytes: [u8; SUPPLY_BYTES],
    used: usize,
}

impl RandomSupply {
    fn take(&mut self, bytes: &mut [u8]) {
        if self.used + bytes.len() > self.bytes.len() {
            fill_from_system(&mut self.bytes);
            self.used = 0;
        }
        let given = &mut self.bytes[self.used..self.used + bytes.len()];
        bytes.copy_from_slice(given);
        given.fill(0);
        self.used += bytes.len();
    }
}

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > SUPPLIED_BYTES {
            return fill_from_system(bytes);
        }
        SUPPLY.with_borrow_mut(|supply| supply.take(bytes));
    }
}

fn fill_from_system(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        filled += retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()))
            .expect("the operating system must provide random bytes");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

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
    fn no_random_bytes_are_given_twice() {
        let draws = || {
            // Sizes that do not divide the supply, and the longest that comes from it.
            let ids = (0..2_000).map(|draw| {
                let mut id = vec![0; [9, 13, SUPPLIED_BYTES][draw % 3]];
                SystemEntropy.fill(&mut id);
                let (first, last) = (id.first_chunk().expect("8 bytes"), id.last_chunk().expect("8 bytes"));
                [*first, *last]
            });
            ids.flatten().collect::<Vec<[u8; 8]>>()
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draws)).collect();
        let all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn the_supply_keeps_nothing_of_what_it_gave() {
        let mut supply = RandomSupply { bytes: [7; 1_024], used: 1_000 };
        supply.take(&mut [0; 16]);
        assert_eq!((&supply.bytes[1_000..1_016], supply.bytes[1_016]), (&[0; 16][..], 7));
        supply.take(&mut [0; 16]);
        assert_eq!((&supply.bytes[..16], supply.used), (&[0; 16][..], 16), "it was filled anew");
        assert_ne!(supply.bytes[16..], [7; 1_008]);
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
