//! How keys change: created, rotated, deleted. The secret of a new one is shown once, in the answer.

use std::sync::Arc;
use std::time::Duration;

use crate::access::{AccessKeys, AccessKeysInner, KeyError, KeyEtag, not_found};
use crate::catalog::{Author, CommitOutcome, FIRST_VERSION, FollowedCatalog, check_etag, finish};
use tallystone_domain::access::{
    AccessKey, AccessKeySecret, AccessKeySpec, AccessRole, ApiKey, Grants, KeyId, KeyQuotas, PrincipalName,
    ResourceKind,
};
use tallystone_domain::limits::{DESCRIPTION_BYTES_MAX, KEY_OLD_SECRET_MAX, KEYS_MAX};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{KeyRecord, StoreError, StoreErrorKind};

const CHANGE_OP: &str = "change of a key";

/// A key to create.
#[derive(Clone, Debug)]
pub struct KeyDraft {
    /// The principal that it stands for.
    pub name: PrincipalName,
    /// The purpose of the key.
    pub description: String,
    /// The grants of the key.
    pub grants: Grants,
    /// Its own limits.
    pub quotas: KeyQuotas,
    /// When its secret stops being valid, if it does.
    pub expires: Option<Timestamp>,
}

/// New settings of a key.
#[derive(Clone, Debug)]
pub struct KeyUpdate {
    pub name: PrincipalName,
    /// None: it stays.
    pub description: Option<String>,
    pub grants: Grants,
    /// Its own limits from now on; none: they stay.
    pub quotas: Option<KeyQuotas>,
    /// The version that the caller read.
    pub expected: Option<KeyEtag>,
    /// The treatment of the change if no key may manage keys afterwards.
    pub lockout: Lockout,
}

/// The treatment of a change after which no valid key may manage keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Lockout {
    /// It is refused.
    #[default]
    Refused,
    /// It is made: others than keys manage keys, or nobody shall.
    Accepted,
}

/// A key after its settings changed.
#[derive(Clone, Debug)]
pub struct UpdatedKey {
    pub key: Arc<AccessKey>,
    /// Which grants it gained (`+`) and lost (`-`). Empty if they are the same.
    pub regranted: String,
}

/// A new secret for a key.
#[derive(Clone, Debug)]
pub struct KeyRotation {
    pub name: PrincipalName,
    /// How long the secrets of before stay valid, unless they end earlier.
    pub keep_old: Duration,
    /// When the new secret stops being valid, if it does.
    pub expires: Option<Timestamp>,
    /// The version that the caller read.
    pub expected: Option<KeyEtag>,
}

/// A key with a secret that was just made.
#[derive(Clone, Debug)]
pub struct IssuedKey {
    pub key: Arc<AccessKey>,
    /// The new secret. It is nowhere else.
    pub secret: ApiKey,
}

impl AccessKeys {
    /// Creates a key. A name that is taken is refused, since its secret cannot be shown again.
    pub async fn create(&self, draft: KeyDraft, author: Author) -> Result<IssuedKey, KeyError> {
        author.check()?;
        check_settings(&draft.description, &draft.grants)?;
        self.issue(KeyIntent::Create(draft), author).await
    }

    /// Adds a secret to a key, and ends those of before after a time.
    pub async fn rotate(&self, rotation: KeyRotation, author: Author) -> Result<IssuedKey, KeyError> {
        author.check()?;
        if rotation.keep_old > KEY_OLD_SECRET_MAX {
            let days = KEY_OLD_SECRET_MAX.as_secs() / 86_400;
            let what = format!("the old secret can stay valid for {days} days at most");
            return Err(Reject::new(Reason::InvalidArgument, what.as_str()).at("keep_old", what.as_str()).into());
        }
        self.issue(KeyIntent::Rotate(rotation), author).await
    }

    /// Replaces grants, description and own limits of a key. Its open calls end if the grants differ.
    pub async fn update(&self, update: KeyUpdate, author: Author) -> Result<UpdatedKey, KeyError> {
        author.check()?;
        check_settings(update.description.as_deref().unwrap_or_default(), &update.grants)?;
        let ChangedKey { key, regranted, .. } = self.change(KeyIntent::Update(update), author).await?;
        Ok(UpdatedKey { key: Arc::new(key), regranted })
    }

    /// Deletes a key; `expected` is the version that the caller read. Its open calls end.
    pub async fn delete(
        &self,
        name: PrincipalName,
        expected: Option<KeyEtag>,
        lockout: Lockout,
        author: Author,
    ) -> Result<(), KeyError> {
        author.check()?;
        self.change(KeyIntent::Delete(name, expected, lockout), author).await.map(drop)
    }

