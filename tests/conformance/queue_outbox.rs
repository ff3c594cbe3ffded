//! The laws of the counts and outboxes of shards: `ShardOutbox`.

use tallystone_domain::limits::OUTBOX_PAGE_ROWS_MAX;
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::HistoryKept;
use tallystone_domain::queue::tally::flows::Flow;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{MessageState, QueueId, Settings, ShardId, Transition, Trigger};
use tallystone_ports::StoreErrorKind;

use crate::queue_given::{
    OTHER_SHARD, QUEUE, QueueBench, SHARD, configure, dequeue, enqueue, on_every_durable_queue_store,
    on_every_queue_store, settings, settle,
};

const START: RowPosition = RowPosition { epoch: 0, position: 0 };

async fn rows_after(bench: &QueueBench, shard: ShardId, after: RowPosition) -> Vec<HistoryRow> {
    bench.stores.outbox.outbox(shard, after, OUTBOX_PAGE_ROWS_MAX).await.expect("an outbox").rows
}

/// Enqueues, leases and settles messages, and returns the rows that this applied.
async fn work(bench: &QueueBench, shard: ShardId, names: &str) -> Vec<Transition> {
    let mut applied = Vec::new();
    for name in names.chars() {
        applied.extend(bench.one(shard, enqueue(&name.to_string(), 0, b"x")).await.transitions);
    }
    let leased = bench.one(shard, dequeue(2)).await;
    applied.extend(leased.transitions);
    for (message, action) in leased.messages.iter().zip([SettleAction::Complete, SettleAction::Fail]) {
        let lease = message.head.lease.expect("it is leased");
        let token =
            tallystone_domain::queue::messages::message::LeaseToken { key: message.head.key, fence: lease.fence };
        applied.extend(bench.one(shard, settle(token, action)).await.transitions);
    }
    applied
}

