//! The network: how long a message takes, whether it arrives, and which links are cut.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::chance::Chance;
use crate::world::World;

/// Where messages begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// A node of the store.
    Node(usize),
    /// A machine that runs servers.
    Machine(usize),
    /// A server of the count cache.
    Cache(usize),
    /// All clients.
    Clients,
}

/// How bad the network is, in ten thousandths of all messages.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    pub lost: u64,
    pub slow: u64,
}

/// A link that carries nothing in one direction for a while.
struct Cut {
    from: Site,
    to: Site,
    since: Duration,
    until: Duration,
}

/// The network. Cheap to clone.
#[derive(Clone)]
pub struct Net {
    world: World,
    state: Arc<Mutex<State>>,
}

struct State {
    chance: Chance,
    quality: Quality,
    cuts: Vec<Cut>,
}

/// After this time everybody near a cut knows of it.
const KNOWN_AFTER: Duration = Duration::from_secs(3);
const MILLI: Duration = Duration::from_millis(1);

impl Net {
    /// A network without cuts.
    pub fn new(world: &World, chance: Chance, quality: Quality) -> Self {
        Self { world: world.clone(), state: Arc::new(Mutex::new(State { chance, quality, cuts: Vec::new() })) }
    }

    /// Cuts a link in one direction.
    pub fn cut(&self, from: Site, to: Site, duration: Duration) {
        let now = self.world.now();
        let mut state = self.state.lock();
        state.cuts.retain(|cut| cut.until > now);
        state.cuts.push(Cut { from, to, since: now, until: now + duration });
    }

    /// Ends all cuts and losses; what is under way already stays late.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.cuts.clear();
        state.quality = Quality { lost: 0, slow: 0 };
    }

    /// When a message that is sent at this moment arrives; none if it never does.
    pub fn send(&self, from: Site, to: Site) -> Option<Duration> {
        let now = self.world.now();
        let mut state = self.state.lock();
        let Quality { lost, slow } = state.quality;
        let usual = state.chance.between(MILLI / 10, MILLI * 2);
        let cut = state.cuts.iter().filter(|cut| cut.from == from && cut.to == to && cut.until > now);
        let cut = cut.map(|cut| cut.until).max();
        match cut {
            // A message into a cut dies with its connection, or waits in a buffer until the cut is over.
            Some(until) => state.chance.happens(5_000).then_some(until + usual),
            None if state.chance.happens(lost) => None,
            None if state.chance.happens(slow) => Some(now + state.chance.between(MILLI * 10, MILLI * 4_000)),
            None => Some(now + usual),
        }
    }

    /// Whether everybody knows that a link carries nothing.
    pub fn is_known_cut(&self, from: Site, to: Site) -> bool {
        let now = self.world.now();
        let state = self.state.lock();
        state
            .cuts
            .iter()
            .any(|cut| cut.from == from && cut.to == to && cut.until > now && cut.since + KNOWN_AFTER < now)
    }
}
