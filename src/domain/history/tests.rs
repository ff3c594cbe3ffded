//! Laws of traces and searches: random lives of messages in a real shard, whose rows must tell what was done.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::history::search::{HistoryMatch, HistoryQuery, QueryTime};
use crate::history::trace::{
    AttemptEnd, LaterEpochs, LifeCursor, LifeFacts, LifePage, LifeRows, TracedAttempt, TracedRow, assemble,
};
use crate::history::{HistoryGap, HistoryTerm};
use crate::queue::command::{Command, Dequeue, FailureReport, MessageUpdate, NewMessage};
use crate::queue::messages::message::{AttemptError, Fence, LeaseToken, MessageHead, MessageKey, MessageRef, Metadata};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::SettleAction;
use crate::queue::setup::settings::{MessageRetryPolicy, Retention};
use crate::queue::shard::restore::{ShardHeader, ShardRestorer};
use crate::queue::transition::{HistoryRow, Transition};
use crate::queue::{MessageState, Reply, Settings, Shard, Trigger};
use crate::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);
const START: Timestamp = Timestamp::from_secs(1_000_000);
/// How many messages a run has.
const MESSAGES: u64 = 4;
const SIGNATURES: [&str; 2] = ["timeout", "refused"];

fn settings() -> Settings {
    Settings {
        default_lease: SECOND,
        max_run_time: 5 * SECOND,
        retry: MessageRetryPolicy { initial: SECOND / 4, factor_percent: 200, max: SECOND, jitter_percent: 0 },
        retention: Retention { completed: 60 * SECOND, canceled: 60 * SECOND, errored: 60 * SECOND },
        dedupe_window: 2 * SECOND,
        dedupe_max_bytes: 64 * 256,
        quota_messages: 60,
        quota_bytes: 4_000,
        count_by_values_max: 2,
        ..Settings::default()
    }
}

/// The record of what was done to a message, as its callers know it.
#[derive(Clone, Default)]
struct Told {
    attempts: Vec<(TracedAttempt, Fence)>,
    /// The signature of the last failure.
    failure: Option<Box<str>>,
}

/// A shard, its rows, and what was done.
struct Run {
    shard: Shard,
    now: Timestamp,
    rows: Vec<HistoryRow>,
    told: BTreeMap<MessageKey, Told>,
    tokens: Vec<LeaseToken>,
}

/// A run at one moment, to which it is set back.
struct Kept {
    header: ShardHeader,
    heads: Vec<MessageHead>,
    told: BTreeMap<MessageKey, Told>,
    tokens: Vec<LeaseToken>,
}

impl Run {
    fn new() -> Self {
        let shard = Shard::new(0, 1, settings()).expect("legal settings");
        let (told, tokens) = (BTreeMap::new(), Vec::new());
        Self { shard, now: START, rows: Vec::new(), told, tokens }
    }

    fn head(&self, key: MessageKey) -> Option<&MessageHead> {
        self.shard.get(&MessageRef::Key(key))
    }

    fn apply(&mut self, command: Command) -> Option<Reply> {
        let applied = self.shard.apply(command, self.now);
        self.rows.extend(self.shard.history_rows(&applied.transitions, None));
        applied.reply.ok()
    }

    /// Ends the attempts of leases that are over without a settlement.
    fn note_expired(&mut self) {
        let (shard, now) = (&self.shard, self.now);
        for (key, told) in &mut self.told {
            let head = shard.get(&MessageRef::Key(*key));
            let held = head.and_then(|head| head.lease).map(|lease| lease.fence);
            let running = told.attempts.iter_mut().filter(|(attempt, _)| attempt.end.is_none());
            for (attempt, _) in running.filter(|(_, fence)| held != Some(*fence)) {
                (attempt.end, attempt.ended_at) = (Some(AttemptEnd::Expired), Some(now));
            }
        }
    }