    async fn issue(&self, intent: KeyIntent, author: Author) -> Result<IssuedKey, KeyError> {
        let ChangedKey { key, secret, .. } = self.change(intent, author).await?;
        let secret = secret.expect("a change that makes a secret answers it");
        Ok(IssuedKey { key: Arc::new(key), secret })
    }

    /// Runs a change to its end, even if the caller goes away.
    async fn change(&self, intent: KeyIntent, author: Author) -> Result<ChangedKey, KeyError> {
        // Where servers share the keys, the change is decided on what the others left.
        self.follow().await?;
        let shared = Arc::clone(&self.shared);
        let start = |work| drop(self.shared.tasks.spawn(work));
        finish(CHANGE_OP, start, async move { shared.run(intent, author).await }).await
    }
}

/// Own limits of a key as the history shows them.
fn shown(own: &KeyQuotas) -> String {
    match own.to_string() {
        text if text.is_empty() => "none".to_owned(),
        text => text,
    }
}

/// Checks what a caller chose for a key. `Grants::new` has checked each grant.
fn check_settings(description: &str, grants: &Grants) -> Result<(), Reject> {
    let refuse = |field: &str, what: String| Err(Reject::new(Reason::InvalidArgument, what.clone()).at(field, what));
    if description.len() > DESCRIPTION_BYTES_MAX {
        return refuse("description", format!("description has more than {DESCRIPTION_BYTES_MAX} bytes"));
    }
    if grants.iter().next().is_none() {
        return refuse("grants", "a key without a grant allows nothing; give it at least one".to_owned());
    }
    Ok(())
}

/// The intent of a change.
#[derive(Clone, Debug)]
enum KeyIntent {
    Create(KeyDraft),
    Update(KeyUpdate),
    Rotate(KeyRotation),
    Delete(PrincipalName, Option<KeyEtag>, Lockout),
}

/// The result of a change.
struct ChangedKey {
    /// The key after it, or as it was deleted.
    key: AccessKey,
    /// The secret that it made.
    secret: Option<ApiKey>,
    /// The grants that it changed, as [`UpdatedKey`] has them.
    regranted: String,
}

impl ChangedKey {
    fn of(key: AccessKey, secret: Option<ApiKey>) -> Self {
        Self { key, secret, regranted: String::new() }
    }
}

impl AccessKeysInner {
    async fn run(&self, intent: KeyIntent, author: Author) -> Result<ChangedKey, KeyError> {
        let Some(mut turn) = self.catalog.begin(self).await else {
            return Err(StoreError::not_applied(StoreErrorKind::Closed, CHANGE_OP).into());
        };
        loop {
            let (record, answer) = self.decide(&intent, &author)?;
            if turn.commit(record.clone()).await? == CommitOutcome::Overtaken {
                continue;
            }
            self.serve(record, &answer.key);
            return Ok(answer);
        }
    }

    fn decide(&self, intent: &KeyIntent, author: &Author) -> Result<(KeyRecord, ChangedKey), Reject> {
        let now = self.now();
        match intent {
            KeyIntent::Create(draft) => self.creation(draft, author, now),
            KeyIntent::Update(update) => self.update(update, author, now),
            KeyIntent::Rotate(rotation) => self.rotation(rotation, author, now),
            KeyIntent::Delete(name, expected, lockout) => {
                let live = self.live(name, *expected)?;
                self.check_managers(&live, None, *lockout, now)?;
                let mut change = author.deletion(&live, now, ());
                change.differences.push("the key was deleted".to_owned());
                let record = KeyRecord { expected_version: Some(live.version), entry: None, companion: (), change };
                Ok((record, ChangedKey::of(live, None)))
            }
        }
    }

    fn creation(&self, draft: &KeyDraft, author: &Author, now: Timestamp) -> Result<(KeyRecord, ChangedKey), Reject> {
        let ring = self.ring.load();
        if ring.by_name(&draft.name).is_some() {
            let what = format!("key {} exists, and its secret cannot be shown again", draft.name);
            return Err(Reject::new(Reason::KeyExists, what));
        }
        if ring.len() >= KEYS_MAX {
            let what = format!("there are {KEYS_MAX} keys, the maximum; delete some first");
            return Err(Reject::new(Reason::InvalidArgument, what));
        }
        let id = KeyId(u64::from_be_bytes(self.random()));
        let (shown, secret) = self.new_secret(id, draft.expires, now)?;
        let name = draft.name.clone();
        let spec = AccessKeySpec {
            name,
            description: draft.description.clone(),
            grants: draft.grants.clone(),
            quotas: draft.quotas.clone(),
            secrets: vec![secret],
        };
        let key = AccessKey { id, version: FIRST_VERSION, spec, created: now, updated: now };
        let change = author.change(&key, now, Vec::new());
        let record = KeyRecord { expected_version: None, entry: Some(key.clone()), companion: (), change };
        Ok((record, ChangedKey::of(key, Some(shown))))
    }

