//! The gRPC HistoryService: what happened to the messages of queues.

mod cursor;
mod decode;
mod encode;

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::queues::encode::operation as operation_on_wire;
use crate::grpc::queues::{NO_QUEUES, shown_operation};
use crate::grpc::{caller_of, rights_of};
use crate::paging::{self, PagedRequest};
use tallystone_domain::Reason;
use tallystone_domain::access::{AccessProof, Sealed};
use tallystone_engine::Engine;
use tallystone_engine::historian::Historian;
use tallystone_engine::history::HistoryReader;
use tallystone_engine::queues::Queues;
use tallystone_proto::history::v1 as wire;
use tallystone_proto::history::v1::history_service_server::HistoryService;

/// The error message of every call to a server that keeps no history.
const NO_HISTORY: &str = "this server keeps no history of messages; set bridge.enabled on this server, or send the call to a \
    server that keeps one";

/// The error message of a check at a server whose history belongs to another queue store.
const OTHER_STORE: &str = "the history belongs to another queue store, so this server writes none; if that store is lost, \
    `tallystone bridge adopt` gives it to this one";

/// The history service.
pub struct HistoryApi {
    history: Result<Sealed<HistoryReader>, ApiError>,
    historian: Result<Sealed<Historian>, ApiError>,
    /// The queues, which know the queue of each operation.
    queues: Option<Sealed<Queues>>,
}

impl HistoryApi {
    /// Reads the history of an engine, if it keeps one.
    pub fn new(engine: &Engine) -> Self {
        let missing = match engine.queues() {
            Some(_) => ApiError::new(Reason::UnknownMethod, NO_HISTORY),
            None => ApiError::new(Reason::QueuesNotKept, NO_QUEUES),
        };
        let historian = engine.historian().map(Sealed::new).ok_or_else(|| missing.clone());
        let history = engine.history().map(Sealed::new).ok_or(missing);
        Self { history, historian, queues: engine.queues().map(Sealed::new) }
    }

    fn history(&self, proof: &impl AccessProof) -> Result<&HistoryReader, Status> {
        self.history.as_ref().map(|history| history.with(proof)).map_err(|missing| missing.clone().into())
    }

    fn historian(&self, proof: &impl AccessProof) -> Result<&Historian, Status> {
        let historian = self.historian.as_ref().map(|historian| historian.with(proof)).map_err(Clone::clone)?;
        match historian.is_of_another_store() {
            true => Err(ApiError::new(Reason::UnknownMethod, OTHER_STORE).into()),
            false => Ok(historian),
        }
    }
}

fn to_status(error: impl Into<ApiError>) -> Status {
    error.into().into()
}

#[tonic::async_trait]
impl HistoryService for HistoryApi {
    async fn get_message_trace(
        &self,
        request: Request<wire::GetMessageTraceRequest>,
    ) -> Result<Response<wire::GetMessageTraceResponse>, Status> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let (name, message, paged) = decode::trace(&rights, &request)?;
        let from = paged.cursor(&request.page_token).map_err(to_status)?;
        let from = from.map(|from| cursor::read_trace(&from).ok_or_else(paging::refuse)).transpose();
        let trace =
            self.history(&name)?.trace(&name, &message, from.map_err(to_status)?, rows).await.map_err(to_status)?;
        let next = trace.next.map(|next| paged.token(&cursor::write_trace(&next)));
        Ok(Response::new(encode::trace(trace, next.unwrap_or_default())))
    }

    async fn search_messages(
        &self,
        request: Request<wire::SearchMessagesRequest>,
    ) -> Result<Response<wire::SearchMessagesResponse>, Status> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let (name, query, paged) = decode::search(&rights, &request)?;
        let after = paged.cursor(&request.page_token).map_err(to_status)?;
        let after = after.map(|after| cursor::read_hit(&after).ok_or_else(paging::refuse)).transpose();
        let page =
            self.history(&name)?.search(&name, &query, after.map_err(to_status)?, rows).await.map_err(to_status)?;
        let next = page.next.map(|next| paged.token(&cursor::write_hit(&next)));
        Ok(Response::new(encode::searched(page, next.unwrap_or_default())))
    }

    async fn check_queues(
        &self,
        request: Request<wire::CheckQueuesRequest>,
    ) -> Result<Response<wire::CheckQueuesResponse>, Status> {
        let (caller, rights) = (caller_of(&request), rights_of(&request)?);
        let asked = decode::check(&rights, request.into_inner())?;
        let list = rights.listing();
        let operation = self.historian(&list)?.check(caller, asked).map_err(to_status)?;
        let operation = match &self.queues {
            Some(queues) => queues.with(&list).operations.owned_operation(operation, list.owner()),
            None => operation,
        };
        Ok(Response::new(wire::CheckQueuesResponse { operation: Some(operation_on_wire(operation)) }))
    }

    async fn list_findings(
        &self,
        request: Request<wire::ListFindingsRequest>,
    ) -> Result<Response<wire::ListFindingsResponse>, Status> {
        let list = rights_of(&request)?.listing();
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListFindings", &[request.operation_id.as_bytes()]);
        let from = paged.cursor(&request.page_token).map_err(to_status)?;
        let from = from.map_or(Some(0), |from| cursor::read_index(&from)).ok_or_else(paging::refuse);
        let historian = self.historian(&list)?;
        let id = match &self.queues {
            Some(queues) => {
                shown_operation(queues.with(&list), &list, &request.operation_id).await.map_err(to_status)?.id
            }
            None => request.operation_id.clone(),
        };
        let page = historian.findings(&id, from.map_err(to_status)?, rows);
        let page = page.map_err(to_status)?;
        let next = page.next.map(|next| paged.token(&cursor::write_index(next)));
        Ok(Response::new(encode::findings(page, next.unwrap_or_default())))
    }
}
