//! The commands of one call and what has become of each: answered, failed, or still to be sent.
//!
//! Invariant: commands are done in their order. One that was refused for the moment is sent again only while no later
//! one was done, or may have been.

use crate::client::command::RedisCommand;
use crate::client::failure::{Advice, CallFailure, FailureCause};
use crate::client::reply::RedisReply;
use tallystone_ports::EffectOutcome;

/// The answer of a server to a command, or its error with the step to take after it.
pub(super) type Judged = Result<RedisReply, (CallFailure, Advice)>;

/// The commands of one call.
pub(super) struct CommandsLeft {
    commands: Vec<RedisCommand>,
    answers: Vec<Option<Result<RedisReply, CallFailure>>>,
    /// The commands that are to be sent, by their places, in order.
    left: Vec<usize>,
}

impl CommandsLeft {
    pub(super) fn new(commands: Vec<RedisCommand>) -> Self {
        let answers = commands.iter().map(|_| None).collect();
        Self { left: (0..commands.len()).collect(), commands, answers }
    }

    /// The commands that are to be sent.
    pub(super) fn to_send(&self) -> Vec<RedisCommand> {
        self.left.iter().map(|at| self.commands[*at].clone()).collect()
    }

    /// Takes the answers to the commands that were sent. Answers the failure and the advice of the first command that
    /// is to be sent again; none if none is left.
    pub(super) fn take(&mut self, answers: Vec<Judged>) -> Option<(CallFailure, Advice)> {
        let may_be_done = |answer: &Judged| match answer {
            Ok(_) => true,
            Err((failure, _)) => failure.outcome == EffectOutcome::Unknown,
        };
        let in_order_from = answers.iter().rposition(may_be_done).map_or(0, |last| last + 1);
        let (mut left, mut first) = (Vec::new(), None);
        for (sent, (at, answer)) in std::mem::take(&mut self.left).into_iter().zip(answers).enumerate() {
            self.answers[at] = Some(match answer {
                Ok(reply) => Ok(reply),
                Err((failure, Advice::Fail)) => Err(failure),
                Err((failure, advice)) if sent >= in_order_from => {
                    left.push(at);
                    first.get_or_insert((failure, advice));
                    continue;
                }
                Err((failure, _)) => {
                    let text = format!("{}; a later command of the call was done", failure.text);
                    Err(CallFailure::new(FailureCause::OutOfOrder, text))
                }
            });
        }
        self.left = left;
        first
    }

    /// Ends the call: what was not done has failed so.
    pub(super) fn into_answers(self, failure: &CallFailure) -> Vec<Result<RedisReply, CallFailure>> {
        self.answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(failure.clone()))).collect()
    }

    /// Whether nothing is left to be sent.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving() -> Judged {
        Err((CallFailure::new(FailureCause::Moving, "moving"), Advice::Wait))
    }

    fn full() -> Judged {
        Err((CallFailure::new(FailureCause::Full, "full"), Advice::Fail))
    }

    fn broken() -> Judged {
        Err((CallFailure::new(FailureCause::Function { code: "ERR".to_owned() }, "broken"), Advice::Fail))
    }

    fn number(number: i64) -> Judged {
        Ok(RedisReply::Int(number))
    }

    fn of(names: usize) -> CommandsLeft {
        CommandsLeft::new((0..names).map(|number| RedisCommand::new("C").arg(number.to_string())).collect())
    }

    fn sent(pending: &CommandsLeft) -> Vec<RedisCommand> {
        pending.to_send()
    }

    fn causes(answers: Vec<Result<RedisReply, CallFailure>>) -> Vec<Option<FailureCause>> {
        answers.into_iter().map(|answer| answer.err().map(|failure| failure.cause)).collect()
    }

    #[test]
    fn the_refused_end_of_a_call_is_sent_again_in_order() {
        let mut pending = of(3);
        let all = sent(&pending);
        assert!(pending.take(vec![number(1), moving(), moving()]).is_some());
        assert_eq!(sent(&pending), all[1..]);
        assert!(pending.take(vec![number(2), number(3)]).is_none() && pending.is_done());
        let answers = pending.into_answers(&CallFailure::new(FailureCause::Closed, "closed"));
        let numbers: Vec<i64> = answers.into_iter().map(|a| a.and_then(RedisReply::into_int).expect("done")).collect();
        assert_eq!(numbers, [1, 2, 3]);
    }

    #[test]
    fn what_comes_before_a_command_that_was_done_is_not_sent_again() {
        for done in [number(2), broken()] {
            let mut pending = of(3);
            assert!(pending.take(vec![moving(), done, moving()]).is_some());
            assert_eq!(sent(&pending).len(), 1, "the last one only");
            assert!(pending.take(vec![number(3)]).is_none());
            let causes = causes(pending.into_answers(&CallFailure::new(FailureCause::Closed, "closed")));
            assert_eq!((&causes[0], &causes[2]), (&Some(FailureCause::OutOfOrder), &None));
        }
    }

    #[test]
    fn a_refusal_for_good_holds_nothing_back() {
        let mut pending = of(3);
        assert!(pending.take(vec![moving(), full(), moving()]).is_some());
        assert_eq!(sent(&pending).len(), 2);
        let late = CallFailure::new(FailureCause::Moving, "too late");
        let causes = causes(pending.into_answers(&late));
        assert_eq!(causes, [Some(FailureCause::Moving), Some(FailureCause::Full), Some(FailureCause::Moving)]);
    }

    #[test]
    fn every_command_gets_exactly_one_answer() {
        // All answers of three commands, over two rounds.
        let answers: [fn() -> Judged; 4] = [moving, full, broken, || number(1)];
        for round in 0..64 {
            let mut pending = of(3);
            let pick = |at: usize| answers[round >> (2 * at) & 3]();
            let again = pending.take((0..3).map(pick).collect());
            assert_eq!(again.is_none(), pending.is_done());
            let left = sent(&pending).len();
            pending.take((0..left).map(|_| number(2)).collect());
            assert!(pending.is_done());
            assert_eq!(pending.into_answers(&CallFailure::new(FailureCause::Closed, "closed")).len(), 3);
        }
    }
}
