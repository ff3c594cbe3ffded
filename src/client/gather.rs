//! Coalesces single adds of many callers into batches.
//!
//! An add is sent at once while few calls are in flight. Adds that arrive meanwhile share the next call. So a quiet
//! client waits for nothing, and a busy one makes a call for up to 1,000 adds. A caller with a free slot makes the
//! call; at its end the slot goes to the first waiting caller. An add waits for a call at most as long as a call may
//! take. An add that was not sent by then, or whose caller has gone, is never sent. If the caller that makes a call
//! goes away, only its own result is lost: the callers of other adds in the call send again, with the same tokens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tonic::Status;

use crate::Client;
use crate::batches::{BATCH_ITEMS_MAX, BatchError};
use crate::error::{CallError, WriteError, busy, status_of};
use tallystone_proto::counter::v1::{AddCountRequest, AddCountResponse, AddItem, AddResult, BatchAddCountsRequest};

/// The calls of one batcher in flight.
const CALLS_AT_ONCE_MAX: usize = 4;
/// The waiting adds of one batcher. Beyond it an add is refused.
const WAITING_MAX: usize = 100 * BATCH_ITEMS_MAX;

/// Coalesces adds to counters of one namespace. Clones share the batches.
#[derive(Clone)]
pub struct Gathering {
    client: Client,
    namespace: String,
    slots: Arc<Mutex<CallSlots>>,
}

#[derive(Default)]
struct CallSlots {
    in_flight: usize,
    waiting: VecDeque<PendingAdd>,
}

/// An add that waits for a call.
struct PendingAdd {
    item: AddItem,
    notice_tx: oneshot::Sender<WaiterNotice>,
    dispatch: DispatchFlag,
}

/// Whether a waiting add is sent or abandoned, whichever is first. Its caller and its call share this.
#[derive(Clone, Default)]
struct DispatchFlag(Arc<AtomicBool>);

/// The waiter of an add, held by its caller.
struct AddWaiter {
    answer: oneshot::Receiver<WaiterNotice>,
    dispatch: DispatchFlag,
}

/// The outcome of a wait.
enum WaitOutcome {
    Notified(WaiterNotice),
    /// The caller that sent it went away during the call.
    CallLost,
    /// It was not sent and will not be.
    TimedOut,
}

enum WaiterNotice {
    /// It was in the call of another caller; this is its result.
    Answered(Result<AddResult, CallError>),
    /// A slot is free: send these adds with the own one.
    Lead(CallSlot),
}

/// The slot of a call. Dropping it passes it to the next waiting caller, so it is not lost with a caller that goes away
/// before using it.
struct CallSlot {
    /// None once it was returned.
    slots: Option<Arc<Mutex<CallSlots>>>,
    others: Vec<PendingAdd>,
}

impl Client {
    /// Gathers single adds of many callers into batches for a namespace.
    ///
    /// ```no_run
    /// # async fn of(client: tallystone_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tallystone_client::proto::counter::v1::AddItem;
    ///
    /// let views = client.gathering("default");
    /// let add = |name: &str| AddItem { counter_name: name.to_owned(), delta: Some(1), ..AddItem::default() };
    /// let (first, second) = tokio::join!(views.add(add("first")), views.add(add("second")));
    /// (first?, second?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn gathering(&self, namespace: &str) -> Gathering {
        Gathering { client: self.clone(), namespace: namespace.to_owned(), slots: Arc::default() }
    }
}

