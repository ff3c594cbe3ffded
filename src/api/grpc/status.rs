//! `tallystone.admin.v1.StatusService`: what a server knows of itself, for people on call.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::proto::admin::v1::status_service_server::StatusService;
use crate::proto::admin::v1::{GetStatusRequest, GetStatusResponse};

/// Where the status comes from: the process that put the parts together.
pub trait StatusSource: Send + Sync + 'static {
    /// How everything is at this moment. Waits for nothing and asks no store.
    fn status(&self) -> GetStatusResponse;
}

/// The service.
pub struct StatusApi(Arc<dyn StatusSource>);

impl StatusApi {
    /// Serves what a source knows.
    pub fn new(source: Arc<dyn StatusSource>) -> Self {
        Self(source)
    }
}

#[tonic::async_trait]
impl StatusService for StatusApi {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(self.0.status()))
    }
}
