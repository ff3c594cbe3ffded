//! The flows of a shard, as sums of its row counts.
//!
//! A shard counts how often it applied each row of the transition table. Every flow is a sum of such counts, and so is
//! the depth of each state. So depth and flows cannot disagree, and a recount of the messages checks both.

use crate::queue::messages::state_machine::{self, MessageState, Trigger};

/// The number of rows of the transition table.
pub const ROWS: usize = state_machine::ROWS;

/// A kind of event that happens to messages, as a number that only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Messages enqueued.
    Enqueued,
    /// Payload bytes enqueued.
    EnqueuedBytes,
    /// Messages that became ready.
    Ready,
    /// Leases given.
    Dequeued,
    /// Leases given, less those whose release gave the attempt back.
    Attempts,
    /// Leases extended.
    Extended,
    /// Messages completed.
    Completed,
    /// Messages completed after their lease had expired; part of `Completed`.
    CompletedLate,
    /// Attempts that the worker failed.
    Failed,
    /// Leases given back.
    Released,
    /// Leases that expired.
    LeaseExpired,
    /// Messages canceled, for any reason.
    Canceled,
    /// Messages canceled by their TTL.
    CanceledTtl,
    /// Messages canceled by a purge.
    CanceledPurge,
    /// Messages out of attempts.
    Errored,
    /// Errored messages that got new attempts.
    Redriven,
    /// Messages removed after their end.
    Expired,
}

impl Flow {
    /// All flows.
    pub const ALL: [Self; 17] = [
        Self::Enqueued,
        Self::EnqueuedBytes,
        Self::Ready,
        Self::Dequeued,
        Self::Attempts,
        Self::Extended,
        Self::Completed,
        Self::CompletedLate,
        Self::Failed,
        Self::Released,
        Self::LeaseExpired,
        Self::Canceled,
        Self::CanceledTtl,
        Self::CanceledPurge,
        Self::Errored,
        Self::Redriven,
        Self::Expired,
    ];

    /// The name of its counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enqueued => "enqueued",
            Self::EnqueuedBytes => "enqueued_bytes",
            Self::Ready => "ready",
            Self::Dequeued => "dequeued",
            Self::Attempts => "attempts",
            Self::Extended => "extended",
            Self::Completed => "completed",
            Self::CompletedLate => "completed_late",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::LeaseExpired => "lease_expired",
            Self::Canceled => "canceled",
            Self::CanceledTtl => "canceled.ttl",
            Self::CanceledPurge => "canceled.purge",
            Self::Errored => "errored",
            Self::Redriven => "redriven",
            Self::Expired => "expired",
        }
    }

    /// Whether a row of the table counts, and how: 1, 0 or -1.
    fn sign(self, row: &state_machine::RowShape) -> i64 {
        use MessageState::{Canceled, Completed, Errored, Pending};
        let enters = |state| row.to == Some(state) && row.from != Some(state);
        let counts = match self {
            Self::Enqueued => row.trigger == Trigger::Enqueue,
            Self::EnqueuedBytes => false, // counted by size
            Self::Ready => enters(Pending),
            Self::Dequeued => row.trigger == Trigger::Dequeue,
            Self::Attempts => {
                return i64::from(row.trigger == Trigger::Dequeue) - i64::from(row.returns_attempt);
            }
            Self::Extended => row.trigger == Trigger::Extend,
            Self::Completed => enters(Completed),
            Self::CompletedLate => row.trigger == Trigger::LateComplete,
            Self::Failed => row.trigger == Trigger::Fail,
            Self::Released => row.trigger == Trigger::Release,
            Self::LeaseExpired => row.trigger == Trigger::LeaseOver,
            Self::Canceled => enters(Canceled),
            Self::CanceledTtl => row.trigger == Trigger::TtlOver,
            Self::CanceledPurge => row.trigger == Trigger::Purge && enters(Canceled),
            Self::Errored => enters(Errored),
            Self::Redriven => row.trigger == Trigger::Redrive,
            Self::Expired => row.to.is_none(),
        };
        i64::from(counts)
    }

    /// The flow, from the counts of all rows.
    pub fn of(self, rows: &[u64; ROWS]) -> u64 {
        let sum = state_machine::row_shapes().zip(rows).map(|(row, count)| self.sign(&row) * count.cast_signed());
        u64::try_from(sum.sum::<i64>()).unwrap_or(0)
    }
}

/// The change of the depth of a state by all rows.
pub fn depth_change(state: MessageState, rows: &[u64; ROWS]) -> i64 {
    let enters = |row: &state_machine::RowShape| i64::from(row.to == Some(state)) - i64::from(row.from == Some(state));
    state_machine::row_shapes().zip(rows).map(|(row, count)| enters(&row) * count.cast_signed()).sum()
}
