//! The numbers of queues on the metrics page, with bounded labels.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::domain::limits::METRIC_QUEUES_MAX;
use crate::engine::queues::Backlog;
use crate::engine::stats::UndeclaredFilters;

/// The label of all filters that are not shown one by one.
const OTHER_SHAPES: &str = "~other";

/// The filters that would gain most from an index.
pub fn encode_undeclared(encoder: &mut DescriptorEncoder<'_>, filters: &UndeclaredFilters) -> Result<(), fmt::Error> {
    const NAME: &str = "tallystone_queue_undeclared_filter_messages";
    let help = "Messages that dequeues looked at one by one, because no shape of the keys of their filter is declared";
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
    by_queue("tallystone_queue_ready_messages", "Messages that are ready", |backlog| backlog.ready as f64)?;
    let help = "How long the message has been ready that is so for the longest, to the second";
    by_queue("tallystone_queue_ready_age_seconds", help, |backlog| backlog.oldest.as_secs_f64())
}

/// The label of all queues that are not shown one by one; no queue has a name like it.
const OTHER_QUEUES: &str = "_other";

/// Bounds the labels: the first queues by name one by one, the others as one, with all they hold and their greatest age.
/// Without any queue, nothing waits.
pub fn shown_queues(mut queues: Vec<Backlog>) -> Vec<Backlog> {
    queues.sort_by(|one, other| one.queue.cmp(&other.queue));
    let others = queues.split_off(queues.len().min(METRIC_QUEUES_MAX));
    let other = |ready, oldest| Backlog { queue: OTHER_QUEUES.to_owned(), ready, oldest };
    let all = others
        .iter()
        .fold(other(0, Duration::ZERO), |all, one| other(all.ready + one.ready, all.oldest.max(one.oldest)));
    if queues.is_empty() || !others.is_empty() {
        queues.push(all);
    }
    queues
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_queues_are_bounded_and_nothing_is_left_out() {
        let queue = |number: usize| Backlog {
            queue: format!("q{number:03}"),
            ready: 2,
            oldest: Duration::from_secs(number as u64),
        };
        let few = shown_queues((0..METRIC_QUEUES_MAX).rev().map(queue).collect());
        assert_eq!((few.len(), few[0].queue.as_str()), (METRIC_QUEUES_MAX, "q000"));
        assert!(few.iter().all(|backlog| backlog.queue != OTHER_QUEUES));
        let many = shown_queues((0..METRIC_QUEUES_MAX + 30).rev().map(queue).collect());
        let others = many.last().expect("there are many");
        let oldest = Duration::from_secs(METRIC_QUEUES_MAX as u64 + 29);
        assert_eq!((many.len(), others.queue.as_str()), (METRIC_QUEUES_MAX + 1, OTHER_QUEUES));
        assert_eq!((others.ready, others.oldest), (60, oldest));
        let none = shown_queues(Vec::new());
        assert_eq!((none.len(), none[0].ready, none[0].oldest), (1, 0, Duration::ZERO), "the metric is there");
        assert!(crate::domain::queue::QueueName::new(OTHER_QUEUES).is_err(), "no queue is called that");
    }
}
