//! `tallystone.admin.v1.KeyService`: API keys on the wire. The secret of a key is in the answer that makes it, and
//! nowhere else.

use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::namespaces::actor_of;
use crate::grpc::{ActDetail, decode, rights_of};
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{
    AccessKey, AccessRole, Grant, GrantEffect, Grants, KeyQuota, KeyQuotas, NamePattern, PrincipalName, ResourceKind,
    Sealed,
};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_engine::access::{AccessKeys, IssuedKey, KeyDraft, KeyEtag, KeyRotation, KeyUpdate, Lockout};
use tallystone_engine::catalog::Author;
use tallystone_proto::access::v1 as wire;
use tallystone_proto::access::v1::grant::Names;
use tallystone_proto::admin::v1 as pb;
use tallystone_proto::admin::v1::key_service_server::KeyService;

/// How long the old secret of a rotated key stays valid by default.
const KEEP_OLD_DEFAULT: Duration = Duration::from_secs(86_400);

/// The key service.
pub struct KeysApi {
    keys: Sealed<AccessKeys>,
}

impl KeysApi {
    /// Serves these keys.
    pub fn new(keys: AccessKeys) -> Self {
        Self { keys: Sealed::new(keys) }
    }
}

#[tonic::async_trait]
impl KeyService for KeysApi {
    async fn create_key(
        &self,
        request: Request<pb::CreateKeyRequest>,
    ) -> Result<Response<pb::CreateKeyResponse>, Status> {
        let (actor, proof) =
            (actor_of(&request), rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?);
        let pb::CreateKeyRequest { name, description, expire_time, reason, grants, quotas } = request.into_inner();
        let quotas = quotas.map(quotas_of).unwrap_or_default();
        let (name, grants, expires) = (name_of(&name)?, grants_of(grants)?, expiry_of(expire_time)?);
        let draft = KeyDraft { name, description, grants, quotas, expires };
        let made = self.keys.with(&proof).create(draft, Author { actor, reason }).await.map_err(ApiError::from)?;
        let (key, api_key) = shown(&made);
        Ok(Response::new(pb::CreateKeyResponse { key: Some(key), api_key }))
    }

    async fn list_keys(&self, request: Request<pb::ListKeysRequest>) -> Result<Response<pb::ListKeysResponse>, Status> {
        let proof = rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?;
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListKeys", &[]);
        let above = above_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let listed = self.keys.with(&proof).list(above.as_ref(), rows);
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(Response::new(pb::ListKeysResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            keys: listed.iter().map(|key| key_message(key)).collect(),
        }))
    }

    async fn update_key(
        &self,
        request: Request<pb::UpdateKeyRequest>,
    ) -> Result<Response<pb::UpdateKeyResponse>, Status> {
        let (actor, proof) =
            (actor_of(&request), rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?);
        let pb::UpdateKeyRequest { name, grants, description, etag, reason, quotas, force } = request.into_inner();
        let quotas = quotas.map(quotas_of);
        let (name, grants, expected) = (name_of(&name)?, grants_of(grants)?, etag_of(&etag)?);
        let update = KeyUpdate { name, description, grants, quotas, expected, lockout: lockout_of(force) };
        let updated = self.keys.with(&proof).update(update, Author { actor, reason }).await.map_err(ApiError::from)?;
        let mut response = Response::new(pb::UpdateKeyResponse { key: Some(key_message(&updated.key)) });
        response.extensions_mut().insert(ActDetail(updated.regranted));
        Ok(response)
    }

    async fn rotate_key(
        &self,
        request: Request<pb::RotateKeyRequest>,
    ) -> Result<Response<pb::RotateKeyResponse>, Status> {
        let (actor, proof) =
            (actor_of(&request), rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?);
        let pb::RotateKeyRequest { name, keep_old, expire_time, etag, reason } = request.into_inner();
        let keep_old = decode::duration("keep_old", keep_old.as_ref())?;
        let rotation = KeyRotation {
            name: name_of(&name)?,
            keep_old: keep_old.unwrap_or(KEEP_OLD_DEFAULT),
            expires: expiry_of(expire_time)?,
            expected: etag_of(&etag)?,
        };
        let made = self.keys.with(&proof).rotate(rotation, Author { actor, reason }).await.map_err(ApiError::from)?;
        let (key, api_key) = shown(&made);
        Ok(Response::new(pb::RotateKeyResponse { key: Some(key), api_key }))
    }

    async fn delete_key(
        &self,
        request: Request<pb::DeleteKeyRequest>,
    ) -> Result<Response<pb::DeleteKeyResponse>, Status> {
        let (actor, proof) =
            (actor_of(&request), rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?);
        let pb::DeleteKeyRequest { name, etag, reason, force } = request.into_inner();
        let (name, etag, author) = (name_of(&name)?, etag_of(&etag)?, Author { actor, reason });
        let keys = self.keys.with(&proof);
        keys.delete(name, etag, lockout_of(force), author).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::DeleteKeyResponse {}))
    }
}

