//! `queue reset-clock`: compares the clock of queues with the server's clock, and resets it.

use clap::Args;

use crate::namespaces::{Confirmation, confirm};
use crate::output::{CliResponse, TableRows, full_name, time_cell};
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
pub struct ResetClockArgs {
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Show the clocks; change nothing.
    #[arg(long)]
    dry_run: bool,
}

const CLOCKS: &[&str] = &["queue_time", "server_time", "judged_by", "tokens_from"];

impl ClientContext {
    pub(super) async fn reset_clock(&self, args: ResetClockArgs) -> Result<(), Failure> {
        let what = "refuse all messages with tokens from before now, and accept new ones";
        if !args.dry_run && confirm(args.yes, what)? == Confirmation::No {
            return Ok(());
        }
        let request = pb::ResetQueueClockRequest { dry_run: args.dry_run };
        let clocks = call!(self, queues.reset_queue_clock, &request)?;
        if !args.dry_run && clocks.tokens_from.is_none() {
            print_notice("new tokens are already accepted; nothing was changed");
        }
        let times = [clocks.queue_time, clocks.server_time, clocks.judged_by, clocks.tokens_from];
        let rows =
            TableRows { columns: CLOCKS, cells: vec![times.iter().map(|time| time_cell(time.as_ref())).collect()] };
        self.output.answer(&CliResponse::one(&full_name("ResetQueueClockResponse"), &clocks), &rows)
    }
}
