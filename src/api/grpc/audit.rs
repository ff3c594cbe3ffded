//! `tallystone.admin.v1.AuditService`: what operators did.

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::{rights_of, saturating_i64};
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{ResourceKind, Sealed};
use tallystone_engine::audit::Audit;
use tallystone_ports::AdminAction;
use tallystone_proto::admin::v1 as pb;
use tallystone_proto::admin::v1::audit_service_server::AuditService;

/// The audit service.
pub struct AuditApi(Sealed<Audit>);

impl AuditApi {
    /// Serves the acts of an audit.
    pub fn new(audit: Audit) -> Self {
        Self(Sealed::new(audit))
    }
}

#[tonic::async_trait]
impl AuditService for AuditApi {
    async fn list_admin_actions(
        &self,
        request: Request<pb::ListAdminActionsRequest>,
    ) -> Result<Response<pb::ListAdminActionsResponse>, Status> {
        let proof = rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?;
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListAdminActions", &[request.target_prefix.as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(ApiError::from)?;
        let number = |cursor: Vec<u8>| <[u8; 8]>::try_from(cursor).map(u64::from_be_bytes);
        let below = cursor.map(number).transpose().map_err(|_| ApiError::from(paging::refuse()))?;
        let (found, next) =
            self.0.with(&proof).list(&request.target_prefix, below, rows).await.map_err(ApiError::from)?;
        Ok(Response::new(pb::ListAdminActionsResponse {
            actions: found.into_iter().map(message).collect(),
            next_page_token: next.map_or_else(String::new, |next| paged.token(&next.to_be_bytes())),
        }))
    }
}

fn message(act: AdminAction) -> pb::AdminAction {
    let AdminAction { number, time, actor, action, target, part, reason, outcome, request: _ } = act;
    pb::AdminAction {
        number: saturating_i64(number),
        time: Some(time::write(time)),
        actor,
        action,
        target,
        part,
        reason,
        outcome,
    }
}