    /// Does one thing, chosen by two numbers.
    fn step(&mut self, what: u8, which: u16) {
        self.now = Timestamp::from_micros(self.now.micros() + 1 + i64::from(which) * 1_000);
        self.apply(Command::Sweep { max: 256 });
        self.note_expired();
        match what % 10 {
            0 | 1 => self.enqueue(which),
            2..=4 => self.dequeue(),
            5 => self.settle(which, SettleAction::Complete),
            6 => self.settle(which, SettleAction::Fail),
            7 if which.is_multiple_of(2) => self.settle(which, SettleAction::Release),
            7 => self.settle(which, SettleAction::Cancel),
            8 => {
                let token = self.tokens.get(usize::from(which) % self.tokens.len().max(1)).copied();
                let lease = SECOND * u32::from(which % 3);
                token.map(|token| self.apply(Command::Extend { token, lease }));
            }
            _ => self.administer(which),
        }
        self.note_expired();
    }

    fn enqueue(&mut self, which: u16) {
        let id = MessageId::new(&format!("m-{}", u64::from(which) % MESSAGES)).expect("a legal id");
        let invisibility = which.is_multiple_of(3).then_some(SECOND / 2);
        let metadata =
            Metadata::new([("team", if which.is_multiple_of(2) { "red" } else { "blue" })]).expect("legal pairs");
        let message = NewMessage {
            id,
            token_time: None,
            routing: None,
            metadata,
            payload_bytes: 0,
            fingerprint: 0,
            priority: Some(0),
            class: None,
            invisibility,
            visible_at: None,
            lease_duration: None,
            max_attempts: None,
            ttl: None,
        };
        if let Some(Reply::Enqueued { key, .. }) = self.apply(Command::Enqueue(Box::new(message))) {
            self.told.entry(key).or_default();
        }
    }

    fn dequeue(&mut self) {
        let asked = Dequeue { max: 2, worker: Some("w-1".into()), ..Dequeue::default() };
        let Some(Reply::Leases { leases, .. }) = self.apply(Command::Dequeue(asked)) else { return };
        self.note_expired();
        for lease in leases {
            let attempt = TracedAttempt {
                number: lease.attempt_number,
                leased_at: Some(self.now),
                ended_at: None,
                end: None,
                worker: Some("w-1".into()),
                error: None,
            };
            self.tokens.push(lease.token);
            self.told.entry(lease.token.key).or_default().attempts.push((attempt, lease.token.fence));
        }
    }

    fn settle(&mut self, which: u16, verb: SettleAction) {
        let Some(token) = self.tokens.get(usize::from(which) % self.tokens.len().max(1)).copied() else { return };
        let was_running = self.head(token.key).and_then(|head| head.lease).map(|lease| lease.fence);
        let before = self.head(token.key).map(|head| head.version);
        let signature = SIGNATURES.get(usize::from(which) % 3).map(|signature| Box::<str>::from(*signature));
        let error = signature.clone().map(|signature| AttemptError { signature, text: "".into() });
        let failure = FailureReport { delay: None, draw: 0, error: error.clone() };
        let reply = self.apply(Command::Settle { token, verb, failure });
        // A repeat gets the first answer and changes nothing.
        if reply.is_none() || self.head(token.key).map(|head| head.version) == before {
            return;
        }
        let (now, told) = (self.now, self.told.get_mut(&token.key).expect("it was leased"));
        let ended = told.attempts.iter_mut().find(|(_, fence)| *fence == token.fence);
        let (attempt, _) = ended.expect("it was leased");
        attempt.ended_at = Some(now);
        attempt.end = Some(match verb {
            SettleAction::Complete if was_running != Some(token.fence) => AttemptEnd::CompletedLate,
            SettleAction::Complete => AttemptEnd::Completed,
            SettleAction::Fail => AttemptEnd::Failed,
            SettleAction::Release => AttemptEnd::Released,
            SettleAction::Cancel => AttemptEnd::Canceled,
        });
        if verb == SettleAction::Fail {
            (attempt.error, told.failure) = (error.map(Box::new), signature);
        }
    }

    fn administer(&mut self, which: u16) {
        let keys: Vec<MessageKey> = self.told.keys().copied().collect();
        let Some(key) = keys.get(usize::from(which) % keys.len().max(1)) else { return };
        let message = MessageRef::Key(*key);
        let update = MessageUpdate { invisibility: Some(SECOND), ..MessageUpdate::default() };
        self.apply(match which % 4 {
            0 => Command::CancelMessage { message, reason: "why not".into() },
            1 => Command::Update { message, update },
            2 => Command::Redrive { message },
            _ => Command::Discard { message },
        });
    }

