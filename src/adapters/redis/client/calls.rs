//! A call: commands for the primary of one slot, sent until each has its answer or the deadline has passed.
//!
//! Invariant: a command is sent again only after the server refused it before it had an effect.

use std::sync::Arc;
use std::time::Duration;

use crate::client::command::RedisCommand;
use crate::client::connection::ServedBy;
use crate::client::deadline::Deadline;
use crate::client::directory::Directory;
use crate::client::failure::{Advice, CallFailure, FailureCause};
use crate::client::function_library::FunctionLibrary;
use crate::client::node::{Node, Sent};
use crate::client::pending::CommandsLeft;
use crate::client::reply::RedisReply;
use crate::client::slot::Slot;
use crate::client::slot_map::moved_to;
use crate::limits::{
    REDIS_ANSWER_RESERVE, REDIS_CALL_BYTES_MAX, REDIS_COMMANDS_A_CALL_MAX, REDIS_MOVING_PAUSE_MAX,
    REDIS_MOVING_PAUSE_MIN,
};

/// The answers of a call.
#[derive(Clone, Debug)]
pub struct CallAnswers {
    /// As many as there were commands, in their order.
    pub replies: Vec<Result<RedisReply, CallFailure>>,
    /// The server that answered last; none if nothing was answered.
    pub served: Option<ServedBy>,
}

/// Finds the node of each call and repeats what was refused.
pub(super) struct Calls {
    pub(super) directory: Arc<Directory>,
    pub(super) library: FunctionLibrary,
}

/// The state that a step knew before it: what changed since need not be changed again.
struct Seen {
    node: Option<Arc<Node>>,
    lookups: u64,
    loads: u64,
}

impl Calls {
    /// Sends commands until each has its answer.
    pub(super) async fn run(&self, slot: Slot, commands: Vec<RedisCommand>, deadline: &Deadline) -> CallAnswers {
        let count = commands.len();
        let size: usize = commands.iter().map(RedisCommand::size).sum();
        if count > REDIS_COMMANDS_A_CALL_MAX || size > REDIS_CALL_BYTES_MAX {
            let text = format!("a call of {count} commands and {size} bytes is too large");
            let failure = CallFailure::new(FailureCause::TooLarge, text);
            return CallAnswers { replies: vec![Err(failure); count], served: None };
        }
        let mut pending = CommandsLeft::new(commands);
        let mut served = None;
        let mut pauses = Pauses::default();
        // The end of a call that ends before anything was tried.
        let mut failure = CallFailure::new(FailureCause::Unreachable, "no time was left for the call");
        // Without time for its answer, a further attempt would only put the outcome in doubt.
        let reserve = (deadline.left() / 4).min(REDIS_ANSWER_RESERVE);
        while !pending.is_done() && deadline.left() > reserve {
            let node = self.directory.node_of(slot);
            let loads = node.as_ref().map_or(0, |node| node.loads());
            let seen = Seen { node, lookups: self.directory.lookups(), loads };
            let sent = match &seen.node {
                Some(node) => node.send(pending.to_send(), deadline).await,
                None => Sent::NotYet(CallFailure::new(FailureCause::Moving, "no node that serves the slot is known")),
            };
            let advice = match sent {
                Sent::Answered(by, answers) => {
                    served = Some(by);
                    let Some((why, advice)) = pending.take(answers) else { break };
                    failure = why;
                    advice
                }
                Sent::NotYet(why) => {
                    failure = why;
                    Advice::Wait
                }
                Sent::Failed(why) => {
                    failure = why;
                    break;
                }
            };
            if let Err(why) = self.follow(&advice, slot, &seen, &mut pauses, deadline).await {
                failure = why;
                break;
            }
        }
        CallAnswers { replies: pending.into_answers(&failure), served }
    }

    /// Does what makes the next attempt worth it.
    async fn follow(
        &self,
        advice: &Advice,
        slot: Slot,
        seen: &Seen,
        pauses: &mut Pauses,
        deadline: &Deadline,
    ) -> Result<(), CallFailure> {
        match (advice, &seen.node) {
            (Advice::LoadLibrary, Some(node)) => {
                // Twice in one call: somebody takes it away each time.
                if pauses.loads > 0 {
                    deadline.pause(pauses.next()).await;
                }
                pauses.loads += 1;
                return node.load(&self.library, seen.loads, deadline).await;
            }
            (Advice::GoTo(to), Some(node)) => {
                self.directory.assign(slot, &moved_to(to, &node.endpoint().address));
                // The first time it is news; nodes that send a call back and forth do not agree yet.
                if pauses.moves == 0 {
                    pauses.moves += 1;
                    return Ok(());
                }
            }
            (Advice::GoTo(_) | Advice::LoadLibrary, None) | (Advice::Wait | Advice::Fail, _) => {}
        }
        deadline.pause(pauses.next()).await;
        let is_same = |now: &Arc<Node>| seen.node.as_ref().is_some_and(|node| Arc::ptr_eq(node, now));
        if self.directory.node_of(slot).is_some_and(|now| !is_same(&now)) {
            return Ok(()); // another one has its place already
        }
        // A look-up that fails changes nothing, and the next attempt says why.
        let _ = deadline.meet(self.directory.look_up(seen.lookups)).await;
        Ok(())
    }
}

/// The pauses of one call.
#[derive(Default)]
struct Pauses {
    made: u32,
    moves: u32,
    loads: u32,
}

impl Pauses {
    /// The next one: each is twice as long, up to the longest.
    fn next(&mut self) -> Duration {
        let doublings = self.made.min(16);
        self.made += 1;
        REDIS_MOVING_PAUSE_MIN.saturating_mul(1 << doublings).min(REDIS_MOVING_PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_a_call_grow_up_to_the_longest() {
        let mut pauses = Pauses::default();
        let made: Vec<Duration> = (0..30).map(|_| pauses.next()).collect();
        assert_eq!((made[0], made[1]), (REDIS_MOVING_PAUSE_MIN, 2 * REDIS_MOVING_PAUSE_MIN));
        assert!(made.is_sorted() && made[29] == REDIS_MOVING_PAUSE_MAX);
    }
}