    fn update(&self, update: &KeyUpdate, author: &Author, now: Timestamp) -> Result<(KeyRecord, ChangedKey), Reject> {
        let live = self.live(&update.name, update.expected)?;
        let spec = AccessKeySpec {
            description: update.description.clone().unwrap_or_else(|| live.spec.description.clone()),
            grants: update.grants.clone(),
            quotas: update.quotas.clone().unwrap_or_else(|| live.spec.quotas.clone()),
            ..live.spec.clone()
        };
        let mut lines = Vec::new();
        if spec.grants != live.spec.grants {
            lines.push(format!("grants: {} -> {}", live.spec.grants, spec.grants));
        }
        if spec.quotas != live.spec.quotas {
            lines.push(format!("quotas: {} -> {}", shown(&live.spec.quotas), shown(&spec.quotas)));
        }
        if spec.description != live.spec.description {
            lines.push(format!("description: {:?} -> {:?}", live.spec.description, spec.description));
        }
        let regranted = live.spec.grants.changes_to(&spec.grants);
        let key = AccessKey { version: live.version + 1, spec, updated: now, ..live.clone() };
        self.check_managers(&live, Some(&key), update.lockout, now)?;
        let change = author.change(&key, now, lines);
        let record =
            KeyRecord { expected_version: Some(live.version), entry: Some(key.clone()), companion: (), change };
        Ok((record, ChangedKey { regranted, ..ChangedKey::of(key, None) }))
    }

    /// Refuses a change of the last valid key that may manage keys, if it could not afterwards. O(keys).
    fn check_managers(
        &self,
        before: &AccessKey,
        after: Option<&AccessKey>,
        lockout: Lockout,
        now: Timestamp,
    ) -> Result<(), Reject> {
        let manages =
            |key: &AccessKey| key.is_valid(now) && key.spec.grants.allows_all(AccessRole::Admin, ResourceKind::Server);
        let ring = self.ring.load();
        let mut others = ring.above(None).filter(|key| key.id != before.id);
        if lockout == Lockout::Accepted
            || !manages(before)
            || after.is_some_and(manages)
            || others.any(|key| manages(key))
        {
            return Ok(());
        }
        let what = format!(
            "no valid key could manage keys any more: {} is the last one with the role admin on the server; give another key \
             admin first, or set `force` (--force)",
            before.spec.name
        );
        Err(Reject::new(Reason::InvalidArgument, what.as_str()).at("force", what.as_str()))
    }

    fn rotation(
        &self,
        rotation: &KeyRotation,
        author: &Author,
        now: Timestamp,
    ) -> Result<(KeyRecord, ChangedKey), Reject> {
        let live = self.live(&rotation.name, rotation.expected)?;
        let (shown, secret) = self.new_secret(live.id, rotation.expires, now)?;
        let spec = live.spec.rotated(secret, now + rotation.keep_old);
        let key = AccessKey { version: live.version + 1, spec, updated: now, ..live.clone() };
        let change = author.change(&key, now, vec!["a new secret was made".to_owned()]);
        let record =
            KeyRecord { expected_version: Some(live.version), entry: Some(key.clone()), companion: (), change };
        Ok((record, ChangedKey::of(key, Some(shown))))
    }

    fn new_secret(
        &self,
        id: KeyId,
        expires: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<(ApiKey, AccessKeySecret), Reject> {
        if expires.is_some_and(|expires| expires <= now) {
            let what = "the key would expire before it is made; choose a later time";
            return Err(Reject::new(Reason::InvalidArgument, what).at("expire_time", what));
        }
        let shown = ApiKey::new(id, self.random());
        Ok((shown, AccessKeySecret { hash: shown.hash(), created: now, expires }))
    }

    fn live(&self, name: &PrincipalName, expected: Option<KeyEtag>) -> Result<AccessKey, Reject> {
        let live = self.ring.load().by_name(name).map(|live| AccessKey::clone(live));
        let live = live.ok_or_else(|| not_found(name))?;
        check_etag(&live, expected)?;
        Ok(live)
    }

    /// Takes a committed change into the ring. Only one change runs at a time, and `take_in` only between changes.
    fn serve(&self, record: KeyRecord, before: &AccessKey) {
        let KeyRecord { entry, change, .. } = record;
        let (name, version, actor, is_deleted) = (&change.name, change.version, &change.actor, entry.is_none());
        let no_end = self.changing.lock();
        let ring = self.ring.load();
        let after = match entry {
            Some(key) => ring.with(key),
            None => ring.without(before),
        };
        self.replace(Arc::new(after));
        drop(no_end);
        let action = if is_deleted {
            "deleted"
        } else if version == FIRST_VERSION {
            "created"
        } else {
            "updated"
        };
        tracing::info!(key = %name, version, actor, action, "a key was changed");
    }
}
