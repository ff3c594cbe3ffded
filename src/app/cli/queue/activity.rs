//! `queue activity`: what queues do now, and which need attention.

use clap::{Args, ValueEnum};

use crate::output::{CliResponse, Output, TableRows, full_name, list_cell, word};
use crate::pages::RowLimit;
use crate::{ClientContext, Failure, pages};
use tallystone_proto::queue::v1 as pb;

/// The order of the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ActivityOrderArg {
    /// What needs attention first.
    #[value(alias = "ACTIVITY_ORDER_ATTENTION", alias = "ATTENTION")]
    Attention,
    /// By name.
    #[value(alias = "ACTIVITY_ORDER_NAME", alias = "NAME")]
    Name,
    /// The most pending messages first.
    #[value(alias = "ACTIVITY_ORDER_PENDING", alias = "PENDING")]
    Pending,
    /// The oldest ready message first.
    #[value(alias = "ACTIVITY_ORDER_OLDEST", alias = "OLDEST")]
    Oldest,
    /// The most errored messages first.
    #[value(alias = "ACTIVITY_ORDER_ERRORED", alias = "ERRORED")]
    Errored,
    /// The most enqueued messages per second first.
    #[value(alias = "ACTIVITY_ORDER_IN", alias = "IN")]
    In,
    /// The most completed messages per second first.
    #[value(alias = "ACTIVITY_ORDER_OUT", alias = "OUT")]
    Out,
    /// The most failed attempts per second first.
    #[value(alias = "ACTIVITY_ORDER_FAIL", alias = "FAIL")]
    Fail,
}

#[derive(Debug, Args)]
pub struct ActivityArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// The order of the rows.
    #[arg(long, value_enum, default_value = "attention")]
    order: ActivityOrderArg,
    #[command(flatten)]
    limit: RowLimit,
}

const COLUMNS: &[&str] = &[
    "queue",
    "pending",
    "invisible",
    "running",
    "errored",
    "in_per_second",
    "out_per_second",
    "fail_per_second",
    "oldest_ready_age",
    "time_to_drain",
    "attention",
];

impl ActivityOrderArg {
    pub fn wire(self) -> pb::ActivityOrder {
        match self {
            Self::Attention => pb::ActivityOrder::Attention,
            Self::Name => pb::ActivityOrder::Name,
            Self::Pending => pb::ActivityOrder::Pending,
            Self::Oldest => pb::ActivityOrder::Oldest,
            Self::Errored => pb::ActivityOrder::Errored,
            Self::In => pb::ActivityOrder::In,
            Self::Out => pb::ActivityOrder::Out,
            Self::Fail => pb::ActivityOrder::Fail,
        }
    }
}

impl ClientContext {
    pub(super) async fn activity_of_queues(&self, args: ActivityArgs) -> Result<(), Failure> {
        let mut newest = pb::ListQueueActivityResponse::default();
        let (queues, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let (prefix, order) = (args.prefix.clone(), args.order.wire().into());
            let request = pb::ListQueueActivityRequest { prefix, order, page_size, page_token };
            newest = call!(ask self, queues.list_queue_activity, &request)?;
            Ok((std::mem::take(&mut newest.queues), std::mem::take(&mut newest.next_page_token)))
        })
        .await?;
        let whole = pb::ListQueueActivityResponse { queues, next_page_token, ..newest };
        let cells = whole.queues.iter().map(|queue| cells_of(queue, self.output)).collect();
        let rows = TableRows { columns: COLUMNS, cells };
        self.output.sentences(&CliResponse::many(&full_name("ListQueueActivityResponse"), &whole, "queues"), &rows)?;
        args.limit.end(&whole.next_page_token, self.output)
    }
}

/// A row. What is not known is a dash for people, and empty for programs.
fn cells_of(queue: &pb::QueueActivity, output: Output) -> Vec<String> {
    let unknown = || if output.is_for_people() { "–".to_owned() } else { String::new() };
    let count = |number: Option<i64>| number.map_or_else(unknown, |number| number.to_string());
    let rate = |rate: Option<f64>| match rate {
        None => unknown(),
        Some(rate) if output.is_for_people() => format!("{rate:.1}"),
        Some(rate) => rate.to_string(),
    };
    let span = |span: Option<&prost_types::Duration>| {
        if span.is_none() { unknown() } else { output.measured_cell(span) }
    };
    let reason = |attention: &pb::Attention| match output.is_for_people() {
        true => attention.text.clone(),
        false => word(attention.reason, "ATTENTION_REASON_", pb::AttentionReason::as_str_name),
    };
    vec![
        queue.queue.clone(),
        count(queue.pending),
        count(queue.invisible),
        count(queue.running),
        count(queue.errored),
        rate(queue.in_per_second),
        rate(queue.out_per_second),
        rate(queue.fail_per_second),
        span(queue.oldest_ready_age.as_ref()),
        span(queue.time_to_drain.as_ref()),
        list_cell(&queue.attention.iter().map(reason).collect::<Vec<_>>()),
    ]
}
