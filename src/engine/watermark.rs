//! A number that only grows, and its waiters.
//!
//! Waiters are woken in the order of their arrival. (A `tokio::sync::watch` wakes in a random order, and a run of the
//! simulation would no longer follow from its seed.)

use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::Notify;

/// A number that only grows.
#[derive(Debug)]
pub struct Watermark {
    value: AtomicI64,
    moved: Notify,
}

impl Watermark {
    /// Starts at a value.
    pub fn new(value: i64) -> Self {
        Self { value: AtomicI64::new(value), moved: Notify::new() }
    }

    /// The present value.
    pub fn get(&self) -> i64 {
        self.value.load(Ordering::Acquire)
    }

    /// Raises the value and wakes the waiters. A value that is not greater changes nothing.
    pub fn raise(&self, to: i64) {
        if self.value.fetch_max(to, Ordering::AcqRel) < to {
            self.moved.notify_waiters();
        }
    }

    /// Adds one.
    pub fn advance(&self) {
        self.value.fetch_add(1, Ordering::AcqRel);
        self.moved.notify_waiters();
    }

    /// Waits until the value is at least this.
    pub async fn reach(&self, least: i64) {
        loop {
            // Subscribed before the check, so that no raise between the two is missed.
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.get() >= least {
                return;
            }
            moved.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn whoever_waited_first_is_woken_first() {
        let (rising, woken) = (Arc::new(Watermark::new(3)), Arc::new(Mutex::new(Vec::new())));
        let tasks: Vec<_> = (0..100)
            .map(|number| {
                let (rising, woken) = (Arc::clone(&rising), Arc::clone(&woken));
                tokio::spawn(async move {
                    rising.reach(5).await;
                    woken.lock().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        for to in [2, 4, 4] {
            rising.raise(to);
            tokio::task::yield_now().await;
            assert!(woken.lock().is_empty(), "{to} is not enough");
        }
        rising.advance();
        for task in tasks {
            task.await.expect("it ends");
        }
        assert_eq!(*woken.lock(), (0..100).collect::<Vec<_>>());
        assert_eq!(rising.get(), 5);
        rising.reach(1).await;
    }
}
