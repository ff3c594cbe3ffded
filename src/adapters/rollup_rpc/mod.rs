//! Rollup signals to other servers, over `tallystone.internal.v1.RollupSignalService`: batched, fire and forget.
//!
//! A signal waits in a Set of its roller, where it becomes one with others of its counter. One task takes the waiting
//! signals a moment after the first one came, and has at most one call under way for each roller. Signals that come
//! meanwhile wait for the next call. No caller waits for any of it: a Set without room drops the signal, and a call
//! that fails drops its signals.

mod peer_tls;
mod pending_signals;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::rollup_rpc::pending_signals::PendingSignals;
use tallystone_domain::fleet::FleetSecret;
use tallystone_domain::limits::{SIGNAL_CALL_WITHIN, SIGNAL_ROLLERS_MAX};
use tallystone_ports::{Clock, CounterSignal, RollupSignal, SignalCounts};
use tallystone_proto::SECRET_METADATA;
use tallystone_proto::internal::v1::rollup_signal_service_client::RollupSignalServiceClient;
use tallystone_proto::internal::v1::{RollupSignal as Wire, SignalRollupsRequest};

pub use peer_tls::{PeerTlsFiles, TLS_SCHEME};

/// Signals are gathered for so long before they are sent: little beside any coalescing time.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// Signals on their way to other servers.
pub struct RollupRpc {
    shared: Arc<SignalSenderState>,
    sender: AsyncMutex<JoinSet<()>>,
    stop: CancellationToken,
}

struct SignalSenderState {
    /// The secret that every call shows to prove that a member of the fleet sends it.
    secret: FleetSecret,
    clock: Arc<dyn Clock>,
    pending: Mutex<PendingSignals>,
    wake: Notify,
    sent: AtomicU64,
    dropped: AtomicU64,
}

/// The calls under way, and the connections that they take.
struct SignalSender {
    shared: Arc<SignalSenderState>,
    tls: PeerTlsFiles,
    channels: HashMap<Arc<str>, Channel>,
    calls: JoinSet<(Arc<str>, bool)>,
    in_flight: HashSet<Arc<str>>,
}

impl RollupRpc {
    /// Nothing waits yet. Starts the task that sends, which `close` ends. Receivers know `secret` from
    /// the heartbeats of this process. Those whose addresses begin with `https://` are called by TLS.
    pub fn start(clock: Arc<dyn Clock>, secret: FleetSecret, tls: PeerTlsFiles) -> Self {
        let shared = Arc::new(SignalSenderState {
            secret,
            clock,
            pending: Mutex::default(),
            wake: Notify::new(),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let stop = CancellationToken::new();
        let sending = SignalSender {
            shared: Arc::clone(&shared),
            tls,
            channels: HashMap::new(),
            calls: JoinSet::new(),
            in_flight: HashSet::new(),
        };
        let mut sender = JoinSet::new();
        sender.spawn(sending.run(stop.clone()));
        Self { shared, sender: AsyncMutex::new(sender), stop }
    }

    /// Sends what waits, once, and ends. Takes no longer than two calls.
    pub async fn close(&self) {
        self.stop.cancel();
        let mut sender = self.sender.lock().await;
        while sender.join_next().await.is_some() {}
    }
}

impl RollupSignal for RollupRpc {
    fn send(&self, roller: &Arc<str>, signal: CounterSignal) {
        match self.shared.pending.lock().add(roller, signal) {
            true => self.shared.wake.notify_one(),
            false => self.shared.note_dropped(1),
        }
    }

    fn counts(&self) -> SignalCounts {
        SignalCounts {
            sent: self.shared.sent.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }
}

impl SignalSenderState {
    fn note_dropped(&self, signals: usize) {
        self.dropped.fetch_add(signals as u64, Ordering::Relaxed);
    }
}

impl SignalSender {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(ended) = self.calls.join_next() => self.call_ended(ended),
                () = self.shared.wake.notified() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.clock.sleep(BATCH_DELAY) => {}
            }
            self.start_calls();
        }
        // Those that waited for a call under way find theirs ended now.
        self.join().await;
        self.start_calls();
        self.join().await;
        let left = self.shared.pending.lock().len();
        self.shared.note_dropped(left);
    }

    async fn join(&mut self) {
        while let Some(ended) = self.calls.join_next().await {
            self.call_ended(ended);
        }
    }

    /// Begins a call to every roller that something waits for and that has none under way.
    fn start_calls(&mut self) {
        let batches = self.shared.pending.lock().take(&self.in_flight);
        for (roller, signals) in batches {
            let Some(channel) = self.channel(&roller) else {
                self.shared.note_dropped(signals.len());
                continue;
            };
            self.in_flight.insert(Arc::clone(&roller));
            let shared = Arc::clone(&self.shared);
            self.calls.spawn(async move {
                let is_sent = deliver(&shared, channel, signals).await;
                (roller, is_sent)
            });
        }
    }

    /// The connection to a roller; none if its address is none, or there can be no TLS. It is made by the first call.
    fn channel(&mut self, roller: &Arc<str>) -> Option<Channel> {
        if let Some(channel) = self.channels.get(roller) {
            return Some(channel.clone());
        }
        let endpoint = match self.tls.endpoint(roller) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(%roller, error, "rollup signals cannot be sent");
                return None;
            }
        };
        let channel = endpoint.connect_timeout(SIGNAL_CALL_WITHIN).connect_lazy();
        if self.channels.len() >= SIGNAL_ROLLERS_MAX {
            // Servers that are gone leave theirs behind; the others are made anew.
            self.channels.clear();
        }
        self.channels.insert(Arc::clone(roller), channel.clone());
        Some(channel)
    }

    fn call_ended(&mut self, ended: Result<(Arc<str>, bool), tokio::task::JoinError>) {
        match ended {
            Ok((roller, is_sent)) => {
                self.in_flight.remove(&roller);
                if !is_sent {
                    self.channels.remove(&roller);
                }
            }
            Err(panicked) => {
                // Which roller it was is not known: whoever had a call under way has it no more once all have ended.
                tracing::error!(%panicked, "rollup signals were lost");
                if self.calls.is_empty() {
                    self.in_flight.clear();
                }
            }
        }
        if !self.shared.pending.lock().is_empty() {
            self.shared.wake.notify_one();
        }
    }
}

/// Sends signals in one call; answers whether they were taken.
async fn deliver(shared: &SignalSenderState, channel: Channel, signals: Vec<CounterSignal>) -> bool {
    let count = signals.len();
    let mut request = Request::new(SignalRollupsRequest { signals: signals.into_iter().map(wire).collect() });
    request.set_timeout(SIGNAL_CALL_WITHIN);
    request.metadata_mut().insert_bin(SECRET_METADATA, MetadataValue::from_bytes(&shared.secret.0));
    let mut client = RollupSignalServiceClient::new(channel);
    let is_sent = tokio::select! {
        biased;
        answer = client.signal_rollups(request) => match answer {
            Ok(_) => true,
            Err(status) => {
                tracing::debug!(%status, count, "rollup signals were not accepted");
                false
            }
        },
        () = shared.clock.sleep(SIGNAL_CALL_WITHIN) => false,
    };
    match is_sent {
        true => drop(shared.sent.fetch_add(count as u64, Ordering::Relaxed)),
        false => shared.note_dropped(count),
    }
    is_sent
}

fn wire(signal: CounterSignal) -> Wire {
    Wire {
        namespace_id: signal.counter.namespace().0,
        counter_name: signal.counter.name().as_str().to_owned(),
        oldest_event_micros: signal.oldest.micros(),
        newest_event_micros: signal.newest.micros(),
    }
}
