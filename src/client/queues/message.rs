//! Messages as an application builds them.

use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use tallystone_proto::queue::v1 as pb;

/// A payload that cannot be serialized to JSON, or parsed as a value of its type.
#[derive(Debug, thiserror::Error)]
#[error("the payload is not a valid value of its type: {0}")]
pub struct BadPayload(#[from] serde_json::Error);

/// A message whose payload is a value of one type.
pub struct Message<T> {
    wire: pb::Message,
    payload: PhantomData<fn(T) -> T>,
}

impl<T: Serialize> Message<T> {
    /// Creates a message with this value.
    pub fn new(value: &T) -> Result<Self, BadPayload> {
        let wire = pb::Message { payload: serde_json::to_vec(value)?, ..pb::Message::default() };
        Ok(Self { wire, payload: PhantomData })
    }
}

impl<T> Message<T> {
    /// Sets the id, 1 to 64 bytes: an enqueue with the same id and content is a repeat. By default a UUIDv7.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.wire.message_id = id.into();
        self
    }

    /// Sets the priority; lower is served first. By default the time at which the message becomes visible, in
    /// milliseconds.
    #[must_use]
    pub fn priority(mut self, priority: i64) -> Self {
        self.wire.priority = Some(priority);
        self
    }

    /// Adds a metadata pair; at most 4.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.wire.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets the invisibility, at most 10 years.
    #[must_use]
    pub fn invisible_for(mut self, time: Duration) -> Self {
        (self.wire.invisibility, self.wire.visible_time) = (Some(duration(time)), None);
        self
    }

    /// Sets the time from which the message is visible, at most 10 years from now; the past means at once.
    #[must_use]
    pub fn visible_at(mut self, time: SystemTime) -> Self {
        (self.wire.visible_time, self.wire.invisibility) = (Some(time.into()), None);
        self
    }

    /// Sets the maximum number of attempts.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.wire.max_attempts = Some(i32::try_from(attempts).unwrap_or(i32::MAX));
        self
    }

    /// Sets the time to live: the message is canceled then unless it is leased.
    #[must_use]
    pub fn ttl(mut self, time: Duration) -> Self {
        self.wire.ttl = Some(duration(time));
        self
    }

    /// Sets the key that selects the shard, in place of the id.
    #[must_use]
    pub fn shard_key(mut self, key: impl Into<String>) -> Self {
        self.wire.shard_key = key.into();
        self
    }

    /// The message in the protocol. A message without an id gets one here and keeps it over all retries.
    pub(super) fn into_proto(mut self, name: impl FnOnce() -> String) -> pb::Message {
        if self.wire.message_id.is_empty() {
            self.wire.message_id = name();
        }
        self.wire
    }
}

/// Converts a duration to the protocol.
pub(super) fn duration(time: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0) }
}

/// Converts a duration from the protocol; an invalid one counts as zero.
pub(super) fn time_of(sent: Option<prost_types::Duration>) -> Duration {
    sent.and_then(|sent| Duration::try_from(sent).ok()).unwrap_or_default()
}