#[tokio::test]
async fn shard_outbox_law_14_a_report_is_the_totals_at_one_position() {
    on_every_queue_store(async |bench| {
        let counted = Settings { count_by: vec!["tenant".into()], ..settings() };
        bench.one(SHARD, configure(1, counted)).await.reply.expect("configured");
        let rows = work(&bench, SHARD, "abc").await.len() as u64;
        let first = bench.stores.outbox.report(SHARD, None).await.expect("a report");
        assert_eq!(first.position, RowPosition { epoch: first.position.epoch, position: rows });
        let flows = [Flow::Enqueued, Flow::Dequeued, Flow::Completed, Flow::Failed].map(|flow| first.counts.flow(flow));
        assert_eq!(flows, [3, 2, 1, 1]);
        for state in MessageState::ALL {
            assert_eq!(first.counts.depth(state), first.totals.of(state).messages, "{state}");
        }
        let values: Vec<_> = first.values.iter().map(|(key, value, counts)| (&**key, value, counts.flows[0])).collect();
        assert_eq!(values, [("tenant", &CountedValue::None, 3)], "no message has the key");
        let again = bench.stores.outbox.report(SHARD, Some(rows)).await.expect("a report");
        assert_eq!((&again.counts, again.position), (&first.counts, first.position));
        assert_eq!((again.values, again.signatures), (vec![], vec![]), "nothing changed after the position");
        bench.one(SHARD, enqueue("later", 0, b"x")).await;
        let later = bench.stores.outbox.report(SHARD, Some(rows)).await.expect("a report");
        assert_eq!((later.position.position, later.values.len()), (rows + 1, 1));
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_law_20_a_glance_is_what_changed_since_a_position() {
    on_every_queue_store(async |bench| {
        let unused = bench.stores.outbox.glance(SHARD, None).await.expect("a glance").expect("nothing is known");
        assert_eq!((unused.messages, unused.view), ([0; MessageState::ALL.len()], None), "nothing is ready");
        work(&bench, SHARD, "abc").await;
        let report = bench.stores.outbox.report(SHARD, None).await.expect("a report");
        let glance = bench.stores.outbox.glance(SHARD, Some(unused.position)).await.expect("a glance").expect("news");
        assert_eq!((glance.position, glance.messages), (report.position, report.totals.messages()));
        assert_eq!(glance.counts, report.counts);
        let ready = bench.stores.reader.totals(SHARD).await.expect("totals").view;
        let status = glance.view.expect("messages are ready");
        assert_eq!((status.step, status.messages, status.head), (ready.step, ready.messages, ready.head));
        let again = bench.stores.outbox.glance(SHARD, Some(glance.position)).await.expect("a glance");
        assert_eq!(again, None, "nothing changed");
        bench.stores.shards.drop_queue(QUEUE).await.expect("dropped");
        let gone = bench.stores.outbox.glance(SHARD, Some(glance.position)).await.map(drop);
        assert_eq!(gone.map_err(|error| error.kind), Err(StoreErrorKind::Conflict));
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_laws_15_and_16_each_row_is_there_in_order_until_it_is_forgotten() {
    on_every_queue_store(async |bench| {
        let applied = work(&bench, SHARD, "abcd").await;
        work(&bench, OTHER_SHARD, "e").await;
        let rows = rows_after(&bench, SHARD, START).await;
        let transitions: Vec<_> = rows.iter().map(|row| row.transition.clone()).collect();
        assert_eq!(transitions, applied, "the rows of the answers");
        let positions: Vec<u64> = rows.iter().map(|row| row.position().position).collect();
        assert_eq!(positions, (1..=applied.len() as u64).collect::<Vec<_>>());
        let ids = rows.iter().filter_map(|row| row.enqueued.as_ref()).map(|message| message.id.to_string());
        assert_eq!(ids.collect::<Vec<_>>(), ["a", "b", "c", "d"], "an enqueue brings its message");
        let middle = rows[2].position();
        assert_eq!(rows_after(&bench, SHARD, middle).await, rows[3..]);
        let page = bench.stores.outbox.outbox(SHARD, START, 2).await.expect("a page");
        assert_eq!((&page.rows[..], page.through), (&rows[..2], rows[1].position()), "one commit a row here");
        bench.stores.outbox.forget_outbox(SHARD, middle).await.expect("forgotten");
        assert_eq!(rows_after(&bench, SHARD, START).await, rows[3..]);
        let whole = bench.stores.outbox.outbox(SHARD, middle, 100).await.expect("a page");
        assert_eq!(whole.through, rows.last().expect("rows").position());
        bench.stores.outbox.forget_outbox(SHARD, whole.through).await.expect("forgotten");
        assert_eq!(bench.stores.outbox.outboxes().await.expect("a list"), [OTHER_SHARD]);
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_law_15_a_page_read_between_commands_has_every_row_up_to_its_position() {
    on_every_queue_store(async |bench| {
        let mut after = START;
        for round in 0..200 {
            // Sent in this order, so a store may commit the command before the read and the one after it together.
            let before = bench.one(SHARD, enqueue(&format!("{round}a"), 0, b"x"));
            let page = bench.stores.outbox.outbox(SHARD, after, OUTBOX_PAGE_ROWS_MAX);
            let behind = bench.one(SHARD, enqueue(&format!("{round}b"), 0, b"x"));
            let (_, page, _) = tokio::join!(before, page, behind);
            let page = page.expect("a page");
            let positions: Vec<u64> = page.rows.iter().map(|row| row.position().position).collect();
            let expected: Vec<u64> = (after.position + 1..=page.through.position).collect();
            assert_eq!(positions, expected, "round {round}");
            after = page.through;
        }
        assert!(after.position >= 399, "the last page has at least the command before it");
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_law_15_a_queue_without_history_leaves_no_rows_and_positions_go_on() {
    on_every_queue_store(async |bench| {
        let without = Settings { history: HistoryKept::Nothing, ..settings() };
        bench.one(SHARD, configure(1, without)).await.reply.expect("configured");
        work(&bench, SHARD, "ab").await;
        assert_eq!(rows_after(&bench, SHARD, START).await, []);
        bench.one(SHARD, configure(2, settings())).await.reply.expect("configured");
        bench.one(SHARD, enqueue("c", 0, b"x")).await;
        let rows = rows_after(&bench, SHARD, START).await;
        let found: Vec<_> = rows.iter().map(|row| (row.position().position, row.transition.trigger)).collect();
        assert_eq!(found, [(7, Trigger::Enqueue)], "the rows 1 to 6 are missing");
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_law_17_the_rows_of_a_dropped_queue_stay_until_they_are_forgotten() {
    on_every_queue_store(async |bench| {
        let applied = work(&bench, SHARD, "ab").await;
        bench.stores.shards.drop_queue(QUEUE).await.expect("dropped");
        assert_eq!(bench.stores.outbox.outboxes().await.expect("a list"), [SHARD]);
        let page = bench.stores.outbox.outbox(SHARD, START, 100).await.expect("a page");
        assert_eq!((page.rows.len(), page.through.position), (applied.len(), applied.len() as u64));
        bench.stores.outbox.forget_outbox(SHARD, page.through).await.expect("forgotten");
        assert_eq!(bench.stores.outbox.outboxes().await.expect("a list"), []);
        let absent = bench.stores.outbox.report(SHARD, None).await.map(drop);
        assert_eq!(absent.map_err(|error| error.kind), Err(StoreErrorKind::Conflict));
    })
    .await;
}

#[tokio::test]
async fn shard_outbox_laws_16_and_18_counts_and_rows_outlive_the_store() {
    on_every_durable_queue_store(async |bench, ending| {
        let counted = Settings { count_by: vec!["tenant".into()], ..settings() };
        bench.one(SHARD, configure(1, counted)).await.reply.expect("configured");
        let mut applied = work(&bench, SHARD, "abc").await;
        let before = bench.stores.outbox.report(SHARD, None).await.expect("a report");
        let fill = bench.stores.outbox.outbox_usage();
        // Redis is asked for it once in a while, by the loops of a server.
        assert!(!bench.is_embedded() || fill.bytes > 0 && fill.bytes < fill.capacity, "{fill:?}");
        let bench = bench.reopen(ending).await;
        let after = bench.stores.outbox.report(SHARD, None).await.expect("a report");
        assert_eq!((&after.counts, after.totals), (&before.counts, before.totals));
        let (now, then) = (after.position, before.position);
        assert!(now.position == then.position && now.epoch >= then.epoch, "a restart may raise the epoch: {now:?}");
        assert_eq!((after.values, after.signatures), (before.values, before.signatures));
        assert_eq!(bench.stores.outbox.outbox_usage(), fill);
        applied.extend(bench.one(SHARD, enqueue("d", 0, b"x")).await.transitions);
        let rows: Vec<_> = rows_after(&bench, SHARD, START).await.into_iter().map(|row| row.transition).collect();
        assert_eq!(rows, applied);
        bench.stores.shards.drop_queue(QUEUE).await.expect("dropped");
        let bench = bench.reopen(ending).await;
        assert_eq!(rows_after(&bench, SHARD, START).await.len(), applied.len(), "a dropped queue keeps its rows");
        bench
            .stores
            .outbox
            .forget_outbox(SHARD, RowPosition { epoch: u32::MAX, position: 0 })
            .await
            .expect("forgotten");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.stores.outbox.outboxes().await.expect("a list"), []);
        bench.stores.shards.create(QueueId(8), 1, settings().into()).await.expect("a new queue");
    })
    .await;
}
