//! The record of an API key: its principal, the hashes of its secrets, and the time until which each secret is valid.
//!
//! A key has one secret, and two while it is rotated: the old one stays valid until its owners have the new one.

use std::fmt;

use crate::access::{Grants, KeyId, KeyQuotas, PrincipalName};
use crate::constant_time::same_secret;
use crate::limits::KEY_SECRETS_MAX;
use crate::time::Timestamp;

/// The SHA-256 of a secret. Compared in constant time, and not shown.
#[derive(Clone, Copy, Eq)]
pub struct SecretHash(pub [u8; 32]);

/// One secret of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKeySecret {
    /// The hash that is kept of it.
    pub hash: SecretHash,
    /// When it was made.
    pub created: Timestamp,
    /// The first moment at which it is not valid any more; none: valid as long as the key.
    pub expires: Option<Timestamp>,
}

/// The parts of a key that can be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKeySpec {
    /// The principal that it stands for. No two keys have the same.
    pub name: PrincipalName,
    /// The purpose of the key.
    pub description: String,
    /// The grants of the key.
    pub grants: Grants,
    /// The limits that it has instead of those of the server.
    pub quotas: KeyQuotas,
    /// The secrets, oldest first: 1 or 2.
    pub secrets: Vec<AccessKeySecret>,
}

/// An API key of the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKey {
    /// The id, never reused.
    pub id: KeyId,
    /// The version of its settings, from 1.
    pub version: u64,
    /// The parts that can be set.
    pub spec: AccessKeySpec,
    /// When it was made.
    pub created: Timestamp,
    /// When it was changed last.
    pub updated: Timestamp,
}

impl AccessKeySecret {
    /// Whether it is valid at a time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

impl AccessKey {
    /// Whether any of its secrets is valid at a time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.spec.secrets.iter().any(|secret| secret.is_valid(now))
    }
}

impl AccessKeySpec {
    /// The settings with one more secret. The valid ones of before end at `old_until`, unless they end earlier. At most
    /// two secrets are valid at any time: a third takes the place of the oldest.
    #[must_use]
    pub fn rotated(&self, new: AccessKeySecret, old_until: Timestamp) -> Self {
        let ended = |old: &AccessKeySecret| {
            let expires = old.expires.map_or(old_until, |expires| expires.min(old_until));
            AccessKeySecret { expires: Some(expires), ..old.clone() }
        };
        let valid = self.secrets.iter().map(ended).filter(|old| old.is_valid(new.created));
        let mut secrets: Vec<AccessKeySecret> = valid.chain([new.clone()]).collect();
        let surplus = secrets.len().saturating_sub(KEY_SECRETS_MAX);
        secrets.drain(..surplus);
        Self { secrets, ..self.clone() }
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        same_secret(self.0, other.0)
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(number: u8, created: i64, expires: Option<i64>) -> AccessKeySecret {
        let (created, expires) = (Timestamp::from_secs(created), expires.map(Timestamp::from_secs));
        AccessKeySecret { hash: SecretHash([number; 32]), created, expires }
    }

    fn spec(secrets: Vec<AccessKeySecret>) -> AccessKeySpec {
        let name = PrincipalName::new("orders").expect("a valid name");
        let (grants, quotas) = (Grants::default(), KeyQuotas::default());
        AccessKeySpec { name, description: String::new(), grants, quotas, secrets }
    }

    #[test]
    fn a_secret_is_valid_until_its_end_and_not_at_it() {
        let ends = secret(1, 0, Some(10));
        assert!(ends.is_valid(Timestamp::from_micros(9_999_999)) && !ends.is_valid(Timestamp::from_secs(10)));
        assert!(secret(1, 0, None).is_valid(Timestamp::MAX));
    }

    proptest! {
        /// The oracle: every secret with its end, of which the last two that are valid count.
        #[test]
        fn a_rotation_adds_a_secret_and_prolongs_none(
            steps in prop::collection::vec((0..20_i64, 0..20_i64, prop::option::of(0..40_i64)), 1..8),
        ) {
            let mut rotated = spec(vec![secret(0, 0, None)]);
            let mut oracle: Vec<(u8, Option<i64>)> = vec![(0, None)];
            let mut now = 0;
            for (number, (pause, keep, lasts)) in (1_u8..).zip(steps) {
                now += pause;
                let expires = lasts.map(|lasts| now + 1 + lasts);
                rotated = rotated.rotated(secret(number, now, expires), Timestamp::from_secs(now + keep));
                for (_, end) in &mut oracle {
                    *end = Some(end.map_or(now + keep, |end| end.min(now + keep)));
                }
                oracle.push((number, expires));
                let valid = oracle.iter().filter(|(_, end)| end.is_none_or(|end| now < end));
                let mut valid: Vec<_> = valid.copied().collect();
                valid.drain(..valid.len().saturating_sub(2));
                oracle.retain(|one| valid.contains(one));
                let held: Vec<_> = rotated.secrets.iter().map(|held| (held.hash.0[0], held.expires)).collect();
                let wanted: Vec<_> = valid.iter().map(|(hash, end)| (*hash, end.map(Timestamp::from_secs))).collect();
                prop_assert_eq!(held, wanted);
            }
        }
    }
}
