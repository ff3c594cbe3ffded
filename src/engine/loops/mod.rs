//! Background loops. Each is an idempotent activation without input. `engine::driver` starts, names, wakes,
//! joins and reports it.

mod access_keys;
mod catalog_follow;
mod deleted_namespaces;
mod issuer_keys;
mod limits;
mod membership;
mod replay;
mod retention;
mod sealing;
mod shards;
mod supervisor;
mod watch_turns;
mod watermarks;

pub use access_keys::AccessKeysLoop;
pub use catalog_follow::FollowLoop;
pub use deleted_namespaces::DeletedNamespacesLoop;
pub use issuer_keys::{IssuerKeysLoop, TokensLoop};
pub use limits::LimitLoop;
pub use membership::MembershipLoop;
pub use replay::replay_lost;
pub use retention::RetentionLoop;
pub use sealing::SealLoop;
pub use shards::ShardLoop;
pub use supervisor::{StartupProgress, Supervisor};
pub use watch_turns::WatchesLoop;
pub use watermarks::WatermarkLoop;
