//! Every hard bound of API keys. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The longest name of a principal, in bytes.
pub const PRINCIPAL_NAME_BYTES_MAX: usize = 64;
/// The API keys of one catalog.
pub const KEYS_MAX: usize = 20_000;
/// The secrets of an API key that are valid at a time: the old and the new one while it is rotated.
pub const KEY_SECRETS_MAX: usize = 2;
/// How long the old secret of a rotated API key stays valid, at most.
pub const KEY_OLD_SECRET_MAX: Duration = Duration::from_secs(90 * 86_400);
/// How often a server ends the calls of expired API keys, and checks whether another server has changed a key.
pub const KEYS_CHECKED_EVERY: Duration = Duration::from_secs(1);
/// A unary call that is older than this ends together with its API key. A younger one is allowed to finish.
pub const KEY_CALL_UNCHECKED: Duration = Duration::from_millis(500);
/// The delay that a refusal names where a quota of how many there are at a time is used up.
pub const QUOTA_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The grants of an API key.
pub const GRANTS_MAX: usize = 100;
/// The longest name or prefix of a grant, in bytes: a namespace, `#` and a counter.
pub const GRANT_NAME_BYTES_MAX: usize = 64 + 1 + 256;
