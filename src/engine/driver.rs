//! The one driver of all background loops.
//!
//! Every loop has the same skeleton: stop first, then a wake-up, then the tick. A panic is caught, reported and tried
//! again after a pause. A drain stops loops by stages: the last rolls may wait for the limit, and the last watermarks
//! come after them. No other place of the engine spawns.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::stats::Count;
use tallystone_coalesce::FlowKey;
use tallystone_ports::Clock;

/// When a loop wants to be activated again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextActivation {
    /// At once: more work is waiting.
    Again,
    /// After a time, without an earlier wake-up.
    After(Duration),
    /// After a time, or earlier when woken.
    AfterOrWoken(Duration),
    /// When woken.
    Woken,
    /// Never: the loop is done.
    Finished,
}

/// The stage of a drain at which a loop ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainStage {
    /// Stops at once; other stages do not wait for it.
    Upkeep,
    /// Reports what changed in queues, so that the last rolls find it.
    Reports,
    /// Rolls the waiting counters.
    Rolls,
    /// Publishes the limit for as long as rolls may need it.
    Limits,
    /// Stores the last watermarks.
    Watermarks,
}

#[async_trait]
pub trait BackgroundLoop: Send + Sync + 'static {
    /// Its name, for the log.
    fn name(&self) -> &'static str;

    /// Waits until there is something to do before the time.
    async fn woken(&self) {
        std::future::pending::<()>().await;
    }

    /// Does the present work. May run twice; the next run repairs a failure.
    async fn activate(&mut self) -> NextActivation;

    /// The stage of a drain at which the loop ends.
    fn stage(&self) -> DrainStage {
        DrainStage::Upkeep
    }

    /// Does the last work when the server stops. It may wait until then, by elapsed time.
    async fn finish(&mut self, _until: Duration) {}
}

/// The pause of a loop after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Starts and joins loops. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    clock: Arc<dyn Clock>,
    stages: Arc<[StageTasks; 5]>,
    abandon: CancellationToken,
    /// The deadline of the last work, once a drain began.
    until: Arc<OnceLock<Duration>>,
    panics: Arc<Count>,
}

#[derive(Default)]
struct StageTasks {
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Driver {
    /// Makes a driver with no loop.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            stages: Arc::default(),
            abandon: CancellationToken::new(),
            until: Arc::default(),
            panics: Arc::default(),
        }
    }

    /// Starts a loop; its first activation is at once.
    pub fn start(&self, activity: impl BackgroundLoop) {
        let stage = activity.stage();
        self.spawn(stage, self.clone().run(activity, self.tasks(stage).stop.clone()));
    }

    /// Starts a task that ends by itself and is joined at the stop. It works on behalf of whoever starts it.
    pub fn start_once(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(DrainStage::Upkeep, FlowKey::scope(FlowKey::current(), work));
    }

    /// The number of loops that panicked and were restarted.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Stops every loop, stage after stage, and waits until all have ended. The last work of a stage may wait up to the
    /// elapsed time `until`.
    pub async fn drain(&self, until: Duration) {
        // A second drain waits as long as the first.
        let _ = self.until.set(until);
        self.tasks(DrainStage::Upkeep).stop.cancel();
        for stage in [DrainStage::Reports, DrainStage::Rolls, DrainStage::Limits, DrainStage::Watermarks] {
            let tasks = self.tasks(stage);
            tasks.stop.cancel();
            tasks.end().await;
        }
        self.join().await;
    }

    /// Ends all loops at once, at any point. Acknowledged writes stay acknowledged.
    pub async fn abandon(&self) {
        self.abandon.cancel();
        self.stages.iter().for_each(|tasks| tasks.stop.cancel());
        self.join().await;
    }

    async fn join(&self) {
        for tasks in self.stages.iter() {
            tasks.end().await;
        }
    }

    fn tasks(&self, stage: DrainStage) -> &StageTasks {
        &self.stages[stage as usize]
    }

    fn spawn(&self, stage: DrainStage, work: impl Future<Output = ()> + Send + 'static) {
        let abandon = self.abandon.clone();
        self.tasks(stage).tracker.spawn(async move {
            tokio::select! {
                biased;
                () = abandon.cancelled() => {}
                () = work => {}
            }
        });
    }

    async fn run(self, mut activity: impl BackgroundLoop, stop: CancellationToken) {
        let mut next = NextActivation::Again;
        while wait(&activity, next, self.clock.as_ref(), &stop).await {
            next = match AssertUnwindSafe(activity.activate()).catch_unwind().await {
                Ok(next) => next,
                Err(_panic) => {
                    // The panic hook has logged the panic.
                    self.panics.increment();
                    tracing::error!(activity = activity.name(), "a background loop panicked; it will be restarted");
                    NextActivation::After(PANIC_PAUSE)
                }
            };
        }
        let until = self.until.get().copied().unwrap_or_default();
        if next != NextActivation::Finished && AssertUnwindSafe(activity.finish(until)).catch_unwind().await.is_err() {
            tracing::error!(activity = activity.name(), "a background loop panicked while stopping");
        }
    }
}

impl StageTasks {
    /// Waits until all have ended; they were told to stop before.
    async fn end(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Waits for the next activation. Returns whether there is one.
async fn wait(
    activity: &impl BackgroundLoop,
    next: NextActivation,
    clock: &dyn Clock,
    stop: &CancellationToken,
) -> bool {
    let (tick, wakes) = match next {
        NextActivation::Finished => return false,
        NextActivation::Again => return !stop.is_cancelled(),
        NextActivation::After(pause) => (Some(pause), false),
        NextActivation::AfterOrWoken(pause) => (Some(pause), true),
        NextActivation::Woken => (None, true),
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = activity.woken(), if wakes => true,
        () = clock.sleep(tick.unwrap_or_default()), if tick.is_some() => true,
    }
}
