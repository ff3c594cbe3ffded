//! Calls that the audit records run to their end, also if their callers go away.
//!
//! A call that is reset is dropped where it waits, but what it gave to the engine is done. Its line is written last, so it would be
//! missing. Invariant: a connection has no more of these calls in progress than it may have calls, however many it resets.

use std::pin::Pin;
use std::time::Duration;

use http::Response;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use crate::api::http::buffers::Caller;

/// A call with the line that it leaves.
pub type RecordedCall = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// The calls that are recorded, in progress.
#[derive(Default)]
pub struct RecordedCalls {
    tasks: TaskTracker,
    cut_off: CancellationToken,
}

impl RecordedCalls {
    /// Runs a call to its end, and waits for its answer. None: it panicked, or the server stopped before its end.
    pub async fn run(&self, caller: &Caller, call: RecordedCall) -> Option<Response<Body>> {
        let place = caller.begin_recorded().await;
        let cut_off = self.cut_off.clone();
        let task = self.tasks.spawn(async move {
            let _place = place;
            cut_off.run_until_cancelled_owned(call).await
        });
        task.await.ok().flatten()
    }

    /// Waits for the calls whose callers went away, and ends those that are not done in time. Call it once, after the last call began.
    pub async fn drain(&self, deadline: Duration) {
        self.tasks.close();
        if tokio::time::timeout(deadline, self.tasks.wait()).await.is_err() {
            self.cut_off.cancel();
            self.tasks.wait().await;
        }
    }
}
