//! Makes a connection yield to its calls before it writes.
//!
//! A call that ends wakes its connection, and the runtime runs the most recently woken task next. So each answer would
//! be written alone, with one system call and one wake-up of the client each. A wrapped connection yields once on each
//! wake-up until the other runnable tasks have run; then it writes all their answers together. On an idle server this
//! costs one poll of the I/O driver. On a busy server it is the cheapest part of a call.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// A future that yields once before each poll.
#[derive(Debug)]
pub struct YieldBeforeWrite<F> {
    inner: F,
    stepped_back: bool,
}

impl<F> YieldBeforeWrite<F> {
    /// Wraps a future.
    pub fn new(inner: F) -> Self {
        Self { inner, stepped_back: false }
    }

    /// Returns the wrapped future.
    pub fn inner(&mut self) -> &mut F {
        &mut self.inner
    }
}

impl<F: Future + Unpin> Future for YieldBeforeWrite<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if !self.stepped_back && pin!(tokio::task::yield_now()).poll(context).is_pending() {
            self.stepped_back = true;
            return Poll::Pending;
        }
        self.stepped_back = false;
        Pin::new(&mut self.inner).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::task::AtomicWaker;

    use super::*;

    /// Counts its polls, and ends once all callers are done.
    struct Shared {
        polls: AtomicUsize,
        done: AtomicUsize,
        waker: AtomicWaker,
    }

    const CALLERS: usize = 20;

    #[tokio::test]
    async fn what_many_tasks_wake_is_polled_once_for_all_of_them() {
        let shared =
            Arc::new(Shared { polls: AtomicUsize::new(0), done: AtomicUsize::new(0), waker: AtomicWaker::new() });
        let watched = Arc::clone(&shared);
        let connection = std::future::poll_fn(move |context| {
            watched.polls.fetch_add(1, Ordering::Relaxed);
            watched.waker.register(context.waker());
            if watched.done.load(Ordering::Relaxed) == CALLERS { Poll::Ready(()) } else { Poll::Pending }
        });
        let connection = tokio::spawn(YieldBeforeWrite::new(connection));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    shared.done.fetch_add(1, Ordering::Relaxed);
                    shared.waker.wake();
                })
            })
            .collect();
        connection.await.expect("the connection does not panic");
        assert!(callers.iter().all(tokio::task::JoinHandle::is_finished), "all went first");
        assert!(shared.polls.load(Ordering::Relaxed) <= 3, "{} polls", shared.polls.load(Ordering::Relaxed));
    }
}
