//! Answers that come from several nodes, for one who waits for some of them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::world::Sleep;

/// Where answers are put. Cheap to clone.
pub struct Gather<T>(Arc<Mutex<Inner<T>>>);

struct Inner<T> {
    answers: Vec<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Gather<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Gather<T> {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner { answers: Vec::new(), waker: None })))
    }

    /// Puts an answer.
    pub fn put(&self, answer: T) {
        let mut inner = self.0.lock();
        inner.answers.push(answer);
        if let Some(waker) = inner.waker.take() {
            waker.wake();
        }
    }

    /// Waits until so many answers have come, or until a time; takes what has come.
    pub async fn take(&self, count: usize, until: Sleep) -> Vec<T> {
        let mut until = pin!(until);
        poll_fn(|ctx| {
            let late = until.as_mut().poll(ctx).is_ready();
            let mut inner = self.0.lock();
            if inner.answers.len() >= count || late {
                return Poll::Ready(std::mem::take(&mut inner.answers));
            }
            inner.waker = Some(ctx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
