//! Connections, tokens and counter names of the load.

use anyhow::{Context as _, Result};
use tallystone_client::proto::admin::v1::namespace_service_client::NamespaceServiceClient;
use tallystone_client::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone_client::proto::counter::v1::{AddItem, IdempotencyToken};
use tallystone_client::{ClientTls, Connection, Credential, endpoint};
use tonic::transport::Channel;
use uuid::Uuid;

/// The counter half over one connection.
pub type Counters = CounterServiceClient<Connection>;
/// The catalog over one connection.
pub type Catalog = NamespaceServiceClient<Connection>;

/// Some connections to one server; workers share them in turn.
#[derive(Clone)]
pub struct Connections {
    channels: Vec<Channel>,
    credential: Credential,
}

impl Connections {
    /// Connects to a server without a key, in clear text or, with `https://`, by the authorities that the machine trusts.
    pub async fn open(url: &str, count: usize) -> Result<Self> {
        Self::open_as(url, &ClientTls::default(), Credential::default(), count).await
    }

    /// Connects to a server, by TLS if anything is set for it. Each call shows the credential.
    pub async fn open_as(url: &str, tls: &ClientTls, credential: Credential, count: usize) -> Result<Self> {
        let endpoint = endpoint(url, tls)?.tcp_nodelay(true);
        let mut channels = Vec::new();
        for _ in 0..count.max(1) {
            channels.push(endpoint.connect().await.with_context(|| format!("connecting to {url}"))?);
        }
        Ok(Self { channels, credential })
    }

    /// The same connections, whose calls show another credential.
    pub fn showing(&self, credential: Credential) -> Self {
        Self { channels: self.channels.clone(), credential }
    }

    /// The connection of a worker.
    pub fn channel(&self, worker: usize) -> Connection {
        Connection::new(self.channels[worker % self.channels.len()].clone(), self.credential.clone())
    }

    /// The counter client of a worker.
    pub fn counters(&self, worker: usize) -> Counters {
        CounterServiceClient::new(self.channel(worker)).max_decoding_message_size(64 * 1024 * 1024)
    }

    /// The catalog client.
    pub fn catalog(&self) -> Catalog {
        NamespaceServiceClient::new(self.channel(0))
    }
}

/// A token that was never used: a UUIDv7 of this moment.
pub fn new_token() -> IdempotencyToken {
    IdempotencyToken { token: Uuid::now_v7().to_string(), generation_time: None }
}

/// The name of a counter by its number.
pub fn counter_name(number: u64) -> String {
    format!("load/{number:07}")
}

/// One addition with a fresh token.
pub fn add_item(counter: u64, delta: i64) -> AddItem {
    AddItem {
        counter_name: counter_name(counter),
        delta: Some(delta),
        idempotency_token: Some(new_token()),
        provenance: String::new(),
    }
}

/// Why a call failed: the reason of the service if it gave one, else the status code.
pub fn reason_of(status: &tonic::Status) -> String {
    // ErrorInfo is in the details; its reason is the first word in capitals with an underscore or of a known name.
    let details = String::from_utf8_lossy(status.details()).into_owned();
    let word = details
        .split(|character: char| !(character.is_ascii_uppercase() || character == '_'))
        .find(|word| word.len() > 3)
        .map(str::to_owned);
    word.unwrap_or_else(|| format!("{:?}", status.code()))
}
