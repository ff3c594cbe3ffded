//! The gRPC ExperimentService: experiments that are kept, what one needs, and what it says.

mod convert;

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::namespaces::actor_of;
use crate::grpc::{decode, rights_of, settable};
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{AccessDenial, Asked, AskedName, CallRights, Permitted, ResourceKind, Sealed};
use tallystone_domain::limits::{EXPERIMENT_ALPHA, EXPERIMENT_ARMS_MAX, EXPERIMENT_POWER};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_engine::catalog::Author;
use tallystone_engine::experiments::{ExperimentCatalog, ExperimentEtag, Experiments, LooksQuery, not_found};
use tallystone_experiments::{CatalogExperiment, ExperimentWord, SignificanceLevel, plan, width_against_fixed};
use tallystone_proto::experiment::v1 as wire;
use tallystone_proto::experiment::v1::experiment_service_server::ExperimentService;

/// The experiment service.
pub struct ExperimentsApi(Sealed<Experiments>);

impl ExperimentsApi {
    /// Serves these use cases.
    pub fn new(experiments: Experiments) -> Self {
        Self(Sealed::new(experiments))
    }

    /// The experiments that are kept, for a call that checks what it reads of them.
    fn catalog(&self, rights: &CallRights) -> &ExperimentCatalog {
        self.0.with(&rights.listing()).catalog()
    }

    /// Reads an experiment for a call that may read all its counters.
    fn readable(&self, rights: &CallRights, name: &ExperimentWord) -> Result<Arc<CatalogExperiment>, ApiError> {
        let kept = self.catalog(rights).get(name)?;
        check_reader(rights, &kept).map(|()| kept)
    }

    /// A page of the experiments that a call may read. Reads on until the page is full or the experiments end.
    fn readable_page(
        &self,
        rights: &CallRights,
        prefix: &str,
        mut above: Option<ExperimentWord>,
        rows: usize,
    ) -> Vec<Arc<CatalogExperiment>> {
        let mut shown = Vec::new();
        loop {
            let found = self.catalog(rights).list(prefix, above.as_ref(), rows);
            let is_end = found.len() < rows;
            above = found.last().map(|last| last.settings.spec.name.clone());
            shown.extend(found.into_iter().filter(|kept| check_reader(rights, kept).is_ok()));
            if is_end || shown.len() >= rows {
                shown.truncate(rows);
                return shown;
            }
        }
    }

    /// Refuses a change of an experiment by a call that may not change its namespace.
    fn check_changeable(&self, rights: &CallRights, name: &ExperimentWord) -> Result<(), ApiError> {
        let kept = self.catalog(rights).get(name)?;
        open(rights, kept.settings.spec.namespace.clone(), name).map(drop)
    }
}

/// Refuses an experiment of which the call may not read all counters.
fn check_reader(rights: &CallRights, kept: &CatalogExperiment) -> Result<(), ApiError> {
    let spec = &kept.settings.spec;
    open(rights, spec.clone(), &spec.name).map(drop)
}

