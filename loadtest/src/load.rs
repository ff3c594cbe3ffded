//! Closed and open loops: who starts the next call when.
//!
//! A closed loop starts a call when the one before has ended: it finds the highest rate. An open loop starts calls at
//! fixed moments whatever the server does, and counts latency from those moments, so a stall is felt by every call that
//! should have been made during it (no coordinated omission).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::report::Report;

/// One worker's way to make a call; it answers how many operations the call carried, or why it failed.
pub trait Call: Send + 'static {
    /// Makes one call.
    fn call(&mut self) -> impl Future<Output = Result<u64, String>> + Send;
}

/// Where the loops read the time.
trait Clock: Clone + Send + 'static {
    fn now(&self) -> Instant;
}

/// The clock of the machine.
#[derive(Clone, Copy)]
struct MachineClock;

impl Clock for MachineClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// The finest step of an open loop; what falls due within one starts together. With 0.1 ms waking up took a tenth of two
/// cores from what is measured.
const TICK: Duration = Duration::from_micros(250);

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Run but do not measure.
    pub warm_up: Duration,
    /// Measure.
    pub measure: Duration,
}

/// Runs every worker as fast as it gets answers.
pub async fn closed<C: Call>(workers: Vec<C>, span: Span) -> Report {
    closed_by(MachineClock, workers, span).await
}

async fn closed_by<C: Call>(clock: impl Clock, workers: Vec<C>, span: Span) -> Report {
    let from = clock.now() + span.warm_up;
    let to = from + span.measure;
    let mut tasks = JoinSet::new();
    for mut worker in workers {
        let clock = clock.clone();
        tasks.spawn(async move {
            let mut report = Report::new();
            loop {
                let begun = clock.now();
                if begun >= to {
                    break;
                }
                let answer = worker.call().await;
                let ended = clock.now();
                // What ends inside counts, so that no worker's last call stretches the span.
                if ended >= from && ended < to {
                    report.note(ended - begun, &answer);
                }
            }
            report
        });
    }
    gather(tasks, span.measure).await
}

/// Starts calls at a rate, shared by the workers; their number bounds the calls under way.
pub async fn open<C: Call>(workers: Vec<C>, rate: f64, span: Span) -> Report {
    let schedule = Schedule::new(MachineClock.now(), rate, span);
    let mut release = Release::new(MachineClock, schedule, workers.len());
    let released = Arc::clone(&release.released);
    // The runtime's timers tick once a millisecond, which would start calls late and in bunches.
    let metronome = std::thread::spawn(move || {
        while let Some(pause) = release.next() {
            std::thread::sleep(pause);
        }
    });
    let report = scheduled(MachineClock, workers, schedule, released).await;
    metronome.join().expect("the metronome does not panic");
    report
}

/// When each call of an open loop is due.
#[derive(Clone, Copy)]
struct Schedule {
    begin: Instant,
    from: Instant,
    to: Instant,
    rate: f64,
}

impl Schedule {
    fn new(begin: Instant, rate: f64, span: Span) -> Self {
        assert!(rate > 0.0, "an open loop needs a rate");
        let from = begin + span.warm_up;
        Self { begin, from, to: from + span.measure, rate }
    }

    fn due(&self, number: u64) -> Instant {
        self.begin + Duration::from_secs_f64(number as f64 / self.rate)
    }
}

/// Releases each call when it is due.
struct Release<K> {
    clock: K,
    schedule: Schedule,
    workers: usize,
    released: Arc<Semaphore>,
    count: u64,
}

impl<K: Clock> Release<K> {
    fn new(clock: K, schedule: Schedule, workers: usize) -> Self {
        Self { clock, schedule, workers, released: Arc::new(Semaphore::new(0)), count: 0 }
    }

    /// Releases what is due by now; answers when to come again. At the end every worker gets a call that is too late.
    fn next(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let due_by = now.min(self.schedule.to) - self.schedule.begin;
        let due = (due_by.as_secs_f64() * self.schedule.rate).ceil() as u64;
        self.released.add_permits(due.saturating_sub(self.count) as usize);
        self.count = self.count.max(due);
        if now >= self.schedule.to {
            self.released.add_permits(self.workers);
            return None;
        }
        Some(self.schedule.due(self.count).saturating_duration_since(self.clock.now()).max(TICK))
    }
}

