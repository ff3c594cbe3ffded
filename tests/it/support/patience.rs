//! The patience of a test with a call whose time is no law.
//!
//! A server gives a call without a deadline two seconds, and a debug build on a busy machine may need more. So every call asks
//! for a minute, unless its test is about deadlines: over HTTP by `harness::http`, over gRPC by the channel here. Laws about time
//! are in `yardstick`.

use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Request, Status};

use super::harness::{DEADLINE, PATIENCE};

/// A stream lives as long as its deadline, so a channel asks for the longest one, and waits for `PATIENCE` itself.
const DEADLINE_OF_STREAMS: &str = "3600S";

/// Gives each call a deadline that has none.
#[derive(Clone, Copy)]
pub struct Patience;

/// A channel whose calls are patient.
pub type PatientChannel = InterceptedService<Channel, Patience>;

impl Interceptor for Patience {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !request.metadata().contains_key(DEADLINE.0) {
            request.metadata_mut().insert(DEADLINE.0, MetadataValue::from_static(DEADLINE_OF_STREAMS));
        }
        Ok(request)
    }
}

/// Connects to a server, such as `http://127.0.0.1:7450`.
pub async fn patient_channel(url: &str) -> PatientChannel {
    try_patient_channel(url, PATIENCE).await.expect("the server takes connections")
}

/// The same where the server may be gone. A call waits so long for its answer.
pub async fn try_patient_channel(url: &str, within: Duration) -> Result<PatientChannel, Error> {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("an address").timeout(within);
    Ok(InterceptedService::new(endpoint.connect().await?, Patience))
}
