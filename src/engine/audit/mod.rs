//! Records what operators did, each act once; and of calls that are refused a sample.
//!
//! A call with the request token of an earlier one for the same target, by the same actor, is a repeat and leaves no
//! second line, as long as tokens are kept. Acts are numbered here; one is written after the other.

mod refusals;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use tallystone_domain::Timestamp;
use tallystone_domain::limits::{
    ADMIN_PAGE_ACTS_MAX, ADMIN_REPEATS_MAX, ADMIN_TEXT_BYTES_MAX, OPERATION_KEPT, REFUSED_TEXT_BYTES_MAX,
};
use tallystone_ports::{AdminAction, AdminLog, Clock, StoreError};

use refusals::RefusalSample;

/// An act as a caller did it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OperatorAct {
    pub actor: String,
    pub action: String,
    pub target: String,
    pub part: String,
    pub reason: String,
    pub outcome: String,
    /// The request token of the call; empty without one.
    pub request_token: String,
}

/// The audit of a server. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    log: Arc<dyn AdminLog>,
    clock: Arc<dyn Clock>,
    written: Arc<Mutex<WrittenActs>>,
    refusals: Arc<RefusalSample>,
}

#[derive(Default)]
struct WrittenActs {
    /// The number of the newest act; none before the log was read.
    last: Option<u64>,
    /// The newest calls with a request token, oldest first: their hashes and when they were written down.
    calls: VecDeque<(u64, Timestamp)>,
}

impl WrittenActs {
    /// Whether a call is a repeat. A token that is not kept any more may have been used for another act.
    fn has(&self, call: u64, now: Timestamp) -> bool {
        self.calls.iter().any(|(known, at)| *known == call && now.since(*at) < OPERATION_KEPT)
    }
}

impl Audit {
    /// An audit over a log, which is read with the first act.
    pub fn new(log: Arc<dyn AdminLog>, clock: Arc<dyn Clock>) -> Self {
        Self { log, clock, written: Arc::default(), refusals: Arc::default() }
    }

    /// Writes an act down, unless it is the repeat of one. Texts are cut to a bounded length.
    pub async fn record(&self, act: OperatorAct) -> Result<(), StoreError> {
        let mut written = self.written.lock().await;
        let last = match written.last {
            Some(last) => last,
            None => {
                let newest = self.log.newest(None, ADMIN_REPEATS_MAX).await?;
                let calls = newest.iter().rev().map(|act| (act.request, act.time));
                written.calls = calls.filter(|(call, _)| *call != 0).collect();
                newest.first().map_or(0, |act| act.number)
            }
        };
        written.last = Some(last);
        let (call, now) = (call_of(&act), self.clock.now());
        if call != 0 && written.has(call, now) {
            return Ok(());
        }
        let number = last + 1;
        self.log.append(&numbered(act, number, call, now)).await?;
        written.last = Some(number);
        if call != 0 {
            written.calls.push_back((call, now));
            if written.calls.len() > ADMIN_REPEATS_MAX {
                written.calls.pop_front();
            }
        }
        Ok(())
    }

    /// Writes down that a call was refused, or that an act had no effect: the first of an actor, a call and an outcome
    /// in a minute, and at most `REFUSALS_WRITTEN_MAX` in all. Of the others the next line tells the number. Its texts
    /// are cut short, since callers choose them.
    pub async fn record_refusal(&self, refused: OperatorAct) -> Result<(), StoreError> {
        let Some(unwritten) = self.refusals.note(&refused, self.clock.elapsed()) else { return Ok(()) };
        let short = |text| cut(text, REFUSED_TEXT_BYTES_MAX);
        let OperatorAct { actor, action, target, part, reason, outcome, request_token: _ } = refused;
        let part = short(part);
        let part = match (unwritten, part.is_empty()) {
            (0, _) => part,
            (more, true) => format!("and {more} more in the minute before"),
            (more, false) => format!("{part}, and {more} more in the minute before"),
        };
        let (target, reason) = (short(target), short(reason));
        // Without its token: what had no effect is no repeat, and takes no place of one.
        let request_token = String::new();
        self.record(OperatorAct { actor, action, target, part, reason, outcome, request_token }).await
    }

    /// The acts with numbers below `below` whose target begins with a prefix, newest first, and whether there may be
    /// more. Looks at a bounded number of acts, so a page may be short.
    pub async fn list(
        &self,
        target_prefix: &str,
        below: Option<u64>,
        limit: usize,
    ) -> Result<(Vec<AdminAction>, Option<u64>), StoreError> {
        let looked = if target_prefix.is_empty() { limit } else { ADMIN_PAGE_ACTS_MAX };
        let acts = self.log.newest(below, looked).await?;
        let end = acts.last().filter(|_| acts.len() == looked).map(|act| act.number);
        let mut found: Vec<AdminAction> =
            acts.into_iter().filter(|act| act.target.starts_with(target_prefix)).take(limit + 1).collect();
        if found.len() > limit {
            found.truncate(limit);
            let next = found.last().map(|act| act.number);
            return Ok((found, next));
        }
        Ok((found, end))
    }
}

/// The hash by which a repeat of a call of its actor is known; 0 for a call without a request token.
fn call_of(act: &OperatorAct) -> u64 {
    if act.request_token.is_empty() {
        return 0;
    }
    let parts = [&act.actor, &act.action, &act.target, &act.part, &act.request_token, &act.outcome];
    let text: Vec<String> = parts.map(|part| format!("{}:{part}", part.len())).into();
    xxh3_64(text.concat().as_bytes()).max(1)
}

fn numbered(act: OperatorAct, number: u64, request: u64, time: Timestamp) -> AdminAction {
    let OperatorAct { actor, action, target, part, reason, outcome, request_token: _ } = act;
    let cut = |text| cut(text, ADMIN_TEXT_BYTES_MAX);
    let (actor, action, target) = (cut(actor), cut(action), cut(target));
    AdminAction {
        number,
        time,
        actor,
        action,
        target,
        part: cut(part),
        reason: cut(reason),
        outcome: cut(outcome),
        request,
    }
}

/// The start of a text.
fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}
