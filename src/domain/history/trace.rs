//! The trace of a message, assembled from its rows: page by page, with bounded memory.
//!
//! A row is *undone* if the shard was set back to a time before it. Positions and versions of a later epoch continue
//! where the shard was set back to. So a row is undone in each of these cases:
//!
//! - a row of the same message in a later epoch has no greater position, or no greater version;
//! - the shard is in a later epoch, and its newest position is below that of the row;
//! - the shard is in a later epoch, and the message has a lower version there.
//!
//! Undone rows are shown, and neither attempts nor times nor versions count them.

use std::time::Duration;

use crate::history::HistoryGap;
use crate::queue::messages::message::{AttemptError, Fence};
use crate::queue::transition::{HistoryRow, RowPosition, Transition};
use crate::queue::{MessageState, Trigger};
use crate::time::Timestamp;

/// A row as a trace shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedRow {
    pub transition: Transition,
    /// The time until the next row that counts; none in the last one and in undone rows.
    pub time_in_state: Option<Duration>,
    /// Whether the shard was set back to a time before it.
    pub undone: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    Completed,
    /// The lease expired, and the worker completed the message after that.
    CompletedLate,
    Failed,
    Released,
    Expired,
    Canceled,
}

/// An attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedAttempt {
    pub number: u32,
    /// The start of its lease; none if that row is missing.
    pub leased_at: Option<Timestamp>,
    /// The end of its lease, or of the work if the worker completed it late; none while it runs, or if that row is
    /// missing.
    pub ended_at: Option<Timestamp>,
    pub end: Option<AttemptEnd>,
    /// The label of the worker's session.
    pub worker: Option<Box<str>>,
    /// The error that its worker reported.
    pub error: Option<Box<AttemptError>>,
}

/// The place where the next page of a life begins, with what it needs to know of the pages before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeCursor {
    /// The last row of the pages before; none before the first.
    pub after: Option<RowPosition>,
    /// The newest version that counts.
    pub version: u64,
    /// Whether no version up to that one is missing.
    pub is_contiguous: bool,
    /// The row of the last lease, unless its attempt is over for good.
    pub lease: Option<OpenLease>,
}

/// A lease whose attempt a later page may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenLease {
    pub row: RowPosition,
    /// Whether the lease expired, so that only a late completion may follow.
    pub expired: bool,
}

impl Default for LifeCursor {
    fn default() -> Self {
        Self { after: None, version: 0, is_contiguous: true, lease: None }
    }
}

/// The rows of one page of a life.
#[derive(Clone, Copy, Debug)]
pub struct LifeRows<'a> {
    /// The rows, by position.
    pub rows: &'a [HistoryRow],
    /// The row after them; none if the life ends with them.
    pub next: Option<&'a HistoryRow>,
    /// The row that the cursor names as the last lease, if it is still there.
    pub lease: Option<&'a HistoryRow>,
    /// The place where the rows begin.
    pub from: LifeCursor,
}

/// One page of a life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifePage {
    pub rows: Vec<TracedRow>,
    /// The attempts that end on this page, and on the last page the running one. An attempt that expired on an earlier
    /// page is there again if its worker completed it late.
    pub attempts: Vec<TracedAttempt>,
    /// The newest version that counts, up to the end of this page.
    pub version: u64,
    /// Whether no version up to that one is missing.
    pub is_contiguous: bool,
    /// The place where the next page begins; none after the last.
    pub next: Option<LifeCursor>,
}

/// The known facts about the epochs after that of a row.
#[derive(Clone, Default, Debug)]
pub struct LaterEpochs {
    /// The first row of the message in each epoch, by epoch.
    pub first_rows: Vec<Transition>,
    /// The newest place of the shard, if it is known.
    pub shard: Option<RowPosition>,
    /// The version of the message in the shard, if it is there.
    pub version: Option<u64>,
}

