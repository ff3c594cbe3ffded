//! Commands that change queues. Each may be repeated: creating a queue that already matches succeeds, and a purge or
//! deletion carries a token.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use crate::arguments::{self, distinct, pair};
use crate::namespaces::{Confirmation, confirm};
use crate::operations::OperationFollower;
use crate::output::{CliResponse, Output, TableRows, full_name};
use crate::queue::settings::{self, QueueSettingsArgs};
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_app::units::{counted, messages};
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The queue.
    name: String,
    #[command(flatten)]
    settings: QueueSettingsArgs,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub struct QueueUpdateArgs {
    /// The queue.
    name: String,
    #[command(flatten)]
    settings: QueueSettingsArgs,
    /// A setting to reset to its default, such as default_lease or retention; may be repeated. An unknown name lists
    /// all.
    #[arg(long, value_name = "SETTING", value_parser = arguments::setting)]
    reset: Vec<String>,
    /// Only this version: the etag from `queue describe`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub struct BlockArgs {
    /// The queue.
    name: String,
    #[command(flatten)]
    sides: BlockedSidesArgs,
    /// The reason, shown with every refused call.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    reason: String,
}

#[derive(Debug, Args)]
pub struct UnblockArgs {
    /// The queue.
    name: String,
    #[command(flatten)]
    sides: BlockedSidesArgs,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

/// The side of a queue; both by default.
#[derive(Clone, Copy, Debug, Args)]
struct BlockedSidesArgs {
    /// Enqueues only.
    #[arg(long)]
    enqueue: bool,
    /// Dequeues only.
    #[arg(long)]
    dequeue: bool,
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// The queue, of type exclusive.
    name: String,
    /// The exclusivity value.
    value: String,
    /// The limit, 0 to 10,000; 0 pauses the value. Without it, the value returns to the limit of the queue.
    #[arg(value_name = "N")]
    limit: Option<i32>,
    /// The reason, recorded in the audit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) reason: String,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// The queue.
    name: String,
    /// A state whose messages it covers; may be repeated. Invisible and pending ones are canceled, completed and canceled ones
    /// removed [default: invisible and pending].
    #[arg(long = "state", value_name = "STATE")]
    states: Vec<PurgedState>,
    /// Only messages with this metadata; may be repeated, up to 4.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Show what would be canceled or removed; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The reason, recorded in the audit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) reason: String,
}

/// A state whose messages a purge covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PurgedState {
    Invisible,
    Pending,
    Completed,
    Canceled,
}

impl PurgedState {
    const DEFAULT: [Self; 2] = [Self::Invisible, Self::Pending];

    fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Canceled)
    }

    fn wire(self) -> pb::MessageState {
        match self {
            Self::Invisible => pb::MessageState::Invisible,
            Self::Pending => pb::MessageState::Pending,
            Self::Completed => pb::MessageState::Completed,
            Self::Canceled => pb::MessageState::Canceled,
        }
    }

    fn messages_of(self, depth: &pb::GetDepthResponse) -> i64 {
        match self {
            Self::Invisible => depth.invisible,
            Self::Pending => depth.pending,
            Self::Completed => depth.completed,
            Self::Canceled => depth.canceled,
        }
    }
}

#[derive(Debug, Args)]
pub struct QueueRmArgs {
    /// The queue.
    name: String,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Show what would be deleted; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only this version: the etag from `queue describe`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

impl BlockedSidesArgs {
    /// The blocks of enqueues and dequeues that were requested.
    fn chosen(self) -> (Option<bool>, Option<bool>) {
        let both = !self.enqueue && !self.dequeue;
        ((both || self.enqueue).then_some(true), (both || self.dequeue).then_some(true))
    }
}

impl ClientContext {
    pub(super) async fn create_queue(&self, args: CreateArgs) -> Result<(), Failure> {
        let request = pb::CreateQueueRequest { queue: Some(args.settings.queue(args.name)), reason: args.reason };
        let created = call!(self, queues.create_queue, &request)?;
        let rows = settings_of(created.queue.as_ref(), self.output)?;
        self.output.answer(&CliResponse::one(&full_name("CreateQueueResponse"), &created), &rows)
    }

