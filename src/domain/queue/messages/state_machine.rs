//! The states of a message and the single table of transitions, as data.
//!
//! Every change of state is a row of `TABLE`: `next_state` looks a row up, and a trigger without a row is refused with
//! the current state. Each applied row increments the message's version and adds one record. The states are those of
//! Netflix's Timestone.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MessageState {
    /// Not served before its invisibility ends.
    Invisible,
    /// Ready to be served.
    Pending,
    /// Leased to a worker.
    Running,
    /// Finished by its worker.
    Completed,
    /// Canceled by a request, by a purge or by the end of its TTL.
    Canceled,
    /// Out of attempts.
    Errored,
}

impl MessageState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Invisible, Self::Pending, Self::Running, Self::Completed, Self::Canceled, Self::Errored];

    /// Returns whether only retention, a purge, a redrive, a discard or a late completion can still change the message.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Canceled | Self::Errored)
    }
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invisible => "invisible",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Canceled => "canceled",
            Self::Errored => "errored",
        })
    }
}

/// The cause of a change: a command or the clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trigger {
    /// A message is added.
    Enqueue,
    /// Clock: the invisibility ended.
    WindowOver,
    /// A worker leases the message.
    Dequeue,
    /// The worker finished the message.
    Complete,
    /// The worker requests another lease duration, counted from now.
    Extend,
    /// The worker gives the message up for good.
    Cancel,
    /// Another caller cancels the message.
    CancelMessage,
    /// The worker could not finish the message.
    Fail,
    /// The worker did not begin the message.
    Release,
    /// Clock, or an extension by 0: the lease ended.
    LeaseOver,
    /// The worker of an expired lease finished the message after all.
    LateComplete,
    /// The queue is emptied: of messages that wait, or of those that are over.
    Purge,
    /// Clock: the TTL ended without a lease.
    TtlOver,
    /// The priority or the visibility changed.
    Update,
    /// An errored message gets new attempts.
    Redrive,
    /// An errored message is discarded.
    Discard,
    /// Clock: the retention of the result ended.
    RetentionOver,
}

/// The condition of a row beyond the message's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// No condition.
    Always,
    /// The command leaves an invisibility that has not ended.
    Delayed,
    /// A cancellation of the running message was requested.
    CancelRequested,
    /// No cancellation of the running message was requested.
    NoCancelRequested,
    /// Another attempt is allowed.
    AttemptsLeft,
    /// Another attempt is allowed, and the command leaves an invisibility that has not ended.
    AttemptsLeftAndDelayed,
    /// A release still returns its attempt.
    ReleasesLeft,
    /// The last lease expired and no lease followed.
    LeaseExpired,
}

impl Guard {
    /// All guards.
    pub const ALL: [Self; 8] = [
        Self::Always,
        Self::Delayed,
        Self::CancelRequested,
        Self::NoCancelRequested,
        Self::AttemptsLeft,
        Self::AttemptsLeftAndDelayed,
        Self::ReleasesLeft,
        Self::LeaseExpired,
    ];
}

/// One row. Among the rows of a state and trigger, the first whose guard holds applies.
struct TransitionRow {
    from: Option<MessageState>,
    trigger: Trigger,
    guard: Guard,
    to: Option<MessageState>,
}

const fn row(from: Option<MessageState>, trigger: Trigger, guard: Guard, to: Option<MessageState>) -> TransitionRow {
    TransitionRow { from, trigger, guard, to }
}

use Guard::{
    Always, AttemptsLeft, AttemptsLeftAndDelayed, CancelRequested, Delayed, LeaseExpired, NoCancelRequested,
    ReleasesLeft,
};
const INVISIBLE: Option<MessageState> = Some(MessageState::Invisible);
const PENDING: Option<MessageState> = Some(MessageState::Pending);
const RUNNING: Option<MessageState> = Some(MessageState::Running);
const COMPLETED: Option<MessageState> = Some(MessageState::Completed);
const CANCELED: Option<MessageState> = Some(MessageState::Canceled);
const ERRORED: Option<MessageState> = Some(MessageState::Errored);

