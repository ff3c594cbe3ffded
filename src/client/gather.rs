//! Single adds of many callers, gathered into batches.
//!
//! An add goes out at once while few calls are under way; what comes while they are goes out together, in the next call. So
//! a quiet client waits for nothing, and a busy one makes a call for up to 1,000 adds. Whoever finds a turn free leads a
//! call; when it is over the turn goes to the first who waits. A caller that goes away takes nothing with it but its own
//! answer: whoever was in its call sends again, under the same tokens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tonic::Status;

use crate::client::Client;
use crate::client::batches::{BATCH_ITEMS_MAX, BatchError};
use crate::client::error::{CallError, WriteError, status_of};
use crate::proto::counter::v1::{AddCountRequest, AddCountResponse, AddItem, AddResult, BatchAddCountsRequest};

/// Calls of one gathering that are under way at once.
const CALLS_AT_ONCE_MAX: usize = 4;

/// Gathers adds to counters of one namespace. Clones share what they gather.
#[derive(Clone)]
pub struct Gathering {
    client: Client,
    namespace: String,
    turns: Arc<Mutex<Turns>>,
}

#[derive(Default)]
struct Turns {
    taken: usize,
    waiting: VecDeque<Waiting>,
}

/// An add that waits for a call.
struct Waiting {
    item: AddItem,
    told: oneshot::Sender<Told>,
}

enum Told {
    /// It was in a call of another one; this came of it.
    Answered(Result<AddResult, CallError>),
    /// A turn is free: send these, and your own.
    Lead(Turn),
}

/// The right to make a call; ends by handing it on. It travels to whoever is next, so that it is not lost with one who goes
/// away before taking it up.
struct Turn {
    /// None once it was given back.
    turns: Option<Arc<Mutex<Turns>>>,
    others: Vec<Waiting>,
}

impl Client {
    /// Gathers single adds of many callers into batches for a namespace.
    ///
    /// ```no_run
    /// # async fn of(client: tallystone::client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tallystone::proto::counter::v1::AddItem;
    ///
    /// let views = client.gathering("default");
    /// let add = |name: &str| AddItem { counter_name: name.to_owned(), delta: 1, ..AddItem::default() };
    /// let (first, second) = tokio::join!(views.add(add("first")), views.add(add("second")));
    /// (first?, second?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn gathering(&self, namespace: &str) -> Gathering {
        Gathering { client: self.clone(), namespace: namespace.to_owned(), turns: Arc::default() }
    }
}

