//! `tallystone.admin.v1.NamespaceService`: the catalog of namespaces on the wire.
//!
//! Each method decodes, validates, calls one use case and encodes. The actor of a change is the principal of the
//! caller, with the caller's own claim (metadata `tallystone-actor`) in brackets after it. Where callers need no key,
//! the claim, else the address, is all there is: a note and no proof.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::documents::{self, DocumentNamespace};
use crate::errors::ApiError;
use crate::grpc::namespace_convert::{action_message, change_message, draft_of, namespace_message};
use crate::grpc::{caller_of, principal_of, refuse_etag, rights_of, settable};
use crate::paging::{self, PagedRequest};
use tallystone_domain::access::{AccessResource, Asked, CallRights, ListRights, Permitted, Principal, Sealed};
use tallystone_domain::counter::{NamespaceId, NamespaceName};
use tallystone_domain::limits::ACTOR_BYTES_MAX;
use tallystone_domain::namespace::Namespace;
use tallystone_domain::{Reason, Reject};
use tallystone_engine::caller_quota::CallerId;
use tallystone_engine::catalog::Author;
use tallystone_engine::namespaces::{
    DryRun, NamespaceApplyOutcome, NamespaceApplyResult, NamespaceCatalog, NamespaceDraft, NamespaceError,
    NamespaceEtag,
};
use tallystone_ports::NamespaceChange;
use tallystone_proto::admin::v1 as pb;
use tallystone_proto::admin::v1::namespace_service_server::NamespaceService;

/// The metadata key of the caller's claimed name.
pub const ACTOR_METADATA: &str = "tallystone-actor";

/// The namespace service.
pub struct NamespacesApi {
    namespaces: Sealed<NamespaceCatalog>,
}

impl NamespacesApi {
    /// Serves a catalog.
    pub fn new(namespaces: NamespaceCatalog) -> Self {
        Self { namespaces: Sealed::new(namespaces) }
    }

    /// A page of the namespaces that the caller may see. Reads on until the page is full or the catalog ends.
    fn shown(&self, list: &ListRights, mut above: Option<NamespaceName>, rows: usize) -> Vec<Arc<Namespace>> {
        let mut shown = Vec::new();
        loop {
            let found = self.namespaces.with(list).list(above.as_ref(), rows);
            let is_end = found.len() < rows;
            above = found.last().map(|last| last.spec.name.clone());
            let is_shown = |one: &Arc<Namespace>| list.shows(AccessResource::Namespace(one.spec.name.as_str()));
            shown.extend(found.into_iter().filter(is_shown));
            if is_end || shown.len() >= rows {
                shown.truncate(rows);
                return shown;
            }
        }
    }

