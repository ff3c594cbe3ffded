//! Queues whose store several servers share: engines on one set of memory stores, with a clock that is moved by hand.

mod alternating;
mod lost_answers;
mod servers;
mod sessions;
mod watched_shards;