    pub(super) async fn update_queue(&self, args: QueueUpdateArgs) -> Result<(), Failure> {
        let queue = pb::Queue { etag: args.etag, ..args.settings.queue(args.name) };
        Box::pin(self.change(pb::UpdateQueueRequest { queue: Some(queue), reason: args.reason, reset: args.reset }))
            .await
    }

    pub(super) async fn block_queue(&self, args: BlockArgs) -> Result<(), Failure> {
        let (enqueue_blocked, dequeue_blocked) = args.sides.chosen();
        let reason = |side: Option<bool>| side.map(|_| args.reason.clone()).unwrap_or_default();
        let queue = pb::Queue {
            name: args.name,
            enqueue_blocked,
            dequeue_blocked,
            enqueue_blocked_reason: reason(enqueue_blocked),
            dequeue_blocked_reason: reason(dequeue_blocked),
            ..Default::default()
        };
        Box::pin(self.change(pb::UpdateQueueRequest { queue: Some(queue), reason: args.reason, ..Default::default() }))
            .await
    }

    pub(super) async fn unblock_queue(&self, args: UnblockArgs) -> Result<(), Failure> {
        let (enqueue, dequeue) = args.sides.chosen();
        let queue = pb::Queue {
            name: args.name,
            enqueue_blocked: enqueue.map(|_| false),
            dequeue_blocked: dequeue.map(|_| false),
            ..Default::default()
        };
        Box::pin(self.change(pb::UpdateQueueRequest { queue: Some(queue), reason: args.reason, ..Default::default() }))
            .await
    }

    async fn change(&self, request: pb::UpdateQueueRequest) -> Result<(), Failure> {
        let name = request.queue.as_ref().map(|queue| queue.name.clone()).unwrap_or_default();
        // Only for people: output for programs is the queue after the change.
        let before = if self.output.is_for_people() { Some(self.queue_named(&name).await?) } else { None };
        let updated = call!(self, queues.update_queue, &request)?;
        let mut rows = settings_of(updated.queue.as_ref(), self.output)?;
        if let (Some(before), Some(after)) = (&before, &updated.queue) {
            note_versions(before, after);
            changed_first(&mut rows.cells, settings::rows(before, self.output));
        }
        self.output.answer(&CliResponse::one(&full_name("UpdateQueueResponse"), &updated), &rows)
    }

    pub(super) async fn limit_value(&self, args: LimitArgs) -> Result<(), Failure> {
        let LimitArgs { name, value, limit, reason: _ } = args;
        let request = pb::SetValueLimitRequest { queue: name, value: value.clone(), limit };
        let set = call!(self, queues.set_value_limit, &request)?;
        if self.output.is_for_people() {
            print_notice(&self.limit_description(&request).await);
        }
        let limit = limit.map_or_else(|| "as the queue says".to_owned(), |limit| limit.to_string());
        let rows = TableRows { columns: &["value", "limit"], cells: vec![vec![value, limit]] };
        self.output.answer(&CliResponse::one(&full_name("SetValueLimitResponse"), &set), &rows)
    }

    /// Describes a change of a limit; omits the queue's own setting if it cannot be read.
    async fn limit_description(&self, request: &pb::SetValueLimitRequest) -> String {
        let value = &request.value;
        match request.limit {
            Some(0) => format!("exclusivity value {value:?} is paused: its messages are not leased from now on"),
            Some(limit) => {
                let many = counted(limit.into(), "message", "messages");
                format!("at most {many} of exclusivity value {value:?} can be leased at once from now on")
            }
            None => {
                let queue = self.queue_named(&request.queue).await.ok();
                let most = queue.and_then(|queue| queue.max_in_flight_per_value);
                let most = most.map(|most| format!(" ({most})")).unwrap_or_default();
                format!(
                    "exclusivity value {value:?} has no limit of its own now: max_in_flight_per_value of the \
                     queue{most} applies"
                )
            }
        }
    }

