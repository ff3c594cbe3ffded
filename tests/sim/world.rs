//! Virtual time, and everything that happens in it: one thread, one order of events for each seed.
//!
//! Two kinds of code run here. What is outside of servers (stores, networks, clients, the weather) are tasks of the world
//! itself. A server is a `Process` with a runtime of its own, so that it can be stopped between any two steps, for any
//! time, and be killed with all that it has in memory. Time moves only when nobody has anything left to do.

use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::process::Process;

/// A process of the world; each start of a server is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub usize);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the world does to processes between two of their steps.
enum Command {
    Start,
    Run(ProcessId, Task),
    Kill(ProcessId),
}

/// The shared face of the world. Cheap to clone.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct State {
    now: Duration,
    numbers: u64,
    timers: BinaryHeap<Timer>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    commands: VecDeque<Command>,
    processes: Vec<Standing>,
    dirty: VecDeque<ProcessId>,
}

/// How a process stands.
#[derive(Clone, Copy, Default)]
struct Standing {
    paused_until: Duration,
    dirty: bool,
    dead: bool,
}

/// Tasks of the world that were woken.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.0.lock().push_back(self.task);
    }
}

struct Timer {
    at: Duration,
    number: u64,
    process: Option<ProcessId>,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl World {
    /// A world at its beginning.
    pub fn new() -> Self {
        Self { state: Arc::default(), ready: Arc::default() }
    }

    /// The time since the beginning.
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Starts a task of the world.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state.lock();
        let place = match state.free.pop() {
            Some(place) => place,
            None => {
                state.tasks.push(None);
                state.tasks.len() - 1
            }
        };
        state.tasks[place] = Some(Box::pin(task));
        drop(state);
        self.ready.0.lock().push_back(place);
    }

    /// Starts a process; nothing runs in it yet.
    pub fn start(&self) -> ProcessId {
        let mut state = self.state.lock();
        let id = ProcessId(state.processes.len());
        state.processes.push(Standing::default());
        state.commands.push_back(Command::Start);
        id
    }

    /// Runs a task in a process, unless that is dead.
    pub fn run_in(&self, process: ProcessId, task: impl Future<Output = ()> + Send + 'static) {
        self.state.lock().commands.push_back(Command::Run(process, Box::pin(task)));
    }

    /// Ends a process where it stands.
    pub fn kill(&self, process: ProcessId) {
        let mut state = self.state.lock();
        state.processes[process.0].dead = true;
        state.commands.push_back(Command::Kill(process));
    }

    /// Whether a process was killed.
    pub fn is_dead(&self, process: ProcessId) -> bool {
        self.state.lock().processes[process.0].dead
    }

    /// Stops a process for a time.
    pub fn pause(&self, process: ProcessId, duration: Duration) {
        let mut state = self.state.lock();
        let until = state.now + duration;
        let standing = &mut state.processes[process.0];
        if until > standing.paused_until {
            standing.paused_until = until;
            state.add_timer(until, Some(process), Waker::noop().clone());
        }
    }

    /// Says that a process has something to do.
    pub fn stir(&self, process: ProcessId) {
        self.state.lock().stir(process);
    }

    /// Waits, in a task of the world.
    pub async fn sleep(&self, duration: Duration) {
        self.until(self.now() + duration).await;
    }

    /// Waits until a time, in a task of the world.
    pub fn until(&self, at: Duration) -> Sleep {
        Sleep { world: self.clone(), at, process: None, waker: None }
    }

    /// Waits until a time, in a process.
    pub fn until_in(&self, process: ProcessId, at: Duration) -> Sleep {
        Sleep { world: self.clone(), at, process: Some(process), waker: None }
    }
}

impl State {
    fn add_timer(&mut self, at: Duration, process: Option<ProcessId>, waker: Waker) {
        self.numbers += 1;
        self.timers.push(Timer { at, number: self.numbers, process, waker });
    }

    fn stir(&mut self, process: ProcessId) {
        let standing = &mut self.processes[process.0];
        if !standing.dirty && !standing.dead {
            standing.dirty = true;
            self.dirty.push_back(process);
        }
    }

    /// The next process that has something to do and is not paused.
    fn next_dirty(&mut self) -> Option<ProcessId> {
        let now = self.now;
        while let Some(process) = self.dirty.pop_front() {
            let standing = &mut self.processes[process.0];
            standing.dirty = false;
            // A paused one is stirred again when its pause ends.
            if !standing.dead && standing.paused_until <= now {
                return Some(process);
            }
        }
        None
    }
}

/// A wait for a moment.
pub struct Sleep {
    world: World,
    at: Duration,
    process: Option<ProcessId>,
    waker: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.world.state.lock();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(ctx.waker())) {
            state.add_timer(self.at, self.process, ctx.waker().clone());
            drop(state);
            self.waker = Some(ctx.waker().clone());
        }
        Poll::Pending
    }
}

/// Turns the world: what holds the runtimes of the processes.
pub struct Turner {
    world: World,
    processes: Vec<Option<Process>>,
    /// The wakers of the world's tasks, by their place.
    wakers: Vec<Waker>,
}

impl Turner {
    /// Turns this world.
    pub fn new(world: &World) -> Self {
        Self { world: world.clone(), processes: Vec::new(), wakers: Vec::new() }
    }

    /// Lets everything happen up to a time.
    pub fn turn(&mut self, until: Duration) {
        loop {
            let command = self.world.state.lock().commands.pop_front();
            if let Some(command) = command {
                self.obey(command);
                continue;
            }
            let task = self.world.ready.0.lock().pop_front();
            if let Some(task) = task {
                self.poll(task);
                continue;
            }
            let process = self.world.state.lock().next_dirty();
            if let Some(process) = process {
                if let Some(Some(process)) = self.processes.get(process.0) {
                    process.run();
                }
                continue;
            }
            if !self.tick(until) {
                return;
            }
        }
    }

    /// Moves time to the next timer, if it is due by then.
    fn tick(&self, until: Duration) -> bool {
        let mut state = self.world.state.lock();
        if state.timers.peek().is_none_or(|timer| timer.at > until) {
            return false;
        }
        let timer = state.timers.pop().expect("it was looked at");
        state.now = state.now.max(timer.at);
        if let Some(process) = timer.process {
            state.stir(process);
        }
        drop(state);
        timer.waker.wake();
        true
    }

    fn poll(&mut self, place: usize) {
        while self.wakers.len() <= place {
            let waker = TaskWaker { task: self.wakers.len(), ready: Arc::clone(&self.world.ready) };
            self.wakers.push(Arc::new(waker).into());
        }
        let task = self.world.state.lock().tasks[place].take();
        let Some(mut task) = task else { return };
        let polled = task.as_mut().poll(&mut Context::from_waker(&self.wakers[place]));
        let mut state = self.world.state.lock();
        match polled {
            Poll::Ready(()) => state.free.push(place),
            Poll::Pending => state.tasks[place] = Some(task),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start => self.processes.push(Some(Process::new())),
            Command::Run(id, task) => {
                if let Some(Some(process)) = self.processes.get(id.0) {
                    process.spawn(task);
                    self.world.stir(id);
                }
            }
            Command::Kill(id) => {
                if let Some(process) = self.processes.get_mut(id.0) {
                    *process = None;
                }
            }
        }
    }
}

impl Drop for Turner {
    fn drop(&mut self) {
        // Tasks hold the world and the world holds tasks.
        self.processes.clear();
        let tasks = std::mem::take(&mut self.world.state.lock().tasks);
        drop(tasks);
        let mut state = self.world.state.lock();
        state.commands.clear();
        state.timers.clear();
    }
}
