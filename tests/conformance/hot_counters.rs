//! Laws of the event log over slices that froze different settings of one namespace: its hot counters have other event
//! buckets in one than in the other, where a store has event buckets.

use tallystone_domain::counter::{Change, Counter, Event};
use tallystone_domain::rollup::TimeSlice;
use tallystone_ports::{AppendOutcome, ScanOrder, ScanRange, Stores, VerdictOutcome};

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{DATASET, HOT, all_events, append, counter, event, everything, key, slice_of_version};

/// The last microsecond but two seconds of the newest slice of `given::slices`, in milliseconds.
const BEFORE_CHANGE: i64 = 1_198_000;
/// The beginning of the slice that froze changed settings.
const AFTER_CHANGE: i64 = 1_200_000;
const TOKENS: i64 = 20;

/// A slice in which everything but the tokens is as in the one before it.
fn changed_slice() -> TimeSlice {
    slice_of_version(DATASET, AFTER_CHANGE, 2)
}

/// Events on both sides of the change, in the order of their keys.
fn events() -> Vec<Event> {
    let of = |from: i64| (0..TOKENS).map(move |at| event(from + at, &format!("token-{at}"), Change::Add(at)));
    of(BEFORE_CHANGE).chain(of(AFTER_CHANGE)).collect()
}

async fn append_everything(stores: &Stores, counter: &Counter) {
    for event in events() {
        append(stores, counter, event).await;
    }
}

#[tokio::test]
async fn event_log_law_2_a_token_meets_its_row_whatever_event_buckets_its_slice_froze() {
    on_every_durable_backend(async |bench, ending| {
        bench.stores.slices.create(changed_slice()).await.expect("a new slice");
        for name in HOT {
            append_everything(&bench.stores, &counter(name)).await;
        }
        // Whoever comes later knows the settings from the rows of the slices only.
        let bench = bench.reopen(ending).await;
        for name in HOT {
            let hot = counter(name);
            for event in events() {
                let again = append(&bench.stores, &hot, event.clone()).await;
                if bench.stores.log.capabilities().reports_existing {
                    assert_eq!(again, AppendOutcome::Existing(event.change));
                }
                let found = bench.stores.log.find(DATASET, &hot, &event.key).await.expect("a find");
                assert_eq!(found, Some(event));
            }
            assert_eq!(all_events(&bench.stores, &hot).await, events(), "each token has one row");
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_4_a_verdict_finds_the_row_of_a_hot_counter_and_voids_one_that_is_not_there() {
    on_every_backend(async |bench| {
        let (stores, hot) = (&bench.stores, counter(HOT[0]));
        stores.slices.create(changed_slice()).await.expect("a new slice");
        append_everything(stores, &hot).await;
        for event in events() {
            let settled = stores.log.settle(DATASET, &hot, &event.key).await.expect("a verdict");
            assert_eq!(settled, VerdictOutcome::Found(event));
        }
        for at in 0..TOKENS {
            let free = key(AFTER_CHANGE + 1_000 + at, "free");
            assert_eq!(stores.log.settle(DATASET, &hot, &free).await.expect("a verdict"), VerdictOutcome::Voided);
            let void = stores.log.find(DATASET, &hot, &free).await.expect("a find").expect("a void stands there");
            assert_eq!(void.change, Change::Void);
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_5_pages_of_a_hot_counter_go_over_the_change_in_order() {
    on_every_backend(async |bench| {
        let (stores, hot) = (&bench.stores, counter(HOT[1]));
        stores.slices.create(changed_slice()).await.expect("a new slice");
        append_everything(stores, &hot).await;
        for order in [ScanOrder::OldestFirst, ScanOrder::NewestFirst] {
            let mut expected = events();
            if order == ScanOrder::NewestFirst {
                expected.reverse();
            }
            for page in [1, 7, 100] {
                let mut range = ScanRange { order, limit: page, ..everything() };
                let mut read: Vec<Event> = Vec::new();
                loop {
                    let events = stores.log.scan(DATASET, &hot, range.clone()).await.expect("a scan");
                    let is_last = events.len() < page;
                    read.extend(events);
                    if is_last {
                        break;
                    }
                    range.beyond = read.last().map(|event| event.key.clone());
                }
                assert_eq!(read, expected, "{order:?} in pages of {page}");
            }
        }
    })
    .await;
}
