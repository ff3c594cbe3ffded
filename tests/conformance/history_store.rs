//! The laws of `HistoryStore`, on every backend that keeps a history.

use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{MessageState, QueueId, ShardId};
use tallystone_ports::{HistoryBatch, HistoryStore};

use crate::backends::on_every_durable_backend;
use crate::given::at;
use crate::history_given::{
    OTHER_QUEUE, OTHER_WHOLE, QUEUE, WHOLE, append, batch, cursor, enqueued, extended, failed, find_all, history_of,
    id, leased, message, on_every_history, position, shard, whole_trace,
};

const HOUR: i64 = 3_600_000;

/// The life of a message from its enqueue to its last failure, from position 1 on.
fn life() -> Vec<HistoryRow> {
    let key = message(0, 1);
    vec![
        enqueued(key, position(1), 0, "a", "acme"),
        leased(key, position(2), 10),
        extended(key, position(3), 20),
        failed(key, position(4), 30, "timeout"),
    ]
}

fn gap(shard: u32, positions: (u64, u64), millis: (i64, i64)) -> HistoryGap {
    HistoryGap {
        shard,
        epoch: 1,
        from_position: positions.0,
        to_position: positions.1,
        from_time: at(millis.0),
        to_time: at(millis.1),
    }
}

/// A call with no rows.
fn gaps_at(shard: ShardId, gaps: Vec<HistoryGap>, to: RowPosition) -> HistoryBatch {
    HistoryBatch { shard, rows: Vec::new(), gaps, cursor: cursor(to) }
}

fn of_epoch(epoch: u32, position: u64) -> RowPosition {
    RowPosition { epoch, position }
}

async fn cursor_of(history: &dyn HistoryStore, shard: ShardId) -> Option<HistoryCursor> {
    history.cursor(shard).await.expect("a cursor")
}