    pub(super) async fn purge_queue(&self, args: PurgeArgs) -> Result<(), Failure> {
        if !args.meta.is_empty() {
            return self.purge_filtered(args).await;
        }
        let depth = self.depth(&args.name).await?;
        let states = if args.states.is_empty() { PurgedState::DEFAULT.to_vec() } else { args.states };
        let of = |state: PurgedState| if states.contains(&state) { state.messages_of(&depth) } else { 0 };
        let waiting = of(PurgedState::Invisible) + of(PurgedState::Pending);
        let over = of(PurgedState::Completed) + of(PurgedState::Canceled);
        let what = match states.iter().any(|state| state.is_over()) {
            false => format!("cancel {} of queue {}", messages(waiting), args.name),
            true if states.iter().all(|state| state.is_over()) => {
                format!("permanently remove {} of queue {}", messages(over), args.name)
            }
            true => {
                format!("cancel {} and permanently remove {} of queue {}", messages(waiting), messages(over), args.name)
            }
        };
        if args.dry_run {
            print_notice(&format!("would {what}; nothing was changed"));
            return self.would_purge(args.name, waiting + over);
        }
        if confirm(args.yes, &what)? == Confirmation::No {
            return Ok(());
        }
        let request_token = self.client.message_id();
        let states = states.into_iter().map(|state| state.wire().into()).collect();
        let request = pb::PurgeQueueRequest { queue: args.name, request_token, states, ..Default::default() };
        let operation = self.purged(&request).await?;
        OperationFollower::new(self).wait_until_done(operation).await
    }

    /// Counts the messages that match first, because no depth of the queue says how many these are.
    async fn purge_filtered(&self, args: PurgeArgs) -> Result<(), Failure> {
        let states = if args.states.is_empty() { PurgedState::DEFAULT.to_vec() } else { args.states };
        let does = match (states.iter().all(|state| state.is_over()), states.iter().any(|state| state.is_over())) {
            (true, _) => "permanently remove",
            (false, true) => "cancel or permanently remove",
            (false, false) => "cancel",
        };
        let count = pb::PurgeQueueRequest {
            queue: args.name.clone(),
            states: states.into_iter().map(|state| state.wire().into()).collect(),
            filter: distinct(&args.meta)?,
            dry_run: true,
            ..Default::default()
        };
        let counted = self.purged(&count).await?;
        if args.dry_run {
            return OperationFollower::new(self).print(counted);
        }
        let what = format!("{does} {} of queue {}, all that match", messages(counted.done), args.name);
        if confirm(args.yes, &what)? == Confirmation::No {
            return Ok(());
        }
        let request = pb::PurgeQueueRequest { dry_run: false, request_token: self.client.message_id(), ..count };
        let operation = self.purged(&request).await?;
        OperationFollower::new(self).wait_until_done(operation).await
    }

    async fn purged(&self, request: &pb::PurgeQueueRequest) -> Result<pb::Operation, Failure> {
        let purged = call!(self, queues.purge_queue, request)?;
        purged.operation.ok_or_else(|| Failure::other("the server returned no operation"))
    }

