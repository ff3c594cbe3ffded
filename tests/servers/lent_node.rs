//! A Cassandra node that tests kill and stop.
//!
//! The tests of a process have it one after the other, because the start of a node takes fourteen seconds of processors. The next one
//! finds it up. What others wrote is still there, so each test has a keyspace of its own. The node stays until the process ends, and a
//! test that waits for another one seems slow in the list of the slowest.

use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, PoisonError};

use super::cassandra::{Cassandra, Settings, read_a_row};

/// Nine keyspaces of twenty tables each, which take memory while they are there.
const HEAP_MIB: u32 = 1_024;

/// The node while a test has it.
pub struct LentNode {
    node: NodeState,
}

enum NodeState {
    /// No test has had it yet, or it could not be started.
    NotMade,
    Up(Cassandra),
    Down(Settings),
}

/// The node while no test has it.
static HOME: Mutex<Option<NodeState>> = Mutex::new(Some(NodeState::NotMade));
static IS_BACK: Condvar = Condvar::new();

/// The node, as soon as no other test has it.
pub fn lent_node() -> Result<LentNode, String> {
    let home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut home = IS_BACK.wait_while(home, |node| node.is_none()).unwrap_or_else(PoisonError::into_inner);
    let mut lent = LentNode { node: home.take().expect("it is back") };
    drop(home);
    lent.heal()?;
    Ok(lent)
}

impl LentNode {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.node().address()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let NodeState::Up(node) = self.take() else { panic!("it is up") };
        self.node = NodeState::Down(node.kill());
    }

    /// Starts it where it was killed.
    pub fn start_again(&mut self) -> Result<(), String> {
        let NodeState::Down(settings) = self.take() else { panic!("it was killed") };
        self.node = NodeState::Up(Cassandra::start_again(settings)?);
        Ok(())
    }

    /// Stops its process without ending it.
    pub fn pause(&self) {
        self.node().pause();
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.node().resume();
    }

    /// Brings it back, whatever the last test did to it: one that failed has left it in the middle of its fault.
    fn heal(&mut self) -> Result<(), String> {
        if let NodeState::Up(node) = &self.node {
            node.resume();
            if read_a_row(node.address()).is_ok() {
                return Ok(());
            }
            self.take();
        }
        if matches!(self.node, NodeState::Down(_)) {
            return self.start_again();
        }
        self.node = NodeState::Up(Cassandra::start(|settings| settings.heap_mib = HEAP_MIB)?);
        Ok(())
    }

    fn node(&self) -> &Cassandra {
        match &self.node {
            NodeState::Up(node) => node,
            NodeState::NotMade | NodeState::Down(_) => panic!("it is up"),
        }
    }

    fn take(&mut self) -> NodeState {
        std::mem::replace(&mut self.node, NodeState::NotMade)
    }
}

impl Drop for LentNode {
    fn drop(&mut self) {
        *HOME.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.take());
        IS_BACK.notify_one();
    }
}
