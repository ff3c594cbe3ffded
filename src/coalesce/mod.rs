//! Coalescing: work that arrives while calls are in flight shares the next call.
//!
//! `CallQueue` bounds the calls in flight and makes them one after the other. Its users say what one call takes.
//! `FairLanes` holds waiting work in order of urgency. This module uses nothing else of this project, so the engine and the
//! adapters share it.

mod calls;
mod lanes;

pub use calls::{CallQueue, CallQueueState, DetachedTasks, PendingWork};
pub use lanes::{FairLanes, LargeItems};
