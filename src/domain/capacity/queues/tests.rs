//! Laws of the plan of queues.

use proptest::prelude::*;

use super::*;
use crate::capacity::queues::embedded::{ANSWER_BYTES, FINISHED_BYTES, PENDING_BYTES};
use crate::limits::{METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::queue::MessageHead;
use crate::queue::index::dedupe_index::OutlivedResponse;
use crate::queue::index::shape_memory::SHAPE_MESSAGE_BYTES;
use crate::queue::messages::id_hash::IdHash;
use crate::time::Timestamp;

const HOUR: Duration = Duration::from_secs(3_600);

fn load(lives_per_second: u64) -> QueueLoad {
    QueueLoad {
        lives_per_1000_seconds: lives_per_second * 1_000,
        retention: HOUR,
        dedupe_window: HOUR,
        payload_bytes: 100,
        metadata_bytes: 0,
        pending: None,
    }
}

/// All numbers of a plan.
fn numbers(plan: &QueuePlan) -> Vec<u64> {
    let QueuePlan { finished, pending, answers, embedded, redis, warnings: _ } = plan;
    let of_embedded = [
        embedded.finished_bytes,
        embedded.pending_bytes,
        embedded.answers_bytes,
        embedded.memory_bytes,
        embedded.memory_setting_bytes,
        embedded.machine_bytes,
        embedded.heads_disk_bytes,
        embedded.bodies_disk_bytes,
        embedded.answers_disk_bytes,
        embedded.outbox_disk_bytes,
        embedded.history_disk_bytes,
        embedded.disk_bytes,
    ];
    let of_redis = [
        redis.finished_bytes,
        redis.pending_bytes,
        redis.answers_bytes,
        redis.used_memory_bytes,
        redis.maxmemory_bytes,
        redis.machine_bytes,
    ];
    [&[*finished, *pending, *answers], &of_embedded[..], &of_redis].concat()
}

#[test]
fn a_thousand_lives_a_second_for_an_hour_are_so_many_messages_and_bytes() {
    let plan = load(1_000).plan();
    assert_eq!((plan.finished, plan.pending, plan.answers), (3_600_000, 60_000, 600_000));
    let embedded = plan.embedded;
    assert_eq!(embedded.memory_bytes, 3_600_000 * 80 + 60_000 * 320 + 600_000 * 128);
    assert_eq!(embedded.memory_setting_bytes, 512 << 20, "a quarter more is 458 MiB");
    assert_eq!(embedded.machine_bytes, 1 << 30, "twice as much");
    let small = load(100).plan().embedded;
    assert_eq!((small.memory_setting_bytes, small.machine_bytes), (64 << 20, 464 << 20), "room for the process itself");
    assert_eq!(embedded.heads_disk_bytes, 3_660_000 * 300 * 2);
    assert_eq!(embedded.bodies_disk_bytes, 3_660_000 * 150 * 2);
    assert_eq!((embedded.outbox_disk_bytes, embedded.history_disk_bytes), (1 << 30, 16 << 30), "both are bounded");
    assert_eq!(embedded.history_reach, Duration::from_secs((16 << 30) / (1_000 * 3 * 156)), "about ten hours");
    assert_eq!([load(0), load(1)].map(|load| load.plan().embedded.history_reach), [7 * 24 * HOUR; 2]);
    let used = 3_600_000 * 110 + 60_000 * 376 + 600_000 * 120;
    assert_eq!(plan.redis.used_memory_bytes, used);
    assert!(used <= plan.redis.maxmemory_bytes / 100 * 85, "no operator is told");
    assert_eq!(plan.warnings, Vec::<String>::new());
}

#[test]
fn a_rate_may_be_a_fraction_and_messages_are_rounded_up() {
    let slow = QueueLoad { lives_per_1000_seconds: 1, retention: Duration::from_secs(1_001), ..load(0) };
    assert_eq!(slow.plan().finished, 2);
}

#[test]
fn no_lives_need_nothing() {
    let plan = load(0).plan();
    assert_eq!(numbers(&plan), vec![0; numbers(&plan).len()]);
}

#[test]
fn an_answer_outlives_its_message_until_its_ten_minutes_are_over() {
    let kept = |retention: u64| QueueLoad { retention: Duration::from_secs(retention), ..load(1) }.plan().answers;
    assert_eq!([3_600, 3_601, 4_199, 4_200, 86_400].map(kept), [600, 599, 1, 0, 0]);
}

#[test]
fn a_load_that_is_hard_to_keep_is_warned_about() {
    let said = |load: QueueLoad| load.plan().warnings;
    let day = QueueLoad { retention: 24 * HOUR, ..load(1_000) };
    assert!(said(day)[0].contains("shorter retention"), "{:?}", said(day));
    let many = QueueLoad { pending: Some(100_000_001), ..load(0) };
    assert_eq!(
        said(many),
        ["a queue with all of this load needs quota_messages = 100000001; the default is 100000000"]
    );
    let large = QueueLoad { payload_bytes: 32_768, pending: Some(2_097_153), ..load(0) };
    assert!(said(large)[0].contains("quota_bytes = 68719509504"), "{:?}", said(large));
    let repeats = said(load(4_000));
    assert!(repeats[0].contains("dedupe_max_bytes = 4300800000"), "{repeats:?}");
}

#[test]
fn messages_that_are_not_compact_on_redis_take_more() {
    let pending = |payload_bytes: u64, metadata_bytes: u64| {
        let one = QueueLoad { payload_bytes, metadata_bytes, pending: Some(1), ..load(0) };
        one.plan().redis.pending_bytes
    };
    assert_eq!([pending(512, 0), pending(513, 0)], [276 + 512, 576 + 642]);
    assert_eq!([pending(0, 400), pending(0, 401)], [276 + 532, 576 + 534]);
    assert!(pending(1_000, 0) > 1_307 && pending(32_768, 0) > 41_243, "the hashes alone were measured as so large");
}

#[test]
fn the_sizes_of_the_embedded_engine_have_room_for_the_values_of_the_domain() {
    const IN_INDEX_OF_IDS: u64 = 19;
    let head = (size_of::<MessageHead>() + SHAPE_MESSAGE_BYTES) as u64 + IN_INDEX_OF_IDS;
    assert!(PENDING_BYTES >= head, "a head, its rank and its place in the index of ids take {head}");
    let answer = size_of::<((IdHash, Timestamp), OutlivedResponse)>() as u64;
    assert!(ANSWER_BYTES >= answer, "an answer takes {answer}");
    const { assert!(FINISHED_BYTES >= 40 + IN_INDEX_OF_IDS, "a row, and its place in the index of ids") };
}

fn any_load() -> impl Strategy<Value = QueueLoad> {
    let times = (0..400_000_000_u64, 0..100_000_u64);
    let sizes = (0..=u64::from(PAYLOAD_BYTES_MAX), 0..=u64::from(METADATA_BYTES_MAX));
    (0..2_000_000_000_u64, times, sizes, proptest::option::of(any::<u64>())).prop_map(
        |(lives, times, sizes, pending)| {
            let (retention, dedupe_window) = (Duration::from_secs(times.0), Duration::from_secs(times.1));
            let (payload_bytes, metadata_bytes) = sizes;
            QueueLoad {
                lives_per_1000_seconds: lives,
                retention,
                dedupe_window,
                payload_bytes,
                metadata_bytes,
                pending,
            }
        },
    )
}

proptest! {
    #[test]
    fn more_of_anything_but_retention_needs_no_less(less in any_load(), by in 1..100_000_u64) {
        let before = numbers(&less.plan());
        let more = [
            QueueLoad { lives_per_1000_seconds: less.lives_per_1000_seconds + by, ..less },
            QueueLoad { dedupe_window: less.dedupe_window + Duration::from_secs(by), ..less },
            QueueLoad { payload_bytes: less.payload_bytes + by, ..less },
            QueueLoad { metadata_bytes: less.metadata_bytes + by, ..less },
            QueueLoad { pending: less.pending.map(|pending| pending.saturating_add(by)), ..less },
        ];
        for load in more {
            let after = numbers(&load.plan());
            prop_assert!(before.iter().zip(&after).all(|(before, after)| before <= after), "{:?}", load);
        }
    }

    #[test]
    fn a_longer_retention_keeps_more_messages_and_fewer_answers(less in any_load(), by in 1..100_000_u64) {
        let longer = QueueLoad { retention: less.retention + Duration::from_secs(by), ..less };
        let (before, after) = (less.plan(), longer.plan());
        prop_assert!(before.finished <= after.finished && before.answers >= after.answers);
        prop_assert!(before.embedded.heads_disk_bytes <= after.embedded.heads_disk_bytes);
        prop_assert!(before.redis.finished_bytes <= after.redis.finished_bytes);
    }

    #[test]
    fn no_load_overflows(lives in any::<u64>(), pending in any::<u64>(), bytes in any::<u64>()) {
        for time in [Duration::ZERO, HOUR, Duration::MAX] {
            for (payload_bytes, metadata_bytes) in [(bytes, u64::MAX), (u64::MAX, bytes)] {
                let (pending, lives) = (Some(pending), lives.max(u64::MAX / 2));
                let own = QueueLoad { payload_bytes, metadata_bytes, pending, ..load(0) };
                let huge = QueueLoad { lives_per_1000_seconds: lives, retention: time, dedupe_window: time, ..own };
                let plan = huge.plan();
                prop_assert!(plan.embedded.memory_bytes >= plan.embedded.finished_bytes);
                prop_assert!(plan.redis.maxmemory_bytes >= plan.redis.used_memory_bytes);
            }
        }
    }
}