    fn keep(&self) -> Kept {
        let header = self.shard.header();
        let heads = (1..=header.sequence).filter_map(|sequence| self.shard.message(sequence).cloned()).collect();
        Kept { header, heads, told: self.told.clone(), tokens: self.tokens.clone() }
    }

    /// Sets the shard back, and raises its epoch as a store does then. Rows stay: the history has them.
    fn set_back(&mut self, kept: Kept) {
        let epoch = self.shard.header().epoch + 1;
        let header = ShardHeader { epoch, ..kept.header };
        let mut restoring = ShardRestorer::new(header, settings(), 0).expect("a kept header");
        kept.heads.into_iter().for_each(|head| restoring.message(head).expect("a kept message"));
        self.shard = restoring.finish().expect("a kept shard");
        (self.told, self.tokens) = (kept.told, kept.tokens);
    }

    fn rows_of(&self, key: MessageKey) -> Vec<HistoryRow> {
        self.rows.iter().filter(|row| row.transition.key == key).cloned().collect()
    }
}

/// Reads a life page by page, as a store is read.
fn pages(rows: &[HistoryRow], later: &LaterEpochs, size: usize) -> Vec<LifePage> {
    let mut pages = Vec::new();
    let mut from = LifeCursor::default();
    loop {
        let start = rows.iter().position(|row| Some(row.position()) > from.after).unwrap_or(rows.len());
        let end = rows.len().min(start + size);
        let lease = from.lease.and_then(|lease| rows.iter().find(|row| row.position() == lease.row));
        let page = assemble(LifeRows { rows: &rows[start..end], next: rows.get(end), lease, from }, later);
        let next = page.next;
        pages.push(page);
        match next {
            Some(next) => from = next,
            None => return pages,
        }
    }
}

fn later_epochs(run: &Run, rows: &[HistoryRow]) -> LaterEpochs {
    let mut first_rows: Vec<Transition> = Vec::new();
    for row in rows {
        if first_rows.last().is_none_or(|last| last.detail.position.epoch < row.position().epoch) {
            first_rows.push(row.transition.clone());
        }
    }
    let version = rows.first().and_then(|row| run.head(row.transition.key)).map(|head| head.version);
    LaterEpochs { first_rows, shard: Some(run.shard.position()), version }
}

/// The attempts of all pages; one that is reported again replaces its earlier form.
fn attempts_of(pages: &[LifePage]) -> Vec<TracedAttempt> {
    let mut all: Vec<TracedAttempt> = Vec::new();
    for attempt in pages.iter().flat_map(|page| &page.attempts) {
        match all.iter_mut().find(|known| known.leased_at == attempt.leased_at && known.number == attempt.number) {
            Some(known) => *known = attempt.clone(),
            None => all.push(attempt.clone()),
        }
    }
    all
}

fn check_trace(run: &Run, size: usize) -> Result<(), TestCaseError> {
    for (key, told) in &run.told {
        let rows = run.rows_of(*key);
        let pages = pages(&rows, &later_epochs(run, &rows), size);
        let shown: Vec<&TracedRow> = pages.iter().flat_map(|page| &page.rows).collect();
        prop_assert!(shown.iter().map(|row| &row.transition).eq(rows.iter().map(|row| &row.transition)));
        let wanted: Vec<TracedAttempt> = told.attempts.iter().map(|(attempt, _)| attempt.clone()).collect();
        prop_assert_eq!(attempts_of(&pages), wanted, "{:?}", key);
        let counted: Vec<&&TracedRow> = shown.iter().filter(|row| !row.undone).collect();
        for pair in counted.windows(2) {
            prop_assert_eq!(pair[0].time_in_state, Some(pair[1].transition.at.since(pair[0].transition.at)));
        }
        prop_assert_eq!(counted.last().and_then(|row| row.time_in_state), None);
        if let (Some(head), Some(last)) = (run.head(*key), counted.last()) {
            prop_assert_eq!((last.transition.version, last.transition.to), (head.version, Some(head.state)));
        }
        let facts = LifeFacts { version: run.head(*key).map(|head| head.version), gaps: &[] };
        prop_assert!(pages.iter().all(|page| page.is_complete(facts)), "{:?}: {:?}", key, rows);
    }
    Ok(())
}

