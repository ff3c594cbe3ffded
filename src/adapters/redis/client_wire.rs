//! The connection of the queues over the client of this folder.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::client::{CallAnswers, CallFailure, FailureCause, RedisClient, RedisCommand, RedisReply, Slot};
use super::wire::{RedisWire, WireCommand, WireFailure, WireReply};
use tallystone_ports::{EffectOutcome, StoreError};

const CALL: &str = "call Redis";

/// A connection to the nodes of one deployment.
pub struct ClientWire {
    client: Arc<RedisClient>,
    /// How many replicas have to have a write before it is answered, and how long that may take; none for no replica.
    replicas: Option<(u32, Duration)>,
}

impl ClientWire {
    /// A connection over an open client, which must have the library of `QueueLibrary`.
    pub fn new(client: Arc<RedisClient>) -> Self {
        Self { client, replicas: None }
    }

    /// A connection that answers writes once so many replicas have them, also writes that only repeated an earlier
    /// answer: the earlier one may not be there yet.
    pub fn replicated(client: Arc<RedisClient>, replicas: u32, within: Duration) -> Self {
        Self { client, replicas: Some((replicas, within)).filter(|(replicas, _)| *replicas > 0) }
    }

    /// Waits for the replicas, if a write was answered. Without enough of them nobody knows what becomes of it.
    async fn replicate(
        &self,
        key: &[u8],
        writes: &[bool],
        answers: CallAnswers,
    ) -> Vec<Result<RedisReply, CallFailure>> {
        let CallAnswers { mut replies, served } = answers;
        let was_written = replies.iter().zip(writes).any(|(reply, writes)| *writes && reply.is_ok());
        let (Some((replicas, within)), Some(served), true) = (self.replicas, served, was_written) else {
            return replies;
        };
        let Err(failure) = self.client.replicated(&served, wait_key(key), replicas, within).await else {
            return replies;
        };
        for (reply, writes) in replies.iter_mut().zip(writes) {
            if *writes && reply.is_ok() {
                *reply = Err(failure.clone());
            }
        }
        replies
    }
}

/// A key beside another one, with the same hash tag.
fn wait_key(key: &[u8]) -> Bytes {
    let tag = key.iter().position(|byte| *byte == b'}').map_or(key, |end| &key[..=end]);
    [tag, b"z"].concat().into()
}

/// Whether a command changes the store.
fn writes(command: &WireCommand) -> bool {
    matches!(command.name, "FCALL" | "HSET" | "HSETNX" | "XTRIM" | "ZADD")
}

#[async_trait]
impl RedisWire for ClientWire {
    async fn send(&self, key: &[u8], commands: Vec<WireCommand>) -> Vec<Result<WireReply, WireFailure>> {
        let changes: Vec<bool> = commands.iter().map(writes).collect();
        let commands = commands.into_iter().map(|command| RedisCommand::with(command.name, command.arguments));
        let answers = self.client.call(Slot::of(key), commands.collect()).await;
        let replies = self.replicate(key, &changes, answers).await;
        let failed = |failure| failure_of(failure, self.address(key));
        replies.into_iter().map(|reply| reply.and_then(read).map_err(failed)).collect()
    }

    fn fails_over(&self) -> bool {
        self.client.fails_over()
    }

    fn address(&self, key: &[u8]) -> Option<String> {
        self.client.owner(Slot::of(key))
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
        RedisReply::Double(number) if number.fract() == 0.0 => Ok(WireReply::Int(number as i64)),
        RedisReply::Double(_) | RedisReply::Bool(_) | RedisReply::Refused { .. } => {
            Err(CallFailure::new(FailureCause::Protocol, "the reply has a part of a kind that no command here answers"))
        }
    }
}

/// The failure of a call of the server at an address.
fn failure_of(failure: CallFailure, address: Option<String>) -> WireFailure {
    match failure.cause {
        // An error that came before the function ran is none of the function.
        FailureCause::Function { code } if failure.outcome == EffectOutcome::Unknown => {
            WireFailure::Function { code, text: failure.text }
        }
        // Every other cause is one of the client.
        _ => {
            let error = failure.store_error(CALL);
            WireFailure::Store(StoreError { at: address.map(String::into_boxed_str), ..error })
        }
    }
}