    async fn apply_all(
        &self,
        (rights, maker): (&CallRights, &CallerId),
        read: Vec<DocumentNamespace>,
        dry_run: DryRun,
        author: &Author,
    ) -> Result<Vec<pb::AppliedNamespace>, ApiError> {
        let many = read.len() > 1;
        let mut results: Vec<pb::AppliedNamespace> = Vec::with_capacity(read.len());
        for one in read {
            let name = one.draft.name.clone();
            let draft = rights.permit(Asked::new(one.draft))?;
            let namespaces = self.namespaces.with(&draft).of_maker(maker.clone());
            match namespaces.apply(draft.into_inner(), one.etag, dry_run, author.clone()).await {
                Ok(answer) => results.push(applied_message(&answer, dry_run, one.unmapped)),
                Err(error) if many => return Err(stopped_at(&name, error, &results, dry_run)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(results)
    }
}

#[tonic::async_trait]
impl NamespaceService for NamespacesApi {
    async fn create_namespace(
        &self,
        request: Request<pb::CreateNamespaceRequest>,
    ) -> Result<Response<pb::CreateNamespaceResponse>, Status> {
        let (actor, rights, maker) = (actor_of(&request), rights_of(&request)?, caller_of(&request));
        let pb::CreateNamespaceRequest { namespace, reason } = settable(request)?;
        let (draft, etag) = sent_draft(&rights, namespace)?;
        refuse_etag(etag, "namespace.etag")?;
        let namespaces = self.namespaces.with(&draft).of_maker(maker);
        let made = namespaces.create(draft.into_inner(), Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::CreateNamespaceResponse { namespace: Some(namespace_message(&made)) }))
    }

    async fn get_namespace(
        &self,
        request: Request<pb::GetNamespaceRequest>,
    ) -> Result<Response<pb::GetNamespaceResponse>, Status> {
        let rights = rights_of(&request)?;
        let name = permitted(&rights, "name", &request.into_inner().name)?;
        let namespace = self.namespaces.with(&name).get(&name).map_err(ApiError::from)?;
        Ok(Response::new(pb::GetNamespaceResponse { namespace: Some(namespace_message(&namespace)) }))
    }

    async fn update_namespace(
        &self,
        request: Request<pb::UpdateNamespaceRequest>,
    ) -> Result<Response<pb::UpdateNamespaceResponse>, Status> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let pb::UpdateNamespaceRequest { namespace, reason, reset } = settable(request)?;
        let (draft, etag) = sent_draft(&rights, namespace)?;
        let namespaces = self.namespaces.with(&draft);
        let author = Author { actor, reason };
        let kept =
            namespaces.update_and_reset(draft.into_inner(), reset, etag, author).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::UpdateNamespaceResponse { namespace: Some(namespace_message(&kept)) }))
    }

    async fn list_namespaces(
        &self,
        request: Request<pb::ListNamespacesRequest>,
    ) -> Result<Response<pb::ListNamespacesResponse>, Status> {
        let list = rights_of(&request)?.listing();
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListNamespaces", &[]);
        let above = above_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let listed = self.shown(&list, above, rows);
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(Response::new(pb::ListNamespacesResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            namespaces: listed.iter().map(|namespace: &Arc<Namespace>| namespace_message(namespace)).collect(),
        }))
    }

    async fn delete_namespace(
        &self,
        request: Request<pb::DeleteNamespaceRequest>,
    ) -> Result<Response<pb::DeleteNamespaceResponse>, Status> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let pb::DeleteNamespaceRequest { name, etag, reason } = request.into_inner();
        let name = permitted(&rights, "name", &name)?;
        let etag = (!etag.is_empty()).then(|| etag.parse::<NamespaceEtag>()).transpose().map_err(ApiError::from)?;
        self.namespaces.with(&name).delete(&name, etag, Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::DeleteNamespaceResponse {}))
    }

    async fn list_namespace_changes(
        &self,
        request: Request<pb::ListNamespaceChangesRequest>,
    ) -> Result<Response<pb::ListNamespaceChangesResponse>, Status> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let name = permitted(&rights, "name", &request.name)?;
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListNamespaceChanges", &[name.as_str().as_bytes()]);
        let older_than = change_key_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let changes = self.namespaces.with(&name).history(&name, older_than, rows).await.map_err(ApiError::from)?;
        let last = changes.last().filter(|_| changes.len() == rows).map(|last| &last.change);
        Ok(Response::new(pb::ListNamespaceChangesResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(&change_key(last))),
            changes: changes.into_iter().map(change_message).collect(),
        }))
    }

    async fn apply_namespace(
        &self,
        request: Request<pb::ApplyNamespaceRequest>,
    ) -> Result<Response<pb::ApplyNamespaceResponse>, Status> {
        let (actor, rights, maker) = (actor_of(&request), rights_of(&request)?, caller_of(&request));
        let pb::ApplyNamespaceRequest { document, namespace, dry_run, reason } = request.into_inner();
        let author = Author { actor, reason };
        let name = (!namespace.is_empty()).then(|| name_of("namespace", &namespace)).transpose()?;
        let read = documents::parse(&document, name.as_ref()).map_err(ApiError::from)?;
        if read.len() > 1 || dry_run {
            // All namespaces are checked before the first is changed.
            let results = self.apply_all((&rights, &maker), read.clone(), DryRun::Yes, &author).await?;
            if dry_run {
                return Ok(Response::new(pb::ApplyNamespaceResponse { results }));
            }
        }
        let results = self.apply_all((&rights, &maker), read, DryRun::No, &author).await?;
        Ok(Response::new(pb::ApplyNamespaceResponse { results }))
    }
}

fn present(namespace: Option<pb::Namespace>) -> Result<pb::Namespace, Reject> {
    namespace.ok_or_else(|| Reject::new(Reason::InvalidArgument, "namespace is missing; send at least its name"))
}

/// Validates a name from a field of the request.
fn name_of(field: &str, name: &str) -> Result<NamespaceName, ApiError> {
    NamespaceName::new(name).map_err(|reject| ApiError::from(reject).at(field))
}

/// Decodes a name that the caller may touch.
fn permitted(rights: &CallRights, field: &str, name: &str) -> Result<Permitted<NamespaceName>, ApiError> {
    Ok(rights.permit(Asked::new(name_of(field, name)?))?)
}

