//! The parts of a command that its checks refuse, whichever of the modules of a queue makes the check.

/// The part of a command that is out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidCommandPart {
    /// The id is not 1 to 64 bytes, or begins `m.`.
    MessageId,
    /// The routing value is not 1 to 256 bytes.
    Routing,
    /// Too many pairs, or too long ones, or a key twice.
    Metadata,
    /// The payload is larger than 32 KiB.
    Payload,
    /// The payload is larger than this, which is all that the queue takes, in bytes.
    PayloadOfQueue(u32),
    /// The metadata is larger than this, which is all that the queue takes, in bytes.
    MetadataOfQueue(u32),
    /// The priority is beyond ±2^53.
    Priority,
    /// The queue has no such class.
    PriorityClass,
    /// The window is longer than 10 years.
    Invisibility,
    /// The lease is not 1 s to 12 h.
    Lease,
    /// The attempts are not 1 to 10,000.
    Attempts,
    /// The TTL is longer than 10 years.
    Ttl,
    /// The token's time is more than 60 s ahead.
    TokenTime,
    /// The number of messages is 0 or beyond its bound.
    Count,
    /// The metadata lacks the exclusivity key, its value is not 1 to 256 bytes, or another value routed the message.
    ExclusivityValue,
    /// An exclusive queue takes no shard key.
    ShardKey,
    /// The limit is beyond 10,000.
    ValueLimit,
    /// Only an exclusive queue has limits of values.
    NotExclusive,
    /// Not 1 to 4 keys of 1 to 64 bytes.
    Shape,
    /// The session's lease is not 1 s to 12 h.
    SessionLease,
    /// The number of a session's call is 0.
    Sequence,
    /// The number of a try is 0.
    Try,
    /// A call confirms the response of itself or of a later call.
    Received,
    /// The session only replays.
    Session,
    /// More than 4 pairs, too long ones, or a key twice.
    Filter,
    /// The error's text is longer than 1 KiB.
    ErrorText,
    /// The messages of a shard are counted under too many different sets of metadata keys.
    CountedKeySets,
    /// The settings contradict each other or leave their ranges.
    Settings,
}
