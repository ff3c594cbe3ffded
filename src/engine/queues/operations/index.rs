//! The registry of operations: running ones, and for an hour those that have ended, and the list of those of a queue.
//!
//! Each caller has a quota of entries. Ended operations are evicted before a new one is refused. The oldest of the
//! same caller goes first; if the registry is full and the caller has none, the oldest of all goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::RunningOperation;
use crate::caller_quota::{CallerId, CallerQuota, QuotaExceeded, QuotaPermit};
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use tallystone_domain::Timestamp;
use tallystone_domain::access::KeyQuota;
use tallystone_domain::limits::{
    CALLER_OPERATIONS_MAX, CALLER_QUEUE_REQUESTS_KEPT_MAX, OPERATION_KEPT, OPERATIONS_MAX, QUEUE_REQUESTS_KEPT_MAX,
};
use tallystone_domain::queue::QueueId;
use tallystone_ports::OperationPlace;

/// The operations of a server.
pub struct Operations {
    index: Mutex<OperationIndex>,
    shares: CallerQuota,
    stored_request_quota: CallerQuota,
}

/// When an operation ended, as elapsed time, with a number that breaks ties.
type EndKey = (Duration, u64);

#[derive(Default)]
struct OperationIndex {
    by_id: HashMap<String, OperationEntry>,
    /// Ended operations, oldest first: of all callers, and of each.
    ended: BTreeMap<EndKey, Arc<RunningOperation>>,
    ended_of: HashMap<CallerId, BTreeSet<EndKey>>,
    /// The operations that are in the list of a queue, oldest first.
    listed: BTreeSet<(QueueId, OperationPlace)>,
    /// The quota permits of stored requests, by the expiry of the record.
    stored_requests: BTreeMap<(Timestamp, u64), QuotaPermit>,
    next: u64,
}

struct OperationEntry {
    running: Arc<RunningOperation>,
    ended: Option<EndKey>,
    _share: QuotaPermit,
}

impl Default for Operations {
    fn default() -> Self {
        Self {
            index: Mutex::default(),
            shares: CallerQuota::new(OPERATIONS_MAX, CALLER_OPERATIONS_MAX).of_key(KeyQuota::Operations),
            stored_request_quota: CallerQuota::new(QUEUE_REQUESTS_KEPT_MAX, CALLER_QUEUE_REQUESTS_KEPT_MAX),
        }
    }
}

impl Operations {
    /// Finds an operation by its id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<RunningOperation>> {
        self.index.lock().by_id.get(id).map(|place| Arc::clone(&place.running))
    }

    /// Adds an operation, or returns the existing one with the same id. O(log n).
    pub(super) fn put(
        &self,
        made: RunningOperation,
        now: Duration,
    ) -> Result<(Arc<RunningOperation>, bool), QueueError> {
        let mut known = self.index.lock();
        if let Some(place) = known.by_id.get(&made.id) {
            return Ok((Arc::clone(&place.running), false));
        }
        known.forget_old(now);
        let share = loop {
            let why = match self.shares.try_take(&made.caller) {
                Ok(share) => break share,
                Err(why) => why,
            };
            // Each round evicts one, so there are at most two.
            let Some(oldest) = known.oldest_evictable(&made.caller, why) else {
                made.caller.note_refusal(why);
                return Err(QueueError::LimitReached { of: LimitedResource::Operation, why });
            };
            known.forget(oldest);
        };
        let made = Arc::new(made);
        let place = OperationEntry { running: Arc::clone(&made), ended: None, _share: share };
        known.listed.extend(made.list_key());
        known.by_id.insert(made.id.clone(), place);
        Ok((made, true))
    }

    /// The operations in the list of a queue behind a place, newest first, at most so many. O(rows log n).
    pub(super) fn of_queue(
        &self,
        queue: QueueId,
        behind: Option<&OperationPlace>,
        rows: usize,
        now: Duration,
    ) -> Vec<Arc<RunningOperation>> {
        let mut known = self.index.lock();
        known.forget_old(now);
        let first = Bound::Included((queue, (Timestamp::MIN, Box::default())));
        let end = match (behind, queue.0.checked_add(1)) {
            (Some(behind), _) => Bound::Excluded((queue, behind.clone())),
            (None, Some(next)) => Bound::Excluded((QueueId(next), (Timestamp::MIN, Box::default()))),
            (None, None) => Bound::Unbounded,
        };
        let places = known.listed.range((first, end)).rev().take(rows);
        places.filter_map(|(_, (_, id))| known.by_id.get(&**id)).map(|entry| Arc::clone(&entry.running)).collect()
    }

    /// Marks an operation as ended; from then on it may be evicted.
    pub(super) fn ended(&self, running: &Arc<RunningOperation>, now: Duration) {
        let mut known = self.index.lock();
        let at = (now, known.next());
        let Some(place) = known.by_id.get_mut(&running.id).filter(|place| Arc::ptr_eq(&place.running, running)) else {
            return;
        };
        place.ended = Some(at);
        known.ended_of.entry(running.caller.clone()).or_default().insert(at);
        known.ended.insert(at, Arc::clone(running));
    }

    /// Removes an operation, so that its id is free.
    pub(super) fn remove(&self, id: &str) {
        self.index.lock().remove(id);
    }

    /// Takes a quota permit for a stored request until the record expires.
    pub(super) fn reserve_stored_request(
        &self,
        caller: &CallerId,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), QueueError> {
        let mut known = self.index.lock();
        known.stored_requests = known.stored_requests.split_off(&(now, 0));
        let share = self
            .stored_request_quota
            .take(caller)
            .map_err(|why| QueueError::LimitReached { of: LimitedResource::KeptRequest, why })?;
        let number = known.next();
        known.stored_requests.insert((until, number), share);
        Ok(())
    }
}

