//! The laws of `Membership` and `FleetStore`, on the backends that several servers may share.

use std::collections::BTreeMap;
use std::sync::Arc;

use tallystone_adapters::memory;
use tallystone_domain::counter::{Change, Counter};
use tallystone_domain::fleet::{FleetSecret, Heartbeat, MemberId, Roles, SECRET_BYTES};
use tallystone_domain::limits::STEP;
use tallystone_domain::rollup::{BucketRecord, Checkpoint, VerifiedBase};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{FleetStore, Membership, ReadReplicas, Stores};
use tokio::task::JoinSet;

use crate::backends::on_every_backend;
use crate::given::{DATASET, OTHER_DATASET, append, at, counter, event, roll};
use crate::queue_redis::server::on_every_redis;

/// Runs a law on every backend that has a fleet.
async fn on_every_fleet(law: impl AsyncFn(Stores, Arc<dyn FleetStore>)) {
    on_every_backend(async |bench| {
        if let Some(fleet) = bench.stores.fleet.clone() {
            law(bench.stores.clone(), fleet.counters).await;
        }
    })
    .await;
}

/// Runs a law of membership on every backend that has a fleet, and on the members of queue stores.
async fn on_every_membership(law: impl AsyncFn(Arc<dyn Membership>)) {
    law(Arc::new(memory::MemoryMembership::default())).await;
    on_every_redis(async |server, clock| law(server.shared(&clock).await.membership).await).await;
    on_every_backend(async |bench| {
        if let Some(fleet) = bench.stores.fleet {
            law(fleet.members).await;
        }
    })
    .await;
}

/// A heartbeat of this number.
pub fn beat(number: u64) -> Heartbeat {
    let millis = i64::try_from(number).expect("small");
    let closed = BTreeMap::from([(DATASET, at(millis)), (OTHER_DATASET, Timestamp::MIN)]);
    let secret = Some(FleetSecret([u8::try_from(number % 251).expect("small"); SECRET_BYTES]));
    Heartbeat {
        number,
        roles: Roles { writer: true, roller: true },
        address: String::new(),
        closed,
        secret,
        queues_reported_to: Some(at(500)),
    }
}

const ONE: MemberId = MemberId([1; 16]);
const OTHER: MemberId = MemberId([2; 16]);

#[tokio::test]
async fn membership_law_1_the_heartbeat_with_the_greatest_number_stays() {
    on_every_membership(async |fleet| {
        assert_eq!(fleet.members().await.expect("members"), []);
        for number in [3, 1, 7, 2, 7] {
            fleet.beat(ONE, &beat(number)).await.expect("a heartbeat");
        }
        fleet.beat(OTHER, &beat(1)).await.expect("a heartbeat");
        assert_eq!(fleet.members().await.expect("members"), [(ONE, beat(7)), (OTHER, beat(1))]);
    })
    .await;
}

#[tokio::test]
async fn membership_law_2_a_member_that_was_removed_does_not_come_back() {
    on_every_membership(async |fleet| {
        fleet.beat(ONE, &beat(1)).await.expect("a heartbeat");
        fleet.remove(ONE).await.expect("a removal");
        fleet.beat(ONE, &beat(1_000_000)).await.expect("a heartbeat");
        assert_eq!(fleet.members().await.expect("members"), []);
        fleet.remove(OTHER).await.expect("a removal of nobody");
    })
    .await;
}

#[tokio::test]
async fn fleet_store_law_1_a_frontier_never_goes_back() {
    on_every_fleet(async |_, fleet| {
        assert_eq!(fleet.frontier(DATASET).await.expect("a frontier"), Timestamp::MIN);
        for (millis, expected) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
            fleet.raise_frontier(DATASET, at(millis)).await.expect("a frontier");
            assert_eq!(fleet.frontier(DATASET).await.expect("a frontier"), at(expected));
        }
        assert_eq!(fleet.frontier(OTHER_DATASET).await.expect("a frontier"), Timestamp::MIN);
    })
    .await;
}

#[tokio::test]
async fn fleet_store_law_2_a_mark_stands_in_the_step_of_its_own_time_beside_touches() {
    on_every_fleet(async |stores, fleet| {
        let views = counter("views");
        append(&stores, &views, event(0, "a", Change::Add(1))).await;
        append(&stores, &views, event(130_000, "b", Change::Add(1))).await;
        // Time buckets are a minute wide.
        for event in [61_000, 62_000, 7_000] {
            fleet.put_recheck_mark(DATASET, &views, at(event), at(130_001)).await.expect("a mark");
        }
        let shard = views.touch_shard();
        let mut found = Vec::new();
        loop {
            // One at a time, so that each answer goes on behind a mark or a touch.
            let page = stores.touches.touched(DATASET, shard, at(0), at(200_000), found.last(), 1).await;
            match page.expect("touches").pop() {
                Some(touch) => found.push(touch),
                None => break,
            }
        }
        let places: Vec<(Timestamp, Option<Timestamp>)> =
            found.iter().map(|touch| (touch.step, touch.recheck)).collect();
        let step = at(130_000).floor_to(STEP);
        assert_eq!(places, [(at(0), None), (step, None), (step, Some(at(0))), (step, Some(at(60_000)))]);
        assert!(found.iter().all(|touch| touch.counter == views));
    })
    .await;
}

fn sealed(count: i128, repairs: u64, millis: i64) -> VerifiedBase {
    let checkpoint = Checkpoint { count, repairs, ..Checkpoint::empty(at(millis)) };
    let repaired = vec![BucketRecord { rows: 1, sum: count, ..BucketRecord::empty(at(0)) }];
    VerifiedBase { checkpoint, repaired, verified_to: Timestamp::MIN }
}