/// The results of a search, read in the way of the engine: hits newest first, each judged by its message's rows from
/// there on.
fn search(run: &Run, query: &HistoryQuery, term: &HistoryTerm) -> Vec<HistoryMatch> {
    let mut hits: Vec<&HistoryRow> = run.rows.iter().filter(|row| HistoryTerm::of(row).contains(term)).collect();
    hits.sort_by_key(|row| std::cmp::Reverse((row.transition.at, row.position())));
    let judged = hits.iter().filter_map(|hit| {
        let rows = run.rows_of(hit.transition.key);
        let since: Vec<Transition> =
            rows.into_iter().filter(|row| row.position() >= hit.position()).map(|row| row.transition).collect();
        query.judge(term, &since)
    });
    judged.collect()
}

fn steps() -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((any::<u8>(), 0..1_500_u16), 1..60)
}

proptest! {
    #[test]
    fn a_trace_tells_what_was_done(steps in steps(), size in 1..12_usize) {
        let mut run = Run::new();
        for (what, which) in steps {
            run.step(what, which);
        }
        check_trace(&run, size)?;
    }

    #[test]
    fn rows_beyond_the_point_that_a_shard_was_set_back_to_are_undone(
        before in steps(), lost in steps(), after in steps(), size in 1..12_usize,
    ) {
        let mut run = Run::new();
        before.iter().for_each(|(what, which)| run.step(*what, *which));
        let (kept, through) = (run.keep(), run.shard.position().position);
        lost.iter().for_each(|(what, which)| run.step(*what, *which));
        run.set_back(kept);
        after.iter().for_each(|(what, which)| run.step(*what, *which));
        for row in run.rows.clone().iter().filter(|row| row.position().epoch == 1) {
            let rows = run.rows_of(row.transition.key);
            let undone = later_epochs(&run, &rows).undo(&row.transition);
            if row.position().position <= through {
                prop_assert!(!undone, "{:?} was kept", row);
            } else if run.shard.position().position < row.position().position {
                prop_assert!(undone, "{:?} was lost", row);
            }
        }
        check_trace(&run, size)?;
    }

    #[test]
    fn a_search_of_now_finds_each_message_once_by_its_state_and_its_last_error(steps in steps()) {
        let mut run = Run::new();
        steps.iter().for_each(|(what, which)| run.step(*what, *which));
        for state in MessageState::ALL {
            let query = HistoryQuery { state: Some(state), ..HistoryQuery::default() };
            let mut found: Vec<MessageKey> =
                search(&run, &query, &query.term(&[])).iter().map(|found| found.key).collect();
            found.sort_unstable();
            let in_state = |key: &&MessageKey| run.head(**key).is_some_and(|head| head.state == state);
            prop_assert_eq!(found, run.told.keys().filter(in_state).copied().collect::<Vec<_>>(), "{}", state);
            for signature in SIGNATURES {
                let query = HistoryQuery { signature: Some(signature.into()), ..query.clone() };
                let mut found: Vec<MessageKey> =
                    search(&run, &query, &query.term(&[])).iter().map(|found| found.key).collect();
                found.sort_unstable();
                let has_error = |key: &&MessageKey| run.told[*key].failure.as_deref() == Some(signature);
                let wanted: Vec<MessageKey> = run.told.keys().filter(in_state).filter(has_error).copied().collect();
                prop_assert_eq!(found, wanted, "{} {}", state, signature);
            }
        }
    }

    #[test]
    fn a_search_of_ever_finds_each_message_once(steps in steps()) {
        let mut run = Run::new();
        steps.iter().for_each(|(what, which)| run.step(*what, *which));
        for state in MessageState::ALL {
            let query = HistoryQuery { state: Some(state), when: QueryTime::Ever, ..HistoryQuery::default() };
            let mut found: Vec<MessageKey> =
                search(&run, &query, &query.term(&[])).iter().map(|found| found.key).collect();
            found.sort_unstable();
            let entered = |key: &&MessageKey| {
                run.rows_of(**key).iter().any(|row| row.transition.to == Some(state) && row.transition.from != Some(state))
            };
            prop_assert_eq!(found, run.told.keys().filter(entered).copied().collect::<Vec<_>>(), "{}", state);
        }
    }
}

