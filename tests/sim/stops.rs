//! Where a server may stop for a while, in the middle of whatever it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::chance::Chance;
use crate::world::{ProcessId, World};

/// How often a server stops between two of its steps, in ten thousandths of all steps, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    pub often: u64,
    pub least: Duration,
    pub most: Duration,
}

/// The stops of one process on one of its ways out.
pub struct Stops {
    pub world: World,
    pub process: ProcessId,
    pub chance: Mutex<Chance>,
    pub pauses: Pauses,
    /// Whether the trouble is over.
    pub is_calm: Arc<AtomicBool>,
}

impl Stops {
    /// The process may stop here.
    pub async fn step(&self) {
        if let Some(pause) = self.draw() {
            self.world.pause(self.process, pause);
            let soon = self.world.now() + Duration::from_micros(1);
            self.world.until_in(self.process, soon).await;
        }
    }

    /// Whether it stops at its next step, and for how long.
    pub fn draw(&self) -> Option<Duration> {
        if self.is_calm.load(Ordering::Relaxed) {
            return None;
        }
        let mut chance = self.chance.lock();
        let pauses = self.pauses;
        chance.happens(pauses.often).then(|| chance.between(pauses.least, pauses.most))
    }
}
