//! Whether this server may report now: by what it last read of the mark next to the counters, and how long ago.
//!
//! A server believes a mark for `TRUSTED_FOR`, counted from before it asked. A store that is given the counters waits
//! for `WAITS_FOR`, counted from after it read that it has them, before it reports. All by elapsed time, so no clock
//! can make two stores report at once: the last time that a server of the store before read its own mark lies before
//! the new mark was written.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use tallystone_ports::Clock;

/// How long a server believes a mark that it has read.
pub const TRUSTED_FOR: Duration = Duration::from_secs(20);
/// How long a store that was given the counters waits before it reports. The spare is for a write that was under way.
pub const WAITS_FOR: Duration = Duration::from_secs(30);

const _: () = assert!(WAITS_FOR.as_secs() > TRUSTED_FOR.as_secs(), "the store before has stopped by then");

/// The standing of a server: what it may do with the counters and the history of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportStanding {
    /// It reports.
    Reports,
    /// It reported, and has not been able to read the mark for some time. It goes on when the mark is as it was.
    Unsure,
    /// The counters were given to its queue store. It begins as soon as those before must have stopped.
    Waits,
    /// The counters belong to another queue store.
    Apart,
}

/// The right of this server to report. All that write to the counters or the history for queues share it.
pub struct ReportRight {
    clock: Arc<dyn Clock>,
    known: Mutex<KnownRight>,
    /// Told of each read of the mark.
    reads: watch::Sender<()>,
    look: Notify,
}

#[derive(Clone, Copy)]
enum KnownRight {
    /// Queues and counters end with the process, so nobody else has them.
    Always,
    /// Until this elapsed time.
    Until(Duration),
    Waits,
    Apart,
}

impl ReportRight {
    /// A right that is not known yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (known, reads) = (Mutex::new(KnownRight::Apart), watch::Sender::default());
        Self { clock, known, reads, look: Notify::new() }
    }

    /// The standing of this server now. O(1).
    pub fn standing(&self) -> ReportStanding {
        let known = *self.known.lock();
        match known {
            KnownRight::Always => ReportStanding::Reports,
            KnownRight::Until(until) if self.clock.elapsed() < until => ReportStanding::Reports,
            KnownRight::Until(_) => ReportStanding::Unsure,
            KnownRight::Waits => ReportStanding::Waits,
            KnownRight::Apart => ReportStanding::Apart,
        }
    }

    /// Whether this server may write to the counters and the history now.
    pub fn holds(&self) -> bool {
        self.standing() == ReportStanding::Reports
    }

    /// Whether the counters and the history belong to another queue store, or did until a moment ago.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.standing(), ReportStanding::Waits | ReportStanding::Apart)
    }

    /// Waits until it is known again what this server may do. At once unless it is unsure.
    pub async fn sure(&self) {
        let mut reads = self.reads.subscribe();
        while self.standing() == ReportStanding::Unsure {
            if reads.changed().await.is_err() {
                std::future::pending::<()>().await; // nobody looks any more
            }
        }
    }

    /// Gives the right for as long as the process runs.
    pub(crate) fn hold_always(&self) {
        self.set(KnownRight::Always);
    }

    /// Notes that the mark is that of this store, as a read says that began at an elapsed time.
    pub(crate) fn hold(&self, asked: Duration) {
        self.set(KnownRight::Until(asked + TRUSTED_FOR));
    }

    /// Notes that the counters were given to this store, which waits.
    pub(crate) fn wait(&self) {
        self.set(KnownRight::Waits);
    }

    /// Notes that the counters belong to another store.
    pub(crate) fn lose(&self) {
        self.set(KnownRight::Apart);
    }

    fn set(&self, known: KnownRight) {
        *self.known.lock() = known;
        self.reads.send_replace(());
    }

    /// Makes the next look at the mark at once.
    pub(crate) fn look_now(&self) {
        self.look.notify_one();
    }

    /// Waits until a look is wanted at once.
    pub(crate) async fn look_wanted(&self) {
        self.look.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::Timestamp;
    use tallystone_ports::BootId;

    /// Elapsed time in seconds.
    struct Elapsed(Mutex<u64>);

    #[async_trait::async_trait]
    impl Clock for Elapsed {
        fn now(&self) -> Timestamp {
            Timestamp::MIN
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(*self.0.lock())
        }

        fn boot(&self) -> BootId {
            BootId(1)
        }

        async fn sleep(&self, _duration: Duration) {}
    }

    #[test]
    fn a_mark_is_believed_for_a_time_from_before_it_was_asked_for_and_then_again_after_a_read() {
        let clock = Arc::new(Elapsed(Mutex::new(100)));
        let right = ReportRight::new(Arc::<Elapsed>::clone(&clock));
        let at = |seconds: u64| {
            *clock.0.lock() = 100 + seconds;
            right.standing()
        };
        assert_eq!(at(0), ReportStanding::Apart, "nothing is known");
        right.hold(Duration::from_secs(100));
        assert_eq!((at(0), at(19)), (ReportStanding::Reports, ReportStanding::Reports));
        assert_eq!(at(20), ReportStanding::Unsure);
        right.hold(Duration::from_secs(119));
        assert_eq!((at(38), at(39)), (ReportStanding::Reports, ReportStanding::Unsure));
        right.wait();
        assert_eq!(at(1_000), ReportStanding::Waits);
        right.lose();
        assert_eq!(at(0), ReportStanding::Apart);
        right.hold_always();
        assert_eq!(at(1_000_000), ReportStanding::Reports);
    }
}