/// A message that was enqueued, leased twice and failed twice, at one row a second.
fn failed_twice() -> Run {
    let mut run = Run::new();
    run.enqueue(1);
    for _ in 0..2 {
        run.now = Timestamp::from_micros(run.now.micros() + 2_000_000);
        run.dequeue();
        run.now = Timestamp::from_micros(run.now.micros() + 500_000);
        run.settle(0, SettleAction::Fail);
        run.tokens.clear();
    }
    run
}

fn first_key(run: &Run) -> MessageKey {
    *run.told.keys().next().expect("a message was enqueued")
}

#[test]
fn a_missing_row_makes_a_life_incomplete_and_leaves_the_end_of_its_attempt_open() {
    let run = failed_twice();
    let rows = run.rows_of(first_key(&run));
    let facts = LifeFacts { version: run.head(first_key(&run)).map(|head| head.version), gaps: &[] };
    let whole = &pages(&rows, &LaterEpochs::default(), 100)[0];
    assert!(whole.is_complete(facts));
    for missing in 0..rows.len() {
        let mut rows = rows.clone();
        let row = rows.remove(missing);
        let page = &pages(&rows, &LaterEpochs::default(), 100)[0];
        assert!(!page.is_complete(facts), "without {:?}", row.transition.trigger);
        let ends: Vec<bool> = page.attempts.iter().map(|attempt| attempt.end.is_some()).collect();
        let starts: Vec<bool> = page.attempts.iter().map(|attempt| attempt.leased_at.is_some()).collect();
        match row.transition.trigger {
            Trigger::Fail => assert!(ends.contains(&false) && !starts.contains(&false)),
            Trigger::Dequeue => assert!(starts.contains(&false) && !ends.contains(&false)),
            _ => assert!(!ends.contains(&false) && !starts.contains(&false)),
        }
    }
}

#[test]
fn a_gap_after_a_message_that_is_gone_makes_its_life_incomplete() {
    let run = failed_twice();
    let rows = run.rows_of(first_key(&run));
    let page = &pages(&rows, &LaterEpochs::default(), 100)[0];
    let gap = |shard, from_position, to_position| HistoryGap {
        shard,
        epoch: 1,
        from_position,
        to_position,
        from_time: START,
        to_time: START,
    };
    let last = rows.last().expect("rows").position().position;
    let is_complete = |gap: HistoryGap| page.is_complete(LifeFacts { version: None, gaps: &[gap] });
    assert!(page.is_complete(LifeFacts { version: None, gaps: &[] }));
    assert!(!is_complete(gap(0, last + 1, last + 3)));
    assert!(is_complete(gap(1, last + 1, last + 3)), "a gap of another shard");
    assert!(is_complete(gap(0, 1, last - 1)), "a gap of other messages before its last row");
    assert!(!page.is_complete(LifeFacts { version: Some(page.version + 1), gaps: &[] }), "the queue knows more");
}

#[test]
fn a_search_walks_by_the_rarest_term_that_is_indexed() {
    let filter = crate::queue::filter::Filter::new([("zone", "a"), ("tenant", "acme")]).expect("a legal filter");
    let query = HistoryQuery { filter, ..HistoryQuery::default() };
    assert_eq!(query.term(&[]), HistoryTerm::Enqueued);
    let value = HistoryTerm::Value { key: "tenant".into(), value: "acme".into() };
    assert_eq!(query.term(&["size".into(), "tenant".into()]), value);
    let by_state = HistoryQuery { state: Some(MessageState::Errored), ..query };
    assert_eq!(by_state.term(&["tenant".into()]), HistoryTerm::Entered(MessageState::Errored));
    let by_error = HistoryQuery { signature: Some("timeout".into()), ..by_state };
    assert_eq!(by_error.term(&["tenant".into()]), HistoryTerm::Error("timeout".into()));
}
