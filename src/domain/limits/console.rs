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
pub const ACTIVITY_WAIT_MAX: Duration = Duration::from_millis(150);
/// How long after the last question a server goes on to read shards that other servers change.
pub const ACTIVITY_ASKED_FOR: Duration = Duration::from_secs(120);
/// The age at which a reading of a shard that other servers may change is renewed.
pub const ACTIVITY_RENEWED_AFTER: Duration = Duration::from_secs(3);
/// How long after a list or call has shown a queue its shards are looked at that often. Others take turns.
pub const ACTIVITY_SHOWN_FOR: Duration = Duration::from_secs(10);
/// How long a queue needs attention after its store came back without some of its work.
pub const WORK_LOST_SHOWN_FOR: Duration = Duration::from_hours(24);
/// The shards of shown queues that are looked at in one second.
pub const ACTIVITY_SHOWN_READS_MAX: usize = 1_000;
/// What looks at the other shards may cost in one second, in calls of the store: 1 a shard, 2 if it has changed, 10 if it
/// has ready messages too.
pub const ACTIVITY_TURN_COST: u64 = 500;
/// What such looks may cost at once, where they cost less before.
pub const ACTIVITY_TURN_COST_SAVED_MAX: u64 = 5_000;
/// The other shards that are chosen at a time.
pub const ACTIVITY_TURN_READS_MAX: usize = 5_000;
/// The shards that are read for activities at once.
pub const ACTIVITY_READS_AT_ONCE_MAX: usize = 32;
/// The size at which the file of admin actions is rotated.
pub const ADMIN_LOG_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// The files of admin actions that are kept, the newest included.
pub const ADMIN_LOG_FILES: usize = 5;
/// The pages of the console that follow live numbers at one server.
pub const CONSOLE_STREAMS_MAX: usize = 256;
/// The newest forms of the console by which a second post is known.
pub const CONSOLE_FORMS_MAX: usize = 1_000;
/// The longest form of the console, in bytes.
pub const CONSOLE_FORM_BYTES_MAX: usize = 64 * 1024;
/// The most messages of which one form of the console disposes: those of a page.
pub const CONSOLE_SELECTED_MAX: usize = 50;
/// The longest token of a form of the console, in bytes.
pub const CONSOLE_TOKEN_BYTES_MAX: usize = 64;
/// The admin actions that a server without a directory remembers.
pub const ADMIN_ACTIONS_IN_MEMORY_MAX: usize = 10_000;
/// The newest calls with a request token by which the repeat of an admin action is known.
pub const ADMIN_REPEATS_MAX: usize = 1_000;
/// The admin actions that one page with a prefix looks at.
pub const ADMIN_PAGE_ACTS_MAX: usize = 10_000;
/// The length of each text of an admin action; longer ones are cut.
pub const ADMIN_TEXT_BYTES_MAX: usize = 1_024;
/// The length of each text of a refused call in the audit, and of what an act that had no effect was about; longer ones are cut.
pub const REFUSED_TEXT_BYTES_MAX: usize = 128;
/// How long an act of an operator goes on, also past the deadline of its call, so that the audit says what came of it.
pub const ACT_ENDS_WITHIN: Duration = Duration::from_secs(30);
/// The time in which a refused call is written down once for each caller, method and reason.
pub const REFUSALS_WINDOW: Duration = Duration::from_secs(60);
/// The refused calls that are written down in that time.
pub const REFUSALS_WRITTEN_MAX: usize = 20;
/// The kinds of refused calls that are told apart in that time.
pub const REFUSALS_KNOWN_MAX: usize = 1_000;