/// Shards store how often they applied each row under its index. New rows go to the end, and no row is removed.
const TABLE: &[TransitionRow] = &[
    row(None, Trigger::Enqueue, Delayed, INVISIBLE),
    row(None, Trigger::Enqueue, Always, PENDING),
    row(INVISIBLE, Trigger::WindowOver, Always, PENDING),
    row(PENDING, Trigger::Dequeue, AttemptsLeft, RUNNING),
    row(RUNNING, Trigger::Complete, Always, COMPLETED),
    row(RUNNING, Trigger::Extend, Always, RUNNING),
    row(RUNNING, Trigger::Cancel, Always, CANCELED),
    row(RUNNING, Trigger::CancelMessage, NoCancelRequested, RUNNING),
    row(RUNNING, Trigger::LeaseOver, CancelRequested, CANCELED),
    row(RUNNING, Trigger::LeaseOver, AttemptsLeft, PENDING),
    row(RUNNING, Trigger::LeaseOver, Always, ERRORED),
    row(RUNNING, Trigger::Fail, CancelRequested, CANCELED),
    row(RUNNING, Trigger::Fail, AttemptsLeftAndDelayed, INVISIBLE),
    row(RUNNING, Trigger::Fail, AttemptsLeft, PENDING),
    row(RUNNING, Trigger::Fail, Always, ERRORED),
    row(RUNNING, Trigger::Release, CancelRequested, CANCELED),
    row(RUNNING, Trigger::Release, ReleasesLeft, PENDING),
    row(RUNNING, Trigger::Release, AttemptsLeft, PENDING),
    row(RUNNING, Trigger::Release, Always, ERRORED),
    row(INVISIBLE, Trigger::LateComplete, LeaseExpired, COMPLETED),
    row(PENDING, Trigger::LateComplete, LeaseExpired, COMPLETED),
    row(ERRORED, Trigger::LateComplete, LeaseExpired, COMPLETED),
    row(INVISIBLE, Trigger::CancelMessage, Always, CANCELED),
    row(PENDING, Trigger::CancelMessage, Always, CANCELED),
    row(INVISIBLE, Trigger::Purge, Always, CANCELED),
    row(PENDING, Trigger::Purge, Always, CANCELED),
    row(INVISIBLE, Trigger::TtlOver, Always, CANCELED), // of messages that earlier builds stored
    row(PENDING, Trigger::TtlOver, Always, CANCELED),
    row(INVISIBLE, Trigger::Update, Delayed, INVISIBLE),
    row(INVISIBLE, Trigger::Update, Always, PENDING),
    row(PENDING, Trigger::Update, Delayed, INVISIBLE),
    row(PENDING, Trigger::Update, Always, PENDING),
    row(ERRORED, Trigger::Redrive, Always, PENDING),
    row(ERRORED, Trigger::Discard, Always, None),
    row(COMPLETED, Trigger::RetentionOver, Always, None),
    row(CANCELED, Trigger::RetentionOver, Always, None),
    row(ERRORED, Trigger::RetentionOver, Always, None),
    row(COMPLETED, Trigger::Purge, Always, None),
    row(CANCELED, Trigger::Purge, Always, None),
];

/// The inputs of the guards.
#[derive(Clone, Copy, Default, Debug)]
pub struct TransitionInputs {
    /// The state; `None` for a message that does not exist.
    pub state: Option<MessageState>,
    /// Whether the command leaves an invisibility that has not ended.
    pub delayed: bool,
    /// Whether another caller requested cancellation of the running message.
    pub cancel_requested: bool,
    /// Whether another attempt is allowed.
    pub attempts_left: bool,
    /// Whether a release still returns its attempt.
    pub releases_left: bool,
    /// Whether the last lease expired and no lease followed.
    pub lease_expired: bool,
}

impl TransitionInputs {
    fn satisfies(&self, guard: Guard) -> bool {
        match guard {
            Always => true,
            Delayed => self.delayed,
            CancelRequested => self.cancel_requested,
            NoCancelRequested => !self.cancel_requested,
            AttemptsLeft => self.attempts_left,
            AttemptsLeftAndDelayed => self.attempts_left && self.delayed,
            ReleasesLeft => self.releases_left,
            LeaseExpired => self.lease_expired,
        }
    }
}

/// The number of rows of the table.
pub const ROWS: usize = TABLE.len();

/// A row that applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApplicableRow {
    /// Its number, under which shards store how often they applied it.
    pub number: usize,
    /// The next state; none for removal.
    pub to: Option<MessageState>,
}

/// Finds the row for a message and a trigger; `None` if the table has none.
pub fn find_row(facts: &TransitionInputs, trigger: Trigger) -> Option<ApplicableRow> {
    let mut rows = TABLE.iter().enumerate().filter(|(_, row)| row.from == facts.state && row.trigger == trigger);
    rows.find(|(_, row)| facts.satisfies(row.guard)).map(|(number, row)| ApplicableRow { number, to: row.to })
}

