//! Calls of functions on what all servers of the store share: the catalog, members, operations, sessions.
//!
//! All of it lies under one hash tag, in one slot of a cluster. A call names one key, which never exists: while the
//! slot moves, Redis refuses the call before the function runs.

use bytes::Bytes;

use super::functions::{DENIED, RedisQueues, failure_of};
use super::keys::NO_KEY;
use super::packed::PackedBytes;
use super::wire::{WireCommand, WireFailure, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_ports::{StoreError, StoreErrorKind};

impl RedisQueues {
    /// Calls a function on what servers share.
    pub(super) async fn call_store(
        &self,
        (function, op): (&str, &'static str),
        arguments: Vec<Vec<u8>>,
    ) -> Result<StoreReply, StoreError> {
        let name = if function == "look" { "FCALL_RO" } else { "FCALL" };
        let function = self.library.function(function).into_bytes();
        let mut all = vec![function, b"1".to_vec(), NO_KEY.as_bytes().to_vec()];
        all.extend(arguments);
        let answer =
            self.wire.send(NO_KEY.as_bytes(), vec![WireCommand { name, arguments: all }]).await.into_iter().next();
        match answer {
            Some(Ok(reply)) => StoreReply::of(reply, op),
            Some(Err(WireFailure::Function { code, text })) if code == DENIED => {
                Err(StoreError::not_applied(StoreErrorKind::Forbidden, op).with_source(text))
            }
            // The library says so before it writes anything.
            Some(Err(WireFailure::Function { code, text })) if code == "FORMAT" => {
                Err(StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source(text))
            }
            Some(Err(failure)) => Err(failure_of(failure, op)),
            None => Err(StoreError::unknown(StoreErrorKind::Corrupt, op)),
        }
    }

    /// A plain command on one of the keys that servers share.
    pub(super) async fn on_store(
        &self,
        (name, op): (&'static str, &'static str),
        arguments: Vec<Vec<u8>>,
    ) -> Result<WireReply, StoreError> {
        self.ask(NO_KEY.as_bytes(), WireCommand { name, arguments }, op).await
    }

    /// The data on the caller that a step of the directory carries: its time, and how far that may be behind.
    pub(super) fn packed_time(&self) -> Vec<u8> {
        let (now, _) = self.caller_time();
        PackedBytes::default().time(now).duration(self.options.clock_slack).0
    }
}

/// The parts of a reply, taken one after the other.
pub struct StoreReply {
    parts: std::vec::IntoIter<WireReply>,
    op: &'static str,
}

impl StoreReply {
    fn of(reply: WireReply, op: &'static str) -> Result<Self, StoreError> {
        match reply {
            WireReply::List(parts) => Ok(Self { parts: parts.into_iter(), op }),
            WireReply::Nil | WireReply::Int(_) | WireReply::Bytes(_) => Err(unreadable("it is no list", op)),
        }
    }

    /// Whether all parts were taken.
    pub fn is_empty(&self) -> bool {
        self.parts.len() == 0
    }

    /// The next part, a number.
    pub fn int(&mut self) -> Result<i64, StoreError> {
        match self.parts.next() {
            Some(WireReply::Int(number)) => Ok(number),
            Some(_) => Err(unreadable("a part is no number", self.op)),
            None => Err(unreadable("it is too short", self.op)),
        }
    }

    /// The next part, a text.
    pub fn bytes(&mut self) -> Result<Bytes, StoreError> {
        match self.parts.next() {
            Some(WireReply::Bytes(bytes)) => Ok(bytes),
            Some(_) => Err(unreadable("a part is no text", self.op)),
            None => Err(unreadable("it is too short", self.op)),
        }
    }
}

/// The texts of a list.
pub fn texts_of(reply: WireReply, op: &'static str) -> Result<Vec<Bytes>, StoreError> {
    let mut parts = StoreReply::of(reply, op)?;
    let mut texts = Vec::with_capacity(parts.parts.len());
    while !parts.is_empty() {
        texts.push(parts.bytes()?);
    }
    Ok(texts)
}

/// A text, if there is one.
pub fn text_of(reply: WireReply, op: &'static str) -> Result<Option<Bytes>, StoreError> {
    match reply {
        WireReply::Nil => Ok(None),
        WireReply::Bytes(bytes) => Ok(Some(bytes)),
        WireReply::Int(_) | WireReply::List(_) => Err(unreadable("it is no text", op)),
    }
}

/// A reply that nobody can read: if it was a step, it was done.
pub fn unreadable(why: &str, op: &'static str) -> StoreError {
    step_unreadable(CorruptValue::new("reply of a function", why), op)
}

/// The same, with its fault.
pub fn step_unreadable(fault: CorruptValue, op: &'static str) -> StoreError {
    StoreError::unknown(StoreErrorKind::Corrupt, op).with_source(fault)
}
