//! Calls that the audit records run to their end, also if their callers go away.
//!
//! A call that is reset is dropped where it waits, but what it gave to the engine is done. Its line is written last, so
//! it would be missing. Invariant: a connection has no more of these calls in progress than it may have calls, however
//! many it resets.

use std::pin::Pin;
use std::time::Duration;

use http::Response;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use crate::http::buffers::Caller;

/// A call with the line that it leaves.
pub type RecordedCall = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// How a recorded call ended.
pub enum RecordedEnd {
    /// With this answer.
    Answered(Response<Body>),
    /// It panicked; the panic hook has logged the panic.
    Panicked,
    /// The server stopped before its end.
    CutOff,
}

/// The calls that are recorded, in progress.
#[derive(Default)]
pub struct RecordedCalls {
    tasks: TaskTracker,
    cut_off: CancellationToken,
}

impl RecordedCalls {
    /// Runs a call to its end, and waits for it.
    pub async fn run(&self, caller: &Caller, call: RecordedCall) -> RecordedEnd {
        let place = caller.begin_recorded().await;
        let cut_off = self.cut_off.clone();
        let task = self.tasks.spawn(async move {
            let _place = place;
            cut_off.run_until_cancelled_owned(call).await
        });
        match task.await {
            Ok(Some(response)) => RecordedEnd::Answered(response),
            Err(ended) if ended.is_panic() => RecordedEnd::Panicked,
            // The runtime ends its tasks with the process.
            Ok(None) | Err(_) => RecordedEnd::CutOff,
        }
    }

    /// The tasks that write lines of streams whose callers went away. They are waited for as the calls are.
    pub fn lines(&self) -> TaskTracker {
        self.tasks.clone()
    }

    /// Waits for the calls whose callers went away, and ends those that are not done in time. Call it once, after the
    /// last call began.
    pub async fn drain(&self, deadline: Duration) {
        self.tasks.close();
        if tokio::time::timeout(deadline, self.tasks.wait()).await.is_err() {
            self.cut_off.cancel();
            self.tasks.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::http::buffers::Buffers;
    use crate::http::metrics::CallMetrics;
    use tallystone_domain::limits::{ANSWER_UNTAKEN_MAX, BUFFER_BYTES_DEFAULT};

    fn caller() -> Caller {
        let server = Buffers::new(BUFFER_BYTES_DEFAULT, &CallMetrics::register(&mut Registry::default()));
        Caller::new(([127, 0, 0, 1], 1).into(), Arc::new(server), ANSWER_UNTAKEN_MAX)
    }

    #[tokio::test]
    async fn a_call_that_panics_is_told_from_one_that_a_stop_cuts_off() {
        let (calls, caller) = (RecordedCalls::default(), caller());
        let answered = calls.run(&caller, Box::pin(async { Response::default() })).await;
        assert!(matches!(answered, RecordedEnd::Answered(_)));
        let panicked = calls.run(&caller, Box::pin(async { panic!("a call of this test") })).await;
        assert!(matches!(panicked, RecordedEnd::Panicked));
        let endless = calls.run(&caller, Box::pin(std::future::pending()));
        let stop = async {
            tokio::task::yield_now().await;
            calls.drain(Duration::ZERO).await;
        };
        let (cut_off, ()) = tokio::join!(endless, stop);
        assert!(matches!(cut_off, RecordedEnd::CutOff));
    }
}
