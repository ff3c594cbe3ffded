//! The order of writes, on a store that notes each and refuses those of one table.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::CqlHistory;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::statements::Statements;
use crate::store::{ConditionalResult, PageState, PreparedCql, ReadConsistency, RowPage, WideStore, WriteRoute};
use crate::value::{CqlRow, CqlValue};
use tallystone_adapters::system::SystemClock;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_domain::history::{HistoryCursor, HistoryGap};
use tallystone_domain::queue::messages::message::{MessageKey, Metadata};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, Transition, TransitionDetail};
use tallystone_domain::queue::{MessageState, QueueId, ShardId, Trigger};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore as _};

/// The tables in the order of their writes, and the one that refuses them.
#[derive(Default)]
struct Refusing {
    written: Mutex<Vec<String>>,
    refused: Mutex<Option<&'static str>>,
}

fn table_of(statement: &PreparedCql) -> String {
    let (_, rest) = statement.text().split_once(" k.").expect("a statement names its table");
    rest.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
}

#[async_trait]
impl WideStore for Refusing {
    async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure> {
        Ok(PreparedCql::new(text, ()))
    }

    async fn define(&self, _text: &str) -> Result<(), RequestFailure> {
        Ok(())
    }

    async fn write(&self, statement: &PreparedCql, values: &[CqlValue]) -> Result<(), RequestFailure> {
        self.write_many(&[(statement, values)]).await
    }

    async fn write_many(&self, rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure> {
        let refused = *self.refused.lock();
        if rows.iter().any(|(statement, _)| Some(table_of(statement).as_str()) == refused) {
            return Err(RequestFailure { is_retryable: false, ..RequestFailure::not_sent("refused") });
        }
        self.written.lock().extend(rows.iter().map(|(statement, _)| table_of(statement)));
        Ok(())
    }

    fn route(&self, statement: &PreparedCql, _values: &[CqlValue]) -> WriteRoute {
        // A request of its own for each table.
        let replica = table_of(statement).bytes().fold(0, |sum: u64, byte| sum * 31 % 1_000_003 + u64::from(byte));
        WriteRoute { replica, partition: 0 }
    }

    async fn apply_conditionally(
        &self,
        _statements: &[(&PreparedCql, Vec<CqlValue>)],
    ) -> Result<ConditionalResult, RequestFailure> {
        Ok(ConditionalResult::Applied)
    }

    async fn read(
        &self,
        _statement: &PreparedCql,
        _values: &[CqlValue],
        _level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure> {
        Ok(Vec::new())
    }

    async fn read_page(&self, _statement: &PreparedCql, _after: Option<&PageState>) -> Result<RowPage, RequestFailure> {
        Ok((Vec::new(), None))
    }
}

async fn history_on(store: &Arc<Refusing>) -> CqlHistory {
    let store = Arc::clone(store) as Arc<dyn WideStore>;
    let statements = Statements::of_schema(store.as_ref(), "k").await.expect("it prepares everything");
    let requests =
        RequestRunner::new(store, "k".to_owned(), statements, Arc::new(SystemClock), ProtocolRules::default());
    CqlHistory::new(Arc::new(requests), Duration::from_secs(60))
}

/// An enqueue and a gap.
fn batch(position: u64) -> HistoryBatch {
    let place = RowPosition { epoch: 1, position };
    let enqueued = EnqueuedMessage {
        id: MessageId::new("a").expect("a valid id"),
        metadata: Metadata::new([("tenant", "acme")]).expect("valid pairs"),
        kind: None,
        priority: 0,
        payload_bytes: 1,
        counted_keys: vec!["tenant".into()],
    };
    let transition = Transition {
        key: MessageKey { shard: 0, epoch: 1, sequence: position },
        version: 1,
        trigger: Trigger::Enqueue,
        from: None,
        to: Some(MessageState::Pending),
        at: Timestamp::from_secs(5),
        detail: TransitionDetail { position: place, ..TransitionDetail::default() },
    };
    let time = Timestamp::from_secs(6);
    let positions = (position + 1, position + 1);
    let gap = HistoryGap {
        shard: 0,
        epoch: 1,
        from_position: positions.0,
        to_position: positions.1,
        from_time: time,
        to_time: time,
    };
    HistoryBatch {
        shard: ShardId { queue: QueueId(1), number: 0 },
        rows: vec![HistoryRow { transition, enqueued: Some(Box::new(enqueued)) }],
        gaps: vec![gap],
        cursor: HistoryCursor { position: RowPosition { position: position + 1, ..place }, register: [7].into() },
    }
}

const TABLES: [&str; 5] = ["history_trace", "history_ids", "history_found", "history_chunks", "history_gaps"];

#[tokio::test]
async fn a_cursor_is_written_after_all_rows_below_it_or_not_at_all() {
    for table in TABLES {
        let store = Arc::new(Refusing::default());
        let history = history_on(&store).await;
        *store.refused.lock() = Some(table);
        let both = vec![batch(1), batch(3)];
        history.append(both.clone()).await.expect_err("a table refuses its rows");
        assert!(!store.written.lock().iter().any(|table| table == "history_cursor"), "{table}: {:?}", store.written);
        *store.refused.lock() = None;
        store.written.lock().clear();
        history.append(both).await.expect("nothing is refused");
        let written = store.written.lock().clone();
        let cursors: Vec<usize> = (0..written.len()).filter(|at| written[*at] == "history_cursor").collect();
        assert_eq!((cursors.len(), cursors.last()), (2, Some(&(written.len() - 1))), "{written:?}");
        for rows in [&written[..cursors[0]], &written[cursors[0]..cursors[1]]] {
            let count = |name: &str| rows.iter().filter(|table| *table == name).count();
            // The partition of each term is listed once; the second batch finds it listed.
            let listed = [0, 3].contains(&count("history_chunks"));
            assert!(listed && count("history_found") == 3 && count("history_trace") == 1, "{rows:?}");
            assert_eq!((count("history_ids"), count("history_gaps")), (1, 1), "{rows:?}");
        }
        assert!(written.contains(&"history_chunks".to_owned()) || table != "history_chunks", "{written:?}");
    }
}
