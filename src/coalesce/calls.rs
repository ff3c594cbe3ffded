//! Calls for many callers: how many are in flight, and the runners that make them one after the other.

use std::ops::{Deref, DerefMut};
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;

/// The work that waits for a call.
pub trait PendingWork {
    /// The work of one call.
    type Batch;

    /// Takes the work of the next call, if it may go out beside `in_flight` others.
    fn next(&mut self, in_flight: usize) -> Option<Self::Batch>;
}

/// Work that waits for calls, and the number of calls in flight.
#[derive(Default)]
pub struct CallQueue<W> {
    state: Mutex<CallQueueState<W>>,
}

/// A locked `CallQueue`.
#[derive(Default)]
pub struct CallQueueState<W> {
    work: W,
    in_flight: usize,
}

impl<W: PendingWork> CallQueueState<W> {
    /// Takes the work of a further call, if one may go out now. The call is in flight from now on: `CallQueue::run`
    /// makes it.
    pub fn start(&mut self) -> Option<W::Batch> {
        let batch = self.work.next(self.in_flight);
        self.in_flight += usize::from(batch.is_some());
        batch
    }

    /// Counts a further call, which takes its work when it runs. So work that arrives until then shares it.
    pub fn reserve(&mut self) {
        self.in_flight += 1;
    }

    /// The number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl<W> Deref for CallQueueState<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.work
    }
}

impl<W> DerefMut for CallQueueState<W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.work
    }
}

impl<W: PendingWork> CallQueue<W> {
    /// Nothing is in flight yet.
    pub fn new(work: W) -> Self {
        Self { state: Mutex::new(CallQueueState { work, in_flight: 0 }) }
    }

    /// The waiting work, for a change.
    pub fn lock(&self) -> MutexGuard<'_, CallQueueState<W>> {
        self.state.lock()
    }

    /// Ends a call, and takes the work of the one that follows it.
    pub fn next(&self) -> Option<W::Batch> {
        let mut state = self.lock();
        state.in_flight -= 1;
        state.start()
    }

    /// Makes a call that was started or reserved, and further ones until none may follow. A panic ends only its own
    /// call: the panic hook logs it, then `panicked` is called.
    pub async fn run<C>(&self, started: Option<W::Batch>, call: impl Fn(W::Batch) -> C, panicked: impl Fn())
    where
        C: Future<Output = ()>,
    {
        let mut next = started.or_else(|| self.next());
        while let Some(batch) = next {
            // A panic leaves no lock of a user half changed: users hold none across a call. Its callers see a closed
            // channel.
            if AssertUnwindSafe(call(batch)).catch_unwind().await.is_err() {
                panicked();
            }
            next = self.next();
        }
    }
}

/// Tasks that continue when their callers go away. They end with this value.
#[derive(Default)]
pub struct DetachedTasks(Mutex<JoinSet<()>>);

impl DetachedTasks {
    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Waits for all tasks.
    pub async fn join(&self) {
        let mut tasks = std::mem::take(&mut *self.0.lock());
        while tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const CALLS_MAX: usize = 3;
    const BATCH_MAX: usize = 4;

    /// Numbered items, of which a call takes a few.
    #[derive(Default)]
    struct Items {
        waiting: Vec<usize>,
        /// The items that calls took, in order.
        taken: Vec<usize>,
        /// The items of calls that ended without a panic.
        done: Vec<usize>,
        running: usize,
        most_running: usize,
    }

    impl PendingWork for Items {
        type Batch = Vec<usize>;

        fn next(&mut self, in_flight: usize) -> Option<Vec<usize>> {
            let count = self.waiting.len().min(BATCH_MAX);
            if in_flight >= CALLS_MAX || count == 0 {
                return None;
            }
            let batch: Vec<usize> = self.waiting.drain(..count).collect();
            self.taken.extend(&batch);
            Some(batch)
        }
    }

    /// The course of an item: the pause before the next one, the pauses of its call, and whether its call panics.
    type Step = (usize, usize, bool);

    /// Makes the call of a batch, as long as its first item says.
    async fn call(queue: &CallQueue<Items>, steps: &[Step], batch: Vec<usize>) {
        {
            let mut state = queue.lock();
            state.running += 1;
            state.most_running = state.most_running.max(state.running);
        }
        let (_, pauses, panics) = steps[batch[0]];
        for _ in 0..pauses {
            tokio::task::yield_now().await;
        }
        queue.lock().running -= 1;
        if panics {
            std::panic::resume_unwind(Box::new("this call panics"));
        }
        queue.lock().done.extend(batch);
    }

    /// Adds the items one by one, and runs the calls for them.
    async fn run(steps: Vec<Step>, reserves: bool) {
        let (queue, steps) = (Arc::new(CallQueue::<Items>::default()), Arc::new(steps));
        let tasks = DetachedTasks::default();
        let panicked = Arc::new(Mutex::new(0));
        for (number, (pauses, ..)) in steps.iter().enumerate() {
            let started = {
                let mut state = queue.lock();
                state.waiting.push(number);
                let may_reserve = reserves && state.in_flight() < CALLS_MAX;
                if may_reserve {
                    state.reserve();
                }
                if reserves { may_reserve.then_some(None) } else { state.start().map(Some) }
            };
            if let Some(started) = started {
                let (queue, steps, panicked) = (Arc::clone(&queue), Arc::clone(&steps), Arc::clone(&panicked));
                tasks.spawn(async move {
                    queue.run(started, |batch| call(&queue, &steps, batch), || *panicked.lock() += 1).await;
                });
            }
            for _ in 0..*pauses {
                tokio::task::yield_now().await;
            }
        }
        tasks.join().await;
        let mut state = queue.lock();
        assert!(state.taken.iter().copied().eq(0..steps.len()), "each item is taken once, in order");
        assert_eq!((state.in_flight(), state.running, state.waiting.len()), (0, 0, 0), "the last runner has ended");
        assert!(state.most_running <= CALLS_MAX, "the calls in flight are bounded");
        let (lost, panicked) = (steps.len() - state.done.len(), *panicked.lock());
        state.done.sort_unstable();
        assert!(state.done.is_sorted_by(|one, other| one < other), "no item is done twice");
        assert!((panicked..=panicked * BATCH_MAX).contains(&lost), "a panic loses only its own call");
    }

    fn block_on(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(test);
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_call_and_the_calls_in_flight_are_bounded(
            steps in vec((0..4_usize, 0..6_usize, prop::bool::weighted(0.1)), 1..80),
            reserves: bool,
        ) {
            block_on(run(steps, reserves));
        }
    }

    #[test]
    fn a_reserved_call_takes_what_arrives_before_it_runs() {
        let queue = CallQueue::<Items>::default();
        queue.lock().reserve();
        queue.lock().waiting.extend([0, 1]);
        block_on(queue.run(None, |batch| call(&queue, &[(0, 0, false); 2], batch), || {}));
        let state = queue.lock();
        assert_eq!((state.taken.len(), state.in_flight()), (2, 0));
    }
}