/// Opens what an experiment is about. Where that is hidden, the experiment does not exist.
fn open<N: AskedName>(rights: &CallRights, about: N, name: &ExperimentWord) -> Result<Permitted<N>, ApiError> {
    rights.permit(Asked::new(about)).map_err(|denial| match denial {
        AccessDenial::RoleMissing { .. } => denial.into(),
        AccessDenial::HiddenNamespace(_) | AccessDenial::HiddenCounter { .. } | AccessDenial::HiddenQueue(_) => {
            not_found(name).into()
        }
    })
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
        let rights = rights_of(&request)?;
        let wire::CompareExperimentRequest { name, experiment } = settable(request)?;
        if name.is_empty() {
            let spec = rights
                .permit(Asked::new(convert::spec(experiment).map_err(ApiError::from)?))
                .map_err(ApiError::from)?;
            let found = self.0.with(&spec).compare(&spec).await.map_err(ApiError::from)?;
            let mut compared = convert::comparison(&spec, &found);
            if let Ok(kept) = self.readable(&rights, &spec.name) {
                compared.banners.push(convert::kept_banner(&spec, &kept));
            }
            return Ok(Response::new(compared));
        }
        if experiment.is_some() {
            let what = "send the name of an experiment that is kept, or an experiment, and not both";
            return Err(ApiError::from(Reject::new(Reason::InvalidArgument, what).at("name", what)).into());
        }
        let name = word_of(&name)?;
        self.readable(&rights, &name)?;
        let (kept, found) = self.0.with(&rights.listing()).compare_kept(&name).await.map_err(ApiError::from)?;
        // It may have been made again meanwhile, with other counters.
        check_reader(&rights, &kept)?;
        let mut compared = convert::comparison(&kept.settings.spec, &found);
        compared.banners.extend(convert::stopped_banner(&kept));
        compared.banners.extend(convert::older_counts_banner(&kept));
        Ok(Response::new(compared))
    }

    async fn create_experiment(
        &self,
        request: Request<wire::CreateExperimentRequest>,
    ) -> Result<Response<wire::CreateExperimentResponse>, Status> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let wire::CreateExperimentRequest { experiment, reason } = settable(request)?;
        let settings = convert::settings(experiment).map_err(ApiError::from)?;
        let namespace = rights.permit(Asked::new(settings.spec.namespace.clone())).map_err(ApiError::from)?;
        let author = Author { actor, reason };
        let made = self.0.with(&namespace).create(settings, author).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::CreateExperimentResponse { experiment: Some(convert::kept(&made)) }))
    }

    async fn get_experiment(
        &self,
        request: Request<wire::GetExperimentRequest>,
    ) -> Result<Response<wire::GetExperimentResponse>, Status> {
        let rights = rights_of(&request)?;
        let name = word_of(&request.into_inner().name)?;
        let found = self.readable(&rights, &name)?;
        Ok(Response::new(wire::GetExperimentResponse { experiment: Some(convert::kept(&found)) }))
    }

    async fn update_experiment(
        &self,
        request: Request<wire::UpdateExperimentRequest>,
    ) -> Result<Response<wire::UpdateExperimentResponse>, Status> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let wire::UpdateExperimentRequest { experiment, reason, reset } = settable(request)?;
        let etag = experiment.as_ref().map_or_else(String::new, |experiment| experiment.etag.clone());
        let update = convert::update(experiment, reset).map_err(ApiError::from)?;
        self.check_changeable(&rights, &update.name)?;
        let etag = etag_of(&etag)?;
        let author = Author { actor, reason };
        let after = self.catalog(&rights).update(update, etag, author).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::UpdateExperimentResponse { experiment: Some(convert::kept(&after)) }))
    }

    async fn list_experiments(
        &self,
        request: Request<wire::ListExperimentsRequest>,
    ) -> Result<Response<wire::ListExperimentsResponse>, Status> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListExperiments", &[request.prefix.as_bytes()]);
        let above = above_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let listed = self.readable_page(&rights, &request.prefix, above, rows);
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
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let wire::StopExperimentRequest { name, etag, reason } = request.into_inner();
        let name = word_of(&name)?;
        self.check_changeable(&rights, &name)?;
        let etag = etag_of(&etag)?;
        let author = Author { actor, reason };
        let stopped = self.catalog(&rights).stop(name, etag, author).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::StopExperimentResponse { experiment: Some(convert::kept(&stopped)) }))
    }

    async fn delete_experiment(
        &self,
        request: Request<wire::DeleteExperimentRequest>,
    ) -> Result<Response<wire::DeleteExperimentResponse>, Status> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let wire::DeleteExperimentRequest { name, etag, reason } = request.into_inner();
        let name = word_of(&name)?;
        self.check_changeable(&rights, &name)?;
        let etag = etag_of(&etag)?;
        self.catalog(&rights).delete(name, etag, Author { actor, reason }).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::DeleteExperimentResponse {}))
    }

    async fn list_experiment_looks(
        &self,
        request: Request<wire::ListExperimentLooksRequest>,
    ) -> Result<Response<wire::ListExperimentLooksResponse>, Status> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let name = word_of(&request.name)?;
        self.readable(&rights, &name)?;
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
        let found = self.0.with(&rights.listing()).looks(&name, query).await.map_err(ApiError::from)?;
        check_reader(&rights, &found.kept)?;
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
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let name = word_of(&request.name)?;
        // Of a deleted one it is not known any more which counters it had.
        if !rights.allows_every(ResourceKind::Counter) {
            self.readable(&rights, &name)?;
        }
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListExperimentChanges", &[name.as_str().as_bytes()]);
        let skip = skip_of(&paged, &request.page_token).map_err(ApiError::from)?;
        let changes = self.catalog(&rights).history(&name, skip, rows).await.map_err(ApiError::from)?;
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

/// The time at which a page of looks begins; none on the first page.
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
    let alpha = SignificanceLevel::new(request.alpha.unwrap_or(EXPERIMENT_ALPHA))?;
    // Each arm but the control is one comparison.
    let level = alpha.split(arms - 1);
    let size = plan(request.baseline, request.effect, request.power.unwrap_or(EXPERIMENT_POWER), level)?;
    let of_all = |per_arm: u64| per_arm.saturating_mul(arms as u64);
    Ok(wire::PlanExperimentResponse {
        fixed_exposures_per_arm: size.fixed,
        always_valid_exposures_per_arm: size.always_valid,
        fixed_exposures: of_all(size.fixed),
        always_valid_exposures: of_all(size.always_valid),
        width_ratio: width_against_fixed(level),
    })
}

fn arms_of(sent: Option<i32>) -> Result<usize, Reject> {
    let sent = sent.unwrap_or(2);
    match usize::try_from(sent) {
        Ok(arms @ 2..=EXPERIMENT_ARMS_MAX) => Ok(arms),
        Ok(_) | Err(_) => {
            let what = format!("arms is {sent}; an experiment has 2 to {EXPERIMENT_ARMS_MAX} arms");
            Err(Reject::new(Reason::InvalidArgument, what.clone()).at("arms", what))
        }
    }
}