fn expiry_of(sent: Option<prost_types::Timestamp>) -> Result<Option<Timestamp>, ApiError> {
    let read = |sent| time::read("expire_time", Reason::InvalidArgument, &sent);
    sent.map(read).transpose().map_err(|reject| ApiError::from(reject).at("expire_time"))
}

/// Decodes the grants of a key.
fn grants_of(sent: Vec<wire::Grant>) -> Result<Grants, ApiError> {
    let grants: Vec<Grant> = sent.into_iter().map(grant_of).collect::<Result<_, _>>()?;
    Grants::new(grants).map_err(ApiError::from)
}

/// Decodes a grant.
pub fn grant_of(sent: wire::Grant) -> Result<Grant, ApiError> {
    let unknown = |what: String| ApiError::new(Reason::InvalidArgument, what).at("grants");
    let role = u32::try_from(sent.role).ok().and_then(AccessRole::from_number);
    let role =
        role.ok_or_else(|| unknown(format!("there is no role {}; send one of tallystone.access.v1.Role", sent.role)))?;
    let kind = match sent.kind {
        0 => None,
        number => {
            let found = u32::try_from(number).ok().and_then(ResourceKind::from_number);
            let what = || unknown(format!("there is no kind {number}; send one of tallystone.access.v1.ResourceKind"));
            Some(found.ok_or_else(what)?)
        }
    };
    let names = match sent.names {
        None => NamePattern::all(),
        Some(Names::Name(name)) => NamePattern::exact(&name)?,
        Some(Names::Prefix(prefix)) => NamePattern::prefix(&prefix)?,
    };
    let effect = if sent.deny { GrantEffect::Deny } else { GrantEffect::Allow };
    Ok(Grant { effect, role, kind, names })
}

/// Encodes a grant.
pub fn grant_message(grant: &Grant) -> wire::Grant {
    let text = grant.names.text().to_owned();
    wire::Grant {
        role: number(grant.role.number()),
        kind: grant.kind.map_or(0, |kind| number(kind.number())),
        names: match (grant.names.is_prefix(), text.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Names::Prefix(text)),
            (false, _) => Some(Names::Name(text)),
        },
        deny: grant.effect == GrantEffect::Deny,
    }
}

/// The field of a quota in the protos.
fn quota_field(sent: &mut wire::Quotas, quota: KeyQuota) -> &mut Option<u64> {
    match quota {
        KeyQuota::CallsPerSecond => &mut sent.calls_per_second,
        KeyQuota::BytesPerSecond => &mut sent.bytes_per_second,
        KeyQuota::Streams => &mut sent.streams,
        KeyQuota::Connections => &mut sent.connections,
        KeyQuota::Sessions => &mut sent.sessions,
        KeyQuota::Operations => &mut sent.operations,
        KeyQuota::Queues => &mut sent.queues,
        KeyQuota::Namespaces => &mut sent.namespaces,
    }
}

