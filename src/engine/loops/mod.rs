//! Background loops. Each is an idempotent activation without input, started, named, woken, joined and reported by the
//! driver.

pub mod driver;
mod followed;
mod leftovers;
mod limits;
mod membership;
mod replay;
mod retention;
mod sealing;
mod shards;
mod supervisor;
mod watches;
mod watermarks;

pub use followed::FollowLoop;
pub use leftovers::LeftoversLoop;
pub use limits::LimitLoop;
pub use membership::MembershipLoop;
pub use replay::replay_lost;
pub use retention::RetentionLoop;
pub use sealing::SealLoop;
pub use shards::ShardLoop;
pub use supervisor::{Progress, Supervisor};
pub use watches::WatchesLoop;
pub use watermarks::WatermarkLoop;
