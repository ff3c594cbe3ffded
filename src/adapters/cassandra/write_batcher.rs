//! Coalesces plain writes of many callers into few requests: rows that arrive while requests are in flight share the
//! next one.
//!
//! A request costs a node as much as its rows, so a request with several rows carries two to five times as many. While
//! few requests are in flight to the replica of a row, the row is sent at once. Otherwise it waits for one of them to
//! end, or until it fills a request, whichever is first. So a row waits no longer than the requests before it, or
//! `GATHERED_WAIT_MAX` if those hang, and only load makes requests larger. Rows of several partitions in one request
//! are independent: after a failure each may exist or not. Then the rows for this replica go partition by partition
//! until one succeeds, so that a refusal names its partition. A retry always goes alone: a partition whose replicas are
//! away must not make others fail with it.

use std::collections::VecDeque;
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::oneshot;

use crate::limits::{
    GATHERED_BYTES_MAX, GATHERED_PARTITIONS_MAX, GATHERED_REQUESTS_AT_ONCE, GATHERED_WAIT_MAX, PARTITION_BATCH_ROWS_MAX,
};
use crate::request_failure::RequestFailure;
use crate::store::{PreparedCql, WideStore, WriteRoute};
use crate::value::CqlValue;
use tallystone_coalesce::{CallQueue, DetachedTasks, PendingWork};
use tallystone_ports::{Clock, EffectOutcome};

/// Rows of one partition by one statement, as the values of its places.
pub type PartitionRows = Arc<Vec<Vec<CqlValue>>>;

/// The writes of a process that wait or are in flight.
pub struct WriteBatcher {
    store: Arc<dyn WideStore>,
    clock: Arc<dyn Clock>,
    queues: DashMap<u64, Arc<CallQueue<ReplicaQueue>>>,
    requests: DetachedTasks,
}

/// The waiting rows of one replica.
#[derive(Default)]
struct ReplicaQueue {
    waiting: VecDeque<PendingRows>,
    /// The number of rows that ever waited.
    arrived: u64,
    /// The rows below this number have waited their time.
    overdue_below: u64,
    /// Whether the last request failed: then partitions go alone until one succeeds.
    last_request_failed: bool,
}

/// Rows that wait to be sent.
struct PendingRows {
    number: u64,
    statement: PreparedCql,
    rows: PartitionRows,
    partition: i64,
    bytes: usize,
    attempt: WriteAttempt,
    result_tx: oneshot::Sender<Result<(), RequestFailure>>,
}

/// Whether rows were sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAttempt {
    /// They were not.
    First,
    /// They were sent and failed: they share no request with another partition.
    Repeat,
}

impl WriteBatcher {
    /// No write waits yet.
    pub fn new(store: Arc<dyn WideStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, queues: DashMap::new(), requests: DetachedTasks::default() }
    }

    /// Writes rows of one partition once: all or none of them.
    pub async fn write(
        &self,
        statement: &PreparedCql,
        rows: PartitionRows,
        attempt: WriteAttempt,
    ) -> Result<(), RequestFailure> {
        if rows.len() <= PARTITION_BATCH_ROWS_MAX {
            return self.write_batch(statement, rows, attempt).await;
        }
        for part in rows.chunks(PARTITION_BATCH_ROWS_MAX) {
            self.write_batch(statement, Arc::new(part.to_vec()), attempt).await?;
        }
        Ok(())
    }

    async fn write_batch(
        &self,
        statement: &PreparedCql,
        rows: PartitionRows,
        attempt: WriteAttempt,
    ) -> Result<(), RequestFailure> {
        let Some(first) = rows.first() else { return Ok(()) };
        let WriteRoute { replica, partition } = self.store.route(statement, first);
        let bytes = rows.iter().flatten().map(CqlValue::size).sum();
        let (result_tx, mut answer) = oneshot::channel();
        let queue = Arc::clone(&self.queues.entry(replica).or_default());
        let (number, started) = {
            let mut queue = queue.lock();
            let number = queue.arrived;
            queue.arrived += 1;
            let statement = statement.clone();
            queue.waiting.push_back(PendingRows { number, statement, rows, partition, bytes, attempt, result_tx });
            (number, queue.start())
        };
        if let Some(request) = started {
            self.begin(&queue, request);
        }
        tokio::select! {
            biased;
            told = &mut answer => return told.unwrap_or_else(|_| Err(stopped())),
            () = self.clock.sleep(GATHERED_WAIT_MAX) => {}
        }
        // Earlier rows may have been sent before their time, and a full request may end before this row.
        loop {
            let started = {
                let mut queue = queue.lock();
                queue.overdue_below = queue.overdue_below.max(number + 1);
                queue.start()
            };
            let Some(request) = started else { break };
            self.begin(&queue, request);
        }
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Sends in a task of its own, so that a caller that goes away does not cancel the rows of others.
    fn begin(&self, queue: &Arc<CallQueue<ReplicaQueue>>, request: Vec<PendingRows>) {
        let (store, queue) = (Arc::clone(&self.store), Arc::clone(queue));
        self.requests.spawn(async move {
            queue.run(Some(request), |request| send(store.as_ref(), &queue, request), || {}).await;
        });
    }
}

