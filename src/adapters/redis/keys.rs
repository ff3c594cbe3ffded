//! The names of keys. All keys of a shard lie under one hash tag, so they are in one slot of a cluster.
//!
//! Names are made of catalog ids and numbers only, never of text from users. `docs/redis-keys.md` lists what they hold.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use tallystone_domain::queue::name::ShardId;

/// The hash of all queues: their ids, each with its number of shards.
pub const QUEUES: &str = "{tallystone}queues";
/// A key that never exists, in the slot of everything that servers share.
pub const NO_KEY: &str = "{tallystone}~";
/// The revision of the catalog.
pub const REVISION: &str = "{tallystone}revision";
/// The hash of the catalog: entries by name.
pub const CATALOG: &str = "{tallystone}catalog";
/// Before the hash of a name: the list of its changes, the newest first.
pub const CHANGES: &str = "{tallystone}changes.";
/// The hash of saved requests.
pub const REQUESTS: &str = "{tallystone}requests";
/// The key that seals lease tokens.
pub const LEASE_KEY: &str = "{tallystone}lease_key";
/// The hash of the newest heartbeat of each member.
pub const MEMBERS: &str = "{tallystone}members";
/// The hash of the rows of operations.
pub const OPERATIONS: &str = "{tallystone}operations";
/// The highest epoch that any server used: the score of the only member.
pub const EPOCH: &str = "{tallystone}epoch";

/// The bytes of a queue id that its keys have. The id is random, so 96 bits are enough; all messages have them in
/// memory.
const TAG_BYTES: usize = 12;

/// The prefix of all keys of a shard, with its hash tag.
pub fn prefix(shard: ShardId) -> String {
    let id = shard.queue.0.to_be_bytes();
    format!("{{{}.{}}}", URL_SAFE_NO_PAD.encode(&id[id.len() - TAG_BYTES..]), shard.number)
}

/// The keys that every call of a function names: the header, and one that never exists. While a slot moves, Redis finds
/// only one of the two and refuses the call before the function runs.
pub fn named_keys(shard: ShardId) -> [Vec<u8>; 2] {
    let prefix = prefix(shard);
    [format!("{prefix}m"), format!("{prefix}~")].map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::QueueId;

    #[test]
    fn shards_have_tags_of_their_own_without_braces_in_them() {
        let tag = |id: u128, number: u32| prefix(ShardId { queue: QueueId(id), number });
        assert_eq!(tag(7, 0), "{AAAAAAAAAAAAAAAH.0}");
        let all = [tag(7, 1), tag(8, 0), tag(u128::MAX, 255), tag(u128::MAX - 1, 255)];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one) && one.matches(['{', '}']).count() == 2, "{one}");
        }
    }
}
