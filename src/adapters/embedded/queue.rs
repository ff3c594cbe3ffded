//! The queue in front of the committer: bounded in bytes, taken whole.

use parking_lot::{Condvar, Mutex};

use super::command::{Class, Command};
use crate::domain::limits::HELD_BYTES_MAX;
use crate::ports::{StoreError, StoreErrorKind};

/// Commands that wait, and the bytes of those that wait or are being worked on.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    bytes: usize,
    closed: bool,
}

impl Queue {
    /// Lines a command up; one that is turned away is answered at once.
    pub fn push(&self, command: Command) {
        let bytes = command.bytes();
        let bytes_max = match command.class() {
            Class::Intake => HELD_BYTES_MAX,
            // Upkeep frees memory, so it gets in while intake is turned away.
            Class::Upkeep => 2 * HELD_BYTES_MAX,
        };
        let mut state = self.state.lock();
        let refusal = if state.closed {
            StoreErrorKind::Closed
        } else if state.bytes + bytes > bytes_max {
            StoreErrorKind::Busy
        } else {
            state.bytes += bytes;
            state.commands.push(command);
            let is_first = state.commands.len() == 1;
            drop(state);
            if is_first {
                self.wake.notify_one();
            }
            return;
        };
        drop(state);
        command.fail(|op| StoreError::not_applied(refusal, op));
    }

    /// Waits for commands and takes all of them; answers `false` once the queue is closed and empty.
    pub fn take(&self, commands: &mut Vec<Command>) -> bool {
        let mut state = self.state.lock();
        while state.commands.is_empty() {
            if state.closed {
                return false;
            }
            self.wake.wait(&mut state);
        }
        std::mem::swap(&mut state.commands, commands);
        true
    }

    /// Notes that commands of so many bytes were worked off.
    pub fn done(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
    }

    /// Turns every further command away.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// The bytes that wait or are being worked on.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}
