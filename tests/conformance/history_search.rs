//! Searches of the history over rows far apart, many rows of one time, and a shard that lived through the same time twice.

use tallystone_domain::history::{HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};

use crate::history_given::{
    PlainHistory, QUEUE, WHOLE, append, batch, enqueued, failed, message, on_every_history, position, shard,
};

const MINUTE: i64 = 60_000;

/// One row in each stretch of thousands of positions, for some hours: most rows of the shard have other terms.
fn rare() -> Vec<HistoryRow> {
    (1..=60).map(|n| failed(message(0, n), position(n * 5_461), n as i64 * 7 * MINUTE, "rare")).collect()
}

/// Many rows of one millisecond, among those of others.
fn crowded() -> Vec<HistoryRow> {
    let millis = |n: u64| if n < 50 { 0 } else { 5 + i64::from(n > 1_300) };
    (1..=1_400).map(|n| failed(message(1, n), position(16_000 + n), millis(n), "rare")).collect()
}

/// Rows of two epochs in the same minutes.
fn twice() -> Vec<HistoryRow> {
    let row = |epoch, n: u64, millis| {
        let key = MessageKey { epoch, ..message(2, n) };
        failed(key, RowPosition { epoch, position: 100 + n * 900 }, millis, "rare")
    };
    let first = (1..=40).map(|n| row(1, n, n as i64 * MINUTE / 2));
    let second = (30..=70).map(|n| row(2, n, n as i64 * MINUTE / 2 - 12 * MINUTE));
    first.chain(second).collect()
}

#[tokio::test]
async fn history_store_law_5_a_search_goes_over_rows_far_apart_and_close_together() {
    on_every_history(async |history| {
        let mut plain = PlainHistory::default();
        let all = [batch(shard(0), rare()), batch(shard(1), crowded()), batch(shard(2), twice())];
        plain.append(&all);
        append(history, all.to_vec()).await;
        let term = HistoryTerm::Error("rare".into());
        let expected = plain.find(QUEUE, &term);
        assert_eq!(expected.len(), 60 + 1_400 + 81);
        for limit in [29, 700, usize::MAX] {
            let mut found: Vec<HistoryHit> = Vec::new();
            while found.len() < expected.len() {
                let page = history.find(WHOLE, &term, found.last().copied(), limit).await.expect("a search");
                assert!(!page.is_empty() && page.len() <= limit);
                found.extend(page);
            }
            assert!(found == expected, "in pages of {limit}");
        }
        // From any row on, also one that is not there.
        for before in expected.iter().step_by(97) {
            let other = HistoryHit { shard: (before.shard + 1) % 3, ..*before };
            for before in [*before, other] {
                let rest: Vec<HistoryHit> = expected.iter().filter(|row| **row < before).take(20).copied().collect();
                let found = history.find(WHOLE, &term, Some(before), 20).await.expect("a search");
                assert_eq!(found, rest, "before {before:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_9_a_read_sees_what_was_appended_by_calls_at_once() {
    on_every_history(async |history| {
        let rows = |number: u32, first: u64| -> Vec<HistoryRow> {
            let own = |n: u64| format!("{number}-{n}");
            (first..first + 50).map(|n| enqueued(message(number, n), position(n), n as i64, &own(n), "acme")).collect()
        };
        let calls = (0..3).flat_map(|number| [1, 26].map(|first| vec![batch(shard(number), rows(number, first))]));
        futures_util::future::join_all(calls.map(|call| append(history, call))).await;
        let found = history.find(WHOLE, &HistoryTerm::Enqueued, None, usize::MAX).await.expect("a search");
        assert_eq!(found.len(), 3 * 75);
        assert!(found.windows(2).all(|two| two[0] > two[1]));
    })
    .await;
}
