//! Verdicts: any retry of any age inside retention gets a definite answer.

use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::counter::{Change, IdempotencyToken};
use tallystone::engine::counting::{TokenVerdict, WriteOutcome};

use super::{House, SECOND, applied, counter, token};

async fn check(house: &House, token: IdempotencyToken) -> TokenVerdict {
    house.drive(house.counting.check_token(&house.shop, counter("views"), token)).await.expect("a check that works")
}

#[tokio::test]
async fn a_token_that_came_too_late_is_not_applied_for_ever() {
    let house = House::new().await;
    let late = token("t1", house.now() - 30 * SECOND);
    let refused = house.add("views", 5, Some(late.clone())).await.expect_err("its time is closed");
    assert_eq!(refused.reason(), Reason::NotApplied);
    assert!(refused.server_time().is_some());
    assert_eq!(check(&house, late.clone()).await, TokenVerdict::NotApplied);
    let again = house.add("views", 5, Some(late)).await.expect_err("final");
    assert_eq!(again.reason(), Reason::NotApplied);
    house.pass(8 * SECOND).await;
    assert_eq!(house.fresh("views").await.count, 0);
}

#[tokio::test]
async fn an_applied_token_is_found_at_any_age_inside_retention() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    house.add("views", 5, Some(mine.clone())).await.expect("an add that works");
    for pause in [0, 20, 100] {
        house.pass(pause * SECOND).await;
        let TokenVerdict::Applied { change, event_time } = check(&house, mine.clone()).await else {
            panic!("the token was applied");
        };
        assert_eq!((change, event_time), (Change::Add(5), mine.key.time));
    }
}

#[tokio::test]
async fn an_unseen_token_that_may_still_arrive_is_pending_and_settled_later() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    let TokenVerdict::Pending { retry_after } = check(&house, mine.clone()).await else {
        panic!("its time is still open");
    };
    house.pass(retry_after + SECOND).await;
    assert_eq!(check(&house, mine.clone()).await, TokenVerdict::NotApplied);
    let refused = house.add("views", 5, Some(mine)).await.expect_err("settled for ever");
    assert_eq!(refused.reason(), Reason::NotApplied);
}

#[tokio::test]
async fn a_token_that_no_write_could_use_yet_is_refused_as_a_write_is() {
    let house = House::new().await;
    let ahead = token("t1", house.now() + Duration::from_secs(4 * 365 * 86_400));
    let refused = house.counting.check_token(&house.shop, counter("views"), ahead).await.expect_err("too far ahead");
    assert_eq!(refused.reason(), Reason::InvalidFutureTime);
    assert_eq!(refused.server_time(), Some(house.now()));
    let allowed = token("t2", house.now() + 4 * SECOND);
    let TokenVerdict::Pending { retry_after } = check(&house, allowed).await else {
        panic!("it may still arrive");
    };
    assert!(retry_after < 30 * SECOND, "{retry_after:?}");
}

#[tokio::test]
async fn a_token_older_than_the_oldest_slice_is_never_called_not_applied() {
    let house = House::new().await;
    let ancient = token("t1", house.now() - Duration::from_secs(9 * 86_400));
    assert_eq!(check(&house, ancient.clone()).await, TokenVerdict::TooOld);
    let refused = house.add("views", 5, Some(ancient)).await.expect_err("too old to say");
    assert_eq!(refused.reason(), Reason::TooOld);
}

#[tokio::test]
async fn a_clear_and_an_add_under_one_token_are_told_apart() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    house.clear("views", Some(mine.clone())).await.expect("a clear that works");
    assert_eq!(house.add("views", 5, Some(mine.clone())).await.expect_err("a clear").reason(), Reason::AlreadyExists);
    house.pass(20 * SECOND).await;
    assert_eq!(house.add("views", 5, Some(mine.clone())).await.expect_err("a clear").reason(), Reason::AlreadyExists);
    assert_eq!(applied(&house.clear("views", Some(mine)).await), Some(WriteOutcome::AlreadyApplied));
}
