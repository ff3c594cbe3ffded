//! What one memcached keeps, and what it makes of the meta commands that the count cache sends (protocol.txt).

use std::collections::BTreeMap;

use memcache::exp::{MutationStatus, Op, SetMode, Ttl};
use tallystone_adapters::memcached::wire::CommandResponse;

/// The longest TTL that is sent, in seconds.
const TTL_MAX: u32 = 60;

/// The items of a server since its start.
#[derive(Default)]
pub struct Items {
    /// The last CAS that was given; a server begins at 0 whenever it starts.
    cas: u64,
    kept: BTreeMap<Vec<u8>, Item>,
}

struct Item {
    /// Empty in a placeholder.
    value: Vec<u8>,
    cas: u64,
    /// The second of the server's clock from which on it is gone.
    ends: u64,
}

impl Items {
    /// Does a command in a second of the server's clock.
    ///
    /// # Panics
    /// Panics at options that the count cache does not use.
    pub fn take(&mut self, command: &Op, second: u64) -> CommandResponse {
        self.kept.retain(|_, item| second < item.ends);
        match command {
            Op::Get(get) => {
                assert!(get.unless_cas.is_none() && get.touch.is_none() && get.refresh_before.is_none(), "{get:?}");
                if let (Some(ttl), false) = (get.lease_ttl, self.kept.contains_key(&get.key)) {
                    self.put(&get.key, Vec::new(), second + u64::from(ttl));
                }
                let item = self.kept.get(&get.key);
                let cas = item.filter(|_| get.meta.cas || get.lease_ttl.is_some()).map(|item| item.cas);
                CommandResponse::Read { value: item.map(|item| item.value.clone()), cas }
            }
            Op::Set(set) => {
                assert!(set.mode == SetMode::Set && set.force_cas.is_none() && set.vivify_ttl.is_none(), "{set:?}");
                let held = self.kept.get(&set.key).map(|item| item.cas);
                let status = match (set.compare_cas, held) {
                    (Some(_), None) => MutationStatus::NotFound,
                    (Some(wanted), Some(held)) if wanted != held => MutationStatus::CasMismatch,
                    (Some(_) | None, _) => {
                        let ttl = set.ttl.expect("what is cached has an end");
                        self.put(&set.key, set.value.clone(), second + seconds(ttl));
                        MutationStatus::Applied
                    }
                };
                CommandResponse::Changed(status)
            }
            Op::Delete(delete) => {
                assert!(delete.compare_cas.is_none() && !delete.invalidate, "{delete:?}");
                let removed = self.kept.remove(&delete.key);
                CommandResponse::Changed(removed.map_or(MutationStatus::NotFound, |_| MutationStatus::Applied))
            }
            Op::Arithmetic(sum) => {
                assert!(sum.initial.is_none() && sum.ttl.is_none() && sum.compare_cas.is_none(), "{sum:?}");
                let Some(item) = self.kept.get_mut(&sum.key) else {
                    return CommandResponse::Summed { status: MutationStatus::NotFound, value: None };
                };
                let text = std::str::from_utf8(&item.value).expect("digits");
                let value = text.parse::<u64>().expect("a number").wrapping_add(sum.delta);
                item.value = value.to_string().into_bytes();
                self.cas += 1;
                item.cas = self.cas;
                CommandResponse::Summed { status: MutationStatus::Applied, value: Some(value) }
            }
            _ => panic!("{command:?} is no command of the count cache"), // the client's list may grow
        }
    }

    /// Forgets everything; CAS numbers go on.
    pub fn flush(&mut self) {
        self.kept.clear();
    }

    /// Forgets the item at a place, counted around.
    pub fn evict(&mut self, place: usize) {
        let key = self.kept.keys().nth(place % self.kept.len().max(1)).cloned();
        if let Some(key) = key {
            self.kept.remove(&key);
        }
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>, ends: u64) {
        self.cas += 1;
        self.kept.insert(key.to_vec(), Item { value, cas: self.cas, ends });
    }
}

fn seconds(ttl: Ttl) -> u64 {
    let seconds = (1..=TTL_MAX).find(|seconds| Ttl::secs(*seconds) == ttl);
    u64::from(seconds.expect("a TTL of some seconds"))
}
