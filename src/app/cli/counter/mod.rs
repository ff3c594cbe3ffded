//! `counter`: add, read, clear, follow, audit and explain counters. The commands are in `write`, `read`, `series`,
//! `audit` and `explain`.

mod audit;
mod explain;
mod read;
mod series;
mod write;

use clap::{Args, Subcommand};

pub use write::all_or_partial;

use crate::{ClientArgs, ClientContext, Failure, GlobalArgs};

/// Add to counters, read them, clear them, explain them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone counter add views 5")]
pub struct CounterArgs {
    #[command(subcommand)]
    command: CounterCommand,
    /// The namespace of the counters.
    #[arg(short, long, global = true, default_value = "default", value_name = "NAME")]
    namespace: String,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum CounterCommand {
    /// Add to a counter; answers once the addition is durable.
    #[command(after_help = "Example:\n  tallystone counter add views 5\n  tallystone counter add views -2 --get")]
    Add(write::AddArgs),
    /// Read counters, with the exactness of each count.
    #[command(after_help = "Example:\n  tallystone counter get views --fresh")]
    Get(read::CounterGetArgs),
    /// Set a counter to 0; additions with a later time still count.
    #[command(after_help = "Example:\n  tallystone counter clear views --yes")]
    Clear(write::ClearArgs),
    /// List counters by name.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone counter ls vi")]
    Ls(read::CounterLsArgs),
    /// List the counters with the greatest counts.
    #[command(after_help = "Example:\n  tallystone counter top 3")]
    Top(read::TopArgs),
    /// Show the sum added in each time step; the namespace must keep series.
    #[command(
        after_help = "Example:\n  tallystone counter series views -n views --from 10m --step 1m\n  tallystone counter \
                      series -n views --prefix vi --totals --no-zero"
    )]
    Series(series::SeriesArgs),
    /// List the events of a counter, newest first; with --all, export all events.
    #[command(after_help = "Example:\n  tallystone counter events --all -o jsonl > events.jsonl")]
    Events(audit::EventsArgs),
    /// Determine whether a token was applied. A token that was not applied is rejected from then on.
    #[command(
        after_help = "Example:\n  tallystone counter check-token views order-17 --generation-time 2026-01-31T12:00:00Z"
    )]
    CheckToken(audit::CheckTokenArgs),
    /// Recompute a counter from its log and compare; exits with 1 if anything differs.
    #[command(after_help = "Example:\n  tallystone counter recount views")]
    Recount(audit::RecountArgs),
    /// Explain a count: its parts, its age, waiting rows, log rows, and its last rollup.
    #[command(after_help = "Example:\n  tallystone counter explain views")]
    Explain(explain::CounterExplainArgs),
    /// Follow counters: print the current counts, then each change. JSON is printed one document per line.
    #[command(after_help = "Example:\n  tallystone counter watch views --readings 1")]
    Watch(read::CounterWatchArgs),
    /// Report the totals of a source to a cumulative namespace.
    #[command(
        after_help = "Example:\n  tallystone counter report requests=120 -n totals --source web-1 --epoch 1 --serial 1"
    )]
    Report(write::ReportArgs),
}

/// A session in a namespace.
struct CounterContext {
    session: ClientContext,
    namespace: String,
}

impl CounterArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let counters = CounterContext { session: self.client.open(global)?, namespace: self.namespace };
        match self.command {
            CounterCommand::Add(args) => counters.add(args).await,
            CounterCommand::Get(args) => counters.get(args).await,
            CounterCommand::Clear(args) => counters.clear(args).await,
            CounterCommand::Ls(args) => counters.list(args).await,
            CounterCommand::Top(args) => counters.top(args).await,
            CounterCommand::Series(args) => counters.series(args).await,
            CounterCommand::Events(args) => counters.events(args).await,
            CounterCommand::CheckToken(args) => counters.check_token(args).await,
            CounterCommand::Recount(args) => counters.recount(args).await,
            CounterCommand::Explain(args) => counters.explain(args).await,
            CounterCommand::Watch(args) => counters.watch(args).await,
            CounterCommand::Report(args) => counters.report(args).await,
        }
    }
}

/// The full name of a message of the counter service.
fn full_name(message: &str) -> String {
    format!("tallystone.counter.v1.{message}")
}
