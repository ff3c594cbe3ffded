//! The interface below the adapter: a server that receives meta commands, several in one round trip.
//!
//! The adapter above it chooses commands, batches, retries and replicas. Below it, commands are sent once and their
//! outcome is reported. The client library does so over TCP, and a simulation for servers of its own. No implementation
//! reads a clock of this project or retries a written command.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use memcache::exp::{AsyncMetaClient, Error, MutationStatus, Op, OpResult};

use crate::memcached::limits::MEMCACHED_CALLS_AT_ONCE_MAX;

/// The response to a command that was not refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandResponse {
    /// To a read: the requested parts of the value. A key without a value has none, a placeholder only a CAS.
    Read {
        value: Option<Vec<u8>>,
        /// The CAS of the key.
        cas: Option<u64>,
    },
    /// To a write or a removal.
    Changed(MutationStatus),
    /// To a sum.
    Summed {
        /// The outcome.
        status: MutationStatus,
        /// The sum.
        value: Option<u64>,
    },
}

/// The outcome of each command, or of all of them.
pub type BatchResponse = Result<Vec<Result<CommandResponse, Error>>, Error>;

/// The connection of one server.
///
/// Laws:
/// 1. Commands are sent once, and done in their order if at all.
/// 2. A call ends within the timeout that the connection was made with, by the clock of its owner.
/// 3. `Error::Io` and `Error::Timeout` by themselves say that a command has and will have no effect, or has none by its
///    nature; inside `Error::Ambiguous` the effect is unknown.
#[async_trait]
pub trait ServerConnection: Send + Sync + 'static {
    /// Sends commands. Returns the outcome of each, in their order.
    async fn send(&self, commands: Vec<Op>) -> BatchResponse;
}

#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Finds a server by its HOST:PORT. It need not exist yet. `timeout` is for a connection and a response, each.
    async fn find(&self, address: &str, timeout: Duration) -> Result<Arc<dyn ServerConnection>, Error>;
}

/// The real network.
pub struct Tcp;

#[async_trait]
impl Network for Tcp {
    async fn find(&self, address: &str, timeout: Duration) -> Result<Arc<dyn ServerConnection>, Error> {
        let builder = AsyncMetaClient::builder()
            .max_idle(MEMCACHED_CALLS_AT_ONCE_MAX)
            .connect_timeout(Some(timeout))
            .io_timeout(Some(timeout));
        Ok(Arc::new(builder.connect_async(address).await?))
    }
}

#[async_trait]
impl ServerConnection for AsyncMetaClient {
    async fn send(&self, commands: Vec<Op>) -> BatchResponse {
        let results = self.run_batch(commands).await?;
        Ok(results.into_iter().map(|result| result.and_then(answer)).collect())
    }
}

/// The parts of a client result that are used here.
fn answer(result: OpResult) -> Result<CommandResponse, Error> {
    match result {
        OpResult::Get(result) => Ok(CommandResponse::Read { value: result.value, cas: result.item.cas }),
        OpResult::Mutation(result) => Ok(CommandResponse::Changed(result.status)),
        OpResult::Arithmetic(result) => Ok(CommandResponse::Summed { status: result.status, value: result.value }),
        // The client's list may grow; no command of ours is answered with more.
        _ => Err(Error::Protocol("a response without a matching command".to_owned())),
    }
}
