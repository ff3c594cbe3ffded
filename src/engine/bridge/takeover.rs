//! A takeover: the totals of a queue that differ from those that the counters know.
//!
//! No list of reported names is kept anywhere. A reporter that knows nothing reads the counters of the queue first and
//! the shard second. So it reports a total for every difference, and 0 where the shard has nothing, whatever was
//! reported before, by this process or by another one.

use std::collections::{BTreeMap, BTreeSet};

use crate::bridge::shard_state::{counter_of, serial_of, source_of};
use crate::bridge::totals::all_totals;
use crate::counting::QueueTotal;
use tallystone_domain::counter::ReportSource;
use tallystone_domain::queue::QueueName;
use tallystone_domain::rollup::SourceTotal;
use tallystone_ports::ShardReport;

/// The known totals of the sources of a queue, by source and by the name of the counter.
pub type KnownBySource = BTreeMap<Box<str>, BTreeMap<String, SourceTotal>>;

/// The epoch for the totals of a shard, and the totals that differ. `created` is the creation time of the queue in
/// microseconds.
///
/// The epoch is the least that makes the shard's totals win: that of the known totals where the shard lies above their
/// greatest serial, and the next one where it lies below, or where it equals that serial with other totals.
pub fn differences(
    queue: &QueueName,
    number: u32,
    created: u64,
    known: &KnownBySource,
    report: &ShardReport,
) -> (u64, Vec<QueueTotal>) {
    let (source, serial, position) = (source_of(number), serial_of(report), report.position.position);
    let none = BTreeMap::new();
    let known = known.get(source.as_str()).unwrap_or(&none);
    let own = all_totals(report);
    let own_of = |name: &str| own.get(name).copied().unwrap_or(0);
    let newest = known.values().map(|total| (total.epoch, total.serial)).max().unwrap_or_default();
    let mut epoch = created.max(newest.0);
    let is_other =
        |(name, total): (&String, &SourceTotal)| (total.epoch, total.serial) == newest && total.total != own_of(name);
    if newest.0 == epoch && (newest.1 > serial || (newest.1 == serial && known.iter().any(is_other))) {
        epoch += 1;
    }
    let names: BTreeSet<&String> = known.keys().chain(own.keys()).collect();
    let differs = |name: &&String| known.get(*name).map_or(0, |known| known.total) != own_of(name);
    let total = |name: &String| QueueTotal {
        counter: counter_of(queue, name),
        source: source.clone(),
        epoch,
        serial,
        total: own_of(name),
        positions: (position.min(1), position),
    };
    (epoch, names.into_iter().filter(differs).map(total).collect())
}

