//! Counters belong to one queue store.

use std::sync::Arc;

use tallystone::adapters::memory::MemoryHistory;
use tallystone::engine::bridge::pairing::claim;
use tallystone::ports::HistoryStore;

#[tokio::test]
async fn counters_belong_to_the_first_queue_store_that_reports_to_them() {
    let history: Arc<dyn HistoryStore> = Arc::new(MemoryHistory::default());
    assert!(claim(&history, b"first", 7).await.expect("an answer"));
    assert!(!claim(&history, b"second", 9).await.expect("an answer"), "also with a greater number");
    assert!(claim(&history, b"first", 1).await.expect("an answer"));
}
