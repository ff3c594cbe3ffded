//! The keys as one immutable value in memory: readers take it without a lock, a change replaces it.
//!
//! A secret that stays keeps its identity, by which open calls learn of its end, as long as the grants of its key stay.
//! Any other identity ends.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;

use crate::access::{CredentialKind, Identity, KeyRefusal, PrincipalAccounts};
use tallystone_domain::Timestamp;
use tallystone_domain::access::{AccessKey, AccessKeySecret, KeyId, Principal, PrincipalName, SecretHash};

/// All live keys, indexed.
#[derive(Clone, Default)]
pub(super) struct KeyRing {
    /// The account of each principal. It outlives every change of the ring.
    accounts: Arc<PrincipalAccounts>,
    by_id: HashMap<KeyId, Arc<HeldKey>>,
    by_name: BTreeMap<PrincipalName, Arc<AccessKey>>,
}

/// A key with what is known of those who show one of its secrets.
pub(super) struct HeldKey {
    key: Arc<AccessKey>,
    secrets: Vec<HeldSecret>,
    /// The identity of callers that prove the name of the key without a secret.
    named: Arc<Identity>,
}

pub(super) struct HeldSecret {
    hash: SecretHash,
    pub expires: Option<Timestamp>,
    pub identity: Arc<Identity>,
}

impl HeldKey {
    /// The secret of a hash. Every comparison takes the same time.
    pub fn secret(&self, hash: &SecretHash) -> Option<&HeldSecret> {
        self.secrets.iter().find(|secret| secret.hash == *hash)
    }

    fn of(key: AccessKey, before: Option<&Self>, accounts: &PrincipalAccounts) -> Self {
        let account = accounts.account(&key.spec.name, &key.spec.quotas);
        let principal = Principal { name: key.spec.name.clone() };
        let new = |kind| {
            let (principal, grants) = (principal.clone(), key.spec.grants.clone());
            Arc::new(Identity::new(principal, grants, kind, Arc::clone(&account)))
        };
        let held = |secret: &AccessKeySecret| {
            let known = before.and_then(|before| before.secret(&secret.hash));
            let known = known.filter(|known| known.identity.grants == key.spec.grants);
            let identity = known.map_or_else(|| new(CredentialKind::ApiKey), |known| Arc::clone(&known.identity));
            HeldSecret { hash: secret.hash, expires: secret.expires, identity }
        };
        let secrets = key.spec.secrets.iter().map(held).collect();
        // It has ended if every secret was over: another secret opens the name again.
        let lasts = |known: &&Arc<Identity>| known.grants == key.spec.grants && !known.has_ended();
        let named = before.map(|before| &before.named).filter(lasts);
        let named = named.map_or_else(|| new(CredentialKind::Certificate), Arc::clone);
        Self { key: Arc::new(key), secrets, named }
    }

    /// Ends the identities that what takes its place does not have.
    fn end_others(&self, after: Option<&Self>) {
        for secret in &self.secrets {
            match after.and_then(|after| after.secret(&secret.hash)) {
                Some(other) if Arc::ptr_eq(&other.identity, &secret.identity) => continue,
                Some(_) => secret.identity.regranted.store(true, Ordering::Release),
                None => {}
            }
            secret.identity.end();
        }
        match after {
            Some(after) if Arc::ptr_eq(&after.named, &self.named) => return,
            Some(_) => self.named.regranted.store(true, Ordering::Release),
            None => {}
        }
        self.named.end();
    }
}

impl KeyRing {
    /// A ring without keys.
    pub fn new(accounts: Arc<PrincipalAccounts>) -> Self {
        Self { accounts, ..Self::default() }
    }

    pub fn accounts(&self) -> &Arc<PrincipalAccounts> {
        &self.accounts
    }

    /// Returns the identity of callers that prove a name without a secret. Refused once every secret of its key is
    /// over.
    pub fn of_name(&self, name: &PrincipalName, now: Timestamp) -> Result<Arc<Identity>, KeyRefusal> {
        let key = self.by_name.get(name).ok_or(KeyRefusal::Unknown)?;
        let held = self.by_id.get(&key.id).filter(|held| held.key.is_valid(now)).ok_or(KeyRefusal::Expired)?;
        Ok(Arc::clone(&held.named))
    }

    pub fn by_id(&self, id: KeyId) -> Option<&HeldKey> {
        self.by_id.get(&id).map(AsRef::as_ref)
    }

