//! Commands that inspect queues.

use std::time::Duration;

use clap::Args;
use tonic::Request;

use crate::arguments::{distinct, duration, pair};
use crate::output::{CliResponse, IncrementalPrinter, Layout, TableRows, full_name, time_cell};
use crate::pages::RowLimit;
use crate::queue::change::settings_of;
use crate::queue::settings::{blocked, kind};
use crate::{ClientContext, Exit, Failure, pages};
use tallystone_api::time::write_duration;
use tallystone_domain::queue::index::shape_memory::{SHAPE_MESSAGE_BYTES, SHAPE_SET_BYTES, SHAPE_VALUE_BYTES};
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
pub struct NameArgs {
    /// The queue.
    pub name: String,
}

#[derive(Debug, Args)]
pub struct QueueLsArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

#[derive(Debug, Args)]
pub struct DepthArgs {
    /// The queue.
    name: String,
    /// Only messages with this metadata; may be repeated, up to 4. The keys must be a filter shape of the queue.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Show one row per shard.
    #[arg(long)]
    by_shard: bool,
}

#[derive(Debug, Args)]
pub struct QueueExplainArgs {
    /// The queue.
    name: String,
    /// The metadata filter of the dequeue; may be repeated, up to 4.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct QueueWatchArgs {
    /// The queue.
    name: String,
    /// The minimum interval between readings, at least 100ms [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Stop after this number of readings [default: run until interrupted].
    #[arg(long, value_name = "N")]
    readings: Option<usize>,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The queue; a deleted one is allowed.
    name: String,
    #[command(flatten)]
    limit: RowLimit,
}

const DEPTH: &[&str] = &["invisible", "pending", "running", "errored", "completed", "canceled", "payload_bytes"];
const SHARD_DEPTH: &[&str] = &["shard", "invisible", "pending", "running", "errored"];
const WATCHED: &[&str] = &["watch_time", "invisible", "pending", "running", "errored", "waiting"];
/// The greatest widths of a reading's columns, for queues of up to ten million messages.
const WATCHED_WIDTHS: &[usize] = &[30, 9, 8, 8, 8, 7];

