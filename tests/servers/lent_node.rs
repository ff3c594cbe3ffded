//! A Cassandra node that the tests of a process have one after the other, to kill it and to stop it.
//!
//! The start of a node takes fourteen seconds of processors, so the next test finds it up. What others wrote is still there, so each
//! test has a keyspace of its own. The node stays until the process ends, and a test that waits for another one seems slow in the list
//! of the slowest.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};

use super::cassandra::{Cassandra, read_a_row};
use super::node::Node;

/// Nine keyspaces of twenty tables each, which take memory while they are there.
const HEAP_MIB: u32 = 1_024;

/// The node while a test has it.
pub struct LentNode {
    /// None if it could not be started.
    node: Option<Node>,
}

enum Home {
    /// A test has it.
    Away,
    /// No test has had it yet, or it could not be started.
    Empty,
    Here(Node),
}

static HOME: Mutex<Home> = Mutex::new(Home::Empty);
static IS_BACK: Condvar = Condvar::new();

/// The node, as soon as no other test has it.
pub fn lent_node() -> Result<LentNode, String> {
    let home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = IS_BACK.wait_while(home, |home| matches!(home, Home::Away));
    let at_home = std::mem::replace(&mut *waited.unwrap_or_else(PoisonError::into_inner), Home::Away);
    let mut lent = LentNode { node: if let Home::Here(node) = at_home { Some(node) } else { None } };
    lent.heal()?;
    Ok(lent)
}

impl LentNode {
    /// A test that failed has left it in the middle of its fault.
    fn heal(&mut self) -> Result<(), String> {
        if let Some(node) = &mut self.node
            && node.bring_back().is_ok()
            && read_a_row(node.address()).is_ok()
        {
            return Ok(());
        }
        // There is none yet, or it ended by itself, or did not come back: its directory may have gone.
        self.node = None;
        self.node = Some(Node::of(Cassandra::start(|settings| settings.heap_mib = HEAP_MIB)?));
        Ok(())
    }
}

impl Deref for LentNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node.as_ref().expect("it is lent when it is up")
    }
}

impl DerefMut for LentNode {
    fn deref_mut(&mut self) -> &mut Node {
        self.node.as_mut().expect("it is lent when it is up")
    }
}

impl Drop for LentNode {
    fn drop(&mut self) {
        *HOME.lock().unwrap_or_else(PoisonError::into_inner) = self.node.take().map_or(Home::Empty, Home::Here);
        IS_BACK.notify_one();
    }
}
