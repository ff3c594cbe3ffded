//! `session`: opens, renews and closes sessions for workers that are scripts; lists live sessions.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::arguments::duration;
use crate::output::{CliResponse, TableRows, full_name, list_cell, time_cell};
use crate::pages::RowLimit;
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, pages};
use tallystone_api::time::write_duration;
use tallystone_proto::queue::v1 as pb;

/// Open, renew, list and close sessions, for workers that are scripts. `tallystone work` manages its own session.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone session open --label worker-7")]
pub struct SessionArgs {
    #[command(subcommand)]
    command: SessionCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum SessionCommand {
    /// Open a session. An existing session with the same label ends at once, with its leases.
    #[command(after_help = "Example:\n  tallystone session open --label worker-7 --lease 1m")]
    Open(OpenArgs),
    /// Renew a session and its leases; shows leases whose messages should be canceled.
    #[command(after_help = "Example:\n  tallystone session beat $(tallystone session open --id)")]
    Beat(SessionHeartbeatArgs),
    /// List live sessions with their workers and lease counts. Session ids are secret and not shown.
    #[command(
        visible_alias = "list",
        after_help = "Example:\n  tallystone session ls\n  tallystone session ls -q emails"
    )]
    Ls(SessionLsArgs),
    /// End a session and release its leases.
    #[command(after_help = "Example:\n  tallystone session close $(tallystone session open --id)")]
    Close(CloseArgs),
}

#[derive(Debug, Args)]
struct OpenArgs {
    /// The label of the worker, up to 256 bytes.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    label: String,
    /// The lease of the session, renewed by each call, 1 s to 12 h [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Print only the session id, for other commands.
    #[arg(long)]
    id: bool,
}

#[derive(Debug, Args)]
struct SessionHeartbeatArgs {
    /// The session id from `session open`.
    session_id: String,
    /// The number of the last call whose response arrived; leases up to that call then end with the session.
    #[arg(long, value_name = "N")]
    received_up_to: Option<u64>,
}

#[derive(Debug, Args)]
struct SessionLsArgs {
    /// Only sessions that may hold leases of this queue; counts only these leases.
    #[arg(short, long, default_value = "", hide_default_value = true, value_name = "NAME")]
    queue: String,
    #[command(flatten)]
    limit: RowLimit,
}

#[derive(Debug, Args)]
struct CloseArgs {
    /// The session id from `session open`.
    session_id: String,
}

impl SessionArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        match self.command {
            SessionCommand::Open(args) => session.open_session(args).await,
            SessionCommand::Beat(args) => session.beat(args).await,
            SessionCommand::Ls(args) => session.list_sessions(args).await,
            SessionCommand::Close(args) => session.close_session(args).await,
        }
    }
}

impl ClientContext {
    async fn open_session(&self, args: OpenArgs) -> Result<(), Failure> {
        let session_lease = args.lease.map(write_duration);
        let request = pb::OpenSessionRequest { label: args.label, session_lease };
        let opened = call!(self, queues.open_session, &request)?;
        if args.id {
            return self.output.bytes(format!("{}\n", opened.session_id).as_bytes());
        }
        let cells = vec![vec![opened.session_id.clone(), self.output.span_cell(opened.session_lease.as_ref())]];
        let rows = TableRows { columns: &["session_id", "session_lease"], cells };
        self.output.answer(&CliResponse::one(&full_name("OpenSessionResponse"), &opened), &rows)
    }

    async fn beat(&self, args: SessionHeartbeatArgs) -> Result<(), Failure> {
        let request = pb::HeartbeatRequest { session_id: args.session_id, received_up_to: args.received_up_to };
        let beat = call!(self, queues.heartbeat, &request)?;
        let left = self.output.left_cell(beat.session_expires_in.as_ref());
        let cells = vec![vec![left, list_cell(&beat.cancel_requests)]];
        let rows = TableRows { columns: &["session_expires_in", "cancel_requests"], cells };
        self.output.answer(&CliResponse::one(&full_name("HeartbeatResponse"), &beat), &rows)
    }

    async fn list_sessions(&self, args: SessionLsArgs) -> Result<(), Failure> {
        let (sessions, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let request = pb::ListSessionsRequest { queue: args.queue.clone(), page_size, page_token };
            let page = call!(ask self, queues.list_sessions, &request)?;
            Ok((page.sessions, page.next_page_token))
        })
        .await?;
        let whole = pb::ListSessionsResponse { sessions, next_page_token };
        let cells = whole.sessions.iter().map(|session| {
            vec![
                session.label.clone(),
                session.session_ref.clone(),
                session.leases.to_string(),
                time_cell(session.open_time.as_ref()),
                time_cell(session.last_heard_time.as_ref()),
                self.output.left_cell(session.session_expires_in.as_ref()),
            ]
        });
        let columns = &["label", "session_ref", "leases", "open_time", "last_heard_time", "session_expires_in"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output.answer(&CliResponse::many(&full_name("ListSessionsResponse"), &whole, "sessions"), &rows)?;
        args.limit.end(&whole.next_page_token, self.output)
    }

    async fn close_session(&self, args: CloseArgs) -> Result<(), Failure> {
        let request = pb::CloseSessionRequest { session_id: args.session_id };
        let closed = call!(self, queues.close_session, &request)?;
        let rows = TableRows { columns: &["released"], cells: vec![vec![closed.released.to_string()]] };
        self.output.answer(&CliResponse::one(&full_name("CloseSessionResponse"), &closed), &rows)
    }
}
