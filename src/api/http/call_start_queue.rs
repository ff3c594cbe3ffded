//! The calls of a connection start in turns.
//!
//! A client may send as many calls in one packet as its connection may have. If all of them started at once, the calls
//! of other connections would wait behind them. So a connection starts a few at a time. The next call starts when one
//! of them waits or has ended. Invariant: while calls wait to start, the maximum is starting.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use crate::http::response_body::StallGuard;
use tallystone_domain::limits::{CONNECTION_BEGINS_MAX, CONNECTION_CALLS_MAX};

/// Starts the calls of one HTTP/2 connection, each with a stall guard.
#[derive(Clone)]
pub struct CallExecutor {
    stall_timeout: Duration,
    resets: Counter,
    start_queue: Arc<Mutex<CallStartQueue>>,
}

#[derive(Default)]
struct CallStartQueue {
    starting: usize,
    waiting: VecDeque<Box<dyn FnOnce(CallStartPermit) + Send>>,
}

impl CallExecutor {
    /// Creates the executor of one connection, with the stall timeout of large answers and the counter of resets.
    pub fn new(pieces_within: Duration, resets: Counter) -> Self {
        Self { stall_timeout: pieces_within, resets, start_queue: Arc::default() }
    }
}

impl<F> Executor<F> for CallExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let call = StallGuard::new(stream, self.stall_timeout, self.resets.clone());
        let mut turns = self.start_queue.lock();
        let turn = if turns.starting < CONNECTION_BEGINS_MAX {
            turns.starting += 1;
            Some(CallStartPermit(Some(Arc::clone(&self.start_queue))))
        } else if turns.waiting.len() < CONNECTION_CALLS_MAX as usize {
            turns
                .waiting
                .push_back(Box::new(|turn| TokioExecutor::new().execute(StartingCall { call, turn: Some(turn) })));
            return;
        } else {
            // More calls than a connection may have: some were reset while they waited. This one starts without a
            // permit, so that such a client fills the runtime's queue, behind which its connection is read again.
            None
        };
        drop(turns);
        TokioExecutor::new().execute(StartingCall { call, turn });
    }
}

/// The permit to start a call. If it is dropped with an unpolled call, at the end of the process, it starts no other.
struct CallStartPermit(Option<Arc<Mutex<CallStartQueue>>>);

impl CallStartPermit {
    fn pass_to_next(mut self) {
        let Some(of_connection) = self.0.take() else { return };
        let mut turns = of_connection.lock();
        // Atomic, because a call that arrives in between would wait for a permit that nobody returns.
        match turns.waiting.pop_front() {
            Some(begin) => {
                drop(turns);
                begin(Self(Some(of_connection)));
            }
            None => turns.starting -= 1,
        }
    }
}

impl Drop for CallStartPermit {
    fn drop(&mut self) {
        if let Some(of_connection) = self.0.take() {
            of_connection.lock().starting -= 1;
        }
    }
}

/// Passes the permit on when dropped, also if the call panics.
struct PassPermitOnDrop(Option<CallStartPermit>);

impl Drop for PassPermitOnDrop {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(CallStartPermit::pass_to_next);
    }
}

/// A call with its start permit, until its first poll.
struct StartingCall<F> {
    call: StallGuard<F>,
    turn: Option<CallStartPermit>,
}

impl<F: Future> Future for StartingCall<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let _passing = PassPermitOnDrop(self.turn.take());
        Pin::new(&mut self.call).poll(cx).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, oneshot};

    use super::*;

    fn streams() -> CallExecutor {
        CallExecutor::new(Duration::from_secs(30), Counter::default())
    }

    #[tokio::test]
    async fn a_call_of_another_connection_waits_for_a_few_calls_and_not_for_all_that_one_sent() {
        const SENT: usize = 1_000;
        let (busy, other) = (streams(), streams());
        let (begun, before_other) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all_begun = Arc::new(Notify::new());
        for _ in 0..SENT {
            let (begun, all_begun) = (Arc::clone(&begun), Arc::clone(&all_begun));
            busy.execute(async move {
                if begun.fetch_add(1, Ordering::Relaxed) + 1 == SENT {
                    all_begun.notify_one();
                }
                std::future::pending::<()>().await;
            });
        }
        let (seen, noted) = (Arc::clone(&begun), Arc::clone(&before_other));
        let (done, is_done) = oneshot::channel();
        other.execute(async move {
            noted.store(seen.load(Ordering::Relaxed), Ordering::Relaxed);
            let _ = done.send(()); // the test waits for it
        });
        is_done.await.expect("the call runs");
        let before = before_other.load(Ordering::Relaxed);
        assert!(before <= 2 * CONNECTION_BEGINS_MAX, "{before} of {SENT} calls went first");
        all_begun.notified().await;
        assert_eq!(busy.start_queue.lock().starting, 0, "calls that wait have no turn");
    }

    #[tokio::test]
    async fn calls_that_panic_pass_their_turns_on() {
        let busy = streams();
        for _ in 0..2 * CONNECTION_BEGINS_MAX {
            busy.execute(async { panic!("a call of this test") });
        }
        let (done, is_done) = oneshot::channel();
        busy.execute(async move { done.send(()) });
        is_done.await.expect("the last call runs");
    }
}
