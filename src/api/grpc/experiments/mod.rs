//! The gRPC ExperimentService: experiments that are kept, what one needs, and what it says.

mod convert;

use tonic::{Request, Response, Status};

use crate::api::errors::ApiError;
use crate::api::grpc::decode;
use crate::api::grpc::namespaces::actor_of;
use crate::api::paging::{self, PagedRequest};
use crate::api::time;
use crate::domain::experiment::{ExperimentWord, SignificanceLevel, plan, width_against_fixed};
use crate::domain::limits::{EXPERIMENT_ALPHA, EXPERIMENT_ARMS_MAX, EXPERIMENT_POWER};
use crate::domain::{Reason, Reject, Timestamp};
use crate::engine::catalog::Author;
use crate::engine::experiments::{ExperimentEtag, Experiments, LooksQuery};
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
        let wire::CompareExperimentRequest { name, experiment } = request.into_inner();
        if name.is_empty() {
            let spec = convert::spec(experiment).map_err(ApiError::from)?;
            let found = self.0.compare(&spec).await.map_err(ApiError::from)?;
            return Ok(Response::new(convert::comparison(&spec, &found)));
        }
        if experiment.is_some() {
            let what = "send the name of an experiment that is kept, or an experiment, and not both";
            return Err(ApiError::from(Reject::new(Reason::InvalidArgument, what).at("name", what)).into());
        }
        let (kept, found) = self.0.compare_kept(&word_of(&name)?).await.map_err(ApiError::from)?;
        let mut compared = convert::comparison(&kept.settings.spec, &found);
        compared.banners.extend(convert::stopped_banner(&kept));
        Ok(Response::new(compared))
    }

    async fn create_experiment(
        &self,
        request: Request<wire::CreateExperimentRequest>,
    ) -> Result<Response<wire::CreateExperimentResponse>, Status> {
        let actor = actor_of(&request);
        let wire::CreateExperimentRequest { experiment, reason } = request.into_inner();
        let settings = convert::settings(experiment).map_err(ApiError::from)?;
        self.0.check_namespace(&settings.spec).map_err(ApiError::from)?;
        let made = self.0.catalog().create(settings, Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::CreateExperimentResponse { experiment: Some(convert::kept(&made)) }))
    }

    async fn get_experiment(
        &self,
        request: Request<wire::GetExperimentRequest>,
    ) -> Result<Response<wire::GetExperimentResponse>, Status> {
        let name = word_of(&request.into_inner().name)?;
        let found = self.0.catalog().get(&name).map_err(ApiError::from)?;
        Ok(Response::new(wire::GetExperimentResponse { experiment: Some(convert::kept(&found)) }))
    }

    async fn update_experiment(
        &self,
        request: Request<wire::UpdateExperimentRequest>,
    ) -> Result<Response<wire::UpdateExperimentResponse>, Status> {
        let actor = actor_of(&request);
        let wire::UpdateExperimentRequest { experiment, reason } = request.into_inner();
        let etag = etag_of(experiment.as_ref().map_or("", |experiment| experiment.etag.as_str()))?;
        let settings = convert::settings(experiment).map_err(ApiError::from)?;
        let author = Author { actor, reason };
        let after = self.0.catalog().update(settings, etag, author).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::UpdateExperimentResponse { experiment: Some(convert::kept(&after)) }))
    }

    async fn list_experiments(
        &self,
        request: Request<wire::ListExperimentsRequest>,
    ) -> Result<Response<wire::ListExperimentsResponse>, Status> {
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListExperiments", &[request.prefix.as_bytes()]);
        let above = above_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let listed = self.0.catalog().list(&request.prefix, above.as_ref(), rows);
        let last = listed.last().filter(|_| listed.len() == rows);
        let token = |name: &ExperimentWord| paged.token(name.as_str().as_bytes());
        Ok(Response::new(wire::ListExperimentsResponse {
            next_page_token: last.map_or_else(String::new, |last| token(&last.settings.spec.name)),
            experiments: listed.iter().map(|experiment| convert::kept(experiment)).collect(),
        }))
    }

    async fn stop_experiment(
        &self,
        request: Request<wire::StopExperimentRequest>,
    ) -> Result<Response<wire::StopExperimentResponse>, Status> {
        let actor = actor_of(&request);
        let wire::StopExperimentRequest { name, etag, reason } = request.into_inner();
        let (name, etag) = (word_of(&name)?, etag_of(&etag)?);
        let author = Author { actor, reason };
        let stopped = self.0.catalog().stop(name, etag, author).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::StopExperimentResponse { experiment: Some(convert::kept(&stopped)) }))
    }

    async fn delete_experiment(
        &self,
        request: Request<wire::DeleteExperimentRequest>,
    ) -> Result<Response<wire::DeleteExperimentResponse>, Status> {
        let actor = actor_of(&request);
        let wire::DeleteExperimentRequest { name, etag, reason } = request.into_inner();
        let (name, etag) = (word_of(&name)?, etag_of(&etag)?);
        self.0.catalog().delete(name, etag, Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::DeleteExperimentResponse {}))
    }

    async fn list_experiment_looks(
        &self,
        request: Request<wire::ListExperimentLooksRequest>,
    ) -> Result<Response<wire::ListExperimentLooksResponse>, Status> {
        let request = request.into_inner();
        let name = word_of(&request.name)?;
        let limit = paging::rows(request.page_size).map_err(ApiError::from)?;
        let from = time_of("from", request.from)?;
        let to = time_of("to", request.to)?;
        let step = decode::duration("step", request.step.as_ref())?;
        let bytes = |time: Option<Timestamp>| time.map_or(i64::MIN, Timestamp::micros).to_be_bytes();
        let range = [bytes(from), bytes(to)].concat();
        let step_bytes = step.unwrap_or_default().as_micros().to_be_bytes();
        let arguments: [&[u8]; 3] = [name.as_str().as_bytes(), range.as_slice(), step_bytes.as_slice()];
        let paged = PagedRequest::new("ListExperimentLooks", &arguments);
        let begins = begin_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let query = LooksQuery { from: begins.or(from), to, step, limit };
        let found = self.0.looks(&name, query).await.map_err(ApiError::from)?;
        let spec = &found.kept.settings.spec;
        let token = |next: Timestamp| paged.token(&next.micros().to_be_bytes());
        Ok(Response::new(wire::ListExperimentLooksResponse {
            looks: found.looks.iter().map(|look| convert::look(spec, look)).collect(),
            next_page_token: found.next.map_or_else(String::new, token),
            step: Some(time::write_duration(found.step)),
        }))
    }

    async fn list_experiment_changes(
        &self,
        request: Request<wire::ListExperimentChangesRequest>,
    ) -> Result<Response<wire::ListExperimentChangesResponse>, Status> {
        let request = request.into_inner();
        let name = word_of(&request.name)?;
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListExperimentChanges", &[name.as_str().as_bytes()]);
        let skip = skip_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let changes = self.0.catalog().history(&name, skip, rows).await.map_err(ApiError::from)?;
        let read = skip + changes.len();
        let is_full = changes.len() == rows;
        Ok(Response::new(wire::ListExperimentChangesResponse {
            next_page_token: if is_full { paged.token(&(read as u64).to_be_bytes()) } else { String::new() },
            changes: changes.into_iter().map(convert::change).collect(),
        }))
    }
}