impl Gathering {
    /// Adds a delta, in one call with other adds where calls are under way. As `Client::add_count` otherwise: an add
    /// without a token gets one here, which stays over all tries and is replaced only if the server said that it was
    /// finally not applied. The answer has no `server_time`.
    ///
    /// An add that no call has taken within the time for one (`RetryPolicy::total`), or that finds 100,000 waiting, is
    /// refused with `RETRY_LATER`, and nothing of it is sent; so is nothing of one whose future was dropped while it
    /// waited.
    pub async fn add(&self, mut item: AddItem) -> Result<AddCountResponse, WriteError> {
        let is_ours = item.idempotency_token.is_none();
        let token = item.idempotency_token.get_or_insert_with(|| self.client.tokens.make()).clone();
        let (began, patience) = (Instant::now(), self.client.policy.total);
        let mut may_be_applied = false;
        let answer = loop {
            let turn = match self.enter(&item) {
                EntryOutcome::Leads(turn) => turn,
                EntryOutcome::Full => break Err(local_refusal("too many adds are waiting for a call")),
                EntryOutcome::Waits(place) => match place.wait_within(patience.saturating_sub(began.elapsed())).await {
                    WaitOutcome::Notified(WaiterNotice::Answered(answer)) => break answer,
                    WaitOutcome::Notified(WaiterNotice::Lead(turn)) => turn,
                    // The same token again.
                    WaitOutcome::CallLost => {
                        may_be_applied = true;
                        continue;
                    }
                    WaitOutcome::TimedOut => break Err(local_refusal("no call became free in time")),
                },
            };
            break self.lead(turn, &item).await;
        };
        match answer.and_then(applied) {
            Ok(response) => Ok(response),
            Err(mut error) => {
                let is_settled = error.reason().as_deref() == Some("NOT_APPLIED");
                error.may_be_applied |= may_be_applied && !is_settled;
                if is_ours && self.client.tokens.learn_from(&error.status, error.may_be_applied) {
                    return self.alone(item).await;
                }
                Err(WriteError { token, error })
            }
        }
    }

    /// Takes a turn if one is free, else a place in the queue.
    fn enter(&self, item: &AddItem) -> EntryOutcome {
        let mut turns = locked(&self.slots);
        if turns.in_flight < CALLS_AT_ONCE_MAX {
            turns.in_flight += 1;
            return EntryOutcome::Leads(CallSlot { slots: Some(Arc::clone(&self.slots)), others: Vec::new() });
        }
        if turns.waiting.len() >= WAITING_MAX {
            // The oldest are those that gave up.
            while turns.waiting.front().is_some_and(PendingAdd::is_abandoned) {
                turns.waiting.pop_front();
            }
            if turns.waiting.len() >= WAITING_MAX {
                return EntryOutcome::Full;
            }
        }
        let ((told, answer), fate) = (oneshot::channel(), DispatchFlag::default());
        turns.waiting.push_back(PendingAdd { item: item.clone(), notice_tx: told, dispatch: fate.clone() });
        EntryOutcome::Waits(AddWaiter { answer, dispatch: fate })
    }

    /// Sends an add and those that came with the turn; answers the others and returns what came of its own.
    async fn lead(&self, mut turn: CallSlot, item: &AddItem) -> Result<AddResult, CallError> {
        let mut others = std::mem::take(&mut turn.others);
        others.retain(|waiting| !waiting.is_abandoned() && waiting.dispatch.claim());
        let items = std::iter::once(item).chain(others.iter().map(|waiting| &waiting.item)).cloned().collect();
        let request = BatchAddCountsRequest { namespace: self.namespace.clone(), items };
        let sent = self.client.batch_add_counts(request).await;
        drop(turn);
        match sent {
            Ok(results) => {
                let mut results = results.into_iter();
                let own = results.next().ok_or_else(unanswered);
                for waiting in others {
                    // Whoever waited may have gone.
                    let _ = waiting.notice_tx.send(WaiterNotice::Answered(results.next().ok_or_else(unanswered)));
                }
                own
            }
            Err(BatchError { error, .. }) => {
                for waiting in others {
                    let _ = waiting.notice_tx.send(WaiterNotice::Answered(Err(copy_of(&error)))); // as above
                }
                Err(error)
            }
        }
    }

    async fn alone(&self, item: AddItem) -> Result<AddCountResponse, WriteError> {
        let request = AddCountRequest {
            namespace: self.namespace.clone(),
            counter_name: item.counter_name,
            delta: item.delta,
            idempotency_token: None,
            provenance: item.provenance,
        };
        self.client.add_count(request).await
    }
}

/// How an add begins.
enum EntryOutcome {
    Leads(CallSlot),
    Waits(AddWaiter),
    Full,
}

