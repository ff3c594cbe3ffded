//! `msg cancel`: cancels messages by their leases, one by its id, or all that match a filter.

use clap::{ArgGroup, Args};

use crate::arguments::{distinct, pair};
use crate::message::consume::SettleArgs;
use crate::message::inspect::state;
use crate::namespaces::{Confirmation, confirm};
use crate::operations::OperationFollower;
use crate::output::{CliResponse, TableRows, full_name};
use crate::{ClientContext, Failure};
use tallystone_app::notices::{print_notice, single_line};
use tallystone_app::units::messages;
use tallystone_domain::queue::messages::key_syntax::queue_of_lease;
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).multiple(true).args(["leases", "id", "meta", "all"])))]
pub struct CancelArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The lease tokens from `msg pull`.
    #[arg(conflicts_with_all = ["id", "meta", "all"], value_name = "LEASE")]
    leases: Vec<String>,
    /// A message by its id or key; if it is running, its worker is asked to stop.
    #[arg(long, value_name = "MESSAGE", conflicts_with_all = ["meta", "all"])]
    id: Option<String>,
    /// The shard key or exclusivity value of the message, which limits the search for the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY", requires = "id")]
    shard_key: String,
    /// All messages with this metadata that are not over; may be repeated, up to 4. The workers of running ones are asked to
    /// stop.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "all")]
    meta: Vec<(String, String)>,
    /// All messages of the queue that are not over.
    #[arg(long)]
    all: bool,
    /// Skip the confirmation of --meta or --all.
    #[arg(long, conflicts_with_all = ["leases", "id"])]
    yes: bool,
    /// Count the messages of --meta or --all; change nothing.
    #[arg(long, conflicts_with_all = ["leases", "id"])]
    dry_run: bool,
    /// Start the operation of --meta or --all, and return without waiting for its end.
    #[arg(long, conflicts_with_all = ["leases", "id"])]
    no_wait: bool,
    /// The reason, shown with the message.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "leases"
    )]
    reason: String,
}

impl ClientContext {
    pub(super) async fn cancel(&self, args: CancelArgs) -> Result<(), Failure> {
        match (&args.id, args.leases.is_empty()) {
            (Some(id), _) => self.cancel_one(id.clone(), &args).await,
            (None, false) => self.cancel_leases(args).await,
            (None, true) => self.cancel_many(args).await,
        }
    }

    async fn cancel_leases(&self, args: CancelArgs) -> Result<(), Failure> {
        let other = args.leases.iter().find(|lease| queue_of_lease(lease).is_none()).cloned();
        let settle = SettleArgs { queue: args.queue, leases: args.leases };
        let like = pb::Settlement { verb: pb::Verb::Cancel.into(), ..Default::default() };
        self.settle(settle, &like).await.map_err(|failure| match other {
            Some(other) => failure.hint(format!(
                "{} is not a lease token; to cancel a message by its id or key, use `--id MESSAGE`",
                single_line(&other)
            )),
            None => failure,
        })
    }

    async fn cancel_one(&self, message_id: String, args: &CancelArgs) -> Result<(), Failure> {
        let request = pb::CancelMessageRequest {
            queue: args.queue.clone(),
            message_id: message_id.clone(),
            shard_key: args.shard_key.clone(),
            reason: args.reason.clone(),
        };
        let canceled = call!(self, queues.cancel_message, &request)?;
        if canceled.state() == pb::MessageState::Running {
            print_notice("the message is running; its worker is asked to stop");
        }
        let cells = vec![vec![message_id, state(canceled.state), canceled.version.to_string()]];
        let rows = TableRows { columns: &["message_id", "state", "version"], cells };
        self.output.answer(&CliResponse::one(&full_name("CancelMessageResponse"), &canceled), &rows)
    }

    /// Counts first, and asks.
    async fn cancel_many(&self, args: CancelArgs) -> Result<(), Failure> {
        let count = pb::CancelMessagesRequest {
            queue: args.queue.clone(),
            filter: distinct(&args.meta)?,
            all: args.all,
            reason: args.reason,
            dry_run: true,
            ..Default::default()
        };
        let counted = self.canceled(&count).await?;
        if args.dry_run {
            return OperationFollower::new(self).print(counted);
        }
        let what = format!("cancel {} of queue {}, running ones included", messages(counted.done), args.queue);
        if confirm(args.yes, &what)? == Confirmation::No {
            return Ok(());
        }
        let request = pb::CancelMessagesRequest { dry_run: false, request_token: self.client.message_id(), ..count };
        let operation = self.canceled(&request).await?;
        match args.no_wait {
            true => OperationFollower::new(self).print(operation),
            false => OperationFollower::new(self).wait_until_done(operation).await,
        }
    }

    async fn canceled(&self, request: &pb::CancelMessagesRequest) -> Result<pb::Operation, Failure> {
        let answer = call!(self, queues.cancel_messages, request)?;
        answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))
    }
}
