//! Lists of the queue service, a page at a time. They show only what the caller may see.

use std::sync::Arc;

use tonic::Status;

use super::{QueuesApi, cursors, decode, encode, settings, to_status};
use crate::errors::ApiError;
use crate::paging::{self, PagedRequest};
use tallystone_domain::access::{AccessResource, CallRights, ListRights, PrincipalName, ResourceKind};
use tallystone_domain::queue::{CatalogQueue, QueueName};
use tallystone_engine::queues::{Operation, Payloads};
use tallystone_proto::queue::v1 as wire;

impl QueuesApi {
    /// A page of the queues that the caller may see.
    pub(super) async fn queues_page(
        &self,
        rights: &CallRights,
        request: wire::ListQueuesRequest,
    ) -> Result<wire::ListQueuesResponse, Status> {
        let list = rights.listing();
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListQueues", &[request.prefix.as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let above = cursor.map(|cursor| cursors::name(&cursor)).transpose().map_err(Status::from)?;
        let listed = self.shown_queues(&list, &request.prefix, above, rows).await?;
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(wire::ListQueuesResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            queues: listed.iter().map(|queue| settings::queue_message(queue)).collect(),
        })
    }

    /// A page of the history of a queue.
    pub(super) async fn changes_page(
        &self,
        rights: &CallRights,
        request: wire::ListQueueChangesRequest,
    ) -> Result<wire::ListQueueChangesResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListQueueChanges", &[name.as_str().as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let skip = cursor.map(|cursor| cursors::number(&cursor)).transpose().map_err(Status::from)?.unwrap_or(0);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let changes = self.queues(&name)?.catalog.history(&name, skip, rows).await.map_err(to_status)?;
        let next = (changes.len() == rows).then(|| paged.token(&((skip + rows) as u64).to_be_bytes()));
        Ok(wire::ListQueueChangesResponse {
            next_page_token: next.unwrap_or_default(),
            changes: changes.into_iter().map(settings::change_message).collect(),
        })
    }

    /// A page of the open sessions: of one queue, or of all for callers who may see every queue.
    pub(super) async fn sessions_page(
        &self,
        rights: &CallRights,
        request: wire::ListSessionsRequest,
    ) -> Result<wire::ListSessionsResponse, Status> {
        let wire::ListSessionsRequest { queue, page_size, page_token } = request;
        let name = (!queue.is_empty()).then(|| decode::queue(rights, &queue)).transpose()?;
        if name.is_none() {
            rights.every(ResourceKind::Queue).map_err(ApiError::from)?;
        }
        let rows = paging::rows(page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListSessions", &[queue.as_bytes()]);
        let cursor = paged.cursor(&page_token).map_err(to_status)?;
        let after = cursor.map(|cursor| cursors::number(&cursor)).transpose().map_err(Status::from)?.unwrap_or(0);
        let (sessions, next) = self
            .queues(&rights.listing())?
            .inspect
            .list_sessions(name.as_deref(), after, rows)
            .await
            .map_err(to_status)?;
        Ok(wire::ListSessionsResponse {
            sessions: sessions.into_iter().map(encode::session).collect(),
            next_page_token: next.map_or_else(String::new, |next| paged.token(&next.to_be_bytes())),
        })
    }

    /// A page of the operations of a queue. Only the ids of the caller's own have its seal.
    pub(super) async fn operations_page(
        &self,
        rights: &CallRights,
        request: wire::ListOperationsRequest,
    ) -> Result<wire::ListOperationsResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListOperations", &[name.as_str().as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let behind = cursor.map(|cursor| cursors::operation(&cursor)).transpose().map_err(Status::from)?;
        let queues = self.queues(&name)?;
        let found = queues.operations.list_operations(&name, behind.as_ref(), rows).await.map_err(to_status)?;
        let next =
            found.next.map(|(began, id)| paged.token(&[&began.micros().to_be_bytes()[..], id.as_bytes()].concat()));
        let owner = rights.owner();
        let shown = |operation: Operation| match operation.author.owner.as_deref() == owner.map(PrincipalName::as_str) {
            true => encode::operation(queues.operations.owned_operation(operation, owner)),
            false => encode::operation(operation),
        };
        Ok(wire::ListOperationsResponse {
            operations: found.operations.into_iter().map(shown).collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    /// A page of the messages of a queue.
    pub(super) async fn messages_page(
        &self,
        rights: &CallRights,
        request: wire::ListMessagesRequest,
    ) -> Result<wire::ListMessagesResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let state = decode::state(request.state).map_err(to_status)?;
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListMessages", &[name.as_str().as_bytes(), &[state as u8]]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let from = cursor.map(|cursor| cursors::list(&cursor)).transpose().map_err(Status::from)?.unwrap_or_default();
        let payloads = if request.without_payload { Payloads::Without } else { Payloads::With };
        let (found, next) =
            self.queues(&name)?.inspect.list_messages(&name, state, from, rows, payloads).await.map_err(to_status)?;
        let next = next.map(|next| paged.token(&[&next.shard.to_be_bytes()[..], &next.after.to_be_bytes()].concat()));
        Ok(wire::ListMessagesResponse {
            messages: found.into_iter().map(encode::message_view).collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    /// A page of the queues that the caller may see. Reads on until the page is full or the catalog ends.
    async fn shown_queues(
        &self,
        list: &ListRights,
        prefix: &str,
        mut above: Option<QueueName>,
        rows: usize,
    ) -> Result<Vec<Arc<CatalogQueue>>, Status> {
        let (prefix, mut shown) = (list.narrowed(ResourceKind::Queue, prefix), Vec::new());
        loop {
            let found = self.queues(list)?.catalog.list(prefix, above.as_ref(), rows).await;
            let is_end = found.len() < rows;
            above = found.last().map(|last| last.spec.name.clone());
            let is_shown = |queue: &Arc<CatalogQueue>| list.shows(AccessResource::Queue(queue.spec.name.as_str()));
            shown.extend(found.into_iter().filter(is_shown));
            if is_end || shown.len() >= rows {
                shown.truncate(rows);
                return Ok(shown);
            }
        }
    }
}
