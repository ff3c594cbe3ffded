//! Coalescing: work that arrives while calls are in flight shares the next call.
//!
//! `CallQueue` bounds the calls in flight and makes them one after the other. Its users say what one call takes.
//! `FairLanes` holds waiting work in order of urgency, and callers take turns within a lane. This module uses nothing
//! else of this project, so the engine and the adapters share it.

mod calls;
mod flow_key;
mod lanes;
mod shared_bound;
mod start_time_fair_queue;

pub use calls::{CallQueue, CallQueueState, DetachedTasks, PendingWork};
pub use flow_key::FlowKey;
pub use lanes::{FairLanes, LargeItems};
pub use shared_bound::{PerFlowUsage, leaves_room};