/// Decodes the request's `namespace`, which the caller may touch.
fn sent_draft(
    rights: &CallRights,
    namespace: Option<pb::Namespace>,
) -> Result<(Permitted<NamespaceDraft>, Option<NamespaceEtag>), ApiError> {
    let (draft, etag) = draft_of(present(namespace)?).map_err(|reject| {
        let is_name = reject.reason == Reason::InvalidNamespace;
        let refusal = ApiError::from(reject);
        if is_name { refusal.at("namespace.name") } else { refusal }
    })?;
    Ok((rights.permit(Asked::new(draft))?, etag))
}

/// Returns the actor: the principal, with the caller's own claim in brackets. Without a principal: the claim, cut to
/// the length that the history stores, else the caller's address.
pub(super) fn actor_of<T>(request: &Request<T>) -> String {
    let own_word = request.metadata().get(ACTOR_METADATA).map(|word| claimed(word.as_encoded_bytes()));
    let address = || request.remote_addr().map_or_else(String::new, |address| address.ip().to_string());
    actor_named(principal_of(request), own_word.as_deref()).unwrap_or_else(address)
}

/// The name that a caller claims, in any letters of UTF-8: bytes that are none show as U+FFFD, and control characters
/// as spaces.
pub fn claimed(sent: &[u8]) -> String {
    in_one_line(&String::from_utf8_lossy(sent))
}

/// A text without control characters: each becomes a space, so that the words of two lines stay apart.
pub fn in_one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// The actor by its principal and its own claim, cut to the length that the history stores; none where there is
/// neither.
pub fn actor_named(principal: Option<&Principal>, own_word: Option<&str>) -> Option<String> {
    let own_word = own_word.filter(|word| !word.is_empty());
    // A name of a principal has no bracket, so that no claim looks like one.
    match (principal, own_word) {
        (Some(principal), Some(word)) => {
            let rest = ACTOR_BYTES_MAX.saturating_sub(principal.name.as_str().len() + " ()".len());
            Some(format!("{} ({})", principal.name, &word[..word.floor_char_boundary(rest)]))
        }
        (Some(principal), None) => Some(principal.name.to_string()),
        (None, Some(word)) => Some(word[..word.floor_char_boundary(ACTOR_BYTES_MAX)].to_owned()),
        (None, None) => None,
    }
}

fn above_of(paged: &PagedRequest, token: &str) -> Result<Option<NamespaceName>, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(None) };
    let name = std::str::from_utf8(&cursor).map_err(|_| paging::refuse())?;
    NamespaceName::new(name).map(Some).map_err(|_| paging::refuse())
}

/// The position of a change in the history of a name: the number of the namespace, then the version.
fn change_key(change: &NamespaceChange) -> [u8; 16] {
    let key = u128::from(change.id.0) << 64 | u128::from(change.version);
    key.to_be_bytes()
}

fn change_key_of(paged: &PagedRequest, token: &str) -> Result<Option<(NamespaceId, u64)>, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(None) };
    let (namespace, version) = cursor.split_at_checked(8).ok_or_else(paging::refuse)?;
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).map_err(|_| paging::refuse());
    Ok(Some((NamespaceId(number(namespace)?), number(version)?)))
}

fn applied_message(answer: &NamespaceApplyResult, dry_run: DryRun, unmapped: Vec<String>) -> pb::AppliedNamespace {
    let mut namespace = namespace_message(&answer.namespace);
    match (dry_run, answer.applied) {
        (DryRun::Yes, NamespaceApplyOutcome::Created) => {
            (namespace.id, namespace.create_time) = (0, None);
            (namespace.etag, namespace.update_time) = (String::new(), None);
        }
        (DryRun::Yes, NamespaceApplyOutcome::Updated) => {
            (namespace.etag, namespace.update_time) = (String::new(), None);
        }
        (DryRun::Yes, NamespaceApplyOutcome::Unchanged) | (DryRun::No, _) => {}
    }
    pb::AppliedNamespace {
        action: action_message(answer.applied).into(),
        namespace: Some(namespace),
        differences: answer.differences.clone(),
        unmapped,
    }
}

/// The refusal of one namespace among several: names it, and those that were changed before it.
fn stopped_at(
    name: &NamespaceName,
    error: NamespaceError,
    before: &[pb::AppliedNamespace],
    dry_run: DryRun,
) -> ApiError {
    let mut refusal = ApiError::from(error);
    let names = before.iter().filter_map(|one| Some(one.namespace.as_ref()?.name.as_str())).collect::<Vec<_>>();
    let done = match (dry_run, names.is_empty()) {
        (DryRun::Yes, _) | (DryRun::No, true) => "no namespace of the document was changed".to_owned(),
        (DryRun::No, false) => format!("applied before it: {}", names.join(", ")),
    };
    refusal.message = format!("namespace {name}: {}; {done}", refusal.message);
    refusal
}
