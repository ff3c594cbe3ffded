//! The callers: API keys, and the identity of a caller that shows one. `tokens` has the callers that show a token of an
//! identity provider.
//!
//! All keys are in memory as one immutable snapshot, so that a check costs a look-up and one hash, and reads no store.
//! Changes go through `engine::catalog` and then replace the snapshot. A secret ends by its key's change or by time;
//! then the open calls of its callers end too. Invariant: no secret is kept; the hash of a shown one is compared in
//! constant time.

mod accounts;
mod change;
mod ring;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::{CatalogView, Etag, FollowedCatalog, Sharing, VersionedCatalog};
use tallystone_domain::access::{AccessKey, ApiKey, Grants, KeyId, Principal, PrincipalName, QuotaLimits, SecretHash};
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{Catalog, Clock, Entropy, StoreError};

pub use accounts::{AccountPermit, PrincipalAccount, PrincipalAccounts, QuotaRefusals};
pub use change::{IssuedKey, KeyDraft, KeyRotation, KeyUpdate, Lockout, UpdatedKey};
use ring::KeyRing;
pub use tokens::{IssuerGauges, IssuerKeys, TokenDenial, Tokens, TokensInUse, TrustedIssuer};

/// The version of a key that a caller read.
pub type KeyEtag = Etag<KeyId>;

/// The identity of a caller that showed a valid key or token.
#[derive(Debug)]
pub struct Identity {
    /// The principal of the key or token.
    pub principal: Principal,
    /// The grants of the key or token.
    pub grants: Grants,
    /// The account of the principal. All its identities have the same.
    pub account: Arc<PrincipalAccount>,
    /// The kind of credential that the caller showed.
    pub credential: CredentialKind,
    ended: CancellationToken,
    /// Whether it has ended. Each call asks, and the token would take a lock for the answer.
    is_over: AtomicBool,
    /// Set before it ends, if the secret stays valid and only the grants differ.
    regranted: AtomicBool,
}

/// The kind of credential by which a caller is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CredentialKind {
    /// An API key.
    ApiKey,
    /// A token of an identity provider.
    Token,
    /// A certificate of a client.
    Certificate,
}

impl CredentialKind {
    /// Its word in texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::ApiKey => "API key",
            Self::Token => "token",
            Self::Certificate => "certificate",
        }
    }
}

impl Identity {
    fn new(principal: Principal, grants: Grants, credential: CredentialKind, account: Arc<PrincipalAccount>) -> Self {
        let [is_over, regranted] = [false, false].map(AtomicBool::new);
        Self { principal, grants, account, credential, ended: CancellationToken::new(), is_over, regranted }
    }

    /// Whether it ended only because the grants of its key have changed: the same secret opens calls with the new ones.
    pub fn is_regranted(&self) -> bool {
        self.regranted.load(Ordering::Acquire)
    }

    /// Whether what was shown is not valid any more, or the grants of the key have changed.
    pub fn has_ended(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends it and all that it opened.
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.ended.cancel();
    }

    /// Cancelled when what was shown is not valid any more, or the grants of the key have changed.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

/// The reason why a shown key is refused. Callers learn only that it is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyRefusal {
    /// No key has this id or name, or it has another secret.
    Unknown,
    /// The shown credential was valid, and is not any more.
    Expired,
}

/// The reason of a refused call about keys.
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
    /// Held while a ring is made of the one before, and while identities of it end by time: the new one takes none that
    /// has ended.
    changing: Mutex<()>,
    /// Changes in flight, including those whose callers went away.
    tasks: TaskTracker,
}

impl AccessKeys {
    /// Reads the keys of a store. Keys without limits of their own get those of this server.
    pub async fn open(
        store: Arc<dyn Catalog<AccessKey>>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        limits: QuotaLimits,
    ) -> Result<Self, StoreError> {
        let accounts = Arc::new(PrincipalAccounts::new(limits));
        let ring = KeyRing::new(accounts).replaced(store.load().await?);
        let shared = AccessKeysInner {
            catalog: VersionedCatalog::new(store),
            clock,
            entropy,
            ring: ArcSwap::from_pointee(ring),
            changing: Mutex::default(),
            tasks: TaskTracker::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Finds out who shows a key. Cost: a look-up in memory and one hash.
    pub fn identify(&self, shown: &ApiKey) -> Result<Arc<Identity>, KeyRefusal> {
        // Hashed first, so that the time says nothing about whether the id exists.
        let hash = shown.hash();
        loop {
            match self.shared.known(shown.id, &hash) {
                // Its grants changed meanwhile. The ring with the new ones was served before this one ended.
                Ok(identity) if identity.is_regranted() => {}
                known => return known,
            }
        }
    }

    /// Returns the identity that has the name of a key, for callers that prove the name with a certificate. It ends
    /// with the key, with a change of its grants, and when the last of its secrets is over.
    pub fn named(&self, name: &PrincipalName) -> Result<Arc<Identity>, KeyRefusal> {
        loop {
            let identity = self.shared.ring.load().of_name(name, self.shared.clock.now())?;
            if !identity.has_ended() {
                return Ok(identity);
            }
            if !identity.is_regranted() {
                return Err(KeyRefusal::Expired);
            }
        }
    }

    /// Lists keys in the order of names, above a name. Fewer than the limit only at the end.
    pub fn list(&self, above: Option<&PrincipalName>, limit: usize) -> Vec<Arc<AccessKey>> {
        self.shared.ring.load().above(above).take(limit.min(PAGE_ROWS_MAX)).cloned().collect()
    }

    /// The accounts of principals on this server.
    pub fn accounts(&self) -> Arc<PrincipalAccounts> {
        Arc::clone(self.shared.ring.load().accounts())
    }

    /// How often quotas of keys refused something on this server.
    pub fn quota_refusals(&self) -> Arc<QuotaRefusals> {
        self.shared.ring.load().accounts().refusals()
    }

    /// Ends the calls of secrets that are over by now, and of certificates whose key has no other.
    pub fn end_expired(&self) {
        let _no_change = self.shared.changing.lock();
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
    /// Returns the identity of the caller that shows a secret of a key, by the ring of this moment.
    fn known(&self, id: KeyId, hash: &SecretHash) -> Result<Arc<Identity>, KeyRefusal> {
        let ring = self.ring.load();
        let secret = ring.by_id(id).and_then(|held| held.secret(hash)).ok_or(KeyRefusal::Unknown)?;
        let is_over = secret.expires.is_some_and(|expires| self.clock.now() >= expires);
        if is_over || (secret.identity.has_ended() && !secret.identity.is_regranted()) {
            return Err(KeyRefusal::Expired);
        }
        Ok(Arc::clone(&secret.identity))
    }

    /// Serves a ring, and then ends what was known of callers by the one before.
    fn replace(&self, after: Arc<KeyRing>) {
        let before = self.ring.swap(Arc::clone(&after));
        before.end_all_but(&after);
    }

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
        // Nothing else changes the ring meanwhile: `take_in` runs only between changes.
        let _no_end = self.changing.lock();
        self.replace(Arc::new(self.ring.load().replaced(keys)));
    }
}

fn not_found(name: &PrincipalName) -> Reject {
    Reject::new(Reason::KeyNotFound, format!("key {name} does not exist"))
}