#[tokio::test]
async fn history_store_law_1_a_batch_that_is_written_again_changes_nothing() {
    on_every_history(async |history| {
        let rows = life();
        let gaps = vec![gap(0, (5, 9), (30, 40))];
        let whole = HistoryBatch { gaps: gaps.clone(), cursor: cursor(position(9)), ..batch(shard(0), rows.clone()) };
        let other = batch(shard(1), vec![enqueued(message(1, 1), position(1), 5, "a", "acme")]);
        append(history, vec![whole.clone(), other.clone()]).await;
        for again in [vec![whole.clone()], vec![other.clone(), whole.clone()], vec![whole.clone(), whole.clone()]] {
            append(history, again).await;
            assert_eq!(whole_trace(history, QUEUE, message(0, 1)).await, rows);
            assert_eq!(find_all(history, WHOLE, &HistoryTerm::Enqueued).await.len(), 2);
            assert_eq!(history.lives(QUEUE, &id("a"), 9).await.expect("lives"), [message(1, 1), message(0, 1)]);
            assert_eq!(history.gaps(WHOLE, 9).await.expect("gaps"), gaps);
            assert_eq!(cursor_of(history, shard(0)).await, Some(whole.cursor.clone()));
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_1_rows_may_be_written_again_in_other_batches() {
    on_every_history(async |history| {
        let rows = life();
        append(history, vec![batch(shard(0), rows.clone())]).await;
        // Of two writers the slower one sends parts of what the other one sent at once.
        for part in [&rows[..2], &rows[1..3], &rows[..1], &rows[3..], &rows[2..]] {
            append(history, vec![batch(shard(0), part.to_vec())]).await;
            assert_eq!(whole_trace(history, QUEUE, message(0, 1)).await, rows);
            let newest = history.last(QUEUE, vec![message(0, 1)]).await.expect("rows");
            assert_eq!(newest, [rows.last().cloned()]);
        }
        assert_eq!(cursor_of(history, shard(0)).await, Some(cursor(position(4))));
    })
    .await;
}

#[tokio::test]
async fn history_store_law_1_rows_that_are_written_again_in_other_batches_are_found_once() {
    on_every_history(async |history| {
        let row = |n: u64| enqueued(message(0, n), position(n), n as i64, &n.to_string(), "acme");
        let rows: Vec<HistoryRow> = (1..=9).map(row).collect();
        for part in [&rows[..], &rows[8..], &rows[4..], &rows[..5], &rows[1..9], &rows[..2]] {
            append(history, vec![batch(shard(0), part.to_vec())]).await;
            let found = find_all(history, WHOLE, &HistoryTerm::Enqueued).await;
            let found: Vec<u64> = found.iter().map(|hit| hit.position.position).collect();
            assert_eq!(found, (1..=9).rev().collect::<Vec<_>>());
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_2_the_cursor_never_goes_back() {
    on_every_history(async |history| {
        assert_eq!(cursor_of(history, shard(0)).await, None);
        let steps = [(1, 5, (1, 5)), (1, 3, (1, 5)), (2, 1, (2, 1)), (1, 900, (2, 1)), (2, 4, (2, 4)), (2, 2, (2, 4))];
        for (epoch, position, (known_epoch, known_position)) in steps {
            append(history, vec![gaps_at(shard(0), Vec::new(), of_epoch(epoch, position))]).await;
            let known = cursor(of_epoch(known_epoch, known_position));
            assert_eq!(cursor_of(history, shard(0)).await, Some(known), "after {epoch}/{position}");
        }
        // Of several batches of a shard in one call, too.
        let both = [8, 6].map(|position| gaps_at(shard(0), Vec::new(), of_epoch(2, position)));
        append(history, both.to_vec()).await;
        assert_eq!(cursor_of(history, shard(0)).await, Some(cursor(of_epoch(2, 8))));
        assert_eq!(cursor_of(history, shard(1)).await, None);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_2_a_register_of_4_kib_is_kept_to_the_byte() {
    on_every_history(async |history| {
        let register: Box<[u8]> = (0..4_096_u32).map(|n| n.to_le_bytes()[0]).collect();
        let kept = HistoryCursor { position: position(1), register };
        append(history, vec![HistoryBatch { shard: shard(0), rows: vec![], gaps: vec![], cursor: kept.clone() }]).await;
        assert_eq!(cursor_of(history, shard(0)).await, Some(kept));
    })
    .await;
}

#[tokio::test]
async fn history_store_law_3_a_trace_has_every_row_of_its_message_in_the_order_of_positions() {
    on_every_history(async |history| {
        let key = message(0, 1);
        // A neighbour in every part of the key.
        let others = [message(0, 0), message(0, 2), message(1, 1), message(0, 256)];
        append(history, vec![batch(shard(0), life())]).await;
        for (number, other) in others.into_iter().enumerate() {
            let place = position(100 + number as u64);
            append(history, vec![batch(shard(other.shard), vec![extended(other, place, 50)])]).await;
        }
        // The store of queues went back to an older copy: its clock did as well, and the next epoch began.
        let back = vec![extended(key, of_epoch(2, 3), 15), failed(key, of_epoch(2, 4), 16, "again")];
        append(history, vec![batch(shard(0), back.clone())]).await;
        let rows = [life(), back].concat();
        assert_eq!(whole_trace(history, QUEUE, key).await, rows);
        for skipped in 0..=rows.len() {
            let after = skipped.checked_sub(1).map(|last| rows[last].position());
            for limit in [0, 1, 2, 99] {
                let expected: Vec<HistoryRow> = rows[skipped..].iter().take(limit).cloned().collect();
                assert_eq!(history.trace(QUEUE, key, after, limit).await.expect("a trace"), expected);
            }
        }
        assert_eq!(whole_trace(history, QUEUE, message(0, 77)).await, []);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_3_a_trace_goes_over_days_and_late_rows_take_their_places() {
    on_every_history(async |history| {
        let key = message(0, 1);
        let hours = [0, 5, 9, 30, 31, 80, 120];
        let rows: Vec<HistoryRow> =
            (1..).zip(hours).map(|(number, hour)| extended(key, position(number), hour * HOUR)).collect();
        for number in [3, 0, 6, 5, 1, 4, 2] {
            append(history, vec![batch(shard(0), vec![rows[number].clone()])]).await;
        }
        assert_eq!(whole_trace(history, QUEUE, key).await, rows);
        let after = Some(position(2));
        assert_eq!(history.trace(QUEUE, key, after, 3).await.expect("a trace"), rows[2..5]);
        assert_eq!(history.last(QUEUE, vec![key]).await.expect("rows"), [rows.last().cloned()]);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_4_the_newest_life_of_an_id_comes_first() {
    on_every_history(async |history| {
        let lives = [(0, 0), (1, 50 * HOUR), (2, 2 * HOUR), (0, 51 * HOUR), (1, HOUR)];
        for (number, (of, millis)) in (1..).zip(lives) {
            let row = enqueued(message(of, number), position(number), millis, "a", "acme");
            // An id that begins with another one, and one that another one begins with.
            let longer = enqueued(message(of, number + 50), position(number + 50), millis, "aa", "acme");
            append(history, vec![batch(shard(of), vec![row, longer])]).await;
        }
        let expected = [message(0, 4), message(1, 2), message(2, 3), message(1, 5), message(0, 1)];
        for limit in 0..=6 {
            let found = history.lives(QUEUE, &id("a"), limit).await.expect("lives");
            assert_eq!(found, expected[..limit.min(5)], "at most {limit}");
        }
        assert_eq!(history.lives(QUEUE, &id("b"), 9).await.expect("lives"), []);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_5_a_search_pages_through_rows_of_one_time() {
    on_every_history(async |history| {
        // Every row at one of two times, on three shards, and one of them a period earlier.
        let mut expected = Vec::new();
        for number in 0..3 {
            let key = |sequence| message(number, sequence);
            let rows: Vec<HistoryRow> = (1..=5)
                .map(|sequence| {
                    let millis = if sequence == 1 { -30 * HOUR } else { i64::from(sequence > 3) };
                    enqueued(key(sequence), position(sequence), millis, &format!("{number}-{sequence}"), "acme")
                })
                .collect();
            expected.extend(rows.iter().map(|row| HistoryHit {
                at: row.transition.at,
                shard: number,
                position: row.position(),
                message: row.transition.key,
            }));
            append(history, vec![batch(shard(number), rows)]).await;
        }
        expected.sort_unstable_by(|one, other| other.cmp(one));
        let term = HistoryTerm::Value { key: "tenant".into(), value: "acme".into() };
        for limit in 1..=16 {
            let mut found: Vec<HistoryHit> = Vec::new();
            while found.len() < expected.len() {
                let page = history.find(WHOLE, &term, found.last().copied(), limit).await.expect("a search");
                assert!(!page.is_empty() && page.len() <= limit, "{} rows of {}", found.len(), expected.len());
                found.extend(page);
            }
            assert_eq!(found, expected, "in pages of {limit}");
            assert_eq!(history.find(WHOLE, &term, found.last().copied(), limit).await.expect("a search"), []);
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_5_each_term_finds_its_own_rows() {
    on_every_history(async |history| {
        let other = message(0, 2);
        let values = ["acme", "acm", "acme2", "", "ACME"];
        let mut rows = life();
        rows.push(failed(other, position(5), 40, "timeout.dns"));
        for (number, value) in (6..).zip(values) {
            rows.push(enqueued(message(0, number), position(number), 50, &format!("v-{number}"), value));
        }
        append(history, vec![batch(shard(0), rows.clone())]).await;
        let terms = [
            HistoryTerm::Enqueued,
            HistoryTerm::Entered(MessageState::Pending),
            HistoryTerm::Entered(MessageState::Running),
            HistoryTerm::Entered(MessageState::Errored),
            HistoryTerm::Entered(MessageState::Completed),
            HistoryTerm::Error("timeout".into()),
            HistoryTerm::Error("timeout.dns".into()),
            HistoryTerm::Error("time".into()),
            HistoryTerm::Value { key: "region".into(), value: "eu".into() },
            HistoryTerm::Value { key: "tenan".into(), value: "tacme".into() },
        ];
        let valued = values.map(|value| HistoryTerm::Value { key: "tenant".into(), value: value.into() });
        for term in terms.into_iter().chain(valued) {
            let mut expected: Vec<RowPosition> =
                rows.iter().filter(|row| HistoryTerm::of(row).contains(&term)).map(HistoryRow::position).collect();
            expected.reverse();
            let found = find_all(history, WHOLE, &term).await;
            assert_eq!(found.iter().map(|row| row.position).collect::<Vec<_>>(), expected, "{term:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_5_a_clock_that_went_back_loses_no_row_of_a_search() {
    on_every_history(async |history| {
        let old: Vec<HistoryRow> =
            (1..=6).map(|n| enqueued(message(0, n), position(n), 60 * n as i64, &format!("o-{n}"), "acme")).collect();
        let back: Vec<HistoryRow> = (4..=8)
            .map(|n| {
                let key = tallystone_domain::queue::messages::message::MessageKey { epoch: 2, ..message(0, n) };
                enqueued(key, of_epoch(2, n), 50 * n as i64 - 30, &format!("n-{n}"), "acme")
            })
            .collect();
        append(history, vec![batch(shard(0), old.clone()), batch(shard(0), back.clone())]).await;
        let mut expected: Vec<_> =
            old.iter().chain(&back).map(|row| (row.transition.at, row.position(), row.transition.key)).collect();
        expected.sort_unstable();
        expected.reverse();
        let mut found = Vec::new();
        while let Some(row) =
            history.find(WHOLE, &HistoryTerm::Enqueued, found.last().copied(), 1).await.expect("a search").pop()
        {
            found.push(row);
        }
        assert_eq!(found.iter().map(|row| (row.at, row.position, row.message)).collect::<Vec<_>>(), expected);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_6_the_newest_row_is_that_with_the_greatest_position() {
    on_every_history(async |history| {
        let (one, two) = (message(0, 1), message(1, 1));
        append(history, vec![batch(shard(0), life())]).await;
        append(history, vec![batch(shard(1), vec![extended(two, position(9), 90 * HOUR)])]).await;
        // A greater epoch wins over a greater position and over a later time.
        let back = extended(two, of_epoch(2, 1), 40 * HOUR);
        append(history, vec![batch(shard(1), vec![back.clone()])]).await;
        let newest = life().pop();
        let asked = vec![two, message(2, 5), one, two];
        let found = history.last(QUEUE, asked).await.expect("rows");
        assert_eq!(found, [Some(back.clone()), None, newest, Some(back)]);
        assert_eq!(history.last(QUEUE, Vec::new()).await.expect("rows"), []);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_7_the_newest_gap_comes_first() {
    on_every_history(async |history| {
        let expected = [
            gap(0, (900, 900), (70 * HOUR, 71 * HOUR)),
            gap(2, (1, 2), (0, 70 * HOUR)),
            gap(1, (10, 20), (5, 9)),
            gap(0, (1, 3), (1, 2)),
        ];
        for gap in [expected[1], expected[3], expected[0], expected[2]] {
            append(history, vec![gaps_at(shard(gap.shard), vec![gap], position(gap.to_position))]).await;
        }
        for limit in 0..=5 {
            let found = history.gaps(WHOLE, limit).await.expect("gaps");
            assert_eq!(found, expected[..limit.min(4)], "at most {limit}");
        }
    })
    .await;
}

#[tokio::test]
async fn history_store_law_8_no_row_has_left_since_the_time_that_the_store_names() {
    on_every_history(async |history| {
        let rows: Vec<HistoryRow> = (1..=40)
            .map(|n| enqueued(message(0, n), position(n), n as i64 * 3 * HOUR, &format!("id-{n}"), "acme"))
            .collect();
        let gaps: Vec<HistoryGap> = (41..=50).map(|n| gap(0, (n, n), (0, (n as i64 - 40) * 12 * HOUR))).collect();
        append(history, vec![batch(shard(0), rows.clone()), gaps_at(shard(0), gaps.clone(), position(50))]).await;
        assert_eq!(history.starts_at().await.expect("a time"), None);
        let mut known = None;
        for hours in [0, 31, 20, 64, 120] {
            let before = at(hours * HOUR);
            history.trim(before).await.expect("a trim");
            let starts_at = history.starts_at().await.expect("a time");
            assert!(starts_at >= known, "{starts_at:?} after {known:?}");
            known = starts_at;
            let found = find_all(history, WHOLE, &HistoryTerm::Enqueued).await;
            for row in &rows {
                let (place, key) = (row.position(), row.transition.key);
                let kept = found.iter().any(|found| found.position == place);
                if Some(row.transition.at) >= known {
                    assert!(kept, "{place:?} has left, but the history starts at {known:?}");
                }
                let trace = if kept { vec![row.clone()] } else { Vec::new() };
                assert_eq!(
                    whole_trace(history, QUEUE, key).await,
                    trace,
                    "{place:?} is there as a whole or not at all"
                );
                let id = &row.enqueued.as_ref().expect("an enqueue").id;
                assert_eq!(history.lives(QUEUE, id, 9).await.expect("lives").len(), usize::from(kept));
            }
            let left = history.gaps(WHOLE, 99).await.expect("gaps");
            assert!(gaps.iter().all(|gap| left.contains(gap) || Some(gap.to_time) < known), "{left:?}");
            assert!(known.is_none_or(|known| known <= at(120 * HOUR)), "nothing has left that is younger");
        }
        assert_eq!(cursor_of(history, shard(0)).await, Some(cursor(position(50))), "cursors stay");
        // A row that comes late is taken, and may leave with the next trim.
        append(history, vec![batch(shard(0), vec![rows[0].clone()])]).await;
        assert_eq!(whole_trace(history, QUEUE, message(0, 1)).await, [rows[0].clone()]);
    })
    .await;
}

#[tokio::test]
async fn history_store_law_9_queues_do_not_see_each_other() {
    on_every_history(async |history| {
        append(history, vec![HistoryBatch { gaps: vec![gap(0, (5, 6), (1, 2))], ..batch(shard(0), life()) }]).await;
        let neighbours = [QueueId(6), OTHER_QUEUE, QueueId(QUEUE.0 << 8), QueueId(u128::MAX), QueueId(0)];
        for queue in neighbours {
            assert_eq!(whole_trace(history, queue, message(0, 1)).await, []);
            assert_eq!(history.last(queue, vec![message(0, 1)]).await.expect("rows"), [None]);
            assert_eq!(history.lives(queue, &id("a"), 9).await.expect("lives"), []);
            let whole = tallystone_ports::QueueShards { queue, ..WHOLE };
            assert_eq!(find_all(history, whole, &HistoryTerm::Enqueued).await, []);
            assert_eq!(history.gaps(whole, 9).await.expect("gaps"), []);
            assert_eq!(cursor_of(history, ShardId { queue, number: 0 }).await, None);
        }
        let other = vec![enqueued(message(0, 1), position(1), 0, "a", "acme")];
        append(history, vec![batch(ShardId { queue: OTHER_QUEUE, number: 0 }, other.clone())]).await;
        assert_eq!(whole_trace(history, OTHER_QUEUE, message(0, 1)).await, other);
        assert_eq!(whole_trace(history, QUEUE, message(0, 1)).await, life());
        assert_eq!(find_all(history, OTHER_WHOLE, &HistoryTerm::Enqueued).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn history_store_laws_2_and_8_what_was_answered_is_there_after_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        let Some(history) = history_of(&bench) else { return };
        let far = vec![enqueued(message(1, 1), position(1), 300 * HOUR, "b", "acme")];
        let missing = gap(0, (5, 9), (30, 300 * HOUR));
        let whole = HistoryBatch { gaps: vec![missing], cursor: cursor(position(9)), ..batch(shard(0), life()) };
        append(&*history, vec![whole, batch(shard(1), far.clone())]).await;
        drop(history);
        let bench = bench.reopen(ending).await;
        let history = history_of(&bench).expect("it had one");
        assert_eq!(whole_trace(&*history, QUEUE, message(0, 1)).await, life());
        assert_eq!(cursor_of(&*history, shard(0)).await, Some(cursor(position(9))));
        assert_eq!(history.gaps(WHOLE, 9).await.expect("gaps"), [missing]);
        history.trim(at(290 * HOUR)).await.expect("a trim");
        let starts_at = history.starts_at().await.expect("a time");
        drop(history);
        let bench = bench.reopen(ending).await;
        let history = history_of(&bench).expect("it had one");
        assert_eq!(history.starts_at().await.expect("a time"), starts_at);
        let kept = find_all(&*history, WHOLE, &HistoryTerm::Enqueued).await;
        let expected = if starts_at.is_some() { 1 } else { 2 };
        assert_eq!(kept.len(), expected);
        assert_eq!(whole_trace(&*history, QUEUE, message(1, 1)).await, far);
        assert_eq!(cursor_of(&*history, shard(0)).await, Some(cursor(position(9))));
        append(&*history, vec![batch(shard(0), life())]).await;
        assert_eq!(whole_trace(&*history, QUEUE, message(0, 1)).await, life());
    })
    .await;
}

#[tokio::test]
async fn the_store_counts_the_rows_that_it_writes() {
    on_every_history(async |history| {
        assert_eq!(history.usage().rows_written, 0);
        append(history, vec![batch(shard(0), life())]).await;
        let first = history.usage();
        assert_eq!(first.rows_written, 4);
        assert!((100..2_000).contains(&first.row_bytes_written), "{first:?}");
        append(history, vec![batch(shard(0), life())]).await;
        let second = history.usage();
        assert_eq!((second.rows_written, second.row_bytes_written), (8, 2 * first.row_bytes_written));
    })
    .await;
}

/// A batch of as many rows as a relay sends at once.
#[tokio::test]
async fn history_store_law_1_the_largest_batch_is_written_as_a_whole() {
    const ROWS: u64 = tallystone_domain::limits::HISTORY_BATCH_ROWS_MAX as u64;
    on_every_history(async |history| {
        let rows: Vec<HistoryRow> = (1..=ROWS)
            .map(|n| {
                let key = message(0, n / 4);
                if n.is_multiple_of(4) {
                    enqueued(key, position(n), n as i64 / 100, &format!("id-{n}"), "acme")
                } else {
                    extended(key, position(n), n as i64 / 100)
                }
            })
            .collect();
        append(history, vec![batch(shard(0), rows.clone())]).await;
        assert_eq!(cursor_of(history, shard(0)).await, Some(cursor(position(ROWS))));
        let found = find_all(history, WHOLE, &HistoryTerm::Enqueued).await;
        assert_eq!(found.len() as u64, ROWS / 4);
        for n in [1, ROWS / 8, ROWS / 4 - 1] {
            let expected: Vec<HistoryRow> =
                rows.iter().filter(|row| row.transition.key == message(0, n)).cloned().collect();
            assert_eq!(whole_trace(history, QUEUE, message(0, n)).await, expected);
        }
    })
    .await;
}
