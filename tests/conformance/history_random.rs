//! The history against a plain list: random batches of several queues, shards and epochs, appended out of order, again and
//! cut in other ways. After each call every read must answer as the list does.

use std::collections::BTreeSet;

use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore, QueueShards};

use crate::given::at;
use crate::history_given::{
    OTHER_QUEUE, PlainHistory, QUEUE, SHARDS, append, enqueued, extended, failed, id, leased, on_every_history,
};

/// The seeds that are tried; add one to replay it.
const SEEDS: [u64; 3] = [1, 20_261_125, 77_777];
/// The rows of a shard.
const ROWS: usize = 70;
const IDS: [&str; 4] = ["order-1", "order-10", "m", "7d0ad2ae-58c0-4a3c-8b4a-2f0d3a2b9d11"];
const TENANTS: [&str; 4] = ["acme", "acme ", "", "größe~%=/\u{0}\u{1}"];
const SIGNATURES: [&str; 3] = ["timeout", "timeout.", "HTTP 500"];

struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % end as u64).expect("small")
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

/// The times that are taken: those of the enqueues of an id, and those of gaps. They make the order of answers unique.
#[derive(Default)]
struct Taken(BTreeSet<(QueueId, &'static str, i64)>);

/// Rows as a shard applies them. Halfway it goes back to an older copy of itself, under the next epoch.
fn rows_of_shard(random: &mut Random, taken: &mut Taken, shard: ShardId) -> Vec<HistoryRow> {
    let (mut epoch, mut position, mut millis, mut sequence) = (1, 0, 0, 0);
    let mut running: Vec<MessageKey> = Vec::new();
    let mut rows = Vec::new();
    while rows.len() < ROWS {
        if rows.len() == ROWS / 2 {
            (epoch, position) = (epoch + 1, position - 5);
            millis -= 7_200_000;
        }
        position += 1;
        // Mostly the same time as before, at times hours later.
        millis += [0, 0, 1, 250, 4 * 3_600_000][random.below(5)] * i64::from(random.below(2) == 0);
        let here = RowPosition { epoch, position };
        let key = (random.below(3) > 0 && !running.is_empty()).then(|| random.pick(&running));
        rows.push(match (key, random.below(4)) {
            (None, _) => {
                sequence += 1;
                let key = MessageKey { shard: shard.number, epoch, sequence };
                running.push(key);
                let free: Vec<&str> =
                    IDS.into_iter().filter(|id| !taken.0.contains(&(shard.queue, *id, millis))).collect();
                if free.is_empty() {
                    let own = format!("own-{}-{epoch}-{position}", shard.number);
                    enqueued(key, here, millis, &own, random.pick(&TENANTS))
                } else {
                    let id = IDS[IDS.iter().position(|id| *id == random.pick(&free)).unwrap_or(0)];
                    taken.0.insert((shard.queue, id, millis));
                    enqueued(key, here, millis, id, random.pick(&TENANTS))
                }
            }
            (Some(key), 0) => leased(key, here, millis),
            (Some(key), 1) => {
                running.retain(|other| *other != key);
                failed(key, here, millis, random.pick(&SIGNATURES))
            }
            (Some(key), _) => extended(key, here, millis),
        });
    }
    rows
}

/// Rows as batches, some rows left out as gaps.
fn cut(random: &mut Random, taken: &mut Taken, shard: ShardId, mut rows: &[HistoryRow]) -> Vec<HistoryBatch> {
    let mut batches = Vec::new();
    while !rows.is_empty() {
        let (these, rest) = rows.split_at((1 + random.below(12)).min(rows.len()));
        rows = rest;
        let position = these.last().expect("at least one row").position();
        let cursor = HistoryCursor { position, register: vec![7; random.below(40)].into() };
        let mut batch = HistoryBatch { shard, rows: Vec::new(), gaps: Vec::new(), cursor };
        for row in these {
            if random.below(10) > 0 {
                batch.rows.push(row.clone());
            } else {
                let RowPosition { epoch, position } = row.position();
                let from_time = row.transition.at;
                let mut to_time = from_time;
                while !taken.0.insert((shard.queue, "a gap", to_time.micros())) {
                    to_time = to_time.just_after();
                }
                let (from_position, to_position) = (position, position);
                let shard = shard.number;
                batch.gaps.push(HistoryGap { shard, epoch, from_position, to_position, from_time, to_time });
            }
        }
        batches.push(batch);
    }
    batches
}

/// A batch with the content of two that follow each other.
fn joined(one: &HistoryBatch, next: &HistoryBatch) -> HistoryBatch {
    let rows = [&one.rows[..], &next.rows].concat();
    let gaps = [&one.gaps[..], &next.gaps].concat();
    HistoryBatch { shard: one.shard, rows, gaps, cursor: next.cursor.clone() }
}

/// All batches in an order in which no relay would write them.
fn batches(random: &mut Random) -> Vec<HistoryBatch> {
    let mut taken = Taken::default();
    let mut all = Vec::new();
    for queue in [QUEUE, OTHER_QUEUE] {
        for number in 0..SHARDS {
            let shard = ShardId { queue, number };
            let rows = rows_of_shard(random, &mut taken, shard);
            let cut = cut(random, &mut taken, shard, &rows);
            let wider: Vec<HistoryBatch> = cut.windows(2).map(|two| joined(&two[0], &two[1])).collect();
            let again = cut.iter().filter(|_| random.below(4) == 0).cloned().collect::<Vec<_>>();
            all.extend(wider.into_iter().filter(|_| random.below(4) == 0));
            all.extend(cut);
            all.extend(again);
        }
    }
    random.shuffle(&mut all);
    all
}

async fn check_messages(random: &mut Random, history: &dyn HistoryStore, plain: &PlainHistory, queue: QueueId) {
    let mut messages = plain.messages(queue);
    let unknown = MessageKey { shard: 0, epoch: 9, sequence: 1 };
    messages.push(unknown);
    random.shuffle(&mut messages);
    let expected: Vec<_> = messages.iter().map(|message| plain.trace(queue, *message).pop()).collect();
    assert_eq!(history.last(queue, messages.clone()).await.expect("rows"), expected);
    for message in messages.into_iter().take(5) {
        let mut rows = plain.trace(queue, message);
        assert_eq!(history.trace(queue, message, None, usize::MAX).await.expect("a trace"), rows);
        let after = (!rows.is_empty()).then(|| rows[random.below(rows.len())].position());
        rows.retain(|row| Some(row.position()) > after);
        rows.truncate(2);
        assert_eq!(history.trace(queue, message, after, 2).await.expect("a trace"), rows);
    }
}

/// Reads a term page by page.
async fn check_term(random: &mut Random, history: &dyn HistoryStore, plain: &PlainHistory, term: &HistoryTerm) {
    for queue in [QUEUE, OTHER_QUEUE] {
        let whole = QueueShards { queue, shards: SHARDS };
        let limit = 1 + random.below(9);
        let mut found: Vec<HistoryHit> = Vec::new();
        loop {
            let page = history.find(whole, term, found.last().copied(), limit).await.expect("a search");
            assert!(page.len() <= limit);
            found.extend_from_slice(&page);
            if page.len() < limit {
                break;
            }
        }
        assert_eq!(found, plain.find(queue, term), "{term:?} in pages of {limit}");
    }
}

async fn check(random: &mut Random, history: &dyn HistoryStore, plain: &PlainHistory) {
    for queue in [QUEUE, OTHER_QUEUE] {
        for number in 0..SHARDS {
            let shard = ShardId { queue, number };
            assert_eq!(
                history.cursor(shard).await.expect("a cursor").map(|cursor| cursor.position),
                plain.cursor(shard).map(|cursor| cursor.position)
            );
        }
        check_messages(random, history, plain, queue).await;
        for text in IDS {
            let limit = 1 + random.below(9);
            let mut lives = plain.lives(queue, &id(text));
            lives.truncate(limit);
            assert_eq!(history.lives(queue, &id(text), limit).await.expect("lives"), lives, "{text}");
        }
        let limit = 1 + random.below(30);
        let mut gaps = plain.gaps(queue);
        gaps.truncate(limit);
        assert_eq!(history.gaps(QueueShards { queue, shards: SHARDS }, limit).await.expect("gaps"), gaps);
    }
    let mut terms = plain.terms();
    random.shuffle(&mut terms);
    terms.truncate(3);
    terms.push(HistoryTerm::Error("never".into()));
    for term in terms {
        check_term(random, history, plain, &term).await;
    }
}

#[tokio::test]
async fn history_store_laws_1_to_7_and_9_reads_answer_as_a_plain_list_of_all_that_was_appended() {
    for seed in SEEDS {
        on_every_history(async |history| {
            println!("seed {seed}");
            let random = &mut Random(seed);
            let mut plain = PlainHistory::default();
            let mut left = batches(random);
            let mut calls = 0;
            while !left.is_empty() {
                let call = left.split_off(left.len().saturating_sub(1 + random.below(9)));
                plain.append(&call);
                append(history, call).await;
                calls += 1;
                if calls % 4 == 0 {
                    check(random, history, &plain).await;
                }
            }
            check(random, history, &plain).await;
            for term in plain.terms() {
                check_term(random, history, &plain, &term).await;
            }
            assert_eq!(history.starts_at().await.expect("a time"), None);
            assert!(plain.messages(QUEUE).len() > 30 && plain.gaps(QUEUE).len() > 5, "enough happens");
            assert!(plain.terms().len() > 8, "{:?}", plain.terms());
            let newest = plain.find(QUEUE, &HistoryTerm::Enqueued)[0].at;
            assert!(newest.since(at(0)).as_secs() > 6 * 3_600, "rows lie hours apart");
            assert!(newest < Timestamp::MAX);
        })
        .await;
    }
}
