//! `bridge`: what carries the changes of queues to their counters and their history.

use clap::{Args, Subcommand};

use crate::namespaces::{Confirmation, confirm};
use crate::output::{CliResponse, TableRows, time_cell};
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs};
use tallystone_app::notices::print_notice;
use tallystone_proto::admin::v1 as pb;

/// Give the counters and the history of a lost queue store to the present one.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone bridge adopt --reason 'Redis lost its disk' --dry-run")]
pub struct BridgeArgs {
    #[command(subcommand)]
    command: BridgeCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum BridgeCommand {
    /// Give counters, history and counter rules to the queue store of the server, after the one before is lost.
    #[command(after_help = "Example:\n  tallystone bridge adopt --reason 'Redis lost its disk' --yes")]
    Adopt(AdoptArgs),
}

#[derive(Debug, Args)]
struct AdoptArgs {
    /// The reason, recorded in the audit.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    /// Say what belongs to another queue store; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

impl BridgeArgs {
    pub async fn run(self, before: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(before)?;
        match self.command {
            BridgeCommand::Adopt(args) => session.adopt(args).await,
        }
    }
}

impl ClientContext {
    async fn adopt(&self, args: AdoptArgs) -> Result<(), Failure> {
        let ask = pb::AdoptStoreRequest { reason: args.reason.clone(), dry_run: true };
        let found = call!(ask self, bridge.adopt_store, &ask)?;
        if args.dry_run || is_nothing_left(&found) {
            return self.print_adopted(&found, if args.dry_run { "would be given" } else { "given" });
        }
        let what = format!("give {} to the queue store of this server{}", things(&found), warning(&found));
        if confirm(args.yes, &what)? == Confirmation::No {
            return Ok(());
        }
        let request = pb::AdoptStoreRequest { reason: args.reason, dry_run: false };
        let adopted = call!(self, bridge.adopt_store, &request)?;
        self.print_adopted(&adopted, "given")
    }

    fn print_adopted(&self, found: &pb::AdoptStoreResponse, word: &str) -> Result<(), Failure> {
        let cells = vec![
            found.already_adopted.to_string(),
            found.rules.to_string(),
            time_cell(found.last_report_time.as_ref()),
        ];
        let rows = TableRows { columns: &["already_adopted", "rules", "last_report_time"], cells: vec![cells] };
        self.output.answer(&CliResponse::one("tallystone.admin.v1.AdoptStoreResponse", found), &rows)?;
        if self.output.is_for_people() {
            print_notice(&match is_nothing_left(found) {
                true => "counters, history and rules belong to the queue store of this server already".to_owned(),
                false => format!("{word} to the queue store of this server: {}", things(found)),
            });
        }
        Ok(())
    }
}

fn is_nothing_left(found: &pb::AdoptStoreResponse) -> bool {
    found.already_adopted && found.rules == 0
}

/// The things that belong to another queue store.
fn things(found: &pb::AdoptStoreResponse) -> String {
    let counters = (!found.already_adopted).then(|| "counters and history".to_owned());
    let rules = match found.rules {
        ..=0 => None,
        1 => Some("1 rule".to_owned()),
        many => Some(format!("{many} rules")),
    };
    counters.into_iter().chain(rules).collect::<Vec<_>>().join(" and ")
}

/// When the store before reported last: one that still does is not lost.
fn warning(found: &pb::AdoptStoreResponse) -> String {
    let last = found.last_report_time.as_ref().filter(|_| !found.already_adopted);
    let text = |time| format!("; the store before last reported at {}", time_cell(Some(time)));
    last.map(text).unwrap_or_default()
}
