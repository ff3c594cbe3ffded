//! Closed and open loops: who starts the next call when.
//!
//! A closed loop starts a call when the one before has ended: it finds the highest rate. An open loop starts calls at
//! fixed moments whatever the server does, and counts latency from those moments, so a stall is felt by every call that
//! should have been made during it (no coordinated omission).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::report::Report;

/// One worker's way to make a call; it answers how many operations the call carried, or why it failed.
pub trait Call: Send + 'static {
    /// Makes one call.
    fn call(&mut self) -> impl Future<Output = Result<u64, String>> + Send;
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
    let from = Instant::now() + span.warm_up;
    let to = from + span.measure;
    let mut tasks = JoinSet::new();
    for mut worker in workers {
        tasks.spawn(async move {
            let mut report = Report::new();
            loop {
                let begun = Instant::now();
                if begun >= to {
                    break;
                }
                let answer = worker.call().await;
                let ended = Instant::now();
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
    let schedule = Schedule::new(rate, span);
    let mut release = Release::new(schedule, workers.len());
    let released = Arc::clone(&release.released);
    // The runtime's timers tick once a millisecond, which would start calls late and in bunches.
    let metronome = std::thread::spawn(move || {
        while let Some(pause) = release.next() {
            std::thread::sleep(pause);
        }
    });
    let report = scheduled(workers, schedule, released).await;
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
    fn new(rate: f64, span: Span) -> Self {
        assert!(rate > 0.0, "an open loop needs a rate");
        let begin = Instant::now();
        let from = begin + span.warm_up;
        Self { begin, from, to: from + span.measure, rate }
    }

    fn due(&self, number: u64) -> Instant {
        self.begin + Duration::from_secs_f64(number as f64 / self.rate)
    }
}

/// Releases each call when it is due.
struct Release {
    schedule: Schedule,
    workers: usize,
    released: Arc<Semaphore>,
    count: u64,
}

impl Release {
    fn new(schedule: Schedule, workers: usize) -> Self {
        Self { schedule, workers, released: Arc::new(Semaphore::new(0)), count: 0 }
    }

    /// Releases what is due by now; answers when to come again. At the end every worker gets a call that is too late.
    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let due_by = now.min(self.schedule.to) - self.schedule.begin;
        let due = (due_by.as_secs_f64() * self.schedule.rate).ceil() as u64;
        self.released.add_permits(due.saturating_sub(self.count) as usize);
        self.count = self.count.max(due);
        if now >= self.schedule.to {
            self.released.add_permits(self.workers);
            return None;
        }
        Some(self.schedule.due(self.count).saturating_duration_since(Instant::now()).max(TICK))
    }
}

/// Makes the calls as they are released, and counts their latency from when they were due.
async fn scheduled<C: Call>(workers: Vec<C>, schedule: Schedule, released: Arc<Semaphore>) -> Report {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for mut worker in workers {
        let (next, released) = (Arc::clone(&next), Arc::clone(&released));
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
                    report.note(due.elapsed(), &answer);
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

    struct Stalls {
        calls: u32,
    }

    impl Call for Stalls {
        async fn call(&mut self) -> Result<u64, String> {
            self.calls += 1;
            if self.calls == 1 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(1)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_loop_charges_a_stall_to_every_call_that_waited_for_it() {
        let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(2) };
        let schedule = Schedule::new(100.0, span);
        let mut release = Release::new(schedule, 1);
        let released = Arc::clone(&release.released);
        let metronome = async {
            while let Some(pause) = release.next() {
                tokio::time::sleep(pause).await;
            }
        };
        let (report, ()) = tokio::join!(scheduled(vec![Stalls { calls: 0 }], schedule, released), metronome);
        assert_eq!(report.done, 200, "every call of the schedule is made");
        let slow = report.latency_us.count_between(500_000, 2_000_000);
        assert!((45..=55).contains(&slow), "half of the calls due during the stall waited half of it or more: {slow}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_measures_after_its_warm_up() {
        struct Steady;
        impl Call for Steady {
            async fn call(&mut self) -> Result<u64, String> {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(2)
            }
        }
        let span = Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(1) };
        let report = closed(vec![Steady, Steady], span).await;
        assert!((390..=402).contains(&report.done), "two workers, 100 calls a second, 2 each: {}", report.done);
    }
}
