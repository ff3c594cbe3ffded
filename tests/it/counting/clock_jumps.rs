//! Clock jumps: values never change; what was closed stays closed.

use std::time::Duration;

use tallystone::domain::Reason;

use super::{House, SECOND, token};

#[tokio::test]
async fn after_a_backward_jump_older_tokens_are_refused_and_server_made_ones_go_on() {
    let house = House::new().await;
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    let limit_before = house.get("views").await.as_of;
    house.clock.set_wall(house.now() - Duration::from_secs(600));
    let refused = house.add("views", 10, Some(token("t1", house.now()))).await.expect_err("its time is closed");
    assert_eq!(refused.reason(), Reason::NotApplied);
    assert_eq!(refused.server_time().map(|time| time < limit_before), Some(true));
    house.add("views", 100, None).await.expect("a server-made token is above what is closed");
    assert_eq!(house.fresh("views").await.count, 101);
    assert!(house.get("views").await.as_of >= limit_before, "as_of never goes back");
    house.clock.set_wall(house.now() + Duration::from_secs(600));
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 101);
}

#[tokio::test]
async fn a_forward_jump_changes_no_value() {
    let house = House::new().await;
    house.add("views", 1, None).await.expect("an add that works");
    house.clock.set_wall(house.now() + Duration::from_secs(3_600));
    house.add("views", 10, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 11);
    house.pass(8 * SECOND).await;
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (11, false));
}
