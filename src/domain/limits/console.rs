//! Every hard bound of the activity of queues, the audit and the console. `docs/limits.md` is generated from the doc comments
//! of the constants.

use std::time::Duration;

/// The time over which the rates of a queue are measured.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);
/// The least time between two readings of a shard that its rates keep.
pub const RATE_STEP: Duration = Duration::from_secs(5);
/// How long one list of the activities of all queues serves all who ask for it.
pub const ACTIVITY_AGE_MAX: Duration = Duration::from_millis(500);
/// How long a call for activities waits for readings of a shared store.
pub const ACTIVITY_WAIT_MAX: Duration = Duration::from_millis(500);
/// How long after the last question a server goes on to read shards that other servers change.
pub const ACTIVITY_ASKED_FOR: Duration = Duration::from_secs(120);
/// The age at which a reading of a shard that other servers may change is renewed.
pub const ACTIVITY_RENEWED_AFTER: Duration = Duration::from_secs(3);
/// The shards that are read for activities in one second.
pub const ACTIVITY_READS_MAX: usize = 5_000;
/// The shards that are read for activities at once.
pub const ACTIVITY_READS_AT_ONCE_MAX: usize = 64;
