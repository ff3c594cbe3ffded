//! `tallystone.admin.v1.StatusService`: the state of a server, for operators.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::rights_of;
use tallystone_domain::access::{AccessResource, ResourceKind, Sealed};
use tallystone_proto::admin::v1::status_service_server::StatusService;
use tallystone_proto::admin::v1::{GetStatusRequest, GetStatusResponse};

/// The source of the status: the process that composed the server.
pub trait StatusSource: Send + Sync + 'static {
    /// Returns the current status. Never blocks and sends no request to a store.
    fn status(&self) -> GetStatusResponse;
}

/// The status service.
pub struct StatusApi(Sealed<Arc<dyn StatusSource>>);

impl StatusApi {
    /// Serves the status of a source.
    pub fn new(source: Arc<dyn StatusSource>) -> Self {
        Self(Sealed::new(source))
    }
}

#[tonic::async_trait]
impl StatusService for StatusApi {
    async fn get_status(&self, request: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let rights = rights_of(&request)?;
        let proof = rights.every(ResourceKind::Server).map_err(ApiError::from)?;
        let mut status = self.0.with(&proof).status();
        if let Some(queues) = &mut status.queues {
            queues.oldest.retain(|row| rights.allows(AccessResource::Queue(&row.queue)));
        }
        Ok(Response::new(status))
    }
}
