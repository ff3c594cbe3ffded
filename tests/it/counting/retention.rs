//! Retention: slices are dropped when everything in them is rolled up, and not before.

use std::time::Duration;

use tallystone::domain::rollup::SliceStatus;

use super::{House, SECOND, counter, spec};

const HOUR: Duration = Duration::from_secs(3_600);

async fn house() -> House {
    let mut short = spec("shop");
    short.dataset.seconds_per_slice = 3_600;
    short.dataset.close_after = 2 * HOUR;
    short.dataset.delete_after = 3 * HOUR;
    short.partition.seconds_per_bucket = 600;
    House::with(short).await
}

/// Moves the clock in strides, as a quiet night would.
async fn night(house: &House, hours: u32) {
    for _ in 0..hours * 60 {
        house.clock.advance(Duration::from_secs(60));
        house.rest().await;
    }
    house.pass(30 * SECOND).await;
}

#[tokio::test]
async fn a_slice_past_its_time_is_dropped_and_the_count_stays() {
    let house = house().await;
    let dataset = house.engine.namespaces().datasets()[0].id;
    house.add("views", 5, None).await.expect("an add that works");
    let first = house.stores.slices.list(dataset).await.expect("rows")[0].start;
    night(&house, 6).await;
    let rows = house.stores.slices.list(dataset).await.expect("rows");
    let row = rows.iter().find(|row| row.start == first).expect("a dropped slice keeps its row");
    assert_eq!(row.status, SliceStatus::Dropped);
    assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start), "slices touch without a gap");
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (5, false));
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 7);
    let recount = house.counting.recount(&house.shop, counter("views"), None, None).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.complete), (7, 7, false));
}
