//! The cache in front of the checkpoints, shared by all servers: count, time and what a read needs, in one value.
//!
//! A fill holds a right of its own on each replica: `mg` with N answers the CAS of the value that is there, or of a
//! placeholder that it makes, and `ms` with that CAS stores only if nobody changed or removed the key in between. A key
//! without a value holds a placeholder, which is empty, as no value is.
//!
//! Values and placeholders last `CACHE_ENTRY_SECONDS` by memcached's own clock. So whatever this process does, and for
//! however long it stops between its steps, a value that was read before a clear is stored within one such time and gone
//! after another, although the clear could not reach the server. CAS numbers begin anew when a server does, so a right is
//! used within `CACHE_LEASE_MAX` or not at all.

use async_trait::async_trait;
use futures_util::future::join_all;
use memcache::exp::{Delete, Get, Meta, Set, Ttl};

use crate::adapters::codec::count;
use crate::adapters::memcached::server::{MemcachedServer, RetrySafety};
use crate::adapters::memcached::wire::CommandResponse;
use crate::adapters::memcached::{Cluster, key};
use crate::domain::counter::Counter;
use crate::domain::fleet::ProtocolRule;
use crate::domain::limits::{CACHE_ENTRY_SECONDS, CACHE_LEASE_MAX, CLEAR_VISIBLE_WITHIN};
use crate::ports::{CacheLease, CacheMark, CachedCount, CountCache, StoreError};

impl Cluster {
    async fn mark(&self, node: &MemcachedServer, key: &str) -> Option<CacheMark> {
        let get = Get::new(key).meta(Meta::NONE.cas()).lease_ttl(CACHE_ENTRY_SECONDS);
        // Twice is once: the second finds the placeholder of the first.
        let answer = node.call("cache lease", &[get.into()], RetrySafety::Idempotent).await;
        let Ok(CommandResponse::Read { value, cas: Some(number) }) = answer else { return None };
        let held = value.as_deref().and_then(|bytes| count::decode_count(bytes).ok());
        Some(CacheMark { number, held_as_of: held.map(|held| held.as_of) })
    }

    async fn fill_on(&self, node: &MemcachedServer, key: &str, value: &CachedCount, mark: CacheMark) {
        if mark.held_as_of.is_some_and(|held| held > value.as_of) {
            return;
        }
        let set = Set::new(key, count::encode_count(value)).ttl(Ttl::secs(CACHE_ENTRY_SECONDS));
        let set = if self.rules.keeps(ProtocolRule::FillUnderRight) { set.compare_cas(mark.number) } else { set };
        // A cache may forget: what became of the fill changes nothing for anybody. Sent twice, the second finds a new CAS.
        let _: Result<CommandResponse, StoreError> =
            node.call("cache fill", &[set.into()], RetrySafety::Idempotent).await;
    }
}

#[async_trait]
impl CountCache for Cluster {
    /// One round trip, to the first replica that is trusted and answers.
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        let key = key::cached_count_key(&self.key_prefix, counter);
        for node in self.nodes(counter).filter(|node| node.is_trusted()) {
            let answer = node.call("cache read", &[Get::new(&key).into()], RetrySafety::Idempotent).await;
            if let Ok(CommandResponse::Read { value, .. }) = answer {
                let bytes = value.filter(|bytes| !bytes.is_empty())?;
                return count::decode_count(&bytes).ok();
            }
        }
        None
    }

    /// One round trip.
    async fn lease(&self, counter: &Counter) -> CacheLease {
        let key = key::cached_count_key(&self.key_prefix, counter);
        let taken = self.clock.elapsed();
        CacheLease { taken, marks: join_all(self.nodes(counter).map(|node| self.mark(node, &key))).await }
    }

    /// One round trip.
    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease) {
        if self.clock.elapsed().saturating_sub(lease.taken) > CACHE_LEASE_MAX {
            return;
        }
        let (key, value) = (key::cached_count_key(&self.key_prefix, counter), &value);
        let marks = self.nodes(counter).zip(lease.marks).filter_map(|(node, mark)| Some((node, mark?)));
        join_all(marks.map(|(node, mark)| self.fill_on(node, &key, value, mark))).await;
    }

    /// One round trip. A replica that could not be reached is not read by this server until nothing is left of the value.
    async fn delete(&self, counter: &Counter) -> bool {
        let commands = [Delete::new(key::cached_count_key(&self.key_prefix, counter)).into()];
        let deleted = join_all(self.nodes(counter).map(|node| async {
            let answer = node.call("cache delete", &commands, RetrySafety::Idempotent).await;
            if answer.is_err() {
                node.distrust_for(CLEAR_VISIBLE_WITHIN);
            }
            answer.is_ok()
        }));
        deleted.await.into_iter().all(|deleted| deleted)
    }
}
