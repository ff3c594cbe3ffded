//! Commands that lease messages and settle them. A dequeue is sent once. A retry would lease other messages, and those
//! of the lost answer would stay invisible until their leases end. A settlement is retried: every attempt gets the
//! first one's answer.

use std::time::Duration;

use clap::Args;
use tonic::Request;

use crate::arguments::{distinct, duration, pair};
use crate::counter::all_or_partial;
use crate::message::inspect::{payload_cell, state};
use crate::output::{CliResponse, IncrementalPrinter, Output, TableRows, full_name};
use crate::{ClientContext, Failure};
use tallystone_api::time::write_duration;
use tallystone_app::notices::print_notice;
use tallystone_client::CallError;
use tallystone_domain::limits::{DEQUEUE_WAIT_MAX, QUEUE_BATCH_ITEMS_MAX};
use tallystone_proto::error::v1::ItemError;
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
pub struct PullArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The maximum number of messages.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100))]
    max: i32,
    /// The duration of the leases [default: from the message, else from the queue].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// The time to wait for the first message, up to 20s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// Only messages with this metadata; may be repeated, up to 4.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Only this message, by its id or key.
    #[arg(long, value_name = "MESSAGE")]
    id: Option<String>,
    /// The shard key or exclusivity value of the message, which limits the search for the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY", requires = "id")]
    shard_key: String,
    /// Print only the lease tokens, one per line, for other commands.
    #[arg(long)]
    tokens: bool,
    #[command(flatten)]
    session: PullSessionArgs,
}

/// A pull as a call of a session: one that is repeated gets the same leases.
#[derive(Debug, Args)]
struct PullSessionArgs {
    /// The session of the worker, from `session open`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID", requires = "sequence")]
    session: String,
    /// In a session: the number of this call, starting at 1 and growing by 1.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N", requires = "session")]
    sequence: u64,
    /// In a session: the number of this try of the call, starting at 1.
    #[arg(long = "try", default_value_t = 0, hide_default_value = true, value_name = "N", requires = "session")]
    attempt: i32,
    /// In a session: the number of the last call whose response arrived.
    #[arg(long, value_name = "N", requires = "session")]
    received_up_to: Option<u64>,
    /// Stop waiting at this number of messages [default: 1].
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    min: i32,
}

#[derive(Debug, Args)]
pub struct SettleArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    pub(super) queue: String,
    /// The lease tokens from `msg pull`.
    #[arg(required = true, value_name = "LEASE")]
    pub(super) leases: Vec<String>,
}

#[derive(Debug, Args)]
pub struct FailArgs {
    #[command(flatten)]
    settle: SettleArgs,
    /// The delay before the next attempt [default: from the retry policy of the queue].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// The error text, shown with the message.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    error: String,
    /// The error signature, which groups failures of the same kind.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    signature: String,
}

#[derive(Debug, Args)]
pub struct ExtendArgs {
    #[command(flatten)]
    settle: SettleArgs,
    /// The new lease duration from now; 0s ends the leases [default: from the queue].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
}

const LEASED: &[&str] = &["message_id", "attempt_number", "lease_expires_in", "payload", "fence", "lease_token"];
const SETTLED: &[&str] = &["lease_token", "state", "version"];
const EXTENDED: &[&str] = &["lease_token", "lease_expires_in", "cancel_requested"];

impl ClientContext {
    pub(super) async fn pull(&self, args: PullArgs) -> Result<(), Failure> {
        if args.wait.is_some_and(|wait| wait > DEQUEUE_WAIT_MAX) {
            return Err(Failure::usage(format!("--wait is at most {DEQUEUE_WAIT_MAX:?}; to wait longer, pull again")));
        }
        let queue = args.queue;
        let request = pb::DequeueRequest {
            queue: queue.clone(),
            max_messages: args.max,
            lease_duration: args.lease.map(write_duration),
            wait: args.wait.map(write_duration),
            filter: distinct(&args.meta)?,
            message_id: args.id,
            shard_key: args.shard_key,
            session_id: args.session.session,
            sequence: args.session.sequence,
            r#try: args.session.attempt,
            received_up_to: args.session.received_up_to,
            min_messages: args.session.min,
        };
        let within = self.timeout + args.wait.unwrap_or_default();
        let pulled = self.dequeue(request, within).await.map_err(|error| {
            let failure = self.failed(&error);
            match error.may_be_applied {
                true => failure.hint("messages may have been leased; they return to the queue when their leases end"),
                false => failure,
            }
        })?;
        if pulled.leases.is_empty() {
            print_notice(&match pulled.completeness().as_str_name().contains("PARTIAL") {
                true => format!(
                    "no message found yet: the search for the filter is not finished; continue with `tallystone msg \
                     pull -q {queue}`"
                ),
                false => format!("no message is ready; see why with `tallystone queue explain {queue}`"),
            });
        }
        if args.tokens {
            let tokens = pulled.leases.iter().map(|lease| format!("{}\n", lease.lease_token));
            return self.output.bytes(tokens.collect::<String>().as_bytes());
        }
        let cells = pulled.leases.iter().map(|lease| lease_cells(lease, self.output)).collect();
        let rows = TableRows { columns: LEASED, cells };
        self.output.answer(&CliResponse::many(&full_name("DequeueResponse"), &pulled, "leases"), &rows)
    }

