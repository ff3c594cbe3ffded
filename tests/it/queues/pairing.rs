//! Counters belong to one queue store, by the mark beside them.

use std::sync::Arc;

use tallystone::adapters::memory::MemoryHistory;
use tallystone::domain::Timestamp;
use tallystone::domain::rules::QueueHome;
use tallystone::engine::bridge::pairing::{Pairing, StoreMark};
use tallystone::ports::HistoryStore;

/// The mark as three queue stores see it.
fn marks() -> [StoreMark; 3] {
    let history: Arc<dyn HistoryStore> = Arc::new(MemoryHistory::default());
    [1, 2, 3].map(|home| StoreMark::new(Arc::clone(&history), QueueHome([home; 12])))
}

async fn look(mark: &StoreMark) -> Pairing {
    mark.look(9).await.expect("an answer")
}

/// Adopts, and settles what was given.
async fn take(mark: &StoreMark, draw: u64) {
    let Pairing::Given(place) = mark.adopt(draw).await.expect("an answer") else { panic!("it was not given") };
    assert_eq!(mark.settle(place).await.expect("an answer"), Pairing::Paired);
}

#[tokio::test]
async fn counters_belong_to_the_first_queue_store_that_reports_to_them() {
    let [first, second, _] = marks();
    assert_eq!(first.look(14).await.expect("an answer"), Pairing::Paired);
    assert_eq!(second.look(18).await.expect("an answer"), Pairing::Apart, "also with a greater number");
    assert_eq!(first.look(2).await.expect("an answer"), Pairing::Paired);
}

#[tokio::test]
async fn an_adopted_store_waits_until_it_is_settled_and_the_one_before_is_apart_at_once() {
    let [first, second, _] = marks();
    look(&first).await;
    let given = second.adopt(7).await.expect("an answer");
    let Pairing::Given(place) = given else { panic!("{given:?}") };
    assert_eq!((look(&first).await, look(&second).await), (Pairing::Apart, given));
    assert_eq!(second.adopt(99).await.expect("an answer"), given, "sent twice it changes nothing more");
    assert_eq!(second.settle(place).await.expect("an answer"), Pairing::Paired);
    assert_eq!((look(&first).await, look(&second).await), (Pairing::Apart, Pairing::Paired));
    assert_eq!(second.adopt(99).await.expect("an answer"), Pairing::Paired);
    take(&first, 1).await;
    assert_eq!((look(&first).await, look(&second).await), (Pairing::Paired, Pairing::Apart), "and back");
}

#[tokio::test]
async fn a_store_that_was_overtaken_before_it_settled_gets_nothing() {
    let [first, second, third] = marks();
    look(&first).await;
    let Pairing::Given(place) = second.adopt(u64::MAX).await.expect("an answer") else { panic!("it was not given") };
    take(&third, 0).await;
    assert_eq!(second.settle(place).await.expect("an answer"), Pairing::Apart);
    assert_eq!(look(&third).await, Pairing::Paired);
}

#[tokio::test]
async fn the_latest_time_up_to_which_a_store_reported_is_kept() {
    let [first, second, _] = marks();
    assert_eq!(second.reported_to().await.expect("an answer"), None);
    for seconds in [60, 120, 90] {
        first.note_reported(Timestamp::from_secs(seconds)).await.expect("noted");
    }
    assert_eq!(second.reported_to().await.expect("an answer"), Some(Timestamp::from_secs(120)));
}
