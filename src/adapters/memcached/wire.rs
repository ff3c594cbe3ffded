//! The seam below the adapter: a server that is sent meta commands, several in one round trip.
//!
//! Above it is what is ours: which commands, in whose company, when again, which replica is believed. Below, commands are
//! sent once and what is known of them is said; the client does that over TCP, and a simulation can do it for servers of
//! its own. Nothing below reads a clock of ours or repeats what was written.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use memcache::exp::{AsyncMetaClient, Error, MutationStatus, Op, OpResult};

use crate::domain::limits::MEMCACHED_CALLS_AT_ONCE_MAX;

/// What a server says to a command that it did not refuse.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommandResponse {
    /// To a read: what is there, where that was asked for. A key without a value has neither, a placeholder a CAS.
    Read {
        /// The value.
        value: Option<Vec<u8>>,
        /// The number of the key's state.
        cas: Option<u64>,
    },
    /// To a write or a removal.
    Changed(MutationStatus),
    /// To a sum.
    Summed {
        /// What became of it.
        status: MutationStatus,
        /// The sum.
        value: Option<u64>,
    },
}

/// What became of each command, or of all at once.
pub type BatchResponse = Result<Vec<Result<CommandResponse, Error>>, Error>;

/// The way to one server.
///
/// Laws:
/// 1. Commands are sent once, and done in their order if at all.
/// 2. It ends within the time limit of its making, by the clock of whoever made it.
/// 3. `Error::Io` and `Error::Timeout` by themselves say that a command has and will have no effect, or has none by its
///    nature; inside `Error::Ambiguous` that nobody knows.
#[async_trait]
pub trait ServerConnection: Send + Sync + 'static {
    /// Sends commands and waits for what became of each, in their order.
    async fn send(&self, commands: Vec<Op>) -> BatchResponse;
}

/// What ways to servers lead through.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Finds a server by its HOST:PORT. It need not be there yet. `timeout` is for a connection and an answer, each.
    async fn find(&self, address: &str, timeout: Duration) -> Result<Arc<dyn ServerConnection>, Error>;
}

/// The network that there is.
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

/// What of a client's result is used here.
fn answer(result: OpResult) -> Result<CommandResponse, Error> {
    match result {
        OpResult::Get(result) => Ok(CommandResponse::Read { value: result.value, cas: result.item.cas }),
        OpResult::Mutation(result) => Ok(CommandResponse::Changed(result.status)),
        OpResult::Arithmetic(result) => Ok(CommandResponse::Summed { status: result.status, value: result.value }),
        // The client's list may grow; no command of ours is answered with more.
        _ => Err(Error::Protocol("an answer to no command of ours".to_owned())),
    }
}