impl Gathering {
    /// Adds a delta, in one call with other adds where calls are under way. As `Client::add_count` otherwise: an add without
    /// a token gets one here, which stays over all tries and is replaced only if the server said that it was finally not
    /// applied. The answer has no `server_time`.
    pub async fn add(&self, mut item: AddItem) -> Result<AddCountResponse, WriteError> {
        let is_ours = item.idempotency_token.is_none();
        let token = item.idempotency_token.get_or_insert_with(|| self.client.tokens.make()).clone();
        let mut may_be_applied = false;
        let answer = loop {
            let turn = match self.enter(&item) {
                Ok(turn) => turn,
                Err(answer) => match answer.await {
                    Ok(Told::Answered(answer)) => break answer,
                    Ok(Told::Lead(turn)) => turn,
                    // Whoever sent it went away in the middle of the call: the same token again.
                    Err(_) => {
                        may_be_applied = true;
                        continue;
                    }
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
    fn enter(&self, item: &AddItem) -> Result<Turn, oneshot::Receiver<Told>> {
        let mut turns = locked(&self.turns);
        if turns.taken < CALLS_AT_ONCE_MAX {
            turns.taken += 1;
            return Ok(Turn { turns: Some(Arc::clone(&self.turns)), others: Vec::new() });
        }
        let (told, answer) = oneshot::channel();
        turns.waiting.push_back(Waiting { item: item.clone(), told });
        Err(answer)
    }

    /// Sends an add and those that came with the turn; answers the others and returns what came of its own.
    async fn lead(&self, mut turn: Turn, item: &AddItem) -> Result<AddResult, CallError> {
        let others = std::mem::take(&mut turn.others);
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
                    let _ = waiting.told.send(Told::Answered(results.next().ok_or_else(unanswered)));
                }
                own
            }
            Err(BatchError { error, .. }) => {
                for waiting in others {
                    let _ = waiting.told.send(Told::Answered(Err(copy_of(&error)))); // as above
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

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(shared) = self.turns.take() else { return };
        let mut turns = locked(&shared);
        // Before what came later; they are there only if whoever was given the turn went away.
        let given = std::mem::take(&mut self.others);
        given.into_iter().rev().for_each(|waiting| turns.waiting.push_front(waiting));
        while let Some(next) = turns.waiting.pop_front() {
            let fitting = turns.waiting.len().min(BATCH_ITEMS_MAX - 1);
            let others = turns.waiting.drain(..fitting).collect();
            match next.told.send(Told::Lead(Self { turns: Some(Arc::clone(&shared)), others })) {
                Ok(()) => return,
                // It went away; the one behind it leads.
                Err(Told::Lead(mut turn)) => {
                    turn.turns = None;
                    let kept = std::mem::take(&mut turn.others);
                    kept.into_iter().rev().for_each(|waiting| turns.waiting.push_front(waiting));
                }
                Err(Told::Answered(_)) => unreachable!("a lead was sent"),
            }
        }
        turns.taken -= 1;
    }
}

fn locked(turns: &Mutex<Turns>) -> std::sync::MutexGuard<'_, Turns> {
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

/// A server that leaves an item out of its answer has said nothing of it.
fn unanswered() -> CallError {
    let status = Status::unknown("the server left this item out of its answer; it may have been applied");
    CallError { status: Box::new(status), attempts: 1, may_be_applied: true }
}

fn copy_of(error: &CallError) -> CallError {
    CallError { status: error.status.clone(), attempts: error.attempts, may_be_applied: error.may_be_applied }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::RetryPolicy;

    fn gathering() -> Gathering {
        Client::new("127.0.0.1:1", RetryPolicy::default()).expect("a valid address").gathering("default")
    }

    fn waits(gathering: &Gathering) -> oneshot::Receiver<Told> {
        match gathering.enter(&AddItem::default()) {
            Ok(_) => panic!("all turns are taken"),
            Err(answer) => answer,
        }
    }

    fn leads(answer: &mut oneshot::Receiver<Told>) -> Turn {
        match answer.try_recv() {
            Ok(Told::Lead(turn)) => turn,
            Ok(Told::Answered(_)) | Err(_) => panic!("it is its turn"),
        }
    }

    fn all_turns(gathering: &Gathering) -> Vec<Turn> {
        (0..CALLS_AT_ONCE_MAX).map(|_| gathering.enter(&AddItem::default()).ok().expect("a turn is free")).collect()
    }

    #[tokio::test]
    async fn what_comes_while_calls_are_under_way_goes_out_together() {
        let gathering = gathering();
        let mut turns = all_turns(&gathering);
        let mut waiting: Vec<_> = (0..BATCH_ITEMS_MAX + 2).map(|_| waits(&gathering.clone())).collect();
        turns.pop();
        assert_eq!(leads(&mut waiting[0]).others.len(), BATCH_ITEMS_MAX - 1, "a call is full");
        drop(turns);
        drop(waiting);
        assert_eq!(locked(&gathering.turns).taken, 0);
    }

    #[tokio::test]
    async fn a_turn_is_not_lost_with_those_who_go_away() {
        let gathering = gathering();
        let turns = all_turns(&gathering);
        let (first, second, mut third) = (waits(&gathering), waits(&gathering), waits(&gathering));
        drop(second);
        drop(turns);
        drop(first); // it was given a turn and has not looked
        drop(leads(&mut third));
        assert_eq!(all_turns(&gathering).len(), CALLS_AT_ONCE_MAX, "all turns are free again");
    }
}
