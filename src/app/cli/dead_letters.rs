//! `dlq`: lists, redrives and discards messages without attempts left.

mod discard;
mod groups;
mod selection;

use clap::{Args, Subcommand};

use crate::arguments::{distinct, pair};
use crate::dead_letters::selection::{DeadLetter, DeadLetterAction};
use crate::operations::OperationFollower;
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs};
use tallystone_api::grpc::saturating_i64;
use tallystone_proto::queue::v1 as pb;

const REDRIVE: DeadLetterAction = DeadLetterAction { kind: "redrive", done: "redriven" };

/// List messages that are out of attempts, redrive them, or discard them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone dlq ls -q emails")]
pub struct DlqArgs {
    #[command(subcommand)]
    command: DlqCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// Group errored messages by error signature, largest group first; list them with --messages.
    #[command(
        visible_alias = "list",
        after_help = "Example:\n  tallystone dlq ls -q emails\n  tallystone dlq ls -q emails --messages --limit 10"
    )]
    Ls(groups::DlqLsArgs),
    /// Redrive errored messages: reset their attempts, and follow the progress.
    #[command(
        after_help = "Example:\n  tallystone dlq redrive -q emails --meta tenant=acme --dry-run\n  tallystone dlq redrive -q emails --error-signature smtp.bounced"
    )]
    Redrive(RedriveArgs),
    /// Discard errored messages permanently, and follow the progress.
    #[command(
        after_help = "Example:\n  tallystone dlq rm -q emails --error-signature smtp.bounced --dry-run\n  tallystone dlq rm -q emails --all --yes"
    )]
    Rm(discard::DlqRmArgs),
    /// Show the progress of a redrive, discard or purge. The server forgets it an hour after its end, and at a restart.
    #[command(
        after_help = "Example:\n  tallystone dlq status $(tallystone dlq redrive -q emails --no-wait -o csv | tail -1 | cut -d, -f1)"
    )]
    Status(OperationArgs),
    /// Stop a redrive, discard or purge; its changes so far remain.
    #[command(
        after_help = "Example:\n  tallystone dlq cancel $(tallystone dlq redrive -q emails --no-wait -o csv | tail -1 | cut -d, -f1)"
    )]
    Cancel(OperationArgs),
}

#[derive(Debug, Args)]
struct RedriveArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// One message, by its id or key [default: all messages that are errored now].
    #[arg(value_name = "MESSAGE")]
    message_id: Option<String>,
    /// The shard key or exclusivity value of the message, which limits the search for the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY", requires = "message_id")]
    shard_key: String,
    /// Only messages with this metadata; may be repeated.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "message_id")]
    meta: Vec<(String, String)>,
    /// Only messages whose last error has this signature. An empty one selects messages without a signature, one by
    /// one.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "message_id")]
    error_signature: Option<String>,
    /// The maximum number of messages per second [default: as fast as possible]; not with an empty --error-signature.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..), conflicts_with = "message_id")]
    rate: Option<i32>,
    /// Count the messages; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Start the operation and return without waiting for its end; not with an empty --error-signature.
    #[arg(long)]
    no_wait: bool,
    /// The reason, recorded in the audit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
struct OperationArgs {
    /// The id of the operation, from `dlq redrive`, `dlq rm` or `queue purge`.
    operation_id: String,
}

impl DlqArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        match self.command {
            DlqCommand::Ls(args) => session.dead_letters(args).await,
            DlqCommand::Redrive(args) => session.because(&args.reason).redrive(args).await,
            DlqCommand::Rm(args) => session.because(&args.reason).discard(args).await,
            DlqCommand::Status(args) => session.operation(args.operation_id).await,
            DlqCommand::Cancel(args) => session.cancel_operation(args.operation_id).await,
        }
    }
}

impl ClientContext {
    async fn redrive(&self, args: RedriveArgs) -> Result<(), Failure> {
        if args.error_signature.as_deref() == Some("") {
            return self.redrive_unsigned(&args).await;
        }
        let request = pb::RedriveMessagesRequest {
            queue: args.queue,
            filter: distinct(&args.meta)?,
            error_signature: args.error_signature.unwrap_or_default(),
            message_id: args.message_id,
            shard_key: args.shard_key,
            rate: args.rate.unwrap_or_default(),
            dry_run: args.dry_run,
            request_token: self.client.message_id(),
            ..Default::default()
        };
        let operation = self.redriven(&request).await?;
        match args.no_wait {
            true => OperationFollower::new(self).print(operation),
            false => OperationFollower::new(self).wait_until_done(operation).await,
        }
    }

    /// Redrives the messages without a signature. No call selects these, so they are listed and then redriven by key.
    async fn redrive_unsigned(&self, args: &RedriveArgs) -> Result<(), Failure> {
        if args.no_wait || args.rate.is_some() {
            return Err(Failure::usage(
                "--no-wait and --rate cannot be used with --error-signature '': such messages are redriven one by one",
            ));
        }
        let chosen = self.select_unsigned(&args.queue, &args.meta).await?;
        if args.dry_run {
            self.print_dry_run(REDRIVE, &args.queue, saturating_i64(chosen.letters.len()))?;
            return chosen.end();
        }
        let one = async |letter: &DeadLetter| {
            let request = pb::RedriveMessagesRequest {
                queue: args.queue.clone(),
                message_id: Some(letter.key.clone()),
                request_token: self.client.message_id(),
                ..Default::default()
            };
            self.redriven(&request).await.map(Some)
        };
        self.apply_to_each(REDRIVE, &args.queue, &chosen.letters, |letter| letter.key.as_str(), one).await?;
        chosen.end()
    }

    async fn redriven(&self, request: &pb::RedriveMessagesRequest) -> Result<pb::Operation, Failure> {
        let answer = call!(self, queues.redrive_messages, request)?;
        answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))
    }

    async fn operation(&self, operation_id: String) -> Result<(), Failure> {
        let request = pb::GetOperationRequest { operation_id };
        let answer = call!(self, queues.get_operation, &request)?;
        let operation = answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))?;
        OperationFollower::new(self).show(&operation)
    }

    async fn cancel_operation(&self, operation_id: String) -> Result<(), Failure> {
        let request = pb::CancelOperationRequest { operation_id };
        let answer = call!(self, queues.cancel_operation, &request)?;
        let operation = answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))?;
        OperationFollower::new(self).show(&operation)
    }
}
