//! A process: a runtime of its own that runs until it has nothing left to do, and then gives the thread back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone_domain::Timestamp;
use tallystone_ports::{BootId, Clock};
use tokio::runtime::{Builder, Runtime};

use crate::world::{ProcessId, World};

/// A process.
pub struct Process {
    runtime: Runtime,
    idle: Arc<Mutex<Idle>>,
}

/// Whether the runtime has nothing left to do.
#[derive(Default)]
struct Idle {
    is_idle: bool,
    waker: Option<Waker>,
}

impl Process {
    /// A process in which nothing runs.
    pub fn new() -> Self {
        let idle = Arc::new(Mutex::new(Idle::default()));
        let told = Arc::clone(&idle);
        let on_park = move || {
            let mut idle = told.lock();
            idle.is_idle = true;
            if let Some(waker) = idle.waker.take() {
                waker.wake();
            }
        };
        let runtime = Builder::new_current_thread().on_thread_park(on_park).build().expect("a runtime without drivers");
        Self { runtime, idle }
    }

    /// Starts a task.
    pub fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // It ends with the process; nobody waits for it.
        drop(self.runtime.spawn(task));
    }

    /// Runs until every task waits for something.
    pub fn run(&self) {
        self.idle.lock().is_idle = false;
        self.runtime.block_on(poll_fn(|ctx| {
            let mut idle = self.idle.lock();
            if idle.is_idle {
                return Poll::Ready(());
            }
            idle.waker = Some(ctx.waker().clone());
            Poll::Pending
        }));
    }
}

/// The clock of a process: its wall time is off by a constant, its elapsed time counts from the beginning of the world.
pub struct ProcessClock {
    world: World,
    process: ProcessId,
    /// What wall time shows at the beginning of the world.
    begins: Timestamp,
}

impl ProcessClock {
    /// The clock of a process.
    pub fn new(world: &World, process: ProcessId, begins: Timestamp) -> Self {
        Self { world: world.clone(), process, begins }
    }
}

#[async_trait]
impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        self.begins + self.world.now()
    }

    fn elapsed(&self) -> Duration {
        self.world.now()
    }

    fn boot(&self) -> BootId {
        BootId(1)
    }

    async fn sleep(&self, duration: Duration) {
        let at = self.world.now() + duration;
        self.world.until_in(self.process, at).await;
    }
}