impl PendingWork for ReplicaQueue {
    type Batch = Vec<PendingRows>;

    fn next(&mut self, in_flight: usize) -> Option<Vec<PendingRows>> {
        let first = self.waiting.front()?;
        let is_overdue = first.number < self.overdue_below;
        let (fitting, is_full) = self.fitting();
        let may_begin = is_full || is_overdue || in_flight < GATHERED_REQUESTS_AT_ONCE;
        may_begin.then(|| self.waiting.drain(..fitting).collect())
    }
}

impl ReplicaQueue {
    /// The number of waiting rows that fit into one request, and whether it is then full.
    fn fitting(&self) -> (usize, bool) {
        let mut partitions_max = if self.last_request_failed { 1 } else { GATHERED_PARTITIONS_MAX };
        let mut partitions: Vec<i64> = Vec::with_capacity(partitions_max);
        let (mut rows, mut bytes) = (0, 0);
        for (at, waiting) in self.waiting.iter().enumerate() {
            if waiting.attempt == WriteAttempt::Repeat {
                partitions_max = 1;
            }
            if !partitions.contains(&waiting.partition) {
                partitions.push(waiting.partition);
            }
            rows += waiting.rows.len();
            bytes += waiting.bytes;
            let is_one = partitions.len() == 1 && rows <= PARTITION_BATCH_ROWS_MAX;
            if at > 0 && !is_one && (partitions.len() > partitions_max || bytes > GATHERED_BYTES_MAX) {
                return (at, true);
            }
        }
        (self.waiting.len(), partitions.len() == partitions_max && partitions_max > 1)
    }
}

/// Sends a request and answers its callers.
async fn send(store: &dyn WideStore, queue: &CallQueue<ReplicaQueue>, request: Vec<PendingRows>) {
    let sent = write_once(store, &request).await;
    queue.lock().last_request_failed = sent.is_err();
    for waiting in request {
        // The caller may have stopped waiting.
        let _ = waiting.result_tx.send(sent.clone());
    }
}

async fn write_once<'a>(store: &dyn WideStore, request: &'a [PendingRows]) -> Result<(), RequestFailure> {
    if let [only] = request
        && let [row] = only.rows.as_slice()
    {
        return store.write(&only.statement, row).await;
    }
    let row = |waiting: &'a PendingRows| waiting.rows.iter().map(|row| (&waiting.statement, row.as_slice()));
    let rows: Vec<_> = request.iter().flat_map(row).collect();
    let sent = store.write_many(&rows).await;
    let is_one = request.iter().all(|waiting| waiting.partition == request[0].partition);
    // The faulty one of several is found when they go alone.
    sent.map_err(|fault| RequestFailure { is_retryable: fault.is_retryable || !is_one, ..fault })
}