    pub(super) async fn remove_queue(&self, args: QueueRmArgs) -> Result<(), Failure> {
        let found = self.queue_named(&args.name).await?;
        // Deletes only the queue that was shown.
        let etag = if args.etag.is_empty() { found.etag } else { args.etag };
        let is_template = !found.template_for.is_empty();
        // A queue that is damaged cannot be counted, and to delete it is the way to give it up.
        let held = if is_template { None } else { self.depth(&args.name).await.ok().map(|depth| held(&depth)) };
        let shown = |held: Option<i64>| match (is_template, held) {
            (true, _) => format!("template {} (its queues remain)", args.name),
            (false, Some(held)) => format!("queue {} with {}", args.name, messages(held)),
            (false, None) => format!("queue {}, whose messages cannot be counted,", args.name),
        };
        let what = shown(held);
        if args.dry_run {
            print_notice(&format!("would delete {what}; nothing was changed"));
            return self.deleted(held.unwrap_or(0));
        }
        if confirm(args.yes, &format!("permanently delete {what}"))? == Confirmation::No {
            return Ok(());
        }
        let request = pb::DeleteQueueRequest {
            queue: args.name.clone(),
            etag,
            reason: args.reason,
            request_token: self.client.message_id(),
            queue_id: found.id,
        };
        let deleted = call!(self, queues.delete_queue, &request)?;
        print_notice(&format!("deleted {}", shown(Some(deleted.messages))));
        self.deleted(deleted.messages)
    }

    /// Prints the result of a deletion for programs; people get a sentence.
    fn deleted(&self, messages: i64) -> Result<(), Failure> {
        if self.output.is_for_people() {
            return Ok(());
        }
        let rows = TableRows { columns: &["messages"], cells: vec![vec![messages.to_string()]] };
        self.output
            .answer(&CliResponse::one(&full_name("DeleteQueueResponse"), &pb::DeleteQueueResponse { messages }), &rows)
    }

    /// Prints a purge that was not started, for programs.
    fn would_purge(&self, queue: String, messages: i64) -> Result<(), Failure> {
        if self.output.is_for_people() {
            return Ok(());
        }
        let (done, total, kind) = (messages, messages, "purge".to_owned());
        let state = pb::OperationState::Done.into();
        let would = pb::Operation { queue, kind, state, done, total, dry_run: true, ..Default::default() };
        OperationFollower::new(self).show(&would)
    }
}

impl ClientContext {
    async fn queue_named(&self, name: &str) -> Result<pb::Queue, Failure> {
        let request = pb::GetQueueRequest { queue: name.to_owned() };
        let found = call!(ask self, queues.get_queue, &request)?;
        Ok(found.queue.unwrap_or_default())
    }
}

/// The number of messages of a queue in any state.
fn held(depth: &pb::GetDepthResponse) -> i64 {
    depth.pending + depth.invisible + depth.running + depth.errored + depth.completed + depth.canceled
}

/// The fields that every change changes.
const CHANGES_ALWAYS: [&str; 3] = ["etag", "version", "update_time"];

/// Prints a notice if nothing was changed, or if others changed the queue meanwhile.
fn note_versions(before: &pb::Queue, after: &pb::Queue) {
    match after.version.saturating_sub(before.version) {
        ..=0 => print_notice("nothing was changed: the queue already has these settings"),
        1 => {}
        2.. => print_notice(&format!(
            "other callers changed the queue too; all changes since version {} are shown",
            before.version
        )),
    }
}

/// Moves changed settings to the front, as `before -> after`.
fn changed_first(rows: &mut Vec<Vec<String>>, before: Vec<Vec<String>>) {
    let mut changed = Vec::new();
    let mut same = Vec::new();
    for (mut now, was) in std::mem::take(rows).into_iter().zip(before) {
        let counts = !CHANGES_ALWAYS.contains(&now[0].as_str());
        match counts && now[1] != was[1] {
            true => {
                let was = if was[1].is_empty() { "none" } else { &was[1] };
                let is = if now[1].is_empty() { "none" } else { &now[1] };
                now[1] = format!("{was} -> {is}");
                changed.push(now);
            }
            false => same.push(now),
        }
    }
    rows.extend(changed.into_iter().chain(same));
}

/// Returns the settings of a queue from an answer.
pub fn settings_of(queue: Option<&pb::Queue>, output: Output) -> Result<TableRows, Failure> {
    let queue = queue.ok_or_else(|| Failure::other("the server returned no queue"))?;
    Ok(TableRows { columns: &["setting", "value"], cells: settings::rows(queue, output) })
}