fn word_of(name: &str) -> Result<ExperimentWord, ApiError> {
    ExperimentWord::new(name, "name").map_err(ApiError::from)
}

fn etag_of(etag: &str) -> Result<Option<ExperimentEtag>, ApiError> {
    (!etag.is_empty()).then(|| etag.parse()).transpose().map_err(ApiError::from)
}

fn above_of(paged: &PagedRequest, token: &str) -> Result<Option<ExperimentWord>, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(None) };
    let name = std::str::from_utf8(&cursor).map_err(|_| paging::refuse())?;
    ExperimentWord::new(name, "page_token").map(Some).map_err(|_| paging::refuse())
}

fn time_of(field: &str, sent: Option<prost_types::Timestamp>) -> Result<Option<Timestamp>, ApiError> {
    let read = |sent| time::read(field, Reason::InvalidArgument, &sent);
    sent.map(read).transpose().map_err(|reject| ApiError::from(reject).at(field))
}

/// Where a page of looks begins; none on the first page.
fn begin_of(paged: &PagedRequest, token: &str) -> Result<Option<Timestamp>, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(None) };
    let micros = cursor.try_into().map(i64::from_be_bytes).map_err(|_| paging::refuse())?;
    Ok(Some(Timestamp::from_micros(micros)))
}

/// How many newer changes were on the pages before.
fn skip_of(paged: &PagedRequest, token: &str) -> Result<usize, Reject> {
    let Some(cursor) = paged.cursor(token)? else { return Ok(0) };
    let skip = cursor.try_into().map(u64::from_be_bytes).map_err(|_| paging::refuse())?;
    usize::try_from(skip).map_err(|_| paging::refuse())
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
