//! The client for applications: several servers, calls with a deadline, retries that cannot count twice.
//!
//! Every write has an idempotency token, made by the client if the caller sends none. A retry sends the same token, so
//! a write whose response was lost counts once. A best-effort namespace keeps no tokens: there a write is not retried
//! once an attempt of it may have been applied. A token is replaced only after the server has said that it was not
//! applied and never will be. A read is at least as new as the last read of the counter by this client, on any server.
//! The client uses only the protocol, which it passes on as `proto`: an application depends on this crate alone.
//!
//! A call goes to one server until that fails, then to the next. Retries and hedged calls share one budget for all
//! calls of the client and its clones. `examples/client.rs` shows it in use. Queues, with their workers, are in
//! `queues`.

#![warn(missing_docs)]

mod as_of_cache;
mod batches;
mod budget;
mod call;
mod credential;
mod endpoints;
mod error;
mod gather;
mod history;
pub mod queues;
mod reads;
mod retry;
mod retry_safety;
mod tls;
mod tls_failure;
mod tokens;
mod writes;

use std::time::Duration;

use tonic::Status;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Endpoint, Uri};

use tallystone_proto::admin::v1::backup_service_client::BackupServiceClient;
use tallystone_proto::admin::v1::bridge_service_client::BridgeServiceClient;
use tallystone_proto::admin::v1::key_service_client::KeyServiceClient;
use tallystone_proto::admin::v1::namespace_service_client::NamespaceServiceClient;
use tallystone_proto::admin::v1::status_service_client::StatusServiceClient;
use tallystone_proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone_proto::experiment::v1::experiment_service_client::ExperimentServiceClient;
use tallystone_proto::history::v1::history_service_client::HistoryServiceClient;
use tallystone_proto::queue::v1::queue_service_client::QueueServiceClient;
use tallystone_proto::rule::v1::rule_service_client::RuleServiceClient;

pub use batches::BatchError;
pub use credential::{Connection, Credential, CredentialError};
pub use error::{AddressError, CallError, EFFECT_UNKNOWN, RETRYABLE, WriteError};
pub use gather::Gathering;
pub use retry::{DEADLINE_LEAST, RetryPolicy};
pub use tallystone_proto as proto;
pub use tls::{ClientTls, ClientTlsError};
pub use tls_failure::TlsFailure;

use as_of_cache::{IdempotentNamespaces, NewestAsOfCache};
use budget::RetryBudget;
use endpoints::Endpoints;
use tokens::TokenMaker;

/// The largest accepted message, in bytes; the service sends no larger one.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The metadata key of the actor.
pub const ACTOR_METADATA: &str = "tallystone-actor";
/// The metadata key of the reason of an act, for calls whose request has no field for it.
pub const REASON_METADATA: &str = "tallystone-reason";
/// The connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections to the servers of a service. Cheap to clone. It connects at the first call, and again when necessary.
#[derive(Clone)]
pub struct Client {
    endpoints: Endpoints,
    policy: RetryPolicy,
    budget: RetryBudget,
    tokens: TokenMaker,
    newest_as_of: NewestAsOfCache,
    /// Namespaces whose responses said that they recognize a repeated token.
    idempotent: IdempotentNamespaces,
    actor: Option<MetadataValue<Ascii>>,
    reason: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Prepares a connection to `HOST:PORT`, with or without `http://`, or to `https://HOST:PORT`.
    pub fn new(address: &str, policy: RetryPolicy) -> Result<Self, AddressError> {
        Self::of(&[address], policy)
    }

    /// Prepares connections to the servers of one service, each `HOST:PORT`, with or without `http://`, or
    /// `https://HOST:PORT`. The first server is preferred until it fails.
    pub fn of(addresses: &[&str], policy: RetryPolicy) -> Result<Self, AddressError> {
        Self::of_tls(addresses, &ClientTls::default(), policy)
    }

    /// Prepares connections to servers with TLS, each `https://HOST:PORT`. Another address is refused if anything is
    /// set in `tls`, so that nothing that should be secured is sent in clear text.
    pub fn of_tls(addresses: &[&str], tls: &ClientTls, policy: RetryPolicy) -> Result<Self, AddressError> {
        if addresses.is_empty() {
            return Err(AddressError { address: String::new(), cause: "there must be at least one".to_owned() });
        }
        let connect = |address: &&str| {
            Ok(endpoint(address, tls)?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy())
        };
        let channels = addresses.iter().map(connect).collect::<Result<_, AddressError>>()?;
        Ok(Self {
            endpoints: Endpoints::new(channels),
            policy,
            budget: RetryBudget::default(),
            tokens: TokenMaker::default(),
            newest_as_of: NewestAsOfCache::default(),
            idempotent: IdempotentNamespaces::default(),
            actor: None,
            reason: None,
        })
    }

