//! The connection of the queues over the client of this folder.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::client::{CallFailure, FailureCause, RedisClient, RedisCommand, RedisReply, Slot};
use super::wire::{RedisWire, WireCommand, WireFailure, WireReply};
use crate::ports::EffectOutcome;

const CALL: &str = "call Redis";

/// A connection to the nodes of one deployment.
pub struct ClientWire {
    client: Arc<RedisClient>,
}

impl ClientWire {
    /// A connection over an open client, which must have the library of `QueueLibrary`.
    pub fn new(client: Arc<RedisClient>) -> Self {
        Self { client }
    }
}

#[async_trait]
impl RedisWire for ClientWire {
    async fn send(&self, key: &[u8], commands: Vec<WireCommand>) -> Vec<Result<WireReply, WireFailure>> {
        let commands = commands.into_iter().map(|command| RedisCommand::with(command.name, command.arguments));
        let answers = self.client.call(Slot::of(key), commands.collect()).await;
        answers.replies.into_iter().map(|reply| reply.and_then(read).map_err(failure_of)).collect()
    }
}

fn read(reply: RedisReply) -> Result<WireReply, CallFailure> {
    let list = |parts: Vec<RedisReply>| parts.into_iter().map(read).collect::<Result<_, _>>().map(WireReply::List);
    match reply {
        RedisReply::Nil => Ok(WireReply::Nil),
        RedisReply::Int(number) => Ok(WireReply::Int(number)),
        RedisReply::Bytes(bytes) => Ok(WireReply::Bytes(bytes)),
        RedisReply::Status(text) => Ok(WireReply::Bytes(Bytes::from(text))),
        RedisReply::List(parts) => list(parts),
        RedisReply::Map(pairs) => list(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        RedisReply::Double(_) | RedisReply::Bool(_) | RedisReply::Refused { .. } => {
            Err(CallFailure::new(FailureCause::Protocol, "the reply has a part of a kind that no command here answers"))
        }
    }
}

fn failure_of(failure: CallFailure) -> WireFailure {
    match failure.cause {
        // An error that came before the function ran is none of the function.
        FailureCause::Function { code } if failure.outcome == EffectOutcome::Unknown => {
            WireFailure::Function { code, text: failure.text }
        }
        _ => WireFailure::Store(failure.store_error(CALL)), // every other cause is one of the client
    }
}
