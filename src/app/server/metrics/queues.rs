//! The numbers of queues on the metrics page, with bounded labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::app::server::metrics::{NamedMetric, encode_named};
use crate::domain::limits::METRIC_QUEUES_MAX;
use crate::domain::queue::MessageState;
use crate::engine::queues::{Backlog, Overview};
use crate::engine::stats::{CountsBy, QueueCounts, UndeclaredFilters};

/// The label of all filters that are not shown one by one.
const OTHER_SHAPES: &str = "~other";

/// The filters that would gain most from an index.
pub fn encode_undeclared(encoder: &mut DescriptorEncoder<'_>, filters: &UndeclaredFilters) -> Result<(), fmt::Error> {
    const NAME: &str = "tallystone_queue_undeclared_filter_messages";
    let help = "Messages examined one by one by dequeues whose filter keys have no declared shape";
    let mut family = encoder.encode_descriptor(NAME, help, None, MetricType::Counter)?;
    let (shapes, others) = filters.get();
    let shown = shapes.into_iter().map(|(keys, count)| (keys.iter().collect::<Vec<_>>().join(","), count));
    for (shape, count) in shown.chain([(OTHER_SHAPES.to_owned(), others)]) {
        ConstCounter::new(count).encode(family.encode_family(&[("shape", shape)])?)?;
    }
    Ok(())
}

pub fn encode_backlogs(encoder: &mut DescriptorEncoder<'_>, backlogs: &[Backlog]) -> Result<(), fmt::Error> {
    let mut by_queue = |name, help, value: fn(&Backlog) -> f64| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for backlog in backlogs {
            let labels = [("queue", backlog.queue.clone())];
            ConstGauge::new(value(backlog)).encode(family.encode_family(&labels)?)?;
        }
        Ok::<(), fmt::Error>(())
    };
    by_queue("tallystone_queue_ready_messages", "Ready messages", |backlog| backlog.of(MessageState::Pending))?;
    let help = "Age of the longest-ready message, to the second";
    by_queue("tallystone_queue_ready_age_seconds", help, |backlog| backlog.oldest.as_secs_f64())?;
    let help = "Waiting dequeues of the queue at this server";
    by_queue("tallystone_queue_dequeues_waiting", help, |backlog| backlog.waiting as f64)?;
    let help = "Messages by state; errored ones are out of attempts and wait for a redrive";
    let mut family = encoder.encode_descriptor("tallystone_queue_messages", help, None, MetricType::Gauge)?;
    for (backlog, state) in backlogs.iter().flat_map(|backlog| MessageState::ALL.map(|state| (backlog, state))) {
        let labels = [("queue", backlog.queue.clone()), ("state", state.to_string())];
        ConstGauge::new(backlog.of(state)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

const COUNTS: &[NamedMetric<QueueCounts>] = &[
    ("tallystone_queue_failures", "Attempts failed by their workers", |c| c.failed.get()),
    ("tallystone_queue_errored", "Messages that ran out of attempts", |c| c.errored.get()),
    ("tallystone_queue_leases_expired", "Leases that expired without a settlement", |c| c.leases_expired.get()),
    ("tallystone_queue_messages_expired", "Messages canceled because their TTL was over", |c| c.messages_expired.get()),
    ("tallystone_queue_redriven", "Messages redriven after they ran out of attempts", |c| c.redriven.get()),
];

/// What happened to messages since the server started, by queue; a queue that is deleted is shown no more.
pub fn encode_counts(
    encoder: &mut DescriptorEncoder<'_>,
    by_queue: &CountsBy<QueueCounts, METRIC_QUEUES_MAX>,
) -> Result<(), fmt::Error> {
    encode_named(encoder, ("queue", OTHER_QUEUES), COUNTS, by_queue)
}

/// The label of all queues that are not shown one by one; no queue has a name like it.
const OTHER_QUEUES: &str = "_other";

/// The first queues by name one by one, the others as one, with all they hold and their greatest age. Without any queue,
/// nothing waits.
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
        assert!(crate::domain::queue::QueueName::new(OTHER_QUEUES).is_err(), "no queue is called that");
    }
}
