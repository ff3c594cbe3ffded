//! Background loops. Each is an idempotent activation without input, started, named, woken, joined and reported by the
//! driver.

pub mod driver;
mod leftovers;
mod limits;
mod replay;
mod retention;
mod supervisor;
mod watermarks;

pub use leftovers::LeftoversLoop;
pub use limits::LimitLoop;
pub use replay::replay_lost;
pub use retention::RetentionLoop;
pub use supervisor::Supervisor;
pub use watermarks::WatermarkLoop;
