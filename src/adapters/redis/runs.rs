//! Runs: the commands of a call that one function takes together, in their order.

use super::limits::{REDIS_CALL_BYTES_MAX, REDIS_FUNCTION_ITEMS_MAX, REDIS_RUNS_AT_ONCE_MAX};
use super::replies::AnswerForm;
use super::requests::{self, BulkFunctionKind, FunctionRequest, MessageCommand};
use tallystone_domain::queue::command::BulkRequest;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::{Command, Settings};
use tallystone_ports::ShardCommand;

/// How a command is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// One of many commands of a call of this function.
    Together(&'static str),
    /// In steps of its own, or by itself.
    Alone,
}

/// Commands that are done together.
pub struct FunctionRun {
    pub kind: RunKind,
    pub commands: Vec<ShardCommand>,
}

/// The commands that are done at one time.
pub enum RunStage {
    /// Runs that are sent together, each to its function.
    Together(Vec<(&'static str, Vec<ShardCommand>)>),
    /// A command that is done by itself.
    Alone(Box<Command>),
}

/// The most bytes that a command has besides its payload: ids, metadata, texts, and the delays of retries.
const COMMAND_BYTES: usize = 4_096;

/// A command that is done in steps of at most `REDIS_FUNCTION_ITEMS_MAX`.
pub enum Stepped {
    /// The reason is that of a cancel.
    Bulk(BulkFunctionKind, BulkRequest, Box<str>),
    Sweep(usize),
    EndSession(SessionId, Ending, usize),
}

fn kind_of(command: &Command) -> RunKind {
    match command {
        Command::Enqueue(_) => RunKind::Together("enq"),
        Command::Dequeue(_) => RunKind::Together("deq"),
        Command::Settle { .. } | Command::Extend { .. } => RunKind::Together("set"),
        Command::Recall(_) | Command::Heartbeat { .. } => RunKind::Together("ses"),
        Command::Update { update, .. } if update.has_content() => RunKind::Together("upd"),
        Command::CancelMessage { .. } | Command::Update { .. } | Command::Redrive { .. } | Command::Discard { .. } => {
            RunKind::Together("msg")
        }
        Command::EndSession { .. }
        | Command::RedriveAll(_)
        | Command::DiscardAll(_)
        | Command::CancelAll { .. }
        | Command::Purge(_)
        | Command::Configure(_)
        | Command::SetValueLimit { .. }
        | Command::Delete
        | Command::Sweep { .. } => RunKind::Alone,
    }
}

/// The weight of a command in its run: a dequeue counts as many as it may lease.
fn weight_of(command: &Command) -> usize {
    match command {
        Command::Dequeue(asked) => asked.max.max(1),
        _ => 1, // every other command touches one message or session
    }
}

/// Splits commands into runs. O(commands).
pub fn runs_of(commands: Vec<ShardCommand>) -> Vec<FunctionRun> {
    let mut runs: Vec<FunctionRun> = Vec::new();
    let mut weight = 0;
    for sent in commands {
        let (kind, own) = (kind_of(&sent.command), weight_of(&sent.command));
        match runs.last_mut() {
            Some(run) if run.kind == kind && kind != RunKind::Alone && weight + own <= REDIS_FUNCTION_ITEMS_MAX => {
                run.commands.push(sent);
                weight += own;
            }
            None | Some(_) => {
                runs.push(FunctionRun { kind, commands: vec![sent] });
                weight = own;
            }
        }
    }
    runs
}

/// Puts neighbouring runs together that may be sent at once: as many as do not hold up the node or fill a call.
/// O(commands).
pub fn stages_of(runs: Vec<FunctionRun>) -> Vec<RunStage> {
    let mut stages: Vec<RunStage> = Vec::new();
    let mut bytes = 0;
    for run in runs {
        let RunKind::Together(function) = run.kind else {
            stages.extend(run.commands.into_iter().map(|sent| RunStage::Alone(Box::new(sent.command))));
            continue;
        };
        let own: usize = run.commands.iter().map(|sent| sent.body.payload.len() + COMMAND_BYTES).sum();
        match stages.last_mut() {
            Some(RunStage::Together(sent))
                if sent.len() < REDIS_RUNS_AT_ONCE_MAX && bytes + own <= REDIS_CALL_BYTES_MAX / 2 =>
            {
                sent.push((function, run.commands));
                bytes += own;
            }
            None | Some(_) => {
                stages.push(RunStage::Together(vec![(function, run.commands)]));
                bytes = own;
            }
        }
    }
    stages
}

/// The arguments of a command that is done together with others, and the form of its answer.
pub fn request_of(shard: u32, sent: &ShardCommand, settings: &Settings) -> (FunctionRequest, AnswerForm) {
    match &sent.command {
        Command::Enqueue(message) => (requests::enqueue(message, &sent.body, settings), AnswerForm::Enqueued),
        Command::Dequeue(asked) => (requests::dequeue(shard, asked), AnswerForm::Leases),
        Command::Settle { token, verb, failure } => {
            (requests::settle((shard, *token), *verb, failure, &settings.retry), AnswerForm::Settled)
        }
        Command::Extend { token, lease } => (requests::extend((shard, *token), *lease), AnswerForm::Extended),
        Command::Recall(call) => (requests::recall(call), AnswerForm::Recalled),
        Command::Heartbeat { session, received_up_to } => {
            (requests::heartbeat(*session, *received_up_to), AnswerForm::Beaten)
        }
        Command::CancelMessage { message, reason } => {
            (requests::message_command(shard, MessageCommand::Cancel, message, reason), AnswerForm::Settled)
        }
        Command::Update { message, update } => {
            (requests::update(shard, (message, update), &sent.body.payload, settings), AnswerForm::Settled)
        }
        Command::Redrive { message } => {
            (requests::message_command(shard, MessageCommand::Redrive, message, ""), AnswerForm::Settled)
        }
        Command::Discard { message } => {
            (requests::message_command(shard, MessageCommand::Discard, message, ""), AnswerForm::Discarded)
        }
        Command::EndSession { .. }
        | Command::RedriveAll(_)
        | Command::DiscardAll(_)
        | Command::CancelAll { .. }
        | Command::Purge(_)
        | Command::Configure(_)
        | Command::SetValueLimit { .. }
        | Command::Delete
        | Command::Sweep { .. } => unreachable!("these commands are done alone"),
    }
}

impl Stepped {
    /// The function that does the steps.
    pub fn function(&self) -> &'static str {
        match self {
            Self::Bulk(..) => "bulk",
            Self::Sweep(_) => "swp",
            Self::EndSession(..) => "ses",
        }
    }

    /// The form of the answer of a step.
    pub fn form(&self) -> AnswerForm {
        match self {
            Self::Bulk(..) => AnswerForm::Walked,
            Self::Sweep(_) | Self::EndSession(..) => AnswerForm::Touched,
        }
    }

    /// How many messages or rows it may touch in all.
    pub fn max(&self) -> usize {
        match self {
            Self::Bulk(_, asked, _) => asked.max,
            Self::Sweep(max) | Self::EndSession(_, _, max) => *max,
        }
    }

    /// The arguments of a step, after a sequence.
    pub fn step(&self, after: u64, max: usize) -> FunctionRequest {
        match self {
            Self::Bulk(kind, asked, reason) => requests::bulk((*kind, asked, reason), after, max),
            Self::Sweep(asked) => requests::sweep(*asked, max),
            Self::EndSession(session, how, asked) => requests::end_session(*session, *how, *asked, max),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use tallystone_domain::queue::command::Dequeue;
    use tallystone_ports::MessageBody;

    fn sent(command: Command, payload: usize) -> ShardCommand {
        ShardCommand { command, body: MessageBody { payload: Bytes::from(vec![0; payload]), ..MessageBody::default() } }
    }

    fn lengths(commands: Vec<ShardCommand>) -> Vec<usize> {
        let stages = stages_of(runs_of(commands)).into_iter();
        let length = |stage| match stage {
            RunStage::Together(runs) => runs.len(),
            RunStage::Alone(_) => 0,
        };
        stages.map(length).collect()
    }

    #[test]
    fn runs_are_sent_together_up_to_a_bound_and_not_across_a_command_that_is_done_alone() {
        let dequeue = || sent(Command::Dequeue(Dequeue { max: 64, ..Dequeue::default() }), 0);
        assert_eq!(lengths((0..3).map(|_| dequeue()).collect()), [3]);
        let sweep = || sent(Command::Sweep { max: 1 }, 0);
        assert_eq!(lengths(vec![dequeue(), sweep(), sweep(), dequeue()]), [1, 0, 0, 1]);
        assert_eq!(lengths((0..10).map(|_| dequeue()).collect()), [REDIS_RUNS_AT_ONCE_MAX, 2]);
        let large = || sent(Command::Dequeue(Dequeue { max: 64, ..Dequeue::default() }), REDIS_CALL_BYTES_MAX / 4);
        assert_eq!(lengths((0..3).map(|_| large()).collect()), [1, 1, 1], "each pair would be over half a call");
    }
}