/// Returns the next state, `Some(None)` for removal; `None` if the table has no such row.
pub fn next_state(facts: &TransitionInputs, trigger: Trigger) -> Option<Option<MessageState>> {
    find_row(facts, trigger).map(|row| row.to)
}

/// A row without its guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowShape {
    /// The previous state.
    pub from: Option<MessageState>,
    /// The trigger.
    pub trigger: Trigger,
    /// The next state.
    pub to: Option<MessageState>,
    /// Whether it gives an attempt back.
    pub returns_attempt: bool,
}

/// The rows by their numbers.
pub fn row_shapes() -> impl Iterator<Item = RowShape> {
    TABLE.iter().map(|row| RowShape {
        from: row.from,
        trigger: row.trigger,
        to: row.to,
        returns_attempt: row.guard == ReleasesLeft,
    })
}

/// The rows by their numbers, each with its guard, for stores that apply the table themselves.
pub fn guarded_rows() -> impl Iterator<Item = (RowShape, Guard)> {
    row_shapes().zip(TABLE.iter().map(|row| row.guard))
}

/// Iterates over the rows without their guards.
#[cfg(test)]
pub fn rows() -> impl Iterator<Item = (Option<MessageState>, Trigger, Option<MessageState>)> {
    TABLE.iter().map(|row| (row.from, row.trigger, row.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in another notation, one row per trigger: the states in which it may begin and to which it may lead.
    const LEGAL: &[(Trigger, &str, &str)] = &[
        (Trigger::Enqueue, "-", "IP"),
        (Trigger::WindowOver, "I", "P"),
        (Trigger::Dequeue, "P", "R"),
        (Trigger::Complete, "R", "C"),
        (Trigger::Extend, "R", "R"),
        (Trigger::Cancel, "R", "X"),
        (Trigger::CancelMessage, "IPR", "RX"),
        (Trigger::Fail, "R", "IPXE"),
        (Trigger::Release, "R", "PXE"),
        (Trigger::LeaseOver, "R", "PXE"),
        (Trigger::LateComplete, "IPE", "C"),
        (Trigger::Purge, "IPCX", "X-"),
        (Trigger::TtlOver, "IP", "X"),
        (Trigger::Update, "IP", "IP"),
        (Trigger::Redrive, "E", "P"),
        (Trigger::Discard, "E", "-"),
        (Trigger::RetentionOver, "CXE", "-"),
    ];

    fn letter(state: Option<MessageState>) -> char {
        match state {
            None => '-',
            Some(MessageState::Invisible) => 'I',
            Some(MessageState::Pending) => 'P',
            Some(MessageState::Running) => 'R',
            Some(MessageState::Completed) => 'C',
            Some(MessageState::Canceled) => 'X',
            Some(MessageState::Errored) => 'E',
        }
    }

    #[test]
    fn every_state_and_trigger_is_legal_or_refused_as_listed() {
        for &(trigger, from, to) in LEGAL {
            let mut reached = String::new();
            for state in MessageState::ALL.map(Some).into_iter().chain([None]) {
                for bits in 0..32_u8 {
                    let facts = TransitionInputs {
                        state,
                        delayed: bits & 1 != 0,
                        cancel_requested: bits & 2 != 0,
                        attempts_left: bits & 4 != 0,
                        releases_left: bits & 8 != 0,
                        lease_expired: bits & 16 != 0,
                    };
                    let Some(target) = next_state(&facts, trigger) else { continue };
                    assert!(from.contains(letter(state)), "{trigger:?} from {state:?}");
                    reached.push(letter(target));
                }
            }
            let missing = |letters: &str, found: &str| letters.chars().any(|l| !found.contains(l));
            assert!(!missing(to, &reached) && !missing(&reached, to), "{trigger:?} leads to {reached}");
        }
    }

    #[test]
    fn a_requested_cancel_outweighs_attempts_and_releases() {
        let facts = TransitionInputs {
            state: Some(MessageState::Running),
            delayed: true,
            cancel_requested: true,
            attempts_left: true,
            releases_left: true,
            lease_expired: false,
        };
        for trigger in [Trigger::LeaseOver, Trigger::Fail, Trigger::Release] {
            assert_eq!(next_state(&facts, trigger), Some(Some(MessageState::Canceled)), "{trigger:?}");
        }
        assert_eq!(next_state(&facts, Trigger::Complete), Some(Some(MessageState::Completed)));
    }
}
