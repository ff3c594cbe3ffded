//! Coalescing: work that arrives while calls are in flight shares the next call.
//!
//! `FairLanes` holds waiting work in order of urgency. This module uses nothing else of this project, so the engine and the
//! adapters share it.

mod lanes;

pub use lanes::{FairLanes, LargeItems};