    pub fn by_name(&self, name: &PrincipalName) -> Option<&Arc<AccessKey>> {
        self.by_name.get(name)
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The keys in the order of names, above a name.
    pub fn above(&self, name: Option<&PrincipalName>) -> impl Iterator<Item = &Arc<AccessKey>> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_name.range::<PrincipalName, _>((from, Bound::Unbounded)).map(|(_, key)| key)
    }

    /// The ring with these keys and no others.
    pub fn replaced(&self, keys: Vec<AccessKey>) -> Self {
        let mut after = Self::new(Arc::clone(&self.accounts));
        for key in keys {
            match self.by_id.get(&key.id) {
                Some(known) if *known.key == key => after.insert(Arc::clone(known)),
                known => after.insert(Arc::new(HeldKey::of(key, known.map(AsRef::as_ref), &self.accounts))),
            }
        }
        after
    }

    /// Ends the identities that the ring after this one does not have. Call it once the other is served: a caller that
    /// finds an ended identity here then finds the one that took its place there. O(keys).
    pub fn end_all_but(&self, after: &Self) {
        for (id, before) in &self.by_id {
            before.end_others(after.by_id(*id));
        }
    }

    /// The ring after a key was made or changed.
    pub fn with(&self, key: AccessKey) -> Self {
        let before = self.by_id.get(&key.id);
        let held = Arc::new(HeldKey::of(key, before.map(AsRef::as_ref), &self.accounts));
        let mut after = self.clone();
        after.insert(held);
        after
    }

    /// The ring after a key was deleted.
    pub fn without(&self, key: &AccessKey) -> Self {
        let mut after = self.clone();
        after.by_name.remove(&key.spec.name);
        after.by_id.remove(&key.id);
        after
    }

    /// Cancels the secrets that are over by now, and the names whose every secret is. O(keys).
    pub fn end_expired(&self, now: Timestamp) {
        let end = |identity: &Identity| {
            if !identity.has_ended() {
                identity.end();
            }
        };
        for held in self.by_id.values() {
            let is_over = |secret: &&HeldSecret| secret.expires.is_some_and(|expires| now >= expires);
            held.secrets.iter().filter(is_over).for_each(|secret| end(&secret.identity));
            if !held.key.is_valid(now) {
                end(&held.named);
            }
        }
    }

