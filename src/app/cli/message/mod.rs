//! `msg`: enqueues messages, leases and settles them, inspects them. The commands are in `push`, `consume` and
//! `inspect`.

mod consume;
mod inspect;
mod push;

use clap::{Args, Subcommand};

use crate::app::cli::{ClientArgs, Failure, GlobalArgs};

/// Put messages into queues, lease them, settle them, look at them.
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
    /// Put a message into a queue, or one for each line of a file; answers once it is durable.
    #[command(
        after_help = "Example:\n  tallystone msg push -q emails '{\"to\": \"ada\"}' --meta tenant=acme --invisibility 5m\n  echo hello | tallystone msg push -q emails --file -"
    )]
    Push(push::PushArgs),
    /// Lease messages, best priority first. A lease that is not settled ends by itself and gives its message back.
    #[command(
        visible_alias = "poll",
        after_help = "Example:\n  tallystone msg pull -q emails --max 2 --lease 1m --wait 5s"
    )]
    Pull(consume::PullArgs),
    /// End leases: the work is done.
    #[command(
        visible_alias = "ack",
        after_help = "Example:\n  tallystone msg complete -q emails $(tallystone msg pull -q emails --tokens)"
    )]
    Complete(consume::SettleArgs),
    /// Give messages up for good: by their leases, or one that nobody has by its id.
    #[command(after_help = "Example:\n  tallystone msg cancel -q emails --id order-17 --reason 'no longer wanted'")]
    Cancel(consume::CancelArgs),
    /// End leases: the work failed, and is tried again while attempts are left.
    #[command(
        after_help = "Example:\n  tallystone msg fail -q emails $(tallystone msg pull -q emails --tokens) --error timeout --delay 10s"
    )]
    Fail(consume::FailArgs),
    /// End leases: the work was not begun, and the attempt is given back.
    #[command(after_help = "Example:\n  tallystone msg release -q emails $(tallystone msg pull -q emails --tokens)")]
    Release(consume::SettleArgs),
    /// Let leases end so long from now.
    #[command(
        after_help = "Example:\n  tallystone msg extend -q emails $(tallystone msg pull -q emails --tokens) --lease 5m"
    )]
    Extend(consume::ExtendArgs),
    /// Read a message, whatever its state.
    #[command(after_help = "Example:\n  tallystone msg get -q emails order-17 --payload")]
    Get(inspect::MsgGetArgs),
    /// Show the next messages without leasing them.
    #[command(after_help = "Example:\n  tallystone msg peek -q emails")]
    Peek(inspect::PeekArgs),
    /// List the messages of a state, shard by shard in the order of their arrival.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone msg ls -q emails --state running")]
    Ls(inspect::MsgLsArgs),
    /// Change priority or visibility of a message that nobody has.
    #[command(after_help = "Example:\n  tallystone msg update -q emails order-17 --priority 5 --invisibility 1h")]
    Update(inspect::MsgUpdateArgs),
    /// Say why a message is not being served, and what to do.
    #[command(after_help = "Example:\n  tallystone msg explain -q emails order-17")]
    Explain(inspect::MsgExplainArgs),
}

impl MsgArgs {
    pub async fn run(self, before: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(before)?;
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
        }
    }
}
