//! The wire form of a counter: its key, its server and its lifetime.

use std::time::Duration;

use memcache::exp::Ttl;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::memcached::limits::{MEMCACHED_KEY_BYTES_MAX, MEMCACHED_LIFETIME_SECONDS_MAX};
use tallystone_domain::counter::{Counter, EventKey};
use tallystone_domain::time::Timestamp;

/// memcached stores times in 32 signed bits, so no item can expire after this second of 2038.
const LAST_SECOND: u64 = i32::MAX as u64;

/// Returns the key of a counter: `PREFIX/NAMESPACE/NAME`. If that exceeds the key length, the hash of the name replaces
/// it after a `#`, which no name contains.
pub(super) fn counter_key(prefix: &str, counter: &Counter) -> String {
    let (namespace, name) = (counter.namespace().0, counter.name().as_str());
    let key = format!("{prefix}/{namespace}/{name}");
    if key.len() <= MEMCACHED_KEY_BYTES_MAX {
        return key;
    }
    format!("{prefix}/{namespace}/#{:032x}", xxh3_128(name.as_bytes()))
}

/// Returns the key of a counter's cached count: like the counter's key, with a `c` before the number of the namespace.
pub(super) fn cached_count_key(prefix: &str, counter: &Counter) -> String {
    let (namespace, name) = (counter.namespace().0, counter.name().as_str());
    let key = format!("{prefix}/c{namespace}/{name}");
    if key.len() <= MEMCACHED_KEY_BYTES_MAX {
        return key;
    }
    format!("{prefix}/c{namespace}/#{:032x}", xxh3_128(name.as_bytes()))
}

/// Returns the key of a token of a counter: `PREFIX/tNAMESPACE/` and the hash of counter and token.
pub(super) fn token_key(prefix: &str, counter: &Counter, token: &EventKey) -> String {
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(counter.name().as_str().as_bytes());
    bytes.push(0); // no name contains this byte
    token.id.write_to(&mut bytes);
    bytes.extend_from_slice(&token.time.micros().to_be_bytes());
    format!("{prefix}/t{}/{:032x}", counter.namespace().0, xxh3_128(&bytes))
}

/// Returns the server of a counter in one replica: the one with the highest weight (rendezvous hashing). So a server
/// that is added or removed moves only its own counters. Cost: O(servers).
pub(super) fn server_index<'a>(counter: &Counter, servers: impl Iterator<Item = &'a str>) -> Option<usize> {
    let weights = servers.map(|server| (xxh3_64_with_seed(server.as_bytes(), counter.hash()), server));
    weights.enumerate().max_by_key(|(_, weight)| *weight).map(|(at, _)| at)
}

/// The lifetime of an item as memcached's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lifetime {
    /// For an item that the command creates, in seconds from then.
    pub created_seconds: u32,
    /// For an existing item.
    pub ttl: Ttl,
}

/// Returns a lifetime of at least the TTL. memcached counts whole seconds of its own clock, including the current one,
/// so a second is added. An item that would outlast memcached's clock never expires.
pub(super) fn lifetime(ttl: Option<Duration>, now: Timestamp) -> Lifetime {
    let seconds = ttl.map(|ttl| ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)).saturating_add(1));
    let now = u64::try_from(now.micros() / 1_000_000).unwrap_or(0);
    let lasting = seconds.filter(|seconds| now.saturating_add(*seconds) <= LAST_SECOND);
    match lasting.and_then(|seconds| u32::try_from(seconds).ok()) {
        Some(seconds) => {
            Lifetime { created_seconds: seconds.min(MEMCACHED_LIFETIME_SECONDS_MAX), ttl: Ttl::secs(seconds) }
        }
        None => Lifetime { created_seconds: MEMCACHED_LIFETIME_SECONDS_MAX, ttl: Ttl::NEVER },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::counter::{CounterName, EventId, NamespaceId};

    fn counter(name: &str) -> Counter {
        Counter::new(NamespaceId(7), CounterName::new(name).expect("a valid name"))
    }

    #[test]
    fn every_counter_has_a_key_of_its_own_that_memcached_takes() {
        assert_eq!(counter_key("tallystone", &counter("a/b")), "tallystone/7/a/b");
        let mut keys = std::collections::BTreeSet::new();
        for length in 1..=256 {
            let key = counter_key("tallystone", &counter(&"a".repeat(length)));
            assert!(key.len() <= 250 && key.bytes().all(|byte| byte.is_ascii_graphic()), "{key}");
            assert!(keys.insert(key), "{length}");
            let counter = counter(&"a".repeat(length));
            let (cached, token) =
                (cached_count_key("tallystone", &counter), token_key("tallystone", &counter, &token("x")));
            for key in [cached, token] {
                assert!(key.len() <= 250 && key.bytes().all(|byte| byte.is_ascii_graphic()), "{key}");
                assert!(keys.insert(key), "{length}");
            }
        }
        let of_other_tokens = token_key("tallystone", &counter("a"), &token("y"));
        assert!(keys.insert(of_other_tokens), "each token has a key");
    }

    fn token(text: &str) -> EventKey {
        EventKey { time: Timestamp::from_secs(1_800_000_000), id: EventId::text(text) }
    }

    #[test]
    fn places_are_the_same_in_every_build() {
        let servers = ["a:1", "b:1", "c:1", "d:1"];
        let places: Vec<_> = (0..12).map(|n| server_index(&counter(&format!("c{n}")), servers.into_iter())).collect();
        let expected = PLACES.map(Some);
        assert_eq!(places, expected, "a release that moves keys forgets every counter that moved");
    }

    const PLACES: [usize; 12] = [3, 3, 1, 1, 1, 1, 2, 1, 3, 2, 3, 1];

    #[test]
    fn a_server_that_leaves_moves_its_own_counters_only_and_all_servers_have_their_share() {
        let servers = ["a:1", "b:1", "c:1", "d:1"];
        let mut shares = [0; 4];
        for n in 0..4_000 {
            let counter = counter(&format!("c{n}"));
            let at = server_index(&counter, servers.into_iter()).expect("there are servers");
            shares[at] += 1;
            let left = servers.into_iter().filter(|server| *server != "b:1");
            let after =
                server_index(&counter, left.clone()).and_then(|at| left.clone().nth(at)).expect("there are servers");
            assert!(servers[at] == "b:1" || after == servers[at], "{after}");
            // The order of the list does not matter.
            let turned = server_index(&counter, servers.into_iter().rev()).expect("there are servers");
            assert_eq!(turned, 3 - at);
        }
        assert!(shares.iter().all(|share| (850..1_150).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_lifetime_lasts_at_least_the_ttl() {
        let now = Timestamp::from_secs(1_800_000_000);
        let seconds = |ttl: Duration| lifetime(Some(ttl), now);
        let exact = |seconds| Lifetime { created_seconds: seconds, ttl: Ttl::secs(seconds) };
        assert_eq!(seconds(Duration::from_secs(10)), exact(11));
        assert_eq!(seconds(Duration::from_millis(10_001)), exact(12));
        assert_eq!(seconds(Duration::from_millis(1)), exact(2));
        let long = seconds(Duration::from_secs(40 * 86_400));
        let created_seconds = MEMCACHED_LIFETIME_SECONDS_MAX;
        assert_eq!(long, Lifetime { created_seconds, ttl: Ttl::secs(40 * 86_400 + 1) });
        for endless in [lifetime(None, now), seconds(Duration::from_secs(400_000_000)), seconds(Duration::MAX)] {
            assert_eq!(endless, Lifetime { created_seconds, ttl: Ttl::NEVER });
        }
    }
}