/// Zeros for the known totals of sources that are no shards of the queue: those from `shards` on.
pub fn zeros(queue: &QueueName, shards: u32, known: &KnownBySource) -> Vec<QueueTotal> {
    let live: BTreeSet<String> = (0..shards).map(|number| source_of(number).as_str().to_owned()).collect();
    let gone = known.iter().filter(|(source, _)| !live.contains(&***source));
    let of_source = |(source, totals): (&str, &BTreeMap<String, SourceTotal>)| {
        let source = ReportSource::new(source).ok();
        let epoch = totals.values().map(|total| total.epoch).max().unwrap_or(0) + 1;
        let left = totals.iter().filter(|(_, total)| total.total != 0);
        let zero = |(name, _): (&String, &SourceTotal)| {
            let (counter, source) = (counter_of(queue, name), source.clone()?);
            Some(QueueTotal { counter, source, epoch, serial: 0, total: 0, positions: (0, 0) })
        };
        left.filter_map(zero).collect::<Vec<_>>()
    };
    gone.map(|(source, totals)| (&**source, totals)).flat_map(of_source).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tallystone_domain::Timestamp;
    use tallystone_domain::queue::tally::ShardCounts;
    use tallystone_domain::queue::totals::Totals;
    use tallystone_domain::queue::transition::RowPosition;

    fn queue() -> QueueName {
        QueueName::new("orders").expect("a name")
    }

    /// A report whose only total is `enqueued_bytes`.
    fn report(position: u64, bytes: u64) -> ShardReport {
        ShardReport {
            position: RowPosition { epoch: 1, position },
            at: Timestamp::from_secs(1),
            totals: Totals::default(),
            counts: Box::new(ShardCounts { position, enqueued_bytes: bytes, ..ShardCounts::default() }),
            values: Vec::new(),
            signatures: Vec::new(),
        }
    }

    /// A counter store: the total with the greatest epoch and serial of each name wins.
    #[derive(Default, Clone)]
    struct Known(KnownBySource);

    impl Known {
        fn take(&mut self, totals: &[QueueTotal]) {
            for total in totals {
                let name = total.counter.as_str().split_once('~').expect("a counter of a queue").1.to_owned();
                let of_source = self.0.entry(total.source.as_str().into()).or_default();
                let (epoch, serial) = (total.epoch, total.serial);
                let new = SourceTotal { epoch, serial, total: total.total, time: Timestamp::from_secs(1) };
                let held = of_source.entry(name).or_insert(new);
                if (held.epoch, held.serial) < (epoch, serial)
                    || ((held.epoch, held.serial) == (epoch, serial) && held.total < new.total)
                {
                    *held = new;
                }
            }
        }

        fn total(&self, name: &str) -> i64 {
            self.0.values().filter_map(|totals| totals.get(name)).map(|total| total.total).sum()
        }
    }

    #[test]
    fn an_equal_shard_has_nothing_to_say_and_a_rewound_one_wins() {
        let mut known = Known::default();
        let (epoch, totals) = differences(&queue(), 0, 70, &known.0, &report(5, 40));
        assert_eq!((epoch, totals.len(), totals[0].total), (70, 1, 40));
        known.take(&totals);
        assert_eq!(differences(&queue(), 0, 70, &known.0, &report(5, 40)), (70, vec![]));
        let (epoch, totals) = differences(&queue(), 0, 70, &known.0, &report(3, 25));
        assert_eq!(epoch, 71, "the store went back");
        known.take(&totals);
        assert_eq!(known.total("enqueued_bytes"), 25);
        let (epoch, totals) = differences(&queue(), 0, 70, &known.0, &report(3, 26));
        assert_eq!(epoch, 72, "another history reached the same position");
        known.take(&totals);
        assert_eq!(known.total("enqueued_bytes"), 26);
        let (epoch, _) = differences(&queue(), 0, 70, &known.0, &report(4, 30));
        assert_eq!(epoch, 72, "the next report goes on");
    }

    #[test]
    fn sources_that_are_no_shards_any_more_become_zero() {
        let mut known = Known::default();
        for number in 0..3 {
            known.take(&differences(&queue(), number, 70, &known.0, &report(5, 10)).1);
        }
        assert_eq!(known.total("enqueued_bytes"), 30);
        known.take(&zeros(&queue(), 1, &known.0));
        assert_eq!(known.total("enqueued_bytes"), 10);
        known.take(&zeros(&queue(), 0, &known.0));
        assert_eq!(known.total("enqueued_bytes"), 0);
        let (epoch, totals) = differences(&queue(), 0, 60, &known.0, &report(1, 3));
        known.take(&totals);
        assert_eq!((epoch, known.total("enqueued_bytes")), (71, 3), "a queue made anew, by a clock that went back");
    }

    proptest! {
        /// However stores are rewound, and whichever reports are lost, doubled or delayed: a takeover after them makes
        /// the counters equal the shard.
        #[test]
        fn a_takeover_makes_the_counters_equal_the_shard(
            steps in prop::collection::vec((0_u8..4, 0_u64..4, 0_u64..50), 1..40),
        ) {
            let (mut known, mut delayed, mut position) = (Known::default(), Vec::new(), 1_u64);
            let mut bytes = 0;
            for (kind, by, size) in steps {
                match kind {
                    0 => position += by + 1,
                    1 => position = position.saturating_sub(by).max(1),
                    _ => {} // the position stays
                }
                bytes = size;
                let (_, totals) = differences(&queue(), 0, 70, &known.0, &report(position, bytes));
                match kind {
                    2 => delayed.push(totals),
                    3 => delayed.drain(..).for_each(|late: Vec<QueueTotal>| known.take(&late)),
                    _ => known.take(&totals),
                }
            }
            delayed.into_iter().for_each(|late| known.take(&late));
            let (_, totals) = differences(&queue(), 0, 70, &known.0, &report(position, bytes));
            known.take(&totals);
            prop_assert_eq!(known.total("enqueued_bytes"), i64::try_from(bytes).expect("small"));
        }
    }
}
