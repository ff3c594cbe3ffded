//! The checkpoint cache on memcached, shared by all servers. A cached value contains the count, its `as_of` and
//! everything else that a read needs.
//!
//! A fill needs a cache lease from each replica. `mg` with the N flag returns the CAS number of the current value, or
//! creates an empty placeholder and returns its CAS number. `ms` with that CAS number stores the value only if no other
//! client changed or deleted the key in between. A real value is never empty.
//!
//! Values and placeholders expire after `CACHE_ENTRY_SECONDS` by memcached's own clock. This bounds how long an old
//! value stays visible if a clear cannot reach memcached. A process that read the value before the clear can store it
//! only until the placeholder expires, and the stored value expires one lifetime later. CAS numbers restart when
//! memcached restarts, so a lease is not used after `CACHE_LEASE_MAX`.

use async_trait::async_trait;
use futures_util::future::join_all;
use memcache::exp::{Delete, Get, Meta, Set, Ttl};

use crate::codec::count;
use crate::memcached::limits::{CACHE_ENTRY_SECONDS, CACHE_LEASE_MAX};
use crate::memcached::server::{MemcachedServer, RetrySafety};
use crate::memcached::wire::CommandResponse;
use crate::memcached::{Cluster, key};
use tallystone_domain::counter::Counter;
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::limits::CLEAR_VISIBLE_WITHIN;
use tallystone_domain::rollup::CachedCount;
use tallystone_ports::{CacheLease, CountCache, ReplicaLease, StoreError};

impl Cluster {
    async fn replica_lease(&self, node: &MemcachedServer, key: &str) -> Option<ReplicaLease> {
        let get = Get::new(key).meta(Meta::NONE.cas()).lease_ttl(CACHE_ENTRY_SECONDS);
        // Idempotent: a second attempt finds the placeholder of the first.
        let answer = node.call("cache lease", &[get.into()], RetrySafety::Idempotent).await;
        let Ok(CommandResponse::Read { value, cas: Some(number) }) = answer else { return None };
        let held = value.as_deref().and_then(|bytes| count::decode_count(bytes).ok());
        Some(ReplicaLease { number, held_as_of: held.map(|held| held.as_of) })
    }

    async fn fill_on(&self, node: &MemcachedServer, key: &str, value: &CachedCount, lease: ReplicaLease) {
        if lease.held_as_of.is_some_and(|held| held > value.as_of) {
            return;
        }
        let set = Set::new(key, count::encode_count(value)).ttl(Ttl::secs(CACHE_ENTRY_SECONDS));
        let set = if self.rules.keeps(ProtocolRule::FillUnderLease) { set.compare_cas(lease.number) } else { set };
        // A lost fill only causes a cache miss, so the result is ignored. If the first attempt succeeded, the CAS
        // number has changed and the second attempt stores nothing.
        let _: Result<CommandResponse, StoreError> =
            node.call("cache fill", &[set.into()], RetrySafety::Idempotent).await;
    }
}

#[async_trait]
impl CountCache for Cluster {
    /// One round trip, to the first trusted replica that answers.
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
        let acquired_at = self.clock.elapsed();
        CacheLease {
            acquired_at,
            replicas: join_all(self.nodes(counter).map(|node| self.replica_lease(node, &key))).await,
        }
    }

    /// One round trip.
    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease) {
        if self.clock.elapsed().saturating_sub(lease.acquired_at) > CACHE_LEASE_MAX {
            return;
        }
        let (key, value) = (key::cached_count_key(&self.key_prefix, counter), &value);
        let leases = self.nodes(counter).zip(lease.replicas).filter_map(|(node, lease)| Some((node, lease?)));
        join_all(leases.map(|(node, lease)| self.fill_on(node, &key, value, lease))).await;
    }

    /// One round trip. If a replica is unreachable, this server stops reading from it until the old value has expired.
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
