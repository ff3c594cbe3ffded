//! Who calls: API keys, and what is known of the caller that shows one.
//!
//! All keys are in memory as one immutable snapshot, so that a check costs a look-up and one hash, and reads no store.
//! Changes go through `engine::catalog` and then replace the snapshot. A secret ends by its key's change or by time; then the
//! open calls of its callers end too. Invariant: no secret is kept; the hash of a shown one is compared in constant time.

mod change;
mod ring;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::access::{AccessKey, ApiKey, KeyId, Principal, PrincipalName};
use crate::domain::limits::PAGE_ROWS_MAX;
use crate::domain::{Reason, Reject, Timestamp};
use crate::engine::catalog::{CatalogView, Etag, FollowedCatalog, Sharing, VersionedCatalog};
use crate::ports::{Catalog, Clock, Entropy, StoreError};

pub use change::{IssuedKey, KeyDraft, KeyRotation};
use ring::KeyRing;

/// The version of a key that a caller read.
pub type KeyEtag = Etag<KeyId>;

/// What is known of a caller that showed a valid key.
#[derive(Debug)]
pub struct Identity {
    /// The principal of the key.
    pub principal: Principal,
    ended: CancellationToken,
}

impl Identity {
    fn new(principal: Principal) -> Self {
        Self { principal, ended: CancellationToken::new() }
    }

    /// Whether the shown secret is not valid any more.
    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Cancelled when the shown secret is not valid any more.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// Why a shown key is refused. Callers are told no more than that it is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyRefusal {
    /// No key has this id, or it has another secret.
    Unknown,
    /// The secret was valid, and is not any more.
    Expired,
}

/// Why a call about keys was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// An argument is invalid, or the change is not allowed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The API keys. Cheap to clone.
#[derive(Clone)]
pub struct AccessKeys {
    shared: Arc<AccessKeysInner>,
}

struct AccessKeysInner {
    catalog: VersionedCatalog<AccessKey>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    ring: ArcSwap<KeyRing>,
    /// Changes in flight, including those whose callers went away.
    tasks: TaskTracker,
}

impl AccessKeys {
    /// Reads the keys of a store.
    pub async fn open(
        store: Arc<dyn Catalog<AccessKey>>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, StoreError> {
        let ring = KeyRing::default().replaced(store.load().await?);
        let shared = AccessKeysInner {
            catalog: VersionedCatalog::new(store),
            clock,
            entropy,
            ring: ArcSwap::from_pointee(ring),
            tasks: TaskTracker::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Finds out who shows a key. Cost: a look-up in memory and one hash.
    pub fn identify(&self, shown: &ApiKey) -> Result<Arc<Identity>, KeyRefusal> {
        // Hashed first, so that the time says nothing about whether the id exists.
        let hash = shown.hash();
        let ring = self.shared.ring.load();
        let held = ring.by_id(shown.id).ok_or(KeyRefusal::Unknown)?;
        let secret = held.secret(&hash).ok_or(KeyRefusal::Unknown)?;
        let is_over = secret.expires.is_some_and(|expires| self.shared.clock.now() >= expires);
        if is_over || secret.identity.has_ended() {
            return Err(KeyRefusal::Expired);
        }
        Ok(Arc::clone(&secret.identity))
    }

    /// Lists keys in the order of names, above a name. Fewer than the limit only at the end.
    pub fn list(&self, above: Option<&PrincipalName>, limit: usize) -> Vec<Arc<AccessKey>> {
        self.shared.ring.load().above(above).take(limit.min(PAGE_ROWS_MAX)).cloned().collect()
    }

    /// Ends the calls of secrets that are over by now.
    pub fn end_expired(&self) {
        self.shared.ring.load().end_expired(self.shared.clock.now());
    }

    /// Waits until every change that began has ended. Call it once, before the store closes.
    pub async fn drain(&self) {
        self.shared.catalog.close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

#[async_trait]
impl FollowedCatalog for AccessKeys {
    async fn follow(&self) -> Result<Sharing, StoreError> {
        self.shared.catalog.follow(&*self.shared).await
    }
}

impl AccessKeysInner {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn random<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut random = [0; BYTES];
        self.entropy.fill(&mut random);
        random
    }
}

impl CatalogView<AccessKey> for AccessKeysInner {
    fn take_in(&self, keys: Vec<AccessKey>) {
        self.ring.rcu(|before| before.replaced(keys.clone()));
    }
}

fn not_found(name: &PrincipalName) -> Reject {
    Reject::new(Reason::KeyNotFound, format!("key {name} does not exist"))
}