impl LaterEpochs {
    /// Whether a row is undone. O(epochs).
    pub fn undo(&self, row: &Transition) -> bool {
        let own = row.detail.position;
        let is_before = |first: &Transition| {
            let later = first.detail.position;
            later.epoch > own.epoch && (later.position <= own.position || first.version <= row.version)
        };
        let is_above = |shard: RowPosition| {
            let is_newer = self.version.is_some_and(|version| version < row.version);
            shard.epoch > own.epoch && (shard.position < own.position || is_newer)
        };
        self.first_rows.iter().any(is_before) || self.shard.is_some_and(is_above)
    }

    /// The time of the first row that counts in a later epoch than this.
    fn next_after(&self, epoch: u32) -> Option<Timestamp> {
        let later = self.first_rows.iter().find(|first| first.detail.position.epoch > epoch && !self.undo(first));
        later.map(|first| first.at)
    }
}

/// Assembles one page of a life. O(rows).
pub fn assemble(page: LifeRows, later: &LaterEpochs) -> LifePage {
    let shown = page.rows.iter().chain(page.next);
    let is_undone: Vec<bool> = shown.map(|row| later.undo(&row.transition)).collect();
    let mut attempts = AttemptLog::continuing(page.from.lease, page.lease);
    let (mut version, mut is_contiguous) = (page.from.version, page.from.is_contiguous);
    let mut rows = Vec::with_capacity(page.rows.len());
    for (at, row) in page.rows.iter().enumerate() {
        let transition = row.transition.clone();
        if is_undone[at] {
            rows.push(TracedRow { transition, time_in_state: None, undone: true });
            continue;
        }
        let following = page.rows.iter().chain(page.next).zip(&is_undone).skip(at + 1).find(|(_, undone)| !**undone);
        let epoch = row.position().epoch;
        let next = following.map(|(next, _)| next.transition.at).or_else(|| later.next_after(epoch));
        is_contiguous &= transition.version == version + 1;
        version = transition.version;
        attempts.take(&transition);
        let time_in_state = next.map(|next| next.since(transition.at));
        rows.push(TracedRow { transition, time_in_state, undone: false });
    }
    let goes_on = page.next.is_some();
    let lease = attempts.end_page(goes_on);
    let after = page.rows.last().map(HistoryRow::position).or(page.from.after);
    let next = goes_on.then_some(LifeCursor { after, version, is_contiguous, lease });
    LifePage { rows, attempts: attempts.done, version, is_contiguous, next }
}

/// The other facts about a message whose life has been read to its end.
#[derive(Clone, Copy, Debug)]
pub struct LifeFacts<'a> {
    /// Its version in the queue, if it is there; read before the rows.
    pub version: Option<u64>,
    /// The gaps of the queue.
    pub gaps: &'a [HistoryGap],
}

impl LifePage {
    /// Whether no row is missing from the enqueue to the end of this page. A row is missing after the last one if the
    /// queue knows a newer version, or if the message is not in the queue any more and a gap follows. O(gaps).
    pub fn is_complete(&self, facts: LifeFacts) -> bool {
        let Some(last) = self.rows.last().filter(|_| self.is_contiguous && self.version > 0) else { return false };
        if self.next.is_some() {
            return true;
        }
        let (place, shard) = (last.transition.detail.position, last.transition.key.shard);
        let follows = |gap: &HistoryGap| {
            let end = RowPosition { epoch: gap.epoch, position: gap.to_position };
            gap.shard == shard && end > place
        };
        let is_removed = !last.undone && last.transition.to.is_none();
        match facts.version {
            Some(version) => self.version >= version,
            None => is_removed || !facts.gaps.iter().any(follows),
        }
    }
}

/// The attempts of the rows so far.
struct AttemptLog {
    done: Vec<TracedAttempt>,
    /// The last lease: it lasts, or has expired and may be completed late.
    last: Option<LastLease>,
}

