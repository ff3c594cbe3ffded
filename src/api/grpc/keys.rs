//! `tallystone.admin.v1.KeyService`: API keys on the wire. The secret of a key is in the answer that makes it, and nowhere
//! else.

use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::api::errors::ApiError;
use crate::api::grpc::decode;
use crate::api::grpc::namespaces::actor_of;
use crate::api::paging::{self, PagedRequest};
use crate::api::time;
use crate::domain::access::{AccessKey, PrincipalName};
use crate::domain::{Reason, Reject, Timestamp};
use crate::engine::access::{AccessKeys, IssuedKey, KeyDraft, KeyEtag, KeyRotation};
use crate::engine::catalog::Author;
use crate::proto::admin::v1 as pb;
use crate::proto::admin::v1::key_service_server::KeyService;

/// How long the old secret of a rotated key stays valid by default.
const KEEP_OLD_DEFAULT: Duration = Duration::from_secs(86_400);

/// The key service.
pub struct KeysApi {
    keys: AccessKeys,
}

impl KeysApi {
    /// Serves these keys.
    pub fn new(keys: AccessKeys) -> Self {
        Self { keys }
    }
}

#[tonic::async_trait]
impl KeyService for KeysApi {
    async fn create_key(
        &self,
        request: Request<pb::CreateKeyRequest>,
    ) -> Result<Response<pb::CreateKeyResponse>, Status> {
        let actor = actor_of(&request);
        let pb::CreateKeyRequest { name, description, expire_time, reason } = request.into_inner();
        let draft = KeyDraft { name: name_of(&name)?, description, expires: expiry_of(expire_time)? };
        let made = self.keys.create(draft, Author { actor, reason }).await.map_err(ApiError::from)?;
        let (key, api_key) = shown(&made);
        Ok(Response::new(pb::CreateKeyResponse { key: Some(key), api_key }))
    }

    async fn list_keys(&self, request: Request<pb::ListKeysRequest>) -> Result<Response<pb::ListKeysResponse>, Status> {
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListKeys", &[]);
        let above = above_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let listed = self.keys.list(above.as_ref(), rows);
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(Response::new(pb::ListKeysResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            keys: listed.iter().map(|key| key_message(key)).collect(),
        }))
    }

    async fn rotate_key(
        &self,
        request: Request<pb::RotateKeyRequest>,
    ) -> Result<Response<pb::RotateKeyResponse>, Status> {
        let actor = actor_of(&request);
        let pb::RotateKeyRequest { name, keep_old, expire_time, etag, reason } = request.into_inner();
        let keep_old = decode::duration("keep_old", keep_old.as_ref())?;
        let rotation = KeyRotation {
            name: name_of(&name)?,
            keep_old: keep_old.unwrap_or(KEEP_OLD_DEFAULT),
            expires: expiry_of(expire_time)?,
            expected: etag_of(&etag)?,
        };
        let made = self.keys.rotate(rotation, Author { actor, reason }).await.map_err(ApiError::from)?;
        let (key, api_key) = shown(&made);
        Ok(Response::new(pb::RotateKeyResponse { key: Some(key), api_key }))
    }

    async fn delete_key(
        &self,
        request: Request<pb::DeleteKeyRequest>,
    ) -> Result<Response<pb::DeleteKeyResponse>, Status> {
        let actor = actor_of(&request);
        let pb::DeleteKeyRequest { name, etag, reason } = request.into_inner();
        let (name, etag) = (name_of(&name)?, etag_of(&etag)?);
        self.keys.delete(name, etag, Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::DeleteKeyResponse {}))
    }
}

fn expiry_of(sent: Option<prost_types::Timestamp>) -> Result<Option<Timestamp>, ApiError> {
    let read = |sent| time::read("expire_time", Reason::InvalidArgument, &sent);
    sent.map(read).transpose().map_err(|reject| ApiError::from(reject).at("expire_time"))
}

fn name_of(name: &str) -> Result<PrincipalName, ApiError> {
    PrincipalName::new(name).map_err(ApiError::from)
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
    }
}