    /// Sets the actor, for the audit and the histories, in any letters. Control characters become spaces; an empty name
    /// is none, and the server records the address instead.
    #[must_use]
    pub fn acting_as(mut self, actor: &str) -> Self {
        self.actor = one_line(actor);
        self
    }

    /// Sets the reason of all calls, for the audit. Calls whose request has a reason keep that one. Control characters
    /// become spaces; an empty reason is none.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Self {
        self.reason = one_line(reason);
        self
    }

    /// Shows an API key, `ts_ID_SECRET`, with every call. Fails if the text cannot be sent in a header.
    pub fn with_key(mut self, key: &str) -> Result<Self, CredentialError> {
        self.endpoints = self.endpoints.with_credential(Credential::of_key(key)?);
        Ok(self)
    }

    /// The counter service of the preferred server, without retries.
    pub fn counters(&self) -> CounterServiceClient<Connection> {
        counters_on(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The namespace service of the preferred server, without retries.
    pub fn namespaces(&self) -> NamespaceServiceClient<Connection> {
        namespaces_on(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The key service of the preferred server, without retries.
    pub fn keys(&self) -> KeyServiceClient<Connection> {
        KeyServiceClient::new(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The backup service of the preferred server, without retries.
    pub fn backups(&self) -> BackupServiceClient<Connection> {
        let channel = self.endpoints.channel(self.endpoints.preferred());
        BackupServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The bridge service of the preferred server, without retries.
    pub fn bridge(&self) -> BridgeServiceClient<Connection> {
        BridgeServiceClient::new(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The status service of the preferred server, without retries.
    pub fn status(&self) -> StatusServiceClient<Connection> {
        StatusServiceClient::new(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The queue service of the preferred server, without retries.
    pub fn queues(&self) -> QueueServiceClient<Connection> {
        queues::queues_on(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The history service of the preferred server, without retries.
    pub fn history(&self) -> HistoryServiceClient<Connection> {
        history::history_on(self.endpoints.channel(self.endpoints.preferred()))
    }

    /// The experiment service of the preferred server, without retries.
    pub fn experiments(&self) -> ExperimentServiceClient<Connection> {
        let channel = self.endpoints.channel(self.endpoints.preferred());
        ExperimentServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The rule service of the preferred server, without retries.
    pub fn rules(&self) -> RuleServiceClient<Connection> {
        let channel = self.endpoints.channel(self.endpoints.preferred());
        RuleServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Makes a unique message id, a UUIDv7. An enqueue with it can be repeated.
    pub fn message_id(&self) -> String {
        self.tokens.make().token
    }
}

/// A text as metadata, in one line: each control character becomes a space. None if it is empty.
fn one_line(text: &str) -> Option<MetadataValue<Ascii>> {
    let plain: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    Some(plain).filter(|plain| !plain.is_empty()).and_then(|plain| plain.as_bytes().try_into().ok())
}

/// The counter service over a connection.
fn counters_on(channel: Connection) -> CounterServiceClient<Connection> {
    CounterServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// The namespace service over a connection.
fn namespaces_on(channel: Connection) -> NamespaceServiceClient<Connection> {
    NamespaceServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Reads the address of a server: `HOST:PORT` with or without `http://`, or `https://HOST:PORT`.
pub fn endpoint(address: &str, tls: &ClientTls) -> Result<Endpoint, AddressError> {
    let refuse = |cause: String| AddressError { address: address.to_owned(), cause };
    let uri = match address.split_once("://") {
        None => format!("http://{address}"),
        Some(("http" | "https", _)) => address.to_owned(),
        Some((scheme, _)) => {
            return Err(refuse(format!("scheme {scheme} is not supported; omit it, or use http or https")));
        }
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|error| refuse(error.to_string()))?;
    match endpoint.uri().port_u16() {
        Some(1..) => {}
        None if !names_a_port(endpoint.uri()) => return Err(refuse("the port is missing".to_owned())),
        Some(0) | None => return Err(refuse("the port must be a number from 1 to 65535".to_owned())),
    }
    let is_secure = endpoint.uri().scheme_str() == Some("https");
    match is_secure {
        true => endpoint.tls_config(tls.config()).map_err(|error| refuse(root_cause(&error))),
        false if tls.is_default() => Ok(endpoint),
        false => Err(refuse("certificates apply to https:// only; write https:// before the address".to_owned())),
    }
}

/// Whether something stands where a port does, be it one or not.
fn names_a_port(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    // The last part of an address in brackets is none.
    authority.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.ends_with(']'))
}

/// The text of the deepest cause.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

/// The error of a call without a response within its deadline.
pub fn late() -> Status {
    Status::deadline_exceeded("the server did not answer in time")
}
