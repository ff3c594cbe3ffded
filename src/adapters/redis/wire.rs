//! The connection that the adapter needs: commands to the node of a key, each with its answer.
//!
//! `client_wire` answers it with the client of this folder. A test may put a connection of its own here.

use async_trait::async_trait;
use bytes::Bytes;

use tallystone_ports::StoreError;

/// A command with its arguments.
#[derive(Clone, Debug)]
pub struct WireCommand {
    pub name: &'static str,
    pub arguments: Vec<Vec<u8>>,
}

/// The answer to a command.
#[derive(Clone, PartialEq, Debug)]
pub enum WireReply {
    Nil,
    Int(i64),
    /// A text, or a status.
    Bytes(Bytes),
    List(Vec<WireReply>),
}

/// The reason for which a command has no answer.
#[derive(Debug)]
pub enum WireFailure {
    /// The function refused, or failed: the first word of its error, and all of it.
    Function { code: String, text: String },
    /// Anything else.
    Store(StoreError),
}

/// A connection to the store.
#[async_trait]
pub trait RedisWire: Send + Sync + 'static {
    /// Sends commands to the node of a key, in their order on one connection. As many answers as commands.
    async fn send(&self, key: &[u8], commands: Vec<WireCommand>) -> Vec<Result<WireReply, WireFailure>>;

    /// Whether a replica may take the place of the server of a key.
    fn fails_over(&self) -> bool;

    /// The address of the server of a key, as far as is known.
    fn address(&self, key: &[u8]) -> Option<String>;
}
