//! The record of what operators did. It is append-only.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::Timestamp;

/// One act of an operator. It never has a payload or a secret.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AdminAction {
    /// Its number, from 1; grows by one with each act.
    pub number: u64,
    /// When it was recorded.
    pub time: Timestamp,
    /// The caller that did it, at most `ACTOR_BYTES_MAX`.
    pub actor: String,
    /// The name of the call.
    pub action: String,
    /// The name of the queue, namespace, rule or counter.
    pub target: String,
    /// The part of the target; empty for all of it.
    pub part: String,
    /// Why, as the caller said.
    pub reason: String,
    /// `OK`, or the reason of the refusal.
    pub outcome: String,
    /// A hash of the request token, by which a repeat is known; 0 without one.
    pub request: u64,
}

/// The acts of operators.
///
/// Laws:
/// 1. An act whose `append` was answered is listed, also after a restart of a durable log, until so many newer acts
///    came that the log yields at its oldest end.
/// 2. `newest` lists acts by falling number. Acts are never changed, and never left out between two that are listed.
#[async_trait]
pub trait AdminLog: Send + Sync + 'static {
    /// Appends an act, whose number is above all others.
    async fn append(&self, action: &AdminAction) -> Result<(), StoreError>;

    /// The acts with numbers below `below`, or all, newest first, at most `limit`.
    async fn newest(&self, below: Option<u64>, limit: usize) -> Result<Vec<AdminAction>, StoreError>;
}
