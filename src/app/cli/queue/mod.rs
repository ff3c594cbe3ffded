//! `queue`: creates, changes, blocks, inspects, purges and deletes queues. `settings` parses the settings of a queue;
//! the commands are in `activity`, `change`, `clock`, `operations`, `show` and `stats`.

mod activity;
mod change;
mod clock;
mod operations;
mod settings;
mod show;
mod stats;
mod stats_text;

pub use activity::ActivityOrderArg;

use clap::{Args, Subcommand};

use crate::{ClientArgs, ClientContext, Failure, GlobalArgs};
use tallystone_proto::queue::v1 as pb;

pub(super) use show::explanation_rows;

/// Create, change, block, watch, purge and delete priority queues.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone queue create orders")]
pub struct QueueArgs {
    #[command(subcommand)]
    command: QueueCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Create a queue; succeeds if it already exists with the same settings.
    #[command(
        after_help = "Example:\n  tallystone queue create payments --type exclusive --exclusivity-key account --max-attempts 5"
    )]
    Create(change::CreateArgs),
    /// Change the given settings; all others remain.
    #[command(after_help = "Example:\n  tallystone queue update emails --default-lease 1m --reset default_ttl")]
    Update(change::QueueUpdateArgs),
    /// Refuse enqueues, dequeues or both, with a reason that each refused call shows.
    #[command(after_help = "Example:\n  tallystone queue block emails --dequeue --reason 'the mail server is down'")]
    Block(change::BlockArgs),
    /// Accept enqueues and dequeues again.
    #[command(after_help = "Example:\n  tallystone queue unblock emails")]
    Unblock(change::UnblockArgs),
    /// Limit the leases of an exclusivity value at one time. Existing leases remain.
    #[command(after_help = "Example:\n  tallystone queue limit payments acme 3")]
    Limit(change::LimitArgs),
    /// Cancel all messages that are pending or invisible, or remove those that are completed or canceled.
    #[command(
        after_help = "Example:\n  tallystone queue purge emails --yes\n  tallystone queue purge emails --meta tenant=acme --state completed --yes"
    )]
    Purge(change::PurgeArgs),
    /// List the purges, redrives, discards and cancels of a queue, newest first: those in progress, and those of the last hour.
    #[command(after_help = "Example:\n  tallystone queue operations emails")]
    Operations(operations::QueueOperationsArgs),
    /// Delete a queue with all its messages.
    #[command(after_help = "Example:\n  tallystone queue rm emails --yes")]
    Rm(change::QueueRmArgs),
    /// List queues by name.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone queue ls em")]
    Ls(show::QueueLsArgs),
    /// Show all settings of a queue.
    #[command(visible_alias = "get", after_help = "Example:\n  tallystone queue describe emails")]
    Describe(show::NameArgs),
    /// Show what queues do now: depth, rates, ages, and which need attention.
    #[command(after_help = "Example:\n  tallystone queue activity\n  tallystone queue activity em --order oldest")]
    Activity(activity::ActivityArgs),
    /// Count the messages of a queue by state: exact totals.
    #[command(after_help = "Example:\n  tallystone queue depth emails --by-shard")]
    Depth(show::DepthArgs),
    /// Follow the depth of a queue. JSON is printed one document per line.
    #[command(after_help = "Example:\n  tallystone queue watch emails --readings 1")]
    Watch(show::QueueWatchArgs),
    /// Explain why a dequeue of this queue returns nothing, and how to change that.
    #[command(
        after_help = "Example:\n  tallystone queue explain emails\n  tallystone queue explain emails --meta tenant=acme"
    )]
    Explain(show::QueueExplainArgs),
    /// Accept new tokens again after a wrong server clock caused TOKEN_EXPIRED.
    #[command(after_help = "Example:\n  tallystone queue reset-clock --dry-run")]
    ResetClock(clock::ResetClockArgs),
    /// Show the changes of a queue with author and time, newest first.
    #[command(after_help = "Example:\n  tallystone queue history emails")]
    History(show::HistoryArgs),
    /// Show what a queue does, from its counters: depths, flows with rates, attempts, times, errors, values of count_by.
    #[command(after_help = "Example:\n  tallystone queue stats emails")]
    Stats(stats::StatsArgs),
}

impl QueueArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        match self.command {
            QueueCommand::Create(args) => Box::pin(session.create_queue(args)).await,
            QueueCommand::Update(args) => session.update_queue(args).await,
            QueueCommand::Block(args) => session.block_queue(args).await,
            QueueCommand::Unblock(args) => session.unblock_queue(args).await,
            QueueCommand::Purge(args) => session.because(&args.reason).purge_queue(args).await,
            QueueCommand::Operations(args) => session.operations_of_queue(args).await,
            QueueCommand::Rm(args) => session.remove_queue(args).await,
            QueueCommand::Ls(args) => session.list_queues(args).await,
            QueueCommand::Describe(args) => session.describe_queue(args.name).await,
            QueueCommand::Activity(args) => Box::pin(session.activity_of_queues(args)).await,
            QueueCommand::Depth(args) => session.depth_of_queue(args).await,
            QueueCommand::Watch(args) => session.watch_queue(args).await,
            QueueCommand::Explain(args) => session.explain_queue(args).await,
            QueueCommand::Limit(args) => session.because(&args.reason).limit_value(args).await,
            QueueCommand::ResetClock(args) => session.reset_clock(args).await,
            QueueCommand::History(args) => session.history_of_queue(args).await,
            QueueCommand::Stats(args) => Box::pin(session.queue_stats(args)).await,
        }
    }
}

impl ClientContext {
    /// Reads how many messages a queue has in each state.
    pub(super) async fn depth(&self, queue: &str) -> Result<pb::GetDepthResponse, Failure> {
        let request = pb::GetDepthRequest { queue: queue.to_owned(), ..Default::default() };
        call!(ask self, queues.get_depth, &request)
    }
}