impl RunningOperation {
    /// Its key in the list of its queue, if it is in one.
    fn list_key(&self) -> Option<(QueueId, OperationPlace)> {
        self.listed_of.map(|queue| (queue, (self.began, self.id.as_str().into())))
    }
}

impl OperationIndex {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn remove(&mut self, id: &str) {
        let Some(place) = self.by_id.remove(id) else { return };
        if let Some(key) = place.running.list_key() {
            self.listed.remove(&key);
        }
        let Some(at) = place.ended else { return };
        self.ended.remove(&at);
        let caller = &place.running.caller;
        if let Some(own) = self.ended_of.get_mut(caller) {
            own.remove(&at);
            if own.is_empty() {
                self.ended_of.remove(caller);
            }
        }
    }

    fn forget(&mut self, at: EndKey) {
        if let Some(running) = self.ended.get(&at).map(Arc::clone) {
            self.remove(&running.id);
        }
    }

    /// Removes the operations that ended long ago.
    fn forget_old(&mut self, now: Duration) {
        while let Some((&at, _)) = self.ended.first_key_value()
            && now.saturating_sub(at.0) >= OPERATION_KEPT
        {
            self.forget(at);
        }
    }

    /// The ended operation to evict for a new one of this caller.
    fn oldest_evictable(&self, caller: &CallerId, why: QuotaExceeded) -> Option<EndKey> {
        let own = self.ended_of.get(caller).and_then(|own| own.first());
        let any = self.ended.first_key_value().map(|(at, _)| at);
        match why {
            QuotaExceeded::Own(_) | QuotaExceeded::OfKey(_) => own.copied(),
            QuotaExceeded::All(_) => own.or(any).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::queues::operations::findings::KeptFindings;
    use crate::queues::operations::{OperationKind, OperationSpec};
    use tallystone_domain::queue::QueueName;
    use tallystone_ports::OperationAuthor;

    fn caller(last: u8) -> CallerId {
        CallerId::of_address([10, 0, 0, last].into())
    }

    fn operation(caller: &CallerId, id: String) -> RunningOperation {
        RunningOperation {
            id,
            caller: caller.clone(),
            author: OperationAuthor::default(),
            listed_of: Some(QueueId(7)),
            queue: QueueName::new("q").ok(),
            work: OperationSpec::all(OperationKind::Purge),
            stored_request: None,
            ended_by: None,
            done: AtomicU64::new(0),
            total: 0,
            began: Timestamp::MIN,
            pace: Mutex::default(),
            shared: None,
            cancel: CancellationToken::new(),
            findings: KeptFindings::default(),
            end: watch::Sender::new(None),
        }
    }

    /// Begins `count` operations of a caller.
    fn begun(
        operations: &Operations,
        of: &CallerId,
        name: &str,
        count: usize,
        now: Duration,
    ) -> Vec<Arc<RunningOperation>> {
        let begin = |number| operations.put(operation(of, format!("{name}{number}")), now).expect("room").0;
        (0..count).map(begin).collect()
    }

    fn refusal(operations: &Operations, of: &CallerId, now: Duration) -> Option<QuotaExceeded> {
        match operations.put(operation(of, "one more".to_owned()), now).err()? {
            QueueError::LimitReached { of: LimitedResource::Operation, why } => Some(why),
            other => panic!("{other}"),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_caller_leaves_operations_for_others_and_its_own_that_have_ended_give_way() {
        let operations = Operations::default();
        let greedy = begun(&operations, &caller(1), "a", CALLER_OPERATIONS_MAX, SECOND);
        assert_eq!(refusal(&operations, &caller(1), SECOND), Some(QuotaExceeded::Own(CALLER_OPERATIONS_MAX)));
        let other = begun(&operations, &caller(2), "b", 1, SECOND);
        operations.ended(&other[0], SECOND);
        assert_eq!(
            refusal(&operations, &caller(1), SECOND),
            Some(QuotaExceeded::Own(CALLER_OPERATIONS_MAX)),
            "no other caller's gives way to what one has too many of"
        );
        operations.ended(&greedy[7], 2 * SECOND);
        operations.ended(&greedy[3], 3 * SECOND);
        begun(&operations, &caller(1), "c", 1, 3 * SECOND);
        let known = ["a7", "a3", "b0", "c0"].map(|id| operations.get(id).is_some());
        assert_eq!(known, [false, true, true, true], "the oldest that has ended, and no other");
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_that_has_ended_gives_way() {
        let operations = Operations::default();
        let first = begun(&operations, &caller(1), "a", CALLER_OPERATIONS_MAX, SECOND);
        begun(&operations, &caller(2), "b", OPERATIONS_MAX - CALLER_OPERATIONS_MAX, SECOND);
        assert_eq!(refusal(&operations, &caller(3), SECOND), Some(QuotaExceeded::All(OPERATIONS_MAX)));
        operations.ended(&first[5], SECOND);
        begun(&operations, &caller(3), "c", 1, SECOND);
        assert!(operations.get("a5").is_none() && operations.get("a4").is_some());
    }

    #[test]
    fn an_operation_is_known_for_an_hour_after_its_end_and_its_name_is_free_then() {
        let operations = Operations::default();
        let one = begun(&operations, &caller(1), "a", 1, SECOND);
        operations.ended(&one[0], SECOND);
        let again = |now| operations.put(operation(&caller(1), "a0".to_owned()), now).expect("room").1;
        assert!(!again(OPERATION_KEPT), "a repeat is answered what is known");
        begun(&operations, &caller(1), "b", 1, SECOND + OPERATION_KEPT);
        assert!(again(SECOND + OPERATION_KEPT));
        operations.ended(&one[0], 2 * OPERATION_KEPT);
        assert!(operations.index.lock().ended.is_empty(), "the end of another one of the name is not its own");
    }

    #[test]
    fn the_list_of_a_queue_has_its_own_newest_first_and_forgets_with_the_registry() {
        let operations = Operations::default();
        for (number, queue) in [(1, 7), (2, 8), (3, 7), (4, 7), (5, u128::MAX)] {
            let mut made = operation(&caller(1), format!("{number}"));
            (made.began, made.listed_of) = (Timestamp::from_secs(number), Some(QueueId(queue)));
            let running = operations.put(made, SECOND).expect("room").0;
            if number == 3 {
                operations.ended(&running, SECOND);
            }
        }
        let mut unlisted = operation(&caller(1), "6".to_owned());
        unlisted.listed_of = None;
        operations.put(unlisted, SECOND).expect("room");
        let ids = |queue, behind: Option<&str>, rows, now| {
            let behind = behind.map(|id| (operations.get(id).expect("known").began, id.into()));
            let page = operations.of_queue(QueueId(queue), behind.as_ref(), rows, now);
            page.iter().map(|running| running.id.clone()).collect::<Vec<_>>().concat()
        };
        assert_eq!(
            [ids(7, None, 9, SECOND), ids(8, None, 9, SECOND), ids(u128::MAX, None, 9, SECOND)],
            ["431", "2", "5"]
        );
        assert_eq!(
            [ids(7, None, 2, SECOND), ids(7, Some("3"), 2, SECOND), ids(7, Some("1"), 2, SECOND)],
            ["43", "1", ""]
        );
        assert_eq!(ids(7, None, 9, SECOND + OPERATION_KEPT), "41", "an hour after its end");
        operations.remove("4");
        assert_eq!(operations.index.lock().listed.len(), 3);
    }

    #[test]
    fn requests_that_are_kept_are_shared_until_their_time_is_over() {
        let operations = Operations::default();
        let at = Timestamp::from_secs;
        for _ in 0..CALLER_QUEUE_REQUESTS_KEPT_MAX {
            operations.reserve_stored_request(&caller(1), at(10), at(1)).expect("room");
        }
        let more = operations.reserve_stored_request(&caller(1), at(10), at(9));
        assert!(matches!(
            more,
            Err(QueueError::LimitReached { of: LimitedResource::KeptRequest, why: QuotaExceeded::Own(_) })
        ));
        assert!(operations.reserve_stored_request(&caller(2), at(10), at(9)).is_ok());
        assert!(operations.reserve_stored_request(&caller(1), at(20), at(11)).is_ok());
    }
}
