//! The numbers of queues on the metrics page, with bounded labels.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use crate::server::metrics::{encode_counts_by, encode_each};
use tallystone_domain::limits::{METRIC_QUEUE_TIMES_MAX, METRIC_QUEUES_MAX};
use tallystone_domain::queue::MessageState;
use tallystone_engine::queues::{Backlog, Overview};
use tallystone_engine::stats::{CountsBy, QueueCounts, QueueTimes, UndeclaredFilters};
use tallystone_ports::{Metric, metrics};

/// The label of all filters that are not shown one by one.
const OTHER_SHAPES: &str = "_other";

const UNDECLARED: &[Metric<u64>] = metrics! { messages:
    Count "tallystone_queue_undeclared_filter_messages" = *messages,
        "Messages examined one by one by dequeues whose filter keys have no declared shape";
};

/// The filters that would gain most from an index.
pub fn encode_undeclared(encoder: &mut DescriptorEncoder<'_>, filters: &UndeclaredFilters) -> Result<(), fmt::Error> {
    let (shapes, others) = filters.get();
    let shown = shapes.iter().map(|(keys, count)| (keys.iter().collect::<Vec<_>>().join(","), count));
    let shown = shown.chain([(OTHER_SHAPES.to_owned(), &others)]);
    encode_each(encoder, UNDECLARED, shown.map(|(shape, count)| ([("shape", shape)], count)))
}

const BACKLOGS: &[Metric<Backlog>] = metrics! { backlog:
    Gauge "tallystone_queue_ready_messages" = backlog.of(MessageState::Pending), "Ready messages";
    Gauge "tallystone_queue_ready_age_seconds" = backlog.oldest.as_secs_f64(),
        "Age of the longest-ready message, to the second";
    Gauge "tallystone_queue_dequeues_waiting" = backlog.waiting as f64,
        "Waiting dequeues of the queue at this server";
};

const STATES: &[Metric<f64>] = metrics! { messages:
    Gauge "tallystone_queue_messages" = *messages,
        "Messages by state; errored ones are out of attempts and wait for a redrive";
};

pub fn encode_backlogs(encoder: &mut DescriptorEncoder<'_>, backlogs: &[Backlog]) -> Result<(), fmt::Error> {
    encode_each(encoder, BACKLOGS, backlogs.iter().map(|backlog| ([("queue", &*backlog.queue)], backlog)))?;
    let states = backlogs.iter().flat_map(|backlog| MessageState::ALL.map(|state| (backlog, state)));
    let states = states.map(|(backlog, state)| ((&*backlog.queue, state.to_string()), backlog.of(state)));
    let states: Vec<_> = states.collect();
    let labelled = states.iter().map(|((queue, state), messages)| ([("queue", *queue), ("state", state)], messages));
    encode_each(encoder, STATES, labelled)
}

const COUNTS: &[Metric<QueueCounts>] = metrics! { counts:
    Count "tallystone_queue_enqueued" = counts.enqueued.get(), "Messages enqueued, by queue";
    Count "tallystone_queue_leased" = counts.leased.get(), "Leases issued, by queue";
    Count "tallystone_queue_completed" = counts.completed.get(), "Messages completed, by queue";
    Count "tallystone_queue_failures" = counts.failed.get(), "Attempts failed by their workers";
    Count "tallystone_queue_errored" = counts.errored.get(), "Messages that ran out of attempts";
    Count "tallystone_queue_leases_expired" = counts.leases_expired.get(),
        "Leases that expired without a settlement";
    Count "tallystone_queue_messages_expired" = counts.messages_expired.get(),
        "Messages canceled because their TTL was over";
    Count "tallystone_queue_redriven" = counts.redriven.get(), "Messages redriven after they ran out of attempts";
    Count "tallystone_queue_steps_lost" = counts.steps_lost.get(),
        "Changes that this server was answered and that the store has lost";
};

const TIMES: &[Metric<QueueTimes>] = metrics! { times:
    Histogram "tallystone_queue_wait_seconds" = times.wait.read(), "From when messages were ready to their leases, by queue";
    Histogram "tallystone_queue_run_seconds" = times.run.read(), "From leases to their settlements, by queue";
};

/// How long messages waited and ran since the server started, by queue.
pub fn encode_times(
    encoder: &mut DescriptorEncoder<'_>,
    by_queue: &CountsBy<QueueTimes, METRIC_QUEUE_TIMES_MAX>,
) -> Result<(), fmt::Error> {
    encode_counts_by(encoder, ("queue", OTHER_QUEUES), TIMES, by_queue)
}

/// Writes the counts of what happened to messages since the server started, by queue. A queue that is deleted is shown
/// no more.
pub fn encode_counts(
    encoder: &mut DescriptorEncoder<'_>,
    by_queue: &CountsBy<QueueCounts, METRIC_QUEUES_MAX>,
) -> Result<(), fmt::Error> {
    encode_counts_by(encoder, ("queue", OTHER_QUEUES), COUNTS, by_queue)
}

/// The label of all queues that are not shown one by one; no queue has a name like it.
const OTHER_QUEUES: &str = "_other";

/// The first queues by name one by one, the others as one, with all they hold and their greatest age. Without any
/// queue, nothing waits.
pub fn shown_queues(overview: &Overview) -> Vec<Backlog> {
    let mut shown = overview.first.clone();
    if shown.is_empty() || overview.others.is_some() {
        let others = overview.others.clone().unwrap_or_default();
        shown.push(Backlog { queue: OTHER_QUEUES.to_owned(), ..others });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_queues_are_shown_as_one_and_without_any_queue_the_metric_is_there() {
        let queue = |name: &str, waiting| Backlog { queue: name.to_owned(), waiting, ..Backlog::default() };
        let named = |others| Overview { first: vec![queue("a", 1)], others, ..Overview::default() };
        assert_eq!(shown_queues(&named(None)), [queue("a", 1)]);
        assert_eq!(shown_queues(&named(Some(queue("", 2)))), [queue("a", 1), queue(OTHER_QUEUES, 2)]);
        assert_eq!(shown_queues(&Overview::default()), [queue(OTHER_QUEUES, 0)]);
        assert!(tallystone_domain::queue::QueueName::new(OTHER_QUEUES).is_err(), "no queue is called that");
    }
}
