//! The gRPC ExperimentService: what an experiment needs, and what it says.

mod convert;

use tonic::{Request, Response, Status};

use crate::api::errors::ApiError;
use crate::domain::experiment::{SignificanceLevel, plan, width_against_fixed};
use crate::domain::limits::{EXPERIMENT_ALPHA, EXPERIMENT_ARMS_MAX, EXPERIMENT_POWER};
use crate::domain::{Reason, Reject};
use crate::engine::experiments::Experiments;
use crate::proto::experiment::v1 as wire;
use crate::proto::experiment::v1::experiment_service_server::ExperimentService;

/// The experiment service.
pub struct ExperimentsApi(Experiments);

impl ExperimentsApi {
    /// Serves these use cases.
    pub fn new(experiments: Experiments) -> Self {
        Self(experiments)
    }
}

#[tonic::async_trait]
impl ExperimentService for ExperimentsApi {
    async fn plan_experiment(
        &self,
        request: Request<wire::PlanExperimentRequest>,
    ) -> Result<Response<wire::PlanExperimentResponse>, Status> {
        Ok(Response::new(planned(&request.into_inner()).map_err(ApiError::from)?))
    }

    async fn compare_experiment(
        &self,
        request: Request<wire::CompareExperimentRequest>,
    ) -> Result<Response<wire::CompareExperimentResponse>, Status> {
        let spec = convert::spec(request.into_inner().experiment).map_err(ApiError::from)?;
        let found = self.0.compare(&spec).await.map_err(ApiError::from)?;
        Ok(Response::new(convert::comparison(&spec, &found)))
    }
}

fn planned(request: &wire::PlanExperimentRequest) -> Result<wire::PlanExperimentResponse, Reject> {
    let arms = arms_of(request.arms)?;
    let alpha = SignificanceLevel::new(given_or(request.alpha, EXPERIMENT_ALPHA))?;
    // Each arm but the control is one comparison.
    let level = alpha.split(arms - 1);
    let size = plan(request.baseline, request.effect, given_or(request.power, EXPERIMENT_POWER), level)?;
    let of_all = |per_arm: u64| per_arm.saturating_mul(arms as u64);
    Ok(wire::PlanExperimentResponse {
        fixed_exposures_per_arm: size.fixed,
        always_valid_exposures_per_arm: size.always_valid,
        fixed_exposures: of_all(size.fixed),
        always_valid_exposures: of_all(size.always_valid),
        width_ratio: width_against_fixed(level),
    })
}

/// The number that was sent; 0 stands for the default.
fn given_or(sent: f64, default: f64) -> f64 {
    if sent == 0.0 { default } else { sent }
}

fn arms_of(sent: i32) -> Result<usize, Reject> {
    match usize::try_from(sent) {
        Ok(0) => Ok(2),
        Ok(arms @ 2..=EXPERIMENT_ARMS_MAX) => Ok(arms),
        Ok(_) | Err(_) => {
            let what = format!("arms is {sent}; an experiment has 2 to {EXPERIMENT_ARMS_MAX} arms");
            Err(Reject::new(Reason::InvalidArgument, what.clone()).at("arms", what))
        }
    }
}