struct LastLease {
    attempt: TracedAttempt,
    fence: Option<Fence>,
    row: RowPosition,
    /// Whether its attempt is on an earlier page.
    is_told: bool,
}

impl LastLease {
    fn of(row: &Transition) -> Self {
        let attempt = TracedAttempt {
            number: row.detail.attempt,
            leased_at: Some(row.at),
            ended_at: None,
            end: None,
            worker: row.detail.worker.clone(),
            error: None,
        };
        Self { attempt, fence: row.detail.fence, row: row.detail.position, is_told: false }
    }
}

impl AttemptLog {
    fn continuing(open: Option<OpenLease>, row: Option<&HistoryRow>) -> Self {
        let last = open.zip(row).map(|(open, row)| {
            let mut last = LastLease::of(&row.transition);
            if open.expired {
                (last.attempt.end, last.is_told) = (Some(AttemptEnd::Expired), true);
            }
            last
        });
        Self { done: Vec::new(), last }
    }

    fn take(&mut self, row: &Transition) {
        if row.trigger == Trigger::Dequeue {
            self.finish_last();
            self.last = Some(LastLease::of(row));
        } else if let Some(end) = end_of(row) {
            self.end(row, end);
        }
    }

    /// Ends the attempt of a row: the last one, or one whose lease is missing.
    fn end(&mut self, row: &Transition, end: AttemptEnd) {
        let is_same = |last: &LastLease| row.detail.fence.is_none() || last.fence == row.detail.fence;
        let was_running = |last: &LastLease| last.attempt.end.is_none();
        let is_late = end == AttemptEnd::CompletedLate;
        let mut ended = match self.last.take() {
            Some(last) if is_same(&last) && was_running(&last) != is_late => last,
            other => {
                self.last = other;
                self.finish_last();
                let mut missing = LastLease::of(row);
                missing.attempt.leased_at = None;
                missing
            }
        };
        ended.attempt.ended_at = Some(row.at);
        ended.attempt.end = Some(end);
        ended.attempt.error = row.detail.error.clone().filter(|_| end == AttemptEnd::Failed);
        if end == AttemptEnd::Expired && ended.attempt.leased_at.is_some() {
            self.last = Some(ended);
        } else {
            self.done.push(ended.attempt);
        }
    }

    /// No row can change the last attempt any more.
    fn finish_last(&mut self) {
        self.done.extend(self.last.take().filter(|last| !last.is_told).map(|last| last.attempt));
    }

    /// Ends a page. Returns the lease that a later page may end.
    fn end_page(&mut self, goes_on: bool) -> Option<OpenLease> {
        let open = self.last.as_ref().map(|last| OpenLease { row: last.row, expired: last.attempt.end.is_some() });
        if !goes_on || open.is_some_and(|open| open.expired) {
            self.finish_last();
        }
        open.filter(|_| goes_on)
    }
}

/// How a row ends an attempt, if it does.
fn end_of(row: &Transition) -> Option<AttemptEnd> {
    match row.trigger {
        Trigger::Complete => Some(AttemptEnd::Completed),
        Trigger::LateComplete => Some(AttemptEnd::CompletedLate),
        Trigger::Fail => Some(AttemptEnd::Failed),
        Trigger::Release => Some(AttemptEnd::Released),
        Trigger::LeaseOver => Some(AttemptEnd::Expired),
        Trigger::Cancel => Some(AttemptEnd::Canceled),
        Trigger::CancelMessage | Trigger::Purge | Trigger::TtlOver => {
            let ends = row.from == Some(MessageState::Running) && row.to != Some(MessageState::Running);
            ends.then_some(AttemptEnd::Canceled)
        }
        Trigger::Enqueue
        | Trigger::WindowOver
        | Trigger::Dequeue
        | Trigger::Extend
        | Trigger::Update
        | Trigger::Redrive
        | Trigger::Discard
        | Trigger::RetentionOver => None,
    }
}
