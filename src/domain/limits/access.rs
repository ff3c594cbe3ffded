//! Every hard bound of API keys and of tokens of identity providers. `docs/limits.md` is generated from the doc comments of the constants.

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
/// The issuers whose tokens a server takes.
pub const ISSUERS_MAX: usize = 16;
/// The longest name of an issuer in the settings, in bytes.
pub const ISSUER_NAME_BYTES_MAX: usize = 16;
/// The longest token of an issuer, in bytes. A longer one is refused before it is read.
pub const ISSUER_TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The verified tokens that a server remembers. One that it has forgotten is verified again.
pub const TOKENS_KNOWN_MAX: usize = 10_000;
/// How long before its `nbf` a token is taken, for issuers whose clock is ahead. Its `exp` has no such leeway.
pub const TOKEN_NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(30);
/// The signing keys of an issuer.
pub const ISSUER_KEYS_MAX: usize = 100;
/// The document with the signing keys of an issuer, in bytes.
pub const ISSUER_KEYS_BYTES_MAX: usize = 256 * 1024;
/// How long a server waits for that document.
pub const ISSUER_KEYS_READ_MAX: Duration = Duration::from_secs(5);
/// How often a server reads that document from a file.
pub const ISSUER_KEYS_FILE_EVERY: Duration = Duration::from_secs(10);
/// How often a server reads that document from a URL.
pub const ISSUER_KEYS_URL_EVERY: Duration = Duration::from_secs(300);
/// The least time between two readings, also where a token names an unknown key, or the reading before failed.
pub const ISSUER_KEYS_PAUSE: Duration = Duration::from_secs(10);
/// The ids of keys of one issuer of which is remembered that it did not publish them. Beyond it, the oldest are forgotten.
pub const ISSUER_KEYS_MISSED_MAX: usize = 64;
/// How long the signing keys of an issuer count after they were last read.
pub const ISSUER_KEYS_KEPT_MAX: Duration = Duration::from_secs(3_600);