#[tokio::test]
async fn fleet_store_law_3_of_racing_repairs_one_is_taken() {
    on_every_fleet(async |_, fleet| {
        let views = counter("views");
        assert_eq!(fleet.sealed(DATASET, &views).await.expect("nothing"), None);
        let mut before: Option<VerifiedBase> = None;
        for round in 1..=3 {
            let mut racing = JoinSet::new();
            for count in 0..4 {
                let (fleet, views, before) = (Arc::clone(&fleet), views.clone(), before.clone());
                racing.spawn(async move {
                    let next = sealed(count, round, 100);
                    let taken = fleet.seal(DATASET, &views, before.as_ref(), &next).await.expect("an answer");
                    taken.then_some(next)
                });
            }
            let taken: Vec<VerifiedBase> = racing.join_all().await.into_iter().flatten().collect();
            assert_eq!(taken.len(), 1, "{taken:?}");
            before = fleet.sealed(DATASET, &views).await.expect("what is sealed");
            assert_eq!(before, taken.first().cloned());
        }
    })
    .await;
}

#[tokio::test]
async fn fleet_store_law_3_a_repaired_value_counts_and_no_roll_of_the_one_before_brings_that_back() {
    on_every_fleet(async |stores, fleet| {
        let views = counter("views");
        let read = async || stores.rollups.read(DATASET, &views).await.expect("a row");
        let live = |count, repairs, millis| Checkpoint { count, repairs, ..Checkpoint::empty(at(millis)) };
        put(&stores, &views, live(1, 0, 1_000)).await;
        assert!(fleet.seal(DATASET, &views, None, &sealed(5, 1, 1_000)).await.expect("an answer"));
        let row = read().await;
        assert_eq!(row.effective_watermark(at(9_000)), Timestamp::MIN, "no watermark speaks of it");
        assert_eq!((row.checkpoint, row.just_repaired), (Some(sealed(5, 1, 1_000).checkpoint), true));
        put(&stores, &views, live(2, 0, 7_000)).await;
        assert_eq!(read().await.checkpoint, Some(sealed(5, 1, 1_000).checkpoint), "a roll on the value before it");
        put(&stores, &views, live(6, 1, 8_000)).await;
        let row = read().await;
        assert_eq!((row.checkpoint, row.just_repaired), (Some(live(6, 1, 8_000)), false));
    })
    .await;
}

async fn put(stores: &Stores, counter: &Counter, checkpoint: Checkpoint) {
    stores.rollups.put(DATASET, vec![roll(counter, checkpoint)]).await.expect("a roll");
}

#[tokio::test]
async fn fleet_store_law_3_a_value_is_sealed_without_a_repair_and_the_roll_of_its_number_counts() {
    on_every_fleet(async |stores, fleet| {
        let views = counter("views");
        let live = |count, millis| Checkpoint { count, ..Checkpoint::empty(at(millis)) };
        put(&stores, &views, live(1, 1_000)).await;
        let sealed = VerifiedBase { checkpoint: live(1, 1_000), repaired: Vec::new(), verified_to: at(600) };
        assert!(fleet.seal(DATASET, &views, None, &sealed).await.expect("an answer"));
        assert_eq!(fleet.sealed(DATASET, &views).await.expect("what is sealed"), Some(sealed.clone()));
        put(&stores, &views, live(2, 7_000)).await;
        let row = stores.rollups.read(DATASET, &views).await.expect("a row");
        assert_eq!((row.checkpoint, row.just_repaired), (Some(live(2, 7_000)), false));
        let further = VerifiedBase { verified_to: at(700), ..sealed.clone() };
        assert!(fleet.seal(DATASET, &views, Some(&sealed), &further).await.expect("an answer"));
        assert!(!fleet.seal(DATASET, &views, Some(&sealed), &sealed).await.expect("an answer"), "it was moved on");
    })
    .await;
}

#[tokio::test]
async fn fleet_store_law_4_how_far_a_shard_is_sealed_never_goes_back() {
    on_every_fleet(async |_, fleet| {
        let sealed_to = async || fleet.sealed_to(DATASET).await.expect("times");
        assert!(sealed_to().await.iter().all(Option::is_none));
        for (millis, expected) in [(5_000, 5_000), (3_000, 5_000), (9_000, 9_000)] {
            fleet.put_sealed(DATASET, 63, at(millis)).await.expect("a time");
            let times = sealed_to().await;
            assert_eq!((times.len(), times[63], times[0]), (64, Some(at(expected)), None));
        }
        assert!(fleet.sealed_to(OTHER_DATASET).await.expect("times").iter().all(Option::is_none));
    })
    .await;
}

#[tokio::test]
async fn a_whole_bucket_is_read_whatever_is_known_of_its_steps() {
    on_every_fleet(async |stores, fleet| {
        let views = counter("views");
        for (millis, token) in [(59_999, "before"), (60_000, "b"), (60_000, "a"), (119_999, "c"), (120_000, "after")] {
            append(&stores, &views, event(millis, token, Change::Add(1))).await;
        }
        let expected =
            [(60_000, "a"), (60_000, "b"), (119_999, "c")].map(|(millis, token)| event(millis, token, Change::Add(1)));
        for copies in [ReadReplicas::Quorum, ReadReplicas::All] {
            let found = fleet.bucket(DATASET, &views, at(60_000), copies).await.expect("events");
            assert_eq!(found.expect("its slice is there"), expected, "{copies:?}");
        }
    })
    .await;
}
