//! Rollup signals between servers, over a bad network: late, lost, doubled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_ports::{CounterSignal, RollupSignal, SignalCounts};

use crate::chance::Chance;
use crate::cluster::net::{Net, Site};
use crate::server::Machines;

/// How late a signal may come, at most.
const LATEST: Duration = Duration::from_secs(40);

/// The way from one machine to the others, whose addresses are their numbers.
pub struct SimSignals {
    pub machine: usize,
    pub machines: Machines,
    pub net: Net,
    pub chance: Mutex<Chance>,
    /// Whether the trouble is over.
    pub is_calm: Arc<AtomicBool>,
}

impl SimSignals {
    /// When each copy of a signal arrives, from its sending on.
    fn delays(&self) -> Vec<Duration> {
        if self.is_calm.load(Ordering::Relaxed) {
            return vec![Duration::ZERO];
        }
        let mut chance = self.chance.lock();
        let copies = [0, 1, 1, 1, 1, 2][chance.index(6)];
        let mut delay = || if chance.happens(1_500) { chance.between(Duration::ZERO, LATEST) } else { Duration::ZERO };
        (0..copies).map(|_| delay()).collect()
    }
}

impl RollupSignal for SimSignals {
    fn send(&self, roller: &Arc<str>, signal: CounterSignal) {
        let to: usize = roller.parse().expect("the address of a machine is its number");
        for delay in self.delays() {
            let Some(at) = self.net.send(Site::Machine(self.machine), Site::Machine(to)) else { continue };
            let (machines, signal) = (self.machines.clone(), signal.clone());
            let world = machines.world().clone();
            world.clone().spawn(async move {
                world.until(at + delay).await;
                // Whatever process is there by then: signals know addresses, not processes.
                let Some((process, running)) = machines.running(to) else { return };
                let taking = async move {
                    // One that cannot be taken is lost.
                    let _ = running.engine.signalled().take(vec![signal]).await;
                };
                world.run_in(process, taking);
            });
        }
    }

    fn counts(&self) -> SignalCounts {
        SignalCounts::default()
    }
}
