//! `msg`: enqueues messages, leases and settles them, cancels and inspects them. The commands are in `push`, `consume`,
//! `cancel`, `inspect` and `history`.

mod cancel;
mod consume;
mod history;
mod inspect;
mod payload_file;
mod push;
mod trace_text;

use clap::{Args, Subcommand};

use crate::{ClientArgs, Failure, GlobalArgs};

/// Enqueue, lease, settle and inspect messages.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone msg push -q emails 'a payload'")]
pub struct MsgArgs {
    #[command(subcommand)]
    command: MsgCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum MsgCommand {
    /// Enqueue a message, or one for each line of a file; returns once it is durable.
    #[command(
        after_help = "Example:\n  tallystone msg push -q emails '{\"to\": \"ada\"}' --meta tenant=acme --invisibility 5m\n  echo hello | tallystone msg push -q emails --file -"
    )]
    Push(push::PushArgs),
    /// Lease messages, best priority first. A lease that is not settled expires, and its message is served again.
    #[command(
        visible_alias = "poll",
        after_help = "Example:\n  tallystone msg pull -q emails --max 2 --lease 1m --wait 5s"
    )]
    Pull(consume::PullArgs),
    /// Settle leases as completed.
    #[command(
        visible_alias = "ack",
        after_help = "Example:\n  tallystone msg complete -q emails $(tallystone msg pull -q emails --tokens)"
    )]
    Complete(consume::SettleArgs),
    /// Cancel messages by their leases, one message by its id, or all that match a filter, running ones included.
    #[command(
        after_help = "Example:\n  tallystone msg cancel -q emails --id order-17 --reason 'no longer wanted'\n  tallystone msg cancel -q emails --meta tenant=acme --yes"
    )]
    Cancel(cancel::CancelArgs),
    /// Settle leases as failed; the messages are retried while attempts are left.
    #[command(
        after_help = "Example:\n  tallystone msg fail -q emails $(tallystone msg pull -q emails --tokens) --error timeout --delay 10s"
    )]
    Fail(consume::FailArgs),
    /// Release leases of work that was not started; it does not count as an attempt.
    #[command(after_help = "Example:\n  tallystone msg release -q emails $(tallystone msg pull -q emails --tokens)")]
    Release(consume::SettleArgs),
    /// Set the remaining duration of leases.
    #[command(
        after_help = "Example:\n  tallystone msg extend -q emails $(tallystone msg pull -q emails --tokens) --lease 5m"
    )]
    Extend(consume::ExtendArgs),
    /// Read a message in any state.
    #[command(after_help = "Example:\n  tallystone msg get -q emails order-17 --payload")]
    Get(inspect::MsgGetArgs),
    /// Show the next messages without leasing them.
    #[command(after_help = "Example:\n  tallystone msg peek -q emails")]
    Peek(inspect::PeekArgs),
    /// List the messages in a state, by shard and arrival order.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone msg ls -q emails --state running")]
    Ls(inspect::MsgLsArgs),
    /// Change the priority, visibility, payload or metadata of a message that is not leased.
    #[command(
        after_help = "Example:\n  tallystone msg update -q emails order-17 --priority 5 --invisibility 1h\n  echo bye | tallystone msg update -q emails order-17 --payload-file - --meta tenant=acme"
    )]
    Update(inspect::MsgUpdateArgs),
    /// Explain why a message is not served, and how to change that.
    #[command(after_help = "Example:\n  tallystone msg explain -q emails order-17")]
    Explain(inspect::MsgExplainArgs),
    /// Show everything that happened to a message: its changes, attempts, workers and errors, also after it is gone.
    #[command(after_help = "Example:\n  tallystone msg trace -q emails order-17")]
    Trace(history::MsgTraceArgs),
    /// Find messages by state, error and metadata in the history.
    #[command(
        after_help = "Example:\n  tallystone msg search -q emails --state errored --error timeout --meta tenant=acme --since 1h"
    )]
    Search(history::MsgSearchArgs),
}

impl MsgArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        match self.command {
            MsgCommand::Push(args) => Box::pin(session.push(args)).await,
            MsgCommand::Pull(args) => session.pull(args).await,
            MsgCommand::Complete(args) => session.complete(args).await,
            MsgCommand::Cancel(args) => session.cancel(args).await,
            MsgCommand::Fail(args) => session.fail(args).await,
            MsgCommand::Release(args) => session.release(args).await,
            MsgCommand::Extend(args) => session.extend(args).await,
            MsgCommand::Get(args) => session.get_message(args).await,
            MsgCommand::Peek(args) => session.peek(args).await,
            MsgCommand::Ls(args) => session.list_messages(args.queue, args.state, args.limit).await,
            MsgCommand::Update(args) => session.update_message(args).await,
            MsgCommand::Explain(args) => session.explain_message(args).await,
            MsgCommand::Trace(args) => session.trace_message(args).await,
            MsgCommand::Search(args) => session.search_messages(args).await,
        }
    }
}
