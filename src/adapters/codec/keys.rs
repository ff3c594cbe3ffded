//! Encodings of API keys: protobuf by `stored_key.proto`, the same on every engine.

use prost::Message;

use super::{CorruptValue, decode};
use tallystone_domain::access::{
    AccessKey, AccessKeySecret, AccessKeySpec, AccessRole, Grant, GrantEffect, KeyId, KeyQuota, KeyQuotas, NamePattern,
    PrincipalName, ResourceKind, SecretHash,
};
use tallystone_domain::time::Timestamp;
use tallystone_ports::KeyChange;
use tallystone_proto::internal::v1::{
    StoredGrant, StoredKey, StoredKeyChange, StoredKeyQuota, StoredKeySecret, StoredKeySpec,
};

/// Encodes a live key.
pub fn encode_key(key: &AccessKey) -> Vec<u8> {
    StoredKey {
        id: key.id.0,
        version: key.version,
        spec: Some(spec_of(&key.spec)),
        created: key.created.micros(),
        updated: key.updated.micros(),
    }
    .encode_to_vec()
}

/// Decodes a live key.
pub fn decode_key(bytes: &[u8]) -> Result<AccessKey, CorruptValue> {
    const WHAT: &str = "key";
    let stored: StoredKey = decode(WHAT, bytes)?;
    let spec = stored.spec.ok_or_else(|| CorruptValue::new(WHAT, "its settings are missing"))?;
    Ok(AccessKey {
        id: KeyId(stored.id),
        version: stored.version,
        spec: spec_from(WHAT, spec)?,
        created: Timestamp::from_micros(stored.created),
        updated: Timestamp::from_micros(stored.updated),
    })
}

/// Encodes an entry of the history.
pub fn encode_key_change(change: &KeyChange) -> Vec<u8> {
    StoredKeyChange {
        id: change.id.0,
        name: change.name.as_str().to_owned(),
        version: change.version,
        time: change.time.micros(),
        actor: change.actor.clone(),
        reason: change.reason.clone(),
        differences: change.differences.clone(),
        spec: change.spec.as_ref().map(spec_of),
    }
    .encode_to_vec()
}

/// Decodes an entry of the history.
pub fn decode_key_change(bytes: &[u8]) -> Result<KeyChange, CorruptValue> {
    const WHAT: &str = "change of a key";
    let stored: StoredKeyChange = decode(WHAT, bytes)?;
    Ok(KeyChange {
        id: KeyId(stored.id),
        name: name_from(WHAT, &stored.name)?,
        version: stored.version,
        time: Timestamp::from_micros(stored.time),
        actor: stored.actor,
        reason: stored.reason,
        differences: stored.differences,
        spec: stored.spec.map(|spec| spec_from(WHAT, spec)).transpose()?,
        deletion: (),
    })
}

fn spec_of(spec: &AccessKeySpec) -> StoredKeySpec {
    let secret_of = |secret: &AccessKeySecret| StoredKeySecret {
        sha256: secret.hash.0.to_vec(),
        created: secret.created.micros(),
        expires: secret.expires.map(Timestamp::micros),
    };
    StoredKeySpec {
        name: spec.name.as_str().to_owned(),
        description: spec.description.clone(),
        secrets: spec.secrets.iter().map(secret_of).collect(),
        grants: spec.grants.iter().map(stored_grant).collect(),
        quotas: spec.quotas.iter().map(|(quota, limit)| StoredKeyQuota { quota: quota.number(), limit }).collect(),
    }
}