    /// Leases messages once, within a time. If no server was reached, tries once more after a read has found a server.
    pub(crate) async fn dequeue(
        &self,
        request: pb::DequeueRequest,
        within: Duration,
    ) -> Result<pb::DequeueResponse, CallError> {
        match self.dequeue_once(request.clone(), within).await {
            Err(error) if error.is_unreachable() && self.depth(&request.queue).await.is_ok() => {
                self.dequeue_once(request, within).await
            }
            answer => answer, // answered by a server
        }
    }

    async fn dequeue_once(
        &self,
        request: pb::DequeueRequest,
        within: Duration,
    ) -> Result<pb::DequeueResponse, CallError> {
        let mut request = Request::new(request);
        request.set_timeout(within);
        let mut client = self.client.queues();
        let answer = tokio::time::timeout(within, client.dequeue(request)).await;
        let answer = answer.unwrap_or_else(|_elapsed| Err(tallystone_client::late()));
        answer.map(tonic::Response::into_inner).map_err(CallError::of_one)
    }

    pub(super) async fn complete(&self, args: SettleArgs) -> Result<(), Failure> {
        self.settle(args, &pb::Settlement { verb: pb::Verb::Complete.into(), ..Default::default() }).await
    }

    pub(super) async fn release(&self, args: SettleArgs) -> Result<(), Failure> {
        self.settle(args, &pb::Settlement { verb: pb::Verb::Release.into(), ..Default::default() }).await
    }

    pub(super) async fn fail(&self, args: FailArgs) -> Result<(), Failure> {
        let error = pb::WorkerError { signature: args.signature, text: args.error };
        let settlement = pb::Settlement {
            verb: pb::Verb::Fail.into(),
            delay: args.delay.map(write_duration),
            error: (error != pb::WorkerError::default()).then_some(error),
            ..Default::default()
        };
        self.settle(args.settle, &settlement).await
    }

    /// Settles all leases in the same way, in batches of the greatest permitted size.
    pub(super) async fn settle(&self, args: SettleArgs, like: &pb::Settlement) -> Result<(), Failure> {
        let mut whole = pb::SettleMessagesResponse::default();
        for leases in args.leases.chunks(QUEUE_BATCH_ITEMS_MAX) {
            let items =
                leases.iter().map(|lease| pb::Settlement { lease_token: lease.clone(), ..like.clone() }).collect();
            let request = pb::SettleMessagesRequest { queue: args.queue.clone(), items };
            whole.results.extend(call!(self, queues.settle_messages, &request)?.results);
        }
        let mut refused = Vec::new();
        let mut rows = TableRows { columns: SETTLED, cells: Vec::new() };
        for result in &whole.results {
            match &result.error {
                Some(error) => {
                    print_notice(&format!("{}: {} ({})", result.lease_token, error.message, error.reason));
                    refused.push(error);
                }
                None => {
                    rows.cells.push(vec![result.lease_token.clone(), state(result.state), result.version.to_string()]);
                }
            }
        }
        self.output.answer(&CliResponse::many(&full_name("SettleMessagesResponse"), &whole, "results"), &rows)?;
        all_or_partial(&refused, whole.results.len(), "leases could not be settled")
    }

    /// Extends leases one by one; a refusal is printed next to its lease, as for settlements.
    pub(super) async fn extend(&self, args: ExtendArgs) -> Result<(), Failure> {
        let mut parts = IncrementalPrinter::list(self.output);
        let (of, mut refused) = (args.settle.leases.len(), Vec::new());
        for lease_token in args.settle.leases {
            let request = pb::ExtendLeaseRequest {
                queue: args.settle.queue.clone(),
                lease_token: lease_token.clone(),
                lease_duration: args.lease.map(write_duration),
            };
            let extended = self.client.retried(&request, |request| {
                let mut client = self.client.queues();
                async move { client.extend_lease(request).await }
            });
            match extended.await {
                Ok(answer) => {
                    let cells = vec![
                        lease_token,
                        self.output.left_cell(answer.lease_expires_in.as_ref()),
                        answer.cancel_requested.to_string(),
                    ];
                    let rows = TableRows { columns: EXTENDED, cells: vec![cells] };
                    parts.print(&[CliResponse::one(&full_name("ExtendLeaseResponse"), &answer).json()], &rows)?;
                }
                Err(error) => {
                    let Some(reason) = error.reason() else { return Err(self.failed(&error)) };
                    print_notice(&format!("{lease_token}: {error} ({reason})"));
                    refused.push(ItemError { code: error.status.code().into(), reason, ..ItemError::default() });
                }
            }
        }
        parts.end(EXTENDED)?;
        all_or_partial(&refused.iter().collect::<Vec<_>>(), of, "leases could not be extended")
    }
}

fn lease_cells(lease: &pb::Lease, output: Output) -> Vec<String> {
    let message = lease.message.clone().unwrap_or_default();
    vec![
        message.message_id,
        lease.attempt_number.to_string(),
        output.left_cell(lease.lease_expires_in.as_ref()),
        payload_cell(&message.payload),
        lease.fence.to_string(),
        lease.lease_token.clone(),
    ]
}