    fn insert(&mut self, held: Arc<HeldKey>) {
        self.by_name.insert(held.key.spec.name.clone(), Arc::clone(&held.key));
        self.by_id.insert(held.key.id, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::access::{AccessKeySpec, AccessResource, AccessRole, Grant, Grants, KeyQuota, KeyQuotas};

    fn secret(number: u8, expires: Option<i64>) -> AccessKeySecret {
        let expires = expires.map(Timestamp::from_secs);
        AccessKeySecret { hash: SecretHash([number; 32]), created: Timestamp::from_secs(0), expires }
    }

    fn key(id: u64, name: &str, version: u64, secrets: Vec<AccessKeySecret>) -> AccessKey {
        let name = PrincipalName::new(name).expect("a valid name");
        let (grants, quotas) = (Grants::default(), KeyQuotas::default());
        let spec = AccessKeySpec { name, description: String::new(), grants, quotas, secrets };
        let at = Timestamp::from_secs(0);
        AccessKey { id: KeyId(id), version, spec, created: at, updated: at }
    }

    fn identity(ring: &KeyRing, id: u64, number: u8) -> Option<Arc<Identity>> {
        Some(Arc::clone(&ring.by_id(KeyId(id))?.secret(&SecretHash([number; 32]))?.identity))
    }

    #[test]
    fn a_secret_that_stays_keeps_its_identity_and_one_that_goes_ends() {
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, None)])).with(key(
            2,
            "bob",
            1,
            vec![secret(2, None)],
        ));
        let (ann, bob) = (identity(&ring, 1, 1).expect("ann"), identity(&ring, 2, 2).expect("bob"));
        let rotated = ring.with(key(1, "ann", 2, vec![secret(1, Some(9)), secret(3, None)]));
        assert!(Arc::ptr_eq(&ann, &identity(&rotated, 1, 1).expect("the old secret")), "it stays for a time");
        let read = rotated.replaced(vec![key(1, "ann", 3, vec![secret(3, None)])]);
        assert!(!ann.has_ended(), "the new ring is served first");
        rotated.end_all_but(&read);
        assert!(ann.has_ended() && bob.has_ended(), "neither is there any more");
        assert!(identity(&read, 1, 1).is_none() && identity(&read, 2, 2).is_none());
        let ann = identity(&read, 1, 3).expect("the new secret");
        let gone = read.without(&key(1, "ann", 3, vec![secret(3, None)]));
        read.end_all_but(&gone);
        assert!(ann.has_ended() && gone.len() == 0);
    }

    #[test]
    fn a_change_of_the_grants_ends_what_was_known_before_it() {
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, None)]));
        let before = identity(&ring, 1, 1).expect("ann");
        let mut changed = key(1, "ann", 2, vec![secret(1, None)]);
        changed.spec.grants = [Grant::everywhere(AccessRole::Worker)].into_iter().collect();
        let changed = ring.with(changed);
        ring.end_all_but(&changed);
        let after = identity(&changed, 1, 1).expect("ann");
        assert!(before.has_ended() && before.is_regranted() && !after.has_ended());
        assert!(
            [&after, &before].map(|one| one.grants.allows(AccessRole::Worker, AccessResource::Queue("orders")))
                == [true, false]
        );
    }

    #[test]
    fn a_change_of_quotas_ends_nothing_and_counts_for_what_is_open() {
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, None)]));
        let open = identity(&ring, 1, 1).expect("ann");
        let mut changed = key(1, "ann", 2, vec![secret(1, None), secret(2, None)]);
        changed.spec.quotas = [(KeyQuota::Streams, 1)].into_iter().collect();
        let changed = ring.with(changed);
        ring.end_all_but(&changed);
        let new = identity(&changed, 1, 2).expect("the second secret");
        let held = new.account.take(KeyQuota::Streams);
        assert!(!open.has_ended() && held.is_ok() && open.account.take(KeyQuota::Streams).is_err());
    }

    #[test]
    fn a_name_lasts_as_long_as_its_key_and_its_grants() {
        let (ann, now) = (PrincipalName::new("ann").expect("a valid name"), Timestamp::from_secs(9));
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, Some(9)), secret(2, None)]));
        let first = ring.of_name(&ann, now).expect("ann");
        ring.end_expired(now);
        let rotated = ring.with(key(1, "ann", 2, vec![secret(3, None)]));
        ring.end_all_but(&rotated);
        assert!(!first.has_ended(), "neither the end of one secret nor another one is its end");
        let mut changed = key(1, "ann", 3, vec![secret(3, None)]);
        changed.spec.grants = [Grant::everywhere(AccessRole::Worker)].into_iter().collect();
        let changed = rotated.with(changed);
        rotated.end_all_but(&changed);
        assert!(first.has_ended() && first.is_regranted());
        let second = changed.of_name(&ann, now).expect("ann");
        let gone = changed.without(&key(1, "ann", 3, vec![secret(3, None)]));
        changed.end_all_but(&gone);
        assert!(second.has_ended() && !second.is_regranted());
        assert_eq!(gone.of_name(&ann, now).err(), Some(KeyRefusal::Unknown));
    }

    #[test]
    fn a_name_ends_when_the_last_secret_of_its_key_is_over_and_another_opens_it_again() {
        let ann = PrincipalName::new("ann").expect("a valid name");
        let (before, over) = (Timestamp::from_micros(19_999_999), Timestamp::from_secs(20));
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, Some(9)), secret(2, Some(20))]));
        let first = ring.of_name(&ann, before).expect("ann");
        ring.end_expired(before);
        assert!(!first.has_ended(), "one of its secrets is valid");
        assert_eq!(ring.of_name(&ann, over).err(), Some(KeyRefusal::Expired), "it is refused before anything ends it");
        ring.end_expired(over);
        assert!(first.has_ended() && !first.is_regranted());
        let rotated = ring.with(key(1, "ann", 2, vec![secret(3, Some(40))]));
        ring.end_all_but(&rotated);
        let second = rotated.of_name(&ann, over).expect("ann");
        assert!(!second.has_ended());
        let lasting = rotated.with(key(1, "ann", 3, vec![secret(3, Some(40)), secret(4, None)]));
        rotated.end_all_but(&lasting);
        lasting.end_expired(Timestamp::from_secs(1_000_000));
        assert!(Arc::ptr_eq(&second, &lasting.of_name(&ann, over).expect("ann")) && !second.has_ended());
    }

    #[test]
    fn a_secret_ends_at_its_time_and_the_other_of_its_key_goes_on() {
        let ring = KeyRing::default().with(key(1, "ann", 1, vec![secret(1, Some(9)), secret(2, None)]));
        let (old, new) = (identity(&ring, 1, 1).expect("the old"), identity(&ring, 1, 2).expect("the new"));
        ring.end_expired(Timestamp::from_micros(8_999_999));
        assert!(!old.has_ended());
        ring.end_expired(Timestamp::from_secs(9));
        assert!(old.has_ended() && !new.has_ended());
    }
}
