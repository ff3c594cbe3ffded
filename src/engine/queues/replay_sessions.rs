//! The sessions of this server in one shard, in which dequeues without a session of a worker can be repeated.
//!
//! Each call in flight has a session of its own, because a shard remembers few calls of a session. The last session that
//! became idle is used next, so a shard knows few of them.

use parking_lot::Mutex;

/// The sessions of this server in one shard.
#[derive(Default)]
pub struct ReplaySessions {
    state: Mutex<ReplaySessionsState>,
}

#[derive(Default)]
struct ReplaySessionsState {
    idle: Vec<ReplaySession>,
    made: u16,
}

/// A session of this server in one shard, with its next call.
#[derive(PartialEq, Eq, Debug)]
pub struct ReplaySession {
    /// Its number in the shard.
    pub number: u16,
    /// The number of its next call, from 1.
    pub sequence: u64,
}

impl ReplaySessions {
    /// Takes a session for a call; none if all are in use. O(1).
    pub fn take(&self) -> Option<ReplaySession> {
        let mut state = self.state.lock();
        if let Some(session) = state.idle.pop() {
            return Some(session);
        }
        state.made = state.made.checked_add(1)?;
        Some(ReplaySession { number: state.made, sequence: 1 })
    }

    /// Takes back the session of a call whose outcome is known.
    pub fn give_back(&self, session: ReplaySession) {
        self.state.lock().idle.push(ReplaySession { sequence: session.sequence + 1, ..session });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_flight_have_sessions_of_their_own_and_the_last_idle_one_is_used_next() {
        let sessions = ReplaySessions::default();
        let session = |number, sequence| Some(ReplaySession { number, sequence });
        let (first, second) = (sessions.take(), sessions.take());
        assert_eq!((&first, &second), (&session(1, 1), &session(2, 1)));
        [first, second].into_iter().flatten().for_each(|session| sessions.give_back(session));
        assert_eq!([sessions.take(), sessions.take(), sessions.take()], [session(2, 2), session(1, 2), session(3, 1)]);
    }
}
