//! The resident memory of the server's process before, at its peak, and after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::target::usage;

const LOOKED_EVERY: Duration = Duration::from_millis(100);
/// How far above its start a process may stay.
const BACK_WITHIN_BYTES: u64 = 100 * 1024 * 1024;

/// What was seen; no numbers where the process is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Bytes before the attack, at the most during it, after it.
    pub resident: Option<[u64; 3]>,
    /// Whether the process ended.
    pub is_gone: bool,
}

/// A process that is looked at all the time.
pub struct Watched {
    pid: Option<u32>,
    before: u64,
    peak: Arc<AtomicU64>,
    gone: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Watched {
    /// Begins to look.
    pub fn begin(pid: Option<u32>) -> Self {
        let before = pid.and_then(resident).unwrap_or(0);
        let (peak, gone) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
        let (to_peak, to_gone) = (Arc::clone(&peak), Arc::clone(&gone));
        let task = tokio::spawn(async move {
            let Some(pid) = pid else { return };
            loop {
                match resident(pid) {
                    Some(bytes) => drop(to_peak.fetch_max(bytes, Ordering::Relaxed)),
                    None => to_gone.store(true, Ordering::Relaxed),
                }
                tokio::time::sleep(LOOKED_EVERY).await;
            }
        });
        Self { pid, before, peak, gone, task }
    }

    /// The most so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Waits until the process is back near its start, at most so long.
    pub async fn settle(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let is_back = || self.pid.and_then(resident).is_none_or(|bytes| bytes <= self.before + BACK_WITHIN_BYTES);
        while Instant::now() < until && !is_back() {
            tokio::time::sleep(LOOKED_EVERY).await;
        }
    }

    /// Looks a last time; `peak` is that of the attack alone.
    pub async fn end(self, peak: u64) -> Memory {
        self.task.abort();
        let _ = self.task.await; // it was told to end
        let Some(pid) = self.pid else { return Memory::default() };
        let after = resident(pid);
        let is_gone = after.is_none() || self.gone.load(Ordering::Relaxed);
        Memory { resident: Some([self.before, peak, after.unwrap_or(0)]), is_gone }
    }
}

/// The resident bytes of a process that runs; a process that has ended and was not waited for has none.
fn resident(pid: u32) -> Option<u64> {
    usage(pid).ok().map(|usage| usage.resident).filter(|bytes| *bytes > 0)
}
