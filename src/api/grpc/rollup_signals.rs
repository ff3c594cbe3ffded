//! RollupSignalService: signals from other servers of the fleet about counters that this server rolls up. Internal.
//!
//! A caller without the secret of a member is refused. The secrets are in the heartbeats, which only servers of the
//! store can read.

use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::errors::ApiError;
use crate::grpc::decode;
use tallystone_domain::counter::{Counter, CounterName, NamespaceId};
use tallystone_domain::fleet::FleetSecret;
use tallystone_domain::{Reason, Timestamp};
use tallystone_engine::counting::CountingError;
use tallystone_engine::rolling::SignalReceiver;
use tallystone_ports::CounterSignal;
use tallystone_proto::SECRET_METADATA;
use tallystone_proto::internal::v1 as wire;
use tallystone_proto::internal::v1::rollup_signal_service_server::RollupSignalService;

/// The refusal of a caller that is not a member.
const STRANGER: &str =
    "rollup signals are accepted only from servers of the same store, by the secret of their heartbeats";

/// The rollup signal service.
pub struct RollupSignalsApi {
    signalled: SignalReceiver,
}

impl RollupSignalsApi {
    /// Passes signals to these rollup queues.
    pub fn new(signalled: SignalReceiver) -> Self {
        Self { signalled }
    }
}

#[tonic::async_trait]
impl RollupSignalService for RollupSignalsApi {
    async fn signal_rollups(
        &self,
        request: Request<wire::SignalRollupsRequest>,
    ) -> Result<Response<wire::SignalRollupsResponse>, Status> {
        if !self.signalled.is_of_member(presented_secret(request.metadata()).as_ref()) {
            return Err(member_refusal().into());
        }
        let signals = request.into_inner().signals;
        decode::batch_size("signals", signals.len())?;
        let signals = signals.into_iter().filter_map(signal).collect();
        let taken = self.signalled.take(signals).await.map_err(|error| ApiError::from(CountingError::Store(error)))?;
        Ok(Response::new(wire::SignalRollupsResponse { taken: u32::try_from(taken).unwrap_or(u32::MAX) }))
    }
}

/// The refusal of a caller that shows no secret of a member.
pub fn member_refusal() -> ApiError {
    ApiError::new(Reason::NotAMember, STRANGER)
}

/// The secret in a call's metadata.
pub fn presented_secret(metadata: &MetadataMap) -> Option<FleetSecret> {
    FleetSecret::from_bytes(&metadata.get_bin(SECRET_METADATA)?.to_bytes().ok()?)
}

/// None for an invalid name: a server of another release may accept other names.
fn signal(sent: wire::RollupSignal) -> Option<CounterSignal> {
    let name = CounterName::new(&sent.counter_name).ok()?;
    Some(CounterSignal {
        counter: Counter::new(NamespaceId(sent.namespace_id), name),
        oldest: Timestamp::from_micros(sent.oldest_event_micros),
        newest: Timestamp::from_micros(sent.newest_event_micros),
    })
}