impl DispatchFlag {
    /// Decides it, if it is open.
    fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl PendingAdd {
    /// Whether nobody waits for its answer any more.
    fn is_abandoned(&self) -> bool {
        self.notice_tx.is_closed()
    }
}

impl AddWaiter {
    /// Waits to be told; past that time only for the answer of a call that has taken the add along.
    async fn wait_within(mut self, time: Duration) -> WaitOutcome {
        let told = match tokio::time::timeout(time, &mut self.answer).await {
            Ok(told) => told,
            Err(_) if self.dispatch.claim() => return WaitOutcome::TimedOut,
            Err(_) => self.answer.await,
        };
        told.map_or(WaitOutcome::CallLost, WaitOutcome::Notified)
    }
}

impl CallSlots {
    /// Takes out those that come first and still wait.
    fn next_waiting(&mut self, most: usize) -> Vec<PendingAdd> {
        let waiting = std::iter::from_fn(|| self.waiting.pop_front());
        waiting.filter(|waiting| !waiting.is_abandoned()).take(most).collect()
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        let Some(shared) = self.slots.take() else { return };
        let mut turns = locked(&shared);
        // Before what came later; they are there only if whoever was given the turn went away.
        let given = std::mem::take(&mut self.others);
        given.into_iter().rev().for_each(|waiting| turns.waiting.push_front(waiting));
        while let Some(next) = turns.waiting.pop_front() {
            if next.is_abandoned() {
                continue;
            }
            let others = turns.next_waiting(BATCH_ITEMS_MAX - 1);
            match next.notice_tx.send(WaiterNotice::Lead(Self { slots: Some(Arc::clone(&shared)), others })) {
                Ok(()) => return,
                // It went away; the one behind it leads.
                Err(WaiterNotice::Lead(mut turn)) => {
                    turn.slots = None;
                    let kept = std::mem::take(&mut turn.others);
                    kept.into_iter().rev().for_each(|waiting| turns.waiting.push_front(waiting));
                }
                Err(WaiterNotice::Answered(_)) => unreachable!("a lead was sent"),
            }
        }
        turns.in_flight -= 1;
    }
}

fn locked(turns: &Mutex<CallSlots>) -> std::sync::MutexGuard<'_, CallSlots> {
    // Nothing is ever half-done under the lock.
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of one item as that of a single call.
fn applied(result: AddResult) -> Result<AddCountResponse, CallError> {
    match result.error {
        None => Ok(AddCountResponse {
            outcome: result.outcome,
            idempotency_token: result.idempotency_token,
            event_time: result.event_time,
            server_time: None,
            idempotent: result.idempotent,
        }),
        Some(error) => Err(CallError::of_one(status_of(error))),
    }
}

/// A result that is missing says nothing of its item.
fn unanswered() -> CallError {
    let status = Status::unknown("the response has no result for this item; it may have been applied");
    CallError { status: Box::new(status), attempts: 1, may_be_applied: true }
}

/// The refusal of an add that was kept back here. A call before may have carried it.
fn local_refusal(why: &str) -> CallError {
    CallError {
        status: Box::new(busy(&format!("{why}; retry later with the same token"))),
        attempts: 0,
        may_be_applied: false,
    }
}

fn copy_of(error: &CallError) -> CallError {
    CallError { status: error.status.clone(), attempts: error.attempts, may_be_applied: error.may_be_applied }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RetryPolicy;

    fn gathering(total: Duration) -> Gathering {
        let policy = RetryPolicy { total, ..RetryPolicy::default() };
        Client::new("127.0.0.1:1", policy).expect("a valid address").gathering("default")
    }

    fn patient() -> Gathering {
        gathering(Duration::from_hours(1))
    }

    fn waits(gathering: &Gathering) -> AddWaiter {
        match gathering.enter(&AddItem::default()) {
            EntryOutcome::Waits(place) => place,
            EntryOutcome::Leads(_) | EntryOutcome::Full => panic!("all turns are taken and there is room"),
        }
    }

    fn leads(place: &mut AddWaiter) -> CallSlot {
        match place.answer.try_recv() {
            Ok(WaiterNotice::Lead(turn)) => turn,
            Ok(WaiterNotice::Answered(_)) | Err(_) => panic!("it is its turn"),
        }
    }

    fn all_turns(gathering: &Gathering) -> Vec<CallSlot> {
        let turn = |_| match gathering.enter(&AddItem::default()) {
            EntryOutcome::Leads(turn) => turn,
            EntryOutcome::Waits(_) | EntryOutcome::Full => panic!("a turn is free"),
        };
        (0..CALLS_AT_ONCE_MAX).map(turn).collect()
    }

    #[tokio::test]
    async fn what_comes_while_calls_are_under_way_goes_out_together() {
        let gathering = patient();
        let mut turns = all_turns(&gathering);
        let mut waiting: Vec<_> = (0..BATCH_ITEMS_MAX + 2).map(|_| waits(&gathering.clone())).collect();
        turns.pop();
        assert_eq!(leads(&mut waiting[0]).others.len(), BATCH_ITEMS_MAX - 1, "a call is full");
        drop(turns);
        drop(waiting);
        assert_eq!(locked(&gathering.slots).in_flight, 0);
    }

    #[tokio::test]
    async fn a_turn_is_not_lost_with_those_who_go_away() {
        let gathering = patient();
        let turns = all_turns(&gathering);
        let (first, second, mut third) = (waits(&gathering), waits(&gathering), waits(&gathering));
        drop(second);
        drop(turns);
        drop(first); // it was given a turn and has not looked
        drop(leads(&mut third));
        assert_eq!(all_turns(&gathering).len(), CALLS_AT_ONCE_MAX, "all turns are free again");
    }

    #[tokio::test]
    async fn an_add_whose_caller_has_gone_takes_no_room_in_a_call() {
        let gathering = patient();
        let mut turns = all_turns(&gathering);
        let (mut first, second, third) = (waits(&gathering), waits(&gathering), waits(&gathering));
        drop(second);
        turns.pop();
        let turn = leads(&mut first);
        assert_eq!(turn.others.len(), 1);
        assert!(!turn.others[0].is_abandoned());
        drop(third);
        assert!(turn.others[0].is_abandoned(), "it is left out when the call is made");
    }

    #[tokio::test]
    async fn an_add_that_no_call_takes_in_time_is_refused_and_never_sent() {
        let gathering = gathering(Duration::ZERO);
        let turns = all_turns(&gathering);
        let refused = gathering.add(AddItem::default()).await.expect_err("no call is free");
        assert_eq!(refused.error.reason().as_deref(), Some("RETRY_LATER"));
        assert!(!refused.error.may_be_applied && !refused.token.token.is_empty());
        assert!(locked(&gathering.slots).next_waiting(1).is_empty(), "it would be left out");
        drop(turns);
    }

    #[tokio::test]
    async fn an_add_that_was_sent_is_waited_for_and_one_that_was_given_up_is_not_sent() {
        let gathering = patient();
        let _turns = all_turns(&gathering);
        let (sent, given_up) = (waits(&gathering), waits(&gathering));
        let mut waiting = locked(&gathering.slots).next_waiting(2);
        assert!(waiting[0].dispatch.claim(), "a call takes it along");
        let answer = waiting.remove(0).notice_tx.send(WaiterNotice::Answered(Ok(AddResult::default())));
        assert!(answer.is_ok());
        assert!(matches!(sent.wait_within(Duration::ZERO).await, WaitOutcome::Notified(WaiterNotice::Answered(Ok(_)))));
        assert!(matches!(given_up.wait_within(Duration::ZERO).await, WaitOutcome::TimedOut));
        assert!(!waiting[0].dispatch.claim(), "no call takes it any more");
    }

    #[tokio::test]
    async fn those_that_wait_are_bounded_and_those_that_gave_up_are_not_counted() {
        let gathering = patient();
        let _turns = all_turns(&gathering);
        let mut places: VecDeque<_> = (0..WAITING_MAX).map(|_| waits(&gathering)).collect();
        let refused = gathering.add(AddItem::default()).await.expect_err("there is no room");
        assert_eq!(refused.error.reason().as_deref(), Some("RETRY_LATER"));
        assert!(!refused.error.may_be_applied);
        places.pop_front();
        places.push_back(waits(&gathering));
        assert!(matches!(gathering.enter(&AddItem::default()), EntryOutcome::Full));
    }
}
