//! The one driver of all background loops.
//!
//! Every loop has the same skeleton: stop first, then a wake-up, then the tick. A panic is caught, reported and tried
//! again after a pause. No other place of the engine spawns.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::stats::Count;
use crate::ports::Clock;

/// When a loop wants to be activated again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// At once: more is waiting.
    Again,
    /// After a time, whatever happens.
    After(Duration),
    /// After a time, or earlier when woken.
    AfterOrWoken(Duration),
    /// When woken.
    Woken,
    /// Never: the loop is done.
    Finished,
}

/// A background loop.
#[async_trait]
pub trait Activity: Send + Sync + 'static {
    /// Its name, for the log.
    fn name(&self) -> &'static str;

    /// Waits until there is something to do before the time.
    async fn woken(&self) {
        std::future::pending::<()>().await;
    }

    /// Does what there is to do. May run twice; what fails is repaired by the next run.
    async fn activate(&mut self) -> Next;

    /// Does what is left when the server stops.
    async fn finish(&mut self) {}
}

/// After a panic a loop pauses this long.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Starts and joins loops. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    abandon: CancellationToken,
    tasks: TaskTracker,
    panics: Arc<Count>,
}

impl Driver {
    /// Makes a driver with no loop.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            stop: CancellationToken::new(),
            abandon: CancellationToken::new(),
            tasks: TaskTracker::new(),
            panics: Arc::default(),
        }
    }

    /// Starts a loop; its first activation is at once.
    pub fn start(&self, activity: impl Activity) {
        self.start_once(run(activity, Arc::clone(&self.clock), self.stop.clone(), Arc::clone(&self.panics)));
    }

    /// Starts a piece of work that ends by itself and is joined at the stop.
    pub fn start_once(&self, work: impl Future<Output = ()> + Send + 'static) {
        let abandon = self.abandon.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = abandon.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// How many loops panicked and were started again.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Tells every loop to stop.
    pub fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Ends everything at once, wherever it is; what was acknowledged stays acknowledged.
    pub fn abandon(&self) {
        self.abandon.cancel();
        self.stop();
    }

    /// Waits until every loop has ended; `stop` was called before.
    pub async fn join(&self) {
        self.tasks.wait().await;
    }
}

async fn run(mut activity: impl Activity, clock: Arc<dyn Clock>, stop: CancellationToken, panics: Arc<Count>) {
    let mut next = Next::Again;
    while wait(&activity, next, clock.as_ref(), &stop).await {
        next = match AssertUnwindSafe(activity.activate()).catch_unwind().await {
            Ok(next) => next,
            Err(_panic) => {
                // The panic hook has logged what it was.
                panics.one();
                tracing::error!(activity = activity.name(), "a background loop panicked and will be run again");
                Next::After(PANIC_PAUSE)
            }
        };
    }
    if next != Next::Finished && AssertUnwindSafe(activity.finish()).catch_unwind().await.is_err() {
        tracing::error!(activity = activity.name(), "a background loop panicked while it was stopped");
    }
}

/// Waits for the next activation; says whether there is to be one.
async fn wait(activity: &impl Activity, next: Next, clock: &dyn Clock, stop: &CancellationToken) -> bool {
    let (tick, wakes) = match next {
        Next::Finished => return false,
        Next::Again => return !stop.is_cancelled(),
        Next::After(pause) => (Some(pause), false),
        Next::AfterOrWoken(pause) => (Some(pause), true),
        Next::Woken => (None, true),
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = activity.woken(), if wakes => true,
        () = clock.sleep(tick.unwrap_or_default()), if tick.is_some() => true,
    }
}
