//! The sessions of this server in one shard, in which dequeues without a session of a worker can be repeated.
//!
//! A shard remembers few calls of a session. So as many dequeues that are sent together share a session, and it is used
//! again once the outcome of all of them is known. The last session that became idle is used next, so a shard knows few
//! of them.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The sessions of this server in one shard.
#[derive(Default)]
pub struct ReplaySessions {
    state: Mutex<ReplaySessionsState>,
}

#[derive(Default)]
struct ReplaySessionsState {
    /// The idle sessions, each with its next call.
    idle: Vec<ReplayCall>,
    /// The sessions that have calls without a known outcome.
    in_use: HashMap<u16, CallsInFlight>,
    made: u16,
}

struct CallsInFlight {
    count: usize,
    /// The next call of the session.
    next: u64,
}

/// A call of a session of this server in one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayCall {
    /// The number of the session in the shard.
    pub session: u16,
    /// The number of the call in the session, from 1.
    pub sequence: u64,
}

impl ReplaySessions {
    /// Takes a session for some calls: at least one, and at most as many as a shard remembers. None if all sessions are
    /// in use. O(calls).
    pub fn take(&self, calls: usize) -> Option<impl Iterator<Item = ReplayCall> + use<>> {
        debug_assert!(calls > 0, "a session without calls would never be idle again");
        let mut state = self.state.lock();
        let first = match state.idle.pop() {
            Some(next) => next,
            None => {
                state.made = state.made.checked_add(1)?;
                ReplayCall { session: state.made, sequence: 1 }
            }
        };
        let next = first.sequence + calls as u64;
        state.in_use.insert(first.session, CallsInFlight { count: calls, next });
        Some((first.sequence..next).map(move |sequence| ReplayCall { sequence, ..first }))
    }

    /// Takes back a call whose outcome is known. O(1).
    pub fn give_back(&self, call: ReplayCall) {
        let mut state = self.state.lock();
        let Some(calls) = state.in_use.get_mut(&call.session) else { return };
        calls.count -= 1;
        if calls.count == 0 {
            let sequence = calls.next;
            state.in_use.remove(&call.session);
            state.idle.push(ReplayCall { sequence, ..call });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(session: u16, sequence: u64) -> ReplayCall {
        ReplayCall { session, sequence }
    }

    fn take(sessions: &ReplaySessions, calls: usize) -> Vec<ReplayCall> {
        sessions.take(calls).expect("a session is left").collect()
    }

    #[test]
    fn calls_sent_apart_have_sessions_of_their_own_and_the_last_idle_one_is_used_next() {
        let sessions = ReplaySessions::default();
        let (first, second) = (take(&sessions, 1), take(&sessions, 1));
        assert_eq!((&first[..], &second[..]), (&[call(1, 1)][..], &[call(2, 1)][..]));
        [first, second].concat().into_iter().for_each(|known| sessions.give_back(known));
        let taken: Vec<_> = (0..3).flat_map(|_| take(&sessions, 1)).collect();
        assert_eq!(taken, [call(2, 2), call(1, 2), call(3, 1)]);
    }

    #[test]
    fn a_session_is_used_again_once_the_outcome_of_all_its_calls_is_known() {
        let sessions = ReplaySessions::default();
        let together = take(&sessions, 3);
        assert_eq!(together, [call(1, 1), call(1, 2), call(1, 3)]);
        sessions.give_back(together[2]);
        sessions.give_back(together[0]);
        assert_eq!(take(&sessions, 1), [call(2, 1)]);
        sessions.give_back(together[1]);
        assert_eq!(take(&sessions, 2), [call(1, 4), call(1, 5)]);
    }
}