fn spec_from(what: &'static str, stored: StoredKeySpec) -> Result<AccessKeySpec, CorruptValue> {
    let secret_from = |secret: StoredKeySecret| {
        let hash = secret.sha256.try_into().map_err(|_| CorruptValue::new(what, "a hash of another length"))?;
        Ok(AccessKeySecret {
            hash: SecretHash(hash),
            created: Timestamp::from_micros(secret.created),
            expires: secret.expires.map(Timestamp::from_micros),
        })
    };
    Ok(AccessKeySpec {
        grants: stored.grants.into_iter().map(|grant| grant_from(what, grant)).collect::<Result<_, _>>()?,
        quotas: stored.quotas.into_iter().map(|own| quota_from(what, &own)).collect::<Result<KeyQuotas, _>>()?,
        name: name_from(what, &stored.name)?,
        description: stored.description,
        secrets: stored.secrets.into_iter().map(secret_from).collect::<Result<_, _>>()?,
    })
}

fn stored_grant(grant: &Grant) -> StoredGrant {
    StoredGrant {
        deny: grant.effect == GrantEffect::Deny,
        role: grant.role.number(),
        kind: grant.kind.map_or(0, ResourceKind::number),
        name: grant.names.text().to_owned(),
        is_prefix: grant.names.is_prefix(),
    }
}

fn grant_from(what: &'static str, stored: StoredGrant) -> Result<Grant, CorruptValue> {
    let StoredGrant { deny, role, kind, name, is_prefix } = stored;
    let unknown = |part: &str, number: u32| CorruptValue::new(what, format!("{part} {number}"));
    let names = if is_prefix { NamePattern::prefix(&name) } else { NamePattern::exact(&name) };
    Ok(Grant {
        effect: if deny { GrantEffect::Deny } else { GrantEffect::Allow },
        role: AccessRole::from_number(role).ok_or_else(|| unknown("role", role))?,
        kind: match kind {
            0 => None,
            number => Some(ResourceKind::from_number(number).ok_or_else(|| unknown("kind", number))?),
        },
        names: names.map_err(|reject| CorruptValue::new(what, reject.message))?,
    })
}

fn quota_from(what: &'static str, stored: &StoredKeyQuota) -> Result<(KeyQuota, u64), CorruptValue> {
    let quota = KeyQuota::from_number(stored.quota);
    let quota = quota.ok_or_else(|| CorruptValue::new(what, format!("quota {}", stored.quota)))?;
    Ok((quota, stored.limit))
}

fn name_from(what: &'static str, name: &str) -> Result<PrincipalName, CorruptValue> {
    PrincipalName::new(name).map_err(|reject| CorruptValue::new(what, reject.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        let at = Timestamp::from_secs;
        let secret =
            |number, expires| AccessKeySecret { hash: SecretHash([number; 32]), created: at(number.into()), expires };
        let spec = AccessKeySpec {
            name: PrincipalName::new("orders").expect("a valid name"),
            description: "the workers of orders".to_owned(),
            grants: [
                (GrantEffect::Allow, "worker:queue:orders/*"),
                (GrantEffect::Deny, "admin:*:x"),
                (GrantEffect::Allow, "metrics"),
            ]
            .map(|(effect, text)| Grant::parse(effect, text).expect("a grant"))
            .into_iter()
            .collect(),
            quotas: KeyQuota::ALL.into_iter().zip(0..).collect(),
            secrets: vec![secret(1, Some(at(9))), secret(2, None)],
        };
        let key = AccessKey { id: KeyId(u64::MAX - 1), version: 3, spec, created: at(1), updated: at(2) };
        assert_eq!(decode_key(&encode_key(&key)), Ok(key.clone()));
        let mut change = KeyChange {
            id: key.id,
            name: key.spec.name.clone(),
            version: 3,
            time: at(2),
            actor: "ann".to_owned(),
            reason: "because".to_owned(),
            differences: vec!["a new secret".to_owned()],
            spec: Some(key.spec),
            deletion: (),
        };
        assert_eq!(decode_key_change(&encode_key_change(&change)), Ok(change.clone()));
        change.spec = None;
        assert_eq!(decode_key_change(&encode_key_change(&change)), Ok(change));
        assert!(decode_key(&[]).is_err(), "an empty cell is no key");
    }
}
