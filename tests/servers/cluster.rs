//! Three Cassandra nodes that are one cluster, on loopback addresses of their own, for faults and never for figures.
//!
//! The tests of a process share it, one after the other: whoever has it may kill, stop and start its nodes. The next one
//! finds all of them up. It ends with the last test that has it or waits for it, because three idle nodes take a part of a core
//! from all tests that follow. A later one starts it again; tests run in the order of their names, so neighbours share it.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use super::cassandra::{Cassandra, Settings};
use super::node::Node;

/// The nodes of a cluster, and the copies of its keyspaces.
pub const NODES: usize = 3;
const HEAP_MIB: u32 = 320;
const TRIES: usize = 3;
/// Processes have other numbers, and few of them more than this many.
const HOSTS: u32 = 250 * 250;

/// A cluster.
pub struct Cluster {
    nodes: [Node; NODES],
}

/// The cluster while a test has it.
pub struct Lent {
    /// There until it is given back.
    cluster: Option<Cluster>,
    home: Arc<Home>,
}

/// Where the cluster is between two tests. Whoever has it or waits for it has a part in this.
struct Home {
    cluster: Mutex<Option<Cluster>>,
    is_back: Condvar,
}

/// The home of the cluster that runs. Whoever holds its lock may start one or end it, so that there are never two.
static HOME: Mutex<Weak<Home>> = Mutex::new(Weak::new());

/// The cluster that the tests of this process share, for one of them at a time, with all nodes up.
pub fn lent() -> Result<Lent, String> {
    let home = {
        let mut shared = HOME.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.upgrade() {
            Some(home) => home,
            None => {
                let cluster = Mutex::new(Some(Cluster::start()?));
                let home = Arc::new(Home { cluster, is_back: Condvar::new() });
                *shared = Arc::downgrade(&home);
                home
            }
        }
    };
    let cluster = {
        let at_home = home.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = home.is_back.wait_while(at_home, |cluster| cluster.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).take()
    };
    let mut lent = Lent { cluster, home };
    // A test that failed has left it as it was in the middle of its fault.
    lent.heal()?;
    Ok(lent)
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut shared = HOME.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = self.cluster.take();
        if Arc::strong_count(&self.home) == 1 {
            // Nobody waits, and nobody starts another before this one has ended.
            *shared = Weak::new();
            drop(cluster);
            return;
        }
        *self.home.cluster.lock().unwrap_or_else(PoisonError::into_inner) = cluster;
        self.home.is_back.notify_one();
    }
}

impl Deref for Lent {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("it was not given back yet")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("it was not given back yet")
    }
}

impl Cluster {
    fn start() -> Result<Self, String> {
        let mut started = Self::start_once();
        for _ in 1..TRIES {
            // The ports were free on one of the addresses, and may be taken on another.
            started = started.or_else(|_| Self::start_once());
        }
        started
    }

    fn start_once() -> Result<Self, String> {
        let mut ports = None;
        // One after the other: each has to know the tokens of those before it.
        let nodes = (0..NODES).map(|at| {
            let mut settings = Settings::new().map_err(|error| error.to_string())?;
            settings.ports = *ports.get_or_insert(settings.ports);
            (settings.host, settings.seed, settings.heap_mib) = (host(at), host(0), HEAP_MIB);
            Cassandra::start_again(settings).map(Node::of)
        });
        let nodes = nodes.collect::<Result<Vec<_>, String>>()?;
        Ok(Self { nodes: nodes.try_into().unwrap_or_else(|_| unreachable!("as many were started")) })
    }

    /// Where all of them listen, as settings name them.
    pub fn servers(&self) -> String {
        (0..NODES).map(|at| self.address(at).to_string()).collect::<Vec<_>>().join(",")
    }

    /// Where a node listens.
    pub fn address(&self, at: usize) -> SocketAddr {
        self.nodes[at].address()
    }

    /// Ends a node at once.
    pub fn kill(&mut self, at: usize) {
        self.nodes[at].kill();
    }

    /// Stops a node without ending it.
    pub fn pause(&mut self, at: usize) {
        self.nodes[at].pause();
    }

    /// Brings a node back, whatever was done to it, and waits until it takes connections.
    pub fn bring_back(&mut self, at: usize) -> Result<(), String> {
        self.nodes[at].bring_back()
    }

    /// Brings all nodes back.
    pub fn heal(&mut self) -> Result<(), String> {
        self.nodes.iter_mut().try_for_each(Node::bring_back)
    }
}

/// The loopback address of a node: apart from those of other processes that run the same tests.
fn host(at: usize) -> Ipv4Addr {
    let process = std::process::id() % HOSTS;
    let [high, low] = [process / 250, process % 250].map(|part| u8::try_from(part + 1).expect("below 251"));
    Ipv4Addr::new(127, high, low, u8::try_from(at + 1).expect("few nodes"))
}
