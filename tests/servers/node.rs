//! A Cassandra node that tests kill, pause and bring back.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::cassandra::{Cassandra, Settings};

/// How long a node that goes on may take until it answers.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// A node.
pub struct Node {
    state: State,
}

enum State {
    Up(Cassandra),
    Paused(Cassandra),
    Down(Settings),
    /// Between two of the others.
    Changing,
}

impl Node {
    /// A node that is up.
    pub fn of(node: Cassandra) -> Self {
        Self { state: State::Up(node) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match &self.state {
            State::Up(node) | State::Paused(node) => node.address(),
            State::Down(settings) => SocketAddr::from((settings.host, settings.ports.cql)),
            State::Changing => unreachable!("a change ends before anybody asks"),
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.state = match self.take() {
            State::Up(node) | State::Paused(node) => State::Down(node.kill()),
            down => down,
        };
    }

    /// Stops its process without ending it.
    pub fn pause(&mut self) {
        self.state = match self.take() {
            State::Up(node) => {
                node.pause();
                State::Paused(node)
            }
            other => other,
        };
    }

    /// Brings it back, whatever was done to it, and waits until it takes connections.
    pub fn bring_back(&mut self) -> Result<(), String> {
        let node = match self.take() {
            State::Up(node) => node,
            State::Paused(node) => {
                node.resume();
                node
            }
            State::Down(settings) => {
                self.state = State::Down(settings.clone());
                Cassandra::start_again(settings)?
            }
            State::Changing => return Err("a test failed while it changed the node".to_owned()),
        };
        let (address, deadline) = (node.address(), Instant::now() + BACK_WITHIN);
        self.state = State::Up(node);
        while TcpStream::connect_timeout(&address, BACK_WITHIN).is_err() {
            if Instant::now() > deadline {
                return Err(format!("a node does not listen at {address}"));
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn take(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Changing)
    }
}
