//! The bounds of memcached servers. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

use tallystone_domain::limits::CLEAR_VISIBLE_WITHIN;

/// The longest plain key in memcached, in bytes. In a longer key a hash replaces the name.
pub const MEMCACHED_KEY_BYTES_MAX: usize = 200;
/// The longest lifetime that memcached reads as seconds from now. It reads a greater number as a date.
pub const MEMCACHED_LIFETIME_SECONDS_MAX: u32 = 30 * 24 * 3_600;
/// The calls of one memcached server that wait or are in flight. Further calls wait for a permit.
pub const MEMCACHED_CALLS_AT_ONCE_MAX: usize = 64;
/// The shared round trips in flight to one memcached server. Calls that arrive meanwhile share the next one.
pub const MEMCACHED_TRIPS_AT_ONCE: usize = 1;
/// The calls that go alone after a memcached server refused a key in a shared round trip.
pub const MEMCACHED_ALONE_AFTER_REFUSAL: u32 = 10_000;
/// The idle time after which a connection to memcached is checked before a call, because the server may have closed it.
pub const MEMCACHED_QUIET_MAX: Duration = Duration::from_millis(1);
/// The lifetime of a value of the count cache in memcached, in whole seconds of its clock, and of the lease to fill an empty
/// key. A value that was read before a clear is gone after twice this time.
pub const CACHE_ENTRY_SECONDS: u32 = 4;
/// The age at which a count that was read is no longer put into the count cache.
pub const CACHE_LEASE_MAX: Duration = Duration::from_secs(1);
/// The attempts of one call of a memcached server, if a retry cannot count twice.
pub const MEMCACHED_ATTEMPTS_MAX: u32 = 2;
/// The failures in a row after which a memcached server is paused and its calls fail at once. One timeout is enough.
pub const MEMCACHED_FAILURES_MAX: u32 = 3;
/// The first pause of a memcached server. Each further pause is twice as long.
pub const MEMCACHED_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause of a memcached server.
pub const MEMCACHED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a start waits for the memcached servers of a cluster.
pub const MEMCACHED_START_WITHIN: Duration = Duration::from_secs(3);

const _: () = assert!(
    2 * (CACHE_ENTRY_SECONDS as u64 + 1) <= CLEAR_VISIBLE_WITHIN.as_secs(),
    "a value read before a clear is filled within one life of an entry and lasts one more; memcached's clock adds a second"
);
/// How long a memcached server counts as full after it had no memory for a value.
pub const MEMCACHED_FULL_SHOWN: Duration = Duration::from_secs(30);
