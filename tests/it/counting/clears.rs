//! Clears: visible at once, idempotent, right among late adds.

use tallystone::domain::rollup::Exactness;
use tallystone::engine::counting::WriteOutcome;

use super::{House, SECOND, applied, token};

#[tokio::test]
async fn a_clear_is_visible_to_every_read_that_begins_after_it() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 5);
    house.clear("views", None).await.expect("a clear that works");
    assert_eq!(house.get("views").await.count, 0);
    assert_eq!(house.fresh("views").await.count, 0);
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 0);
}

#[tokio::test]
async fn a_count_that_a_clear_is_ahead_of_is_an_estimate() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    house.clear("views", None).await.expect("a clear that works");
    let cleared = house.get("views").await;
    assert_eq!((cleared.count, cleared.exactness), (0, Exactness::Estimate), "as of then it was 5");
    assert_eq!(house.fresh("views").await.exactness, Exactness::UpToDate);
    house.clear("empty", None).await.expect("a clear that works");
    let empty = house.get("empty").await;
    assert_eq!((empty.count, empty.exactness), (0, Exactness::ExactAsOf), "it was 0 before");
    house.pass(8 * SECOND).await;
    let rolled_up = house.get("views").await;
    assert_eq!((rolled_up.count, rolled_up.exactness), (0, Exactness::ExactAsOf));
}

#[tokio::test]
async fn an_add_stamped_after_the_clear_counts_whenever_it_arrives() {
    let house = House::new().await;
    let before = token("before", house.now());
    let clear = token("clear", house.now() + SECOND);
    let after = token("after", house.now() + 2 * SECOND);
    house.add("views", 100, Some(after)).await.expect("an add that works");
    house.clear("views", Some(clear)).await.expect("a clear that works");
    house.add("views", 7, Some(before)).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 100);
    house.pass(12 * SECOND).await;
    assert_eq!(house.get("views").await.count, 100);
}

#[tokio::test]
async fn a_repeated_clear_wipes_nothing_that_came_after_it() {
    let house = House::new().await;
    let clear = token("clear", house.now());
    assert_eq!(applied(&house.clear("views", Some(clear.clone())).await), Some(WriteOutcome::Applied));
    house.pass(SECOND).await;
    house.add("views", 3, None).await.expect("an add that works");
    assert_eq!(applied(&house.clear("views", Some(clear.clone())).await), Some(WriteOutcome::AlreadyApplied));
    assert_eq!(house.fresh("views").await.count, 3);
    house.pass(20 * SECOND).await;
    assert_eq!(applied(&house.clear("views", Some(clear)).await), Some(WriteOutcome::AlreadyApplied));
    assert_eq!(house.get("views").await.count, 3);
}

#[tokio::test]
async fn changes_of_the_servers_own_take_effect_in_turn_while_the_clock_stands_still() {
    let house = House::new().await;
    let begin = house.now();
    for round in 0..50 {
        let name = format!("views-{round}");
        house.add(&name, 5, None).await.expect("an add that works");
        house.clear(&name, None).await.expect("a clear that works");
        assert_eq!(house.fresh(&name).await.count, 0, "the clear of {name} wipes what was acknowledged before it");
        house.add(&name, 7, None).await.expect("an add that works");
        assert_eq!(house.fresh(&name).await.count, 7, "the clear of {name} wipes nothing that came after it");
    }
    assert_eq!(house.now(), begin, "all of it happened within one millisecond");
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views-7").await.count, 7);
}
