//! `tallystone.admin.v1.BridgeService`: gives counters, history and rules to the queue store of this server.

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::{ActDetail, rights_of, saturating_i64};
use crate::time;
use tallystone_domain::access::{ResourceKind, Sealed};
use tallystone_engine::adoption::{Adopted, Adoption, AdoptionMode};
use tallystone_proto::admin::v1::bridge_service_server::BridgeService;
use tallystone_proto::admin::v1::{AdoptStoreRequest, AdoptStoreResponse};

/// The bridge service.
pub struct BridgeApi(Sealed<Adoption>);

impl BridgeApi {
    /// Serves this use case.
    pub fn new(adoption: Adoption) -> Self {
        Self(Sealed::new(adoption))
    }
}

#[tonic::async_trait]
impl BridgeService for BridgeApi {
    async fn adopt_store(&self, request: Request<AdoptStoreRequest>) -> Result<Response<AdoptStoreResponse>, Status> {
        let proof = rights_of(&request)?.every(ResourceKind::Queue).map_err(ApiError::from)?;
        let mode = if request.get_ref().dry_run { AdoptionMode::DryRun } else { AdoptionMode::Adopt };
        let adopted = self.0.with(&proof).adopt(mode).await.map_err(ApiError::from)?;
        let mut answer = Response::new(answer_of(&adopted));
        answer.extensions_mut().insert(ActDetail(detail_of(&adopted)));
        Ok(answer)
    }
}

fn answer_of(adopted: &Adopted) -> AdoptStoreResponse {
    AdoptStoreResponse {
        already_adopted: adopted.already_adopted,
        rules: saturating_i64(adopted.rules),
        last_report_time: adopted.last_report.map(time::write),
    }
}

/// The detail of an adoption for the audit: what was given.
fn detail_of(adopted: &Adopted) -> String {
    let counters = if adopted.already_adopted { "no counters" } else { "counters and history" };
    format!("{counters}, rules: {}", adopted.rules)
}
