//! The state of the gRPC queue service: the queue use cases, or `None` if the server has no queues.

use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{decode, to_status};
use crate::api::errors::ApiError;
use crate::domain::Reason;
use crate::domain::queue::messages::settlement::Settlement;
use crate::engine::queues::{Queues, SettleRequest};

/// The error message of every call to a server without queues.
pub(in crate::api::grpc) const NO_QUEUES: &str = "this server has no queues; send the call to a server with queues, or set queues.engine = \
    \"embedded\" and storage.data_dir on this server";

/// The queue service.
pub struct QueuesApi {
    queues: Option<Queues>,
    pub(super) drain: CancellationToken,
}

impl QueuesApi {
    /// Creates the service. Streams and waiting calls end when `drain` is cancelled.
    pub fn new(queues: Option<Queues>, drain: CancellationToken) -> Self {
        Self { queues, drain }
    }

    /// Returns the use cases, or `QUEUES_NOT_KEPT` if the server has no queues.
    pub(super) fn queues(&self) -> Result<&Queues, Status> {
        self.queues.as_ref().ok_or_else(|| ApiError::new(Reason::QueuesNotKept, NO_QUEUES).into())
    }

    pub(super) async fn settle(&self, queue: &str, sent: SettleRequest) -> Result<Settlement, Status> {
        let name = decode::queue(queue).map_err(to_status)?;
        self.queues()?.settle(&name, sent).await.map_err(to_status)
    }
}
