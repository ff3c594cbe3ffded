//! `check`: compares queues with their counts and their history, and exits with 1 if something differs.

use clap::Args;

use crate::operations::OperationFollower;
use crate::output::{CliResponse, TableRows, word};
use crate::{ClientArgs, ClientContext, Exit, Failure, GlobalArgs, pages};
use tallystone_app::notices::print_notice;
use tallystone_domain::limits::CHECK_FINDINGS_MAX;
use tallystone_proto::history::v1 as pb;
use tallystone_proto::queue::v1::MessageState;

/// Compare queues with their counts and their history; exits with 1 if something differs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone check -q emails --full")]
pub struct CheckArgs {
    /// The queue [default: all queues].
    #[arg(short, long, default_value = "", hide_default_value = true, value_name = "NAME")]
    queue: String,
    /// Also compare every message with its history, and the totals in the log of the counters with the shards.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    client: ClientArgs,
}

const FINDINGS: &[&str] = &["queue", "shard", "kind", "state", "message_key", "version", "expected", "found", "text"];

impl CheckArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        session.check_queues(self.queue, self.full).await
    }
}

impl ClientContext {
    async fn check_queues(&self, queue: String, full: bool) -> Result<(), Failure> {
        let request_token = self.client.message_id();
        let request = pb::CheckQueuesRequest { queue, full, request_token };
        let begun = call!(self, history.check_queues, &request)?.operation;
        let begun = begun.ok_or_else(|| Failure::other("the server returned no operation"))?;
        let operation_id = begun.operation_id.clone();
        let ended = OperationFollower::new(self).follow(begun).await?;
        let (findings, _) = pages::rows(CHECK_FINDINGS_MAX, async |page_size, page_token| {
            let request = pb::ListFindingsRequest { operation_id: operation_id.clone(), page_size, page_token };
            let page = call!(ask self, history.list_findings, &request)?;
            Ok((page.findings, page.next_page_token))
        })
        .await?;
        let rows = TableRows { columns: FINDINGS, cells: findings.iter().map(cells).collect() };
        let count = findings.len();
        let answer = pb::ListFindingsResponse { findings, next_page_token: String::new() };
        let answer = CliResponse::many("tallystone.history.v1.ListFindingsResponse", &answer, "findings");
        self.output.sentences(&answer, &rows)?;
        OperationFollower::refuse_incomplete(ended)?;
        match count {
            0 => {
                print_notice("nothing differs");
                Ok(())
            }
            1 => Err(Failure::new(Exit::Failure, "1 difference was found")),
            count => Err(Failure::new(Exit::Failure, format!("{count} differences were found"))),
        }
    }
}

fn cells(finding: &pb::Finding) -> Vec<String> {
    let number = |number: i64| if number == 0 { String::new() } else { number.to_string() };
    let state = match finding.state() {
        MessageState::Unspecified => String::new(),
        MessageState::Invisible
        | MessageState::Pending
        | MessageState::Running
        | MessageState::Completed
        | MessageState::Canceled
        | MessageState::Errored => word::<MessageState>(finding.state, "MESSAGE_STATE_", MessageState::as_str_name),
    };
    vec![
        finding.queue.clone(),
        finding.shard.to_string(),
        finding.kind.clone(),
        state,
        finding.message_key.clone(),
        number(finding.version),
        finding.expected.to_string(),
        finding.found.to_string(),
        finding.text.clone(),
    ]
}