/// Decodes own limits of a key.
pub fn quotas_of(mut sent: wire::Quotas) -> KeyQuotas {
    KeyQuota::ALL.into_iter().fold(KeyQuotas::default(), |own, quota| own.with(quota, *quota_field(&mut sent, quota)))
}

/// Encodes own limits of a key.
pub fn quotas_message(own: &KeyQuotas) -> wire::Quotas {
    let mut sent = wire::Quotas::default();
    own.iter().for_each(|(quota, limit)| *quota_field(&mut sent, quota) = Some(limit));
    sent
}

/// A number of an enum of the protos, all of which are small.
fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn name_of(name: &str) -> Result<PrincipalName, ApiError> {
    PrincipalName::new(name).map_err(ApiError::from)
}

fn lockout_of(force: bool) -> Lockout {
    if force { Lockout::Accepted } else { Lockout::Refused }
}

fn etag_of(etag: &str) -> Result<Option<KeyEtag>, ApiError> {
    (!etag.is_empty()).then(|| etag.parse()).transpose().map_err(ApiError::from)
}

fn above_of(paged: &PagedRequest, token: &str) -> Result<Option<PrincipalName>, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(None) };
    let name = std::str::from_utf8(&cursor).map_err(|_| paging::refuse())?;
    PrincipalName::new(name).map(Some).map_err(|_| paging::refuse())
}

fn shown(made: &IssuedKey) -> (pb::Key, String) {
    (key_message(&made.key), made.secret.reveal())
}

/// Encodes a key, without its secrets.
pub fn key_message(key: &AccessKey) -> pb::Key {
    let secrets = key.spec.secrets.iter().map(|secret| pb::KeySecret {
        create_time: Some(time::write(secret.created)),
        expire_time: secret.expires.map(time::write),
    });
    pb::Key {
        name: key.spec.name.as_str().to_owned(),
        key_id: key.id.to_string(),
        description: key.spec.description.clone(),
        secrets: secrets.collect(),
        version: key.version,
        etag: KeyEtag::of(key).to_string(),
        create_time: Some(time::write(key.created)),
        update_time: Some(time::write(key.updated)),
        grants: key.spec.grants.iter().map(grant_message).collect(),
        quotas: Some(quotas_message(&key.spec.quotas)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_kinds_have_the_numbers_and_names_of_the_protos() {
        let name = |prefix: &str, word: &str| format!("{prefix}_{}", word.to_ascii_uppercase().replace('-', "_"));
        for role in AccessRole::OF_KEYS.into_iter().chain([AccessRole::Peer]) {
            let sent = wire::Role::try_from(number(role.number())).expect("the protos have it");
            assert_eq!(sent.as_str_name(), name("ROLE", role.word()));
        }
        for kind in ResourceKind::ALL {
            let sent = wire::ResourceKind::try_from(number(kind.number())).expect("the protos have it");
            assert_eq!(sent.as_str_name(), name("RESOURCE_KIND", kind.word()));
        }
        let unknown = AccessRole::OF_KEYS.len() + 2;
        assert!(wire::Role::try_from(i32::try_from(unknown).expect("small")).is_err(), "no role is missing here");
    }

    #[test]
    fn quotas_are_sent_as_they_are() {
        let all: KeyQuotas = KeyQuota::ALL.into_iter().zip(0..).collect();
        for own in [KeyQuotas::default(), all.clone(), all.with(KeyQuota::Streams, None)] {
            assert_eq!(quotas_of(quotas_message(&own)), own);
        }
    }

    #[test]
    fn a_grant_is_sent_as_it_is() {
        for text in ["worker", "worker:queue", "worker:queue:a", "worker:queue:a/*", "viewer:*:shop*", "admin:server"] {
            for effect in [GrantEffect::Allow, GrantEffect::Deny] {
                let grant = Grant::parse(effect, text).expect("a grant");
                assert_eq!(grant_of(grant_message(&grant)), Ok(grant), "{text}");
            }
        }
    }
}