fn stopped() -> RequestFailure {
    RequestFailure { outcome: EffectOutcome::Unknown, ..RequestFailure::not_sent("the writer of the rows was stopped") }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::task::{AbortHandle, JoinSet};

    use super::*;
    use crate::store::{ConditionalResult, PageState, ReadConsistency, RowPage};
    use crate::value::CqlRow;
    use tallystone_adapters::manual::ManualClock;
    use tallystone_domain::Timestamp;
    use tallystone_ports::StoreErrorKind;

    /// More than a test looks at before it takes one.
    const REQUESTS_MAX: usize = 64;

    /// A request that a test holds: its partitions, and how it is to end.
    type Request = (Vec<i64>, oneshot::Sender<Result<(), RequestFailure>>);

    /// A store whose requests end when a test says so. The first value of a row is its partition.
    struct Held {
        requests: tokio::sync::mpsc::Sender<Request>,
    }

    fn partition_of(values: &[CqlValue]) -> i64 {
        match values.first() {
            Some(CqlValue::BigInt(partition)) => *partition,
            _ => panic!("rows begin with their partition"),
        }
    }

    #[async_trait]
    impl WideStore for Held {
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
            let (end, ended) = oneshot::channel();
            let partitions = rows.iter().map(|(_, values)| partition_of(values)).collect();
            self.requests.try_send((partitions, end)).expect("the test looks at every request");
            match ended.await {
                Ok(ended) => ended,
                // What a test does not care to end hangs.
                Err(_) => std::future::pending().await,
            }
        }

        fn route(&self, _statement: &PreparedCql, values: &[CqlValue]) -> WriteRoute {
            let partition = partition_of(values);
            WriteRoute { replica: partition.unsigned_abs() / 1_000, partition }
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

        async fn read_page(
            &self,
            _statement: &PreparedCql,
            _after: Option<&PageState>,
        ) -> Result<RowPage, RequestFailure> {
            Ok((Vec::new(), None))
        }
    }

    struct Trial {
        gathering: Arc<WriteBatcher>,
        clock: Arc<ManualClock>,
        requests: tokio::sync::mpsc::Receiver<Request>,
        writes: JoinSet<Result<(), RequestFailure>>,
    }

    impl Trial {
        fn new() -> Self {
            let (told, requests) = tokio::sync::mpsc::channel(REQUESTS_MAX);
            let clock = Arc::new(ManualClock::at(Timestamp::from_secs(0)));
            let gathering = WriteBatcher::new(Arc::new(Held { requests: told }), Arc::clone(&clock) as _);
            Self { gathering: Arc::new(gathering), clock, requests, writes: JoinSet::new() }
        }

        /// Writes a row of so many bytes beside its partition, and waits until its place in the queue is taken.
        async fn write(&mut self, partition: i64, bytes: usize) -> AbortHandle {
            self.attempt(partition, bytes, WriteAttempt::First).await
        }

        async fn attempt(&mut self, partition: i64, bytes: usize, attempt: WriteAttempt) -> AbortHandle {
            let gathering = Arc::clone(&self.gathering);
            let sleepers = self.clock.sleepers() + 1;
            let write = self.writes.spawn(async move {
                let rows = Arc::new(vec![vec![CqlValue::BigInt(partition), CqlValue::Blob(vec![0; bytes])]]);
                gathering.write(&PreparedCql::new("a row", ()), rows, attempt).await
            });
            self.clock.wait_for_sleepers(sleepers).await;
            write
        }

        /// Takes up as many requests as may be under way without waiting.
        async fn fill(&mut self) -> Vec<Request> {
            let mut held = Vec::new();
            for partition in 0..GATHERED_REQUESTS_AT_ONCE as i64 {
                self.write(partition, 1).await;
                held.push(self.next().await);
            }
            held
        }

        async fn next(&mut self) -> Request {
            self.requests.recv().await.expect("a request")
        }

        fn nothing_is_sent(&mut self) -> bool {
            self.requests.try_recv().is_err()
        }

        /// How the writes ended that have.
        async fn ended(&mut self, count: usize) -> Vec<Result<(), RequestFailure>> {
            let mut ended = Vec::new();
            for _ in 0..count {
                ended.push(self.writes.join_next().await.expect("it was begun").expect("it does not panic"));
            }
            ended
        }
    }

    fn unavailable() -> RequestFailure {
        RequestFailure::not_sent("too few replicas")
    }

    #[tokio::test]
    async fn what_comes_while_requests_are_under_way_goes_together_when_one_ends() {
        let mut trial = Trial::new();
        let mut held = trial.fill().await;
        assert!(held.iter().all(|(partitions, _)| partitions.len() == 1), "whoever finds room goes at once");
        for partition in [10, 11, 10] {
            trial.write(partition, 1).await;
        }
        assert!(trial.nothing_is_sent());
        let (_, end) = held.pop().expect("some are held");
        end.send(Ok(())).expect("it is awaited");
        assert_eq!(trial.next().await.0, [10, 11, 10]);
    }

    #[tokio::test]
    async fn a_full_request_goes_without_waiting_for_another_to_end() {
        let mut trial = Trial::new();
        let _held = trial.fill().await;
        for partition in 10..10 + GATHERED_PARTITIONS_MAX as i64 {
            trial.write(partition, 1).await;
        }
        assert_eq!(trial.next().await.0.len(), GATHERED_PARTITIONS_MAX);
        trial.write(20, GATHERED_BYTES_MAX / 2).await;
        trial.write(21, GATHERED_BYTES_MAX / 2 + 1).await;
        assert_eq!(trial.next().await.0, [20], "both are too many bytes for one");
        assert!(trial.nothing_is_sent());
    }

    #[tokio::test]
    async fn a_partition_by_itself_may_be_larger() {
        let mut trial = Trial::new();
        let mut held = trial.fill().await;
        for _ in 0..20 {
            trial.write(10, GATHERED_BYTES_MAX / 2).await;
        }
        let (_, end) = held.pop().expect("some are held");
        end.send(Ok(())).expect("it is awaited");
        assert_eq!(trial.next().await.0, [10; 20]);
    }

    #[tokio::test]
    async fn rows_of_another_replica_do_not_wait() {
        let mut trial = Trial::new();
        let _held = trial.fill().await;
        trial.write(1_000, 1).await;
        assert_eq!(trial.next().await.0, [1_000]);
    }

    #[tokio::test]
    async fn nobody_waits_for_requests_that_hang() {
        let mut trial = Trial::new();
        let _held = trial.fill().await;
        trial.write(10, 1).await;
        assert!(trial.nothing_is_sent());
        trial.clock.advance(GATHERED_WAIT_MAX);
        assert_eq!(trial.next().await.0, [10]);
        assert!(trial.nothing_is_sent(), "those under way are not sent again");
    }

    #[tokio::test]
    async fn whoever_waits_behind_one_who_has_gone_waits_no_longer() {
        let mut trial = Trial::new();
        let mut held = trial.fill().await;
        let mut waiting = Vec::new();
        for partition in [10, 11, 12] {
            waiting.push(trial.write(partition, 1).await);
        }
        let (_, end) = held.pop().expect("some are held");
        end.send(Err(unavailable())).expect("it is awaited");
        let (alone, _end) = trial.next().await;
        assert_eq!(alone, [10], "the rest would not fit beside it while there is doubt");
        waiting[1].abort();
        trial.clock.advance(GATHERED_WAIT_MAX);
        assert_eq!(trial.next().await.0, [11]);
        assert_eq!(trial.next().await.0, [12]);
    }

    #[tokio::test]
    async fn after_a_fault_partitions_go_alone_until_one_gets_through() {
        let mut trial = Trial::new();
        let mut held = trial.fill().await;
        for partition in [10, 11] {
            trial.write(partition, 1).await;
        }
        let (_, end) = held.pop().expect("some are held");
        end.send(Ok(())).expect("it is awaited");
        assert!(trial.ended(1).await[0].is_ok());
        let (partitions, end) = trial.next().await;
        assert_eq!(partitions, [10, 11]);
        for partition in [12, 13] {
            trial.write(partition, 1).await;
        }
        let refused = RequestFailure { is_retryable: false, kind: StoreErrorKind::Forbidden, ..unavailable() };
        end.send(Err(refused)).expect("it is awaited");
        let faults: Vec<RequestFailure> = trial.ended(2).await.into_iter().filter_map(Result::err).collect();
        assert_eq!(faults.len(), 2);
        assert!(faults.iter().all(|fault| fault.is_retryable), "one of them may be innocent");
        let (alone, end) = trial.next().await;
        assert_eq!(alone, [12]);
        end.send(Err(unavailable())).expect("it is awaited");
        assert!(trial.ended(1).await[0].is_err());
        trial.write(14, 1).await;
        let (alone, end) = trial.next().await;
        assert_eq!(alone, [13], "it is still in doubt");
        end.send(Ok(())).expect("it is awaited");
        assert!(trial.ended(1).await[0].is_ok());
        assert_eq!(trial.next().await.0, [14]);
    }

    #[tokio::test]
    async fn what_is_sent_again_takes_no_other_partition_along() {
        let mut trial = Trial::new();
        let _held = trial.fill().await;
        trial.write(10, 1).await;
        trial.attempt(11, 1, WriteAttempt::Repeat).await;
        assert_eq!(trial.next().await.0, [10], "nothing more would fit beside it");
        trial.attempt(11, 1, WriteAttempt::Repeat).await;
        trial.write(12, 1).await;
        assert_eq!(trial.next().await.0, [11, 11]);
        trial.write(13, 1).await;
        trial.clock.advance(GATHERED_WAIT_MAX);
        assert_eq!(trial.next().await.0, [12, 13]);
    }

    #[tokio::test]
    async fn a_caller_who_goes_away_takes_nobody_along() {
        let mut trial = Trial::new();
        let mut held = trial.fill().await;
        for partition in [10, 11] {
            trial.write(partition, 1).await;
        }
        trial.writes.abort_all();
        let (_, end) = held.pop().expect("some are held");
        end.send(Ok(())).expect("the request goes on");
        assert_eq!(trial.next().await.0, [10, 11], "they may have been promised to somebody");
    }
}
