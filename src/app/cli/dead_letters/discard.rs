//! `dlq rm`: discards errored messages, after a confirmation that shows their number.

use clap::{ArgGroup, Args};

use crate::arguments::{distinct, pair};
use crate::dead_letters::selection::{DeadLetter, DeadLetterAction};
use crate::namespaces::{Confirmation, confirm};
use crate::operations::OperationFollower;
use crate::{ClientContext, Failure};
use tallystone_api::grpc::saturating_i64;
use tallystone_app::units::messages;
use tallystone_proto::queue::v1 as pb;

const DISCARD: DeadLetterAction = DeadLetterAction { kind: "discard", done: "discarded" };

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).multiple(true).args(["ids", "meta", "error_signature", "all"])))]
pub struct DlqRmArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// Messages, by their ids or keys.
    #[arg(value_name = "MESSAGE")]
    ids: Vec<String>,
    /// The shard key or exclusivity value of the messages, which limits the search for the ids.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY", requires = "ids")]
    shard_key: String,
    /// Only messages with this metadata; may be repeated.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "ids")]
    meta: Vec<(String, String)>,
    /// Only messages whose last error has this signature. An empty one selects messages without a signature, one by
    /// one.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "ids")]
    error_signature: Option<String>,
    /// All errored messages.
    #[arg(long, conflicts_with_all = ["ids", "meta", "error_signature"])]
    all: bool,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Count the messages; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Start the operation and return without waiting for its end; not with an empty --error-signature.
    #[arg(long, conflicts_with = "ids")]
    no_wait: bool,
    /// The reason, recorded in the audit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) reason: String,
}

impl ClientContext {
    pub(super) async fn discard(&self, args: DlqRmArgs) -> Result<(), Failure> {
        match (args.ids.is_empty(), args.error_signature.as_deref()) {
            (false, _) => self.discard_named(args).await,
            (true, Some("")) => self.discard_unsigned(args).await,
            (true, _) => self.discard_many(args).await, // the call selects the messages
        }
    }

    /// Counts first, and discards only the counted messages, not those that failed later.
    async fn discard_many(&self, args: DlqRmArgs) -> Result<(), Failure> {
        let count = pb::DiscardMessagesRequest {
            queue: args.queue.clone(),
            filter: distinct(&args.meta)?,
            error_signature: args.error_signature.clone().unwrap_or_default(),
            all: args.all,
            dry_run: true,
            ..Default::default()
        };
        let counted = self.discarded(&count).await?;
        if args.dry_run {
            return OperationFollower::new(self).print(counted);
        }
        if self.is_kept(&args, counted.done)? {
            return Ok(());
        }
        let (until_time, request_token) = (counted.start_time, self.client.message_id());
        let request = pb::DiscardMessagesRequest { dry_run: false, until_time, request_token, ..count };
        let operation = self.discarded(&request).await?;
        match args.no_wait {
            true => OperationFollower::new(self).print(operation),
            false => OperationFollower::new(self).wait_until_done(operation).await,
        }
    }

    async fn discard_named(&self, args: DlqRmArgs) -> Result<(), Failure> {
        if !args.dry_run && self.is_kept(&args, saturating_i64(args.ids.len()))? {
            return Ok(());
        }
        let one = async |id: &String| self.discard_one(&args, id).await.map(Some);
        self.apply_to_each(DISCARD, &args.queue, &args.ids, String::as_str, one).await
    }

    /// Discards the messages without a signature. No call selects these, so they are listed and then discarded by key.
    /// Each is checked again before that: the confirmation may take an hour, and a message that was redriven and failed
    /// again meanwhile was not meant.
    async fn discard_unsigned(&self, args: DlqRmArgs) -> Result<(), Failure> {
        if args.no_wait {
            return Err(Failure::usage(
                "--no-wait cannot be used with --error-signature '': such messages are discarded one by one",
            ));
        }
        let chosen = self.select_unsigned(&args.queue, &args.meta).await?;
        let count = saturating_i64(chosen.letters.len());
        if args.dry_run {
            self.print_dry_run(DISCARD, &args.queue, count)?;
            return chosen.end();
        }
        if self.is_kept(&args, count)? {
            return Ok(());
        }
        let one = async |letter: &DeadLetter| match self.is_unchanged(&args.queue, letter).await? {
            true => self.discard_one(&args, &letter.key).await.map(Some),
            false => Ok(None),
        };
        self.apply_to_each(DISCARD, &args.queue, &chosen.letters, |letter| letter.key.as_str(), one).await?;
        chosen.end()
    }

    async fn discard_one(&self, args: &DlqRmArgs, id: &str) -> Result<pb::Operation, Failure> {
        let request = pb::DiscardMessagesRequest {
            queue: args.queue.clone(),
            message_id: id.to_owned(),
            shard_key: args.shard_key.clone(),
            dry_run: args.dry_run,
            request_token: if args.dry_run { String::new() } else { self.client.message_id() },
            ..Default::default()
        };
        self.discarded(&request).await
    }

    /// Asks for confirmation; returns true if the messages must stay.
    fn is_kept(&self, args: &DlqRmArgs, count: i64) -> Result<bool, Failure> {
        let what = format!("permanently discard {} of queue {}", messages(count), args.queue);
        Ok(confirm(args.yes, &what)? == Confirmation::No)
    }

    async fn discarded(&self, request: &pb::DiscardMessagesRequest) -> Result<pb::Operation, Failure> {
        let answer = call!(self, queues.discard_messages, request)?;
        answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))
    }
}
