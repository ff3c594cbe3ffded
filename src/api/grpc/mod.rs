//! The gRPC services. Each method decodes and validates once, calls one use case, and encodes its answer.

pub mod audit;
pub mod backups;
pub mod bridge;
pub mod counters;
mod decode;
mod encode;
pub mod experiments;
mod explain_convert;
pub mod history;
pub mod keys;
mod namespace_convert;
pub mod namespaces;
pub mod queues;
pub mod rollup_signals;
pub mod rules;
pub mod status;
mod stream_adds;

use std::sync::Arc;

use tonic::Request;

use crate::errors::{ApiError, SET_BY_SERVICE};
use tallystone_domain::Reason;
use tallystone_domain::access::{CallRights, Principal};
use tallystone_engine::access::Identity;
use tallystone_engine::call_limiter::StreamPlaces;
use tallystone_engine::caller_quota::CallerId;
use tallystone_proto::OutputOnly;

/// Converts a number to the signed wire type, capped at its maximum.
pub fn saturating_i64(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The total time that a call may take, for methods that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallTime(pub std::time::Duration);

/// The change that a call made, in the extensions of its answer: what the audit says besides the target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActDetail(pub String);

/// The principal of a call; none where callers need not say who they are. It is found before the body of the request is
/// read, and no metadata of the caller changes it.
pub fn principal_of<T>(request: &Request<T>) -> Option<&Principal> {
    request.extensions().get::<Arc<Identity>>().map(|identity| &identity.principal)
}

/// The rights of a call, which the place that all protocols pass has put there. A call without any is refused.
pub fn rights_of<T>(request: &Request<T>) -> Result<CallRights, ApiError> {
    let none = || ApiError::new(Reason::Internal, "the call has no rights because of a defect of the service");
    request.extensions().get::<CallRights>().cloned().ok_or_else(none)
}

/// Returns what gives the messages of a stream their places among the calls in progress.
fn places_of<T>(request: &Request<T>) -> Result<StreamPlaces, ApiError> {
    let none = || ApiError::new(Reason::Internal, "the stream has no places because of a defect of the service");
    request.extensions().get::<StreamPlaces>().cloned().ok_or_else(none)
}

/// The body of a request, unless it sets a field that only the service sets.
fn settable<T: OutputOnly>(request: Request<T>) -> Result<T, ApiError> {
    let body = request.into_inner();
    match body.output_only() {
        None => Ok(body),
        Some(path) => Err(ApiError::new(Reason::InvalidField, format!("{path}: {SET_BY_SERVICE}")).at(path)),
    }
}

/// Refuses the etag of something that does not exist yet.
fn refuse_etag<T>(etag: Option<T>, path: &str) -> Result<(), ApiError> {
    let what = "a call that creates takes no etag, since there is no version yet; omit it, or update what exists";
    etag.map_or(Ok(()), |_| Err(ApiError::new(Reason::InvalidField, format!("{path}: {what}")).at(path)))
}

/// The caller whose share of resources the call uses: the principal of its key, or else its peer's address.
fn caller_of<T>(request: &Request<T>) -> CallerId {
    if let Some(identity) = request.extensions().get::<Arc<Identity>>() {
        return CallerId::of_principal(&identity.account);
    }
    request.remote_addr().map_or_else(CallerId::nobody, |address| CallerId::of_address(address.ip()))
}