impl ClientContext {
    pub(super) async fn list_queues(&self, args: QueueLsArgs) -> Result<(), Failure> {
        let (queues, next_page_token) = pages::rows(usize::MAX, async |page_size, page_token| {
            let request = pb::ListQueuesRequest { page_size, prefix: args.prefix.clone(), page_token };
            let page = call!(ask self, queues.list_queues, &request)?;
            Ok((page.queues, page.next_page_token))
        })
        .await?;
        let whole = pb::ListQueuesResponse { queues, next_page_token };
        let cells = whole.queues.iter().map(|queue| {
            vec![
                queue.name.clone(),
                if queue.template_for.is_empty() { kind(queue.r#type) } else { "TEMPLATE".to_owned() },
                queue.shards().to_string(),
                blocked(queue.enqueue_blocked, &queue.enqueue_blocked_reason),
                blocked(queue.dequeue_blocked, &queue.dequeue_blocked_reason),
                queue.version.to_string(),
                time_cell(queue.update_time.as_ref()),
            ]
        });
        let columns = &["name", "type", "shards", "enqueue_blocked", "dequeue_blocked", "version", "update_time"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output.answer(&CliResponse::many(&full_name("ListQueuesResponse"), &whole, "queues"), &rows)
    }

    pub(super) async fn describe_queue(&self, name: String) -> Result<(), Failure> {
        let request = pb::GetQueueRequest { queue: name };
        let found = call!(ask self, queues.get_queue, &request)?;
        let mut rows = settings_of(found.queue.as_ref(), self.output)?;
        if let Some(queue) = found.queue.as_ref().filter(|queue| !queue.filter_shapes.is_empty()) {
            // A template has no messages.
            let pending = if queue.template_for.is_empty() { self.depth(&queue.name).await?.pending } else { 0 };
            let place =
                rows.cells.iter().position(|row| row[0] == "filter_shapes").map_or(rows.cells.len(), |at| at + 1);
            rows.cells.insert(place, vec!["filter_shapes_memory".to_owned(), memory_of_shapes(queue, pending)]);
        }
        self.output.answer(&CliResponse::one(&full_name("GetQueueResponse"), &found), &rows)
    }

    pub(super) async fn depth_of_queue(&self, args: DepthArgs) -> Result<(), Failure> {
        let request = pb::GetDepthRequest { queue: args.name, filter: distinct(&args.meta)? };
        let depth = call!(ask self, queues.get_depth, &request)?;
        if args.by_shard {
            let cells = depth.by_shard.iter().map(|shard| {
                let counts =
                    [shard.invisible, shard.pending, shard.running, shard.errored].map(|count| count.to_string());
                [vec![shard.shard.to_string()], counts.to_vec()].concat()
            });
            let rows = TableRows { columns: SHARD_DEPTH, cells: cells.collect() };
            return self.output.answer(&CliResponse::many(&full_name("GetDepthResponse"), &depth, "byShard"), &rows);
        }
        let cells = [
            depth.invisible,
            depth.pending,
            depth.running,
            depth.errored,
            depth.completed,
            depth.canceled,
            depth.payload_bytes,
        ];
        let rows = TableRows { columns: DEPTH, cells: vec![cells.iter().map(ToString::to_string).collect()] };
        self.output.answer(&CliResponse::one(&full_name("GetDepthResponse"), &depth), &rows)
    }

    /// Watches without a deadline, except for the first reading.
    pub(super) async fn watch_queue(&self, args: QueueWatchArgs) -> Result<(), Failure> {
        let request = pb::WatchQueueRequest { queue: args.name, interval: args.interval.map(write_duration) };
        let mut client = self.client.queues();
        let beginning = async {
            let mut readings = client.watch_queue(Request::new(request)).await?.into_inner();
            let first = readings.message().await?;
            Ok((readings, first))
        };
        let beginning = tokio::time::timeout(self.timeout, beginning).await;
        let beginning = beginning.unwrap_or_else(|_elapsed| Err(tallystone_client::late()));
        let (mut readings, mut next) = beginning.map_err(|status| self.not_begun(status))?;
        let mut parts = IncrementalPrinter::endless(self.output).with_layout(Layout::AtLeast(WATCHED_WIDTHS.to_vec()));
        let mut shown = 0;
        while args.readings.is_none_or(|readings| shown < readings) {
            let Some(reading) = next.take() else {
                return Err(Failure::new(Exit::Unavailable, "the server ended the stream; start the command again"));
            };
            let rows = TableRows { columns: WATCHED, cells: vec![watched_cells(&reading)] };
            parts.print(&[CliResponse::one(&full_name("WatchQueueResponse"), &reading).json()], &rows)?;
            shown += 1;
            if args.readings.is_none_or(|readings| shown < readings) {
                next = readings.message().await.map_err(|status| self.cut_off(status))?;
            }
        }
        Ok(())
    }

    pub(super) async fn explain_queue(&self, args: QueueExplainArgs) -> Result<(), Failure> {
        let request = pb::ExplainQueueRequest { queue: args.name, filter: distinct(&args.meta)? };
        let explained = call!(ask self, queues.explain_queue, &request)?;
        let rows = explanation_rows(&explained.explanations);
        self.output.sentences(&CliResponse::many(&full_name("ExplainQueueResponse"), &explained, "explanations"), &rows)
    }

    pub(super) async fn history_of_queue(&self, args: HistoryArgs) -> Result<(), Failure> {
        let (changes, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let request = pb::ListQueueChangesRequest { queue: args.name.clone(), page_size, page_token };
            let page = call!(ask self, queues.list_queue_changes, &request)?;
            Ok((page.changes, page.next_page_token))
        })
        .await?;
        let whole = pb::ListQueueChangesResponse { changes, next_page_token };
        let cells = whole.changes.iter().map(|change| {
            vec![
                change.version.to_string(),
                time_cell(change.change_time.as_ref()),
                change.actor.clone(),
                change.reason.clone(),
                match (&change.queue, change.version) {
                    (None, _) => "deleted".to_owned(),
                    (Some(_), 1) => "created".to_owned(),
                    (Some(_), _) => self.output.changes_cell(&change.differences),
                },
            ]
        });
        let columns = &["version", "change_time", "actor", "reason", "differences"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output.answer(&CliResponse::many(&full_name("ListQueueChangesResponse"), &whole, "changes"), &rows)?;
        args.limit.end(&whole.next_page_token, self.output)
    }
}

/// Estimates the memory of a queue's filter shapes: the most for this number of pending messages.
fn memory_of_shapes(queue: &pb::Queue, pending: i64) -> String {
    let is_exclusive = queue.r#type() == pb::QueueType::Exclusive;
    let (each, of) =
        if is_exclusive { (SHAPE_VALUE_BYTES, "exclusivity value") } else { (SHAPE_MESSAGE_BYTES, "message") };
    let (pending, shapes) = (usize::try_from(pending).unwrap_or(0), queue.filter_shapes.len());
    format!(
        "about {each} bytes per pending {of} and shape, now at most {pending} x {shapes} x {each} = {}, and \
         {SHAPE_SET_BYTES} per set of values",
        pending * shapes * each
    )
}

/// Formats causes with advice as rows.
pub fn explanation_rows(explanations: &[pb::Explanation]) -> TableRows {
    let cells = explanations.iter().map(|cause| vec![cause.cause.clone(), cause.text.clone()]);
    TableRows { columns: &["cause", "text"], cells: cells.collect() }
}

fn watched_cells(reading: &pb::WatchQueueResponse) -> Vec<String> {
    let counts = [reading.invisible, reading.pending, reading.running, reading.errored, reading.waiting];
    let time = time_cell(reading.watch_time.as_ref());
    std::iter::once(time).chain(counts.iter().map(ToString::to_string)).collect()
}
