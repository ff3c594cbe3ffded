//! `dlq rm`: errored messages are thrown away, after a question that says how many.

use clap::{ArgGroup, Args};

use crate::api::grpc::whole;
use crate::app::cli::arguments::pair;
use crate::app::cli::namespaces::{Confirmed, confirm};
use crate::app::cli::operations::Following;
use crate::app::cli::queue::messages;
use crate::app::cli::{Exit, Failure, Session};
use crate::app::notices::note;
use crate::proto::queue::v1 as pb;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).multiple(true).args(["ids", "meta", "error_signature", "all"])))]
pub struct RmArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// Messages, by their ids or keys.
    #[arg(value_name = "MESSAGE")]
    ids: Vec<String>,
    /// Their shard key or exclusivity value, to look for the ids there only.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY", requires = "ids")]
    shard_key: String,
    /// Only messages with this metadata; may be repeated.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "ids")]
    meta: Vec<(String, String)>,
    /// Only messages whose last error has this signature.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", conflicts_with = "ids")]
    error_signature: String,
    /// All that are errored.
    #[arg(long, conflicts_with_all = ["ids", "meta", "error_signature"])]
    all: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Only count.
    #[arg(long)]
    dry_run: bool,
    /// Do not follow it to its end.
    #[arg(long, conflicts_with = "ids")]
    no_wait: bool,
}

impl Session {
    pub(super) async fn discard(&self, args: RmArgs) -> Result<(), Failure> {
        if args.ids.is_empty() { self.discard_many(args).await } else { self.discard_named(args).await }
    }

    /// Counts first: what was counted is what goes, and nothing that failed since.
    async fn discard_many(&self, args: RmArgs) -> Result<(), Failure> {
        let count = pb::DiscardMessagesRequest {
            queue: args.queue.clone(),
            filter: args.meta.into_iter().collect(),
            error_signature: args.error_signature,
            all: args.all,
            dry_run: true,
            ..Default::default()
        };
        let counted = self.discarded(&count).await?;
        if args.dry_run {
            return Following::new(self).print(counted);
        }
        let what = format!("discard {} of queue {} for ever", messages(counted.done), args.queue);
        if confirm(args.yes, &what)? == Confirmed::No {
            return Ok(());
        }
        let (until_time, request_token) = (counted.start_time, self.client.message_id());
        let request = pb::DiscardMessagesRequest { dry_run: false, until_time, request_token, ..count };
        let operation = self.discarded(&request).await?;
        match args.no_wait {
            true => Following::new(self).print(operation),
            false => Following::new(self).to_its_end(operation).await,
        }
    }

    /// One call for each message; the answer is of all together.
    async fn discard_named(&self, args: RmArgs) -> Result<(), Failure> {
        let named = |id: &String, dry_run: bool| pb::DiscardMessagesRequest {
            queue: args.queue.clone(),
            message_id: id.clone(),
            shard_key: args.shard_key.clone(),
            dry_run,
            request_token: if dry_run { String::new() } else { self.client.message_id() },
            ..Default::default()
        };
        let asked = whole(args.ids.len());
        let what = format!("discard {} of queue {} for ever", messages(asked), args.queue);
        if !args.dry_run && confirm(args.yes, &what)? == Confirmed::No {
            return Ok(());
        }
        let (mut all, mut refused) = (None::<pb::Operation>, Vec::new());
        for id in &args.ids {
            match self.discarded(&named(id, args.dry_run)).await {
                Ok(one) => {
                    let so_far = all.get_or_insert_with(|| pb::Operation { done: 0, total: asked, ..one.clone() });
                    so_far.done += one.done;
                    so_far.end_time = one.end_time;
                }
                Err(failure) => refused.push((id, failure)),
            }
        }
        let Some(mut all) = all else {
            let (_, failure) = refused.swap_remove(0);
            return Err(failure);
        };
        if args.ids.len() > 1 {
            all.operation_id = String::new(); // each had one of its own
        }
        refused.iter().for_each(|(id, failure)| note(&format!("{id}: {failure}")));
        Following::new(self).print(all)?;
        match refused.len() {
            0 => Ok(()),
            some => Err(Failure::new(Exit::Partial, format!("{some} of {} could not be discarded", messages(asked)))),
        }
    }

    async fn discarded(&self, request: &pb::DiscardMessagesRequest) -> Result<pb::Operation, Failure> {
        let answer = call!(self, queues.discard_messages, request)?;
        answer.operation.ok_or_else(|| Failure::other("the server answered without an operation"))
    }
}
