//! Every hard bound of counter rules. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The longest name of a rule, in bytes. With generation and crossing it makes a message id.
pub const RULE_NAME_BYTES_MAX: usize = 28;
/// The most rules of one store.
pub const RULES_MAX: usize = 1_000;
/// The largest payload of a rule's message, in bytes: every server reads all rules in each round.
pub const RULE_PAYLOAD_BYTES_MAX: usize = 4 * 1024;
/// The most pairs of metadata of a rule's message, beside those of its crossings.
pub const RULE_METADATA_PAIRS_MAX: usize = 2;
/// The highest `max_per_minute` of a rule.
pub const RULE_MESSAGES_PER_MINUTE_MAX: u32 = 600;
/// The `max_per_minute` of a rule that names none.
pub const RULE_MESSAGES_PER_MINUTE: u32 = 60;
/// How often the rules of a server read their counters.
pub const RULE_INTERVAL: Duration = Duration::from_secs(10);
/// The rules that a round evaluates at once.
pub const RULES_AT_ONCE_MAX: usize = 8;
/// The part of a problem that a rule shows, in bytes.
pub const RULE_PROBLEM_BYTES_MAX: usize = 512;
/// How often the creation of a rule is decided anew when other servers change the rules meanwhile.
pub const RULE_ATTEMPTS_MAX: u32 = 16;