/// Makes the calls as they are released, and counts their latency from when they were due.
async fn scheduled<C: Call>(
    clock: impl Clock,
    workers: Vec<C>,
    schedule: Schedule,
    released: Arc<Semaphore>,
) -> Report {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for mut worker in workers {
        let (clock, next, released) = (clock.clone(), Arc::clone(&next), Arc::clone(&released));
        tasks.spawn(async move {
            let mut report = Report::new();
            loop {
                released.acquire().await.expect("never closed").forget();
                let due = schedule.due(next.fetch_add(1, Ordering::Relaxed));
                if due >= schedule.to {
                    break;
                }
                let answer = worker.call().await;
                if due >= schedule.from {
                    report.note(clock.now().saturating_duration_since(due), &answer);
                }
            }
            report
        });
    }
    gather(tasks, schedule.to - schedule.from).await
}

async fn gather(mut tasks: JoinSet<Report>, measured: Duration) -> Report {
    let mut all = Report::new();
    while let Some(report) = tasks.join_next().await {
        all.merge(&report.expect("a worker does not panic"));
    }
    all.measured = measured;
    all
}

/// Small, fast, seeded chance; every worker has its own.
pub struct Dice(u64);

impl Dice {
    /// Different seeds give different rows.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that only the test moves.
    #[derive(Clone)]
    struct ManualClock {
        begin: Instant,
        passed_us: Arc<AtomicU64>,
    }

    impl ManualClock {
        fn new() -> Self {
            Self { begin: Instant::now(), passed_us: Arc::default() }
        }

        /// Moves the clock, and lets everyone see it once.
        async fn advance(&self, time: Duration) {
            self.passed_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }

        /// Waits until the clock was moved by so much.
        async fn passes(&self, time: Duration) {
            let until = self.now() + time;
            while self.now() < until {
                tokio::task::yield_now().await;
            }
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Instant {
            self.begin + Duration::from_micros(self.passed_us.load(Ordering::Relaxed))
        }
    }

    struct Stalls {
        clock: ManualClock,
        calls: u32,
    }

    impl Call for Stalls {
        async fn call(&mut self) -> Result<u64, String> {
            self.calls += 1;
            if self.calls == 1 {
                self.clock.passes(Duration::from_secs(1)).await;
            }
            Ok(1)
        }
    }

    #[tokio::test]
    async fn an_open_loop_charges_a_stall_to_every_call_that_waited_for_it() {
        let clock = ManualClock::new();
        let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(2) };
        let schedule = Schedule::new(clock.now(), 100.0, span);
        let mut release = Release::new(clock.clone(), schedule, 1);
        let released = Arc::clone(&release.released);
        let metronome = async {
            while let Some(pause) = release.next() {
                clock.advance(pause).await;
            }
        };
        let workers = vec![Stalls { clock: clock.clone(), calls: 0 }];
        let (report, ()) = tokio::join!(scheduled(clock.clone(), workers, schedule, released), metronome);
        assert_eq!(report.done, 200, "every call of the schedule is made");
        let slow = report.latency_us.count_between(500_000, 2_000_000);
        assert!((45..=55).contains(&slow), "half of the calls due during the stall waited half of it or more: {slow}");
    }

    #[tokio::test]
    async fn a_closed_loop_measures_after_its_warm_up() {
        struct Steady(ManualClock);
        impl Call for Steady {
            async fn call(&mut self) -> Result<u64, String> {
                self.0.passes(Duration::from_millis(10)).await;
                Ok(2)
            }
        }
        let clock = ManualClock::new();
        let span = Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(1) };
        let workers = vec![Steady(clock.clone()), Steady(clock.clone())];
        let time_passes = async {
            for _ in 0..5_000 {
                clock.advance(Duration::from_millis(1)).await;
            }
        };
        let (report, ()) = tokio::join!(closed_by(clock.clone(), workers, span), time_passes);
        assert!((390..=402).contains(&report.done), "two workers, 100 calls a second, 2 each: {}", report.done);
    }
}
