//! Laws of a shard: random commands against the oracle, with a clock moved by hand.
//!
//! A command is generated from one number, so that a failing run shrinks to few and simple commands. After each command
//! shard and oracle must agree on reply, records and next event. The whole shard is compared with the list and with a
//! restored shard.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::queue::clock::StepTime;
use crate::queue::command::{
    BulkRequest, Command, Completeness, Cursor, Dequeue, FailureReport, MessageUpdate, NewMessage,
};
use crate::queue::filter::{Filter, ShapeKeys};
use crate::queue::index::shard_index::ShardIndex;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::id_hash::IdKey;
use crate::queue::messages::message::{
    AttemptError, LeaseToken, MessageHead, MessageKey, MessageRef, Metadata, RoutingValue, SessionId,
};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::{SettleAction, UpdateToken};
use crate::queue::messages::state_machine::rows;
use crate::queue::session_records::{Ending, SessionCall};
use crate::queue::setup::settings::{Exclusivity, MessageRetryPolicy, Retention, ShardSettings};
use crate::queue::setup::settings::{HistoryKept, IdReuse};
use crate::queue::shard::restore::{ShardRestoreError, ShardRestorer};
use crate::queue::tests::counts::CountsOracle;
use crate::queue::tests::draw::{Draw, purged_states};
use crate::queue::tests::oracle::Oracle;
use crate::queue::tests::shedding::Shedding;
use crate::queue::tests::stored::Stored;
use crate::queue::transition::TransitionDetail;
use crate::queue::{ApplyResult, InvalidCommandPart, MessageState, Refusal, Reply, Settings, Shard, Trigger};
use crate::time::Timestamp;

const SETTLE_ACTIONS: [SettleAction; 4] =
    [SettleAction::Complete, SettleAction::Fail, SettleAction::Release, SettleAction::Cancel];
const SECOND: Duration = Duration::from_secs(1);
const START: Timestamp = Timestamp::from_secs(1_000_000);

pub(in crate::queue) fn settings() -> Settings {
    Settings {
        default_lease: SECOND,
        max_run_time: 5 * SECOND,
        default_invisibility: Duration::ZERO,
        default_attempts: 3,
        retry: MessageRetryPolicy { initial: SECOND / 4, factor_percent: 200, max: SECOND, jitter_percent: 50 },
        default_ttl: None,
        retention: Retention { completed: 2 * SECOND, canceled: 3 * SECOND, errored: 4 * SECOND },
        dedupe_window: 2 * SECOND,
        dedupe_max_bytes: 64 * 256,
        quota_messages: 60,
        quota_bytes: 4_000,
        payload_max_bytes: 32_768,
        metadata_max_bytes: 1_280,
        classes: Vec::new(),
        exclusivity: None,
        count_by: vec!["team".into()],
        count_by_values_max: 2,
        history: HistoryKept::All,
        reuse_ids: IdReuse::AfterWindow,
        shapes: Vec::new(),
    }
}

/// Settings of an exclusive queue by the key `team`.
pub(super) fn exclusive(max_in_flight_per_value: u32, order: Order) -> Settings {
    let strict_order_per_value = order == Order::Strict;
    let exclusivity = Exclusivity { key: "team".into(), max_in_flight_per_value, strict_order_per_value };
    Settings { exclusivity: Some(exclusivity), ..settings() }
}

/// Whether messages of a value wait for earlier ones that are invisible or running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Loose,
    Strict,
}

/// The kinds of queues for random commands.
fn kinds() -> [Settings; 4] {
    let [zone, team_and_zone] = [&["zone"][..], &["team", "zone"]].map(shape);
    let reuse_ids = IdReuse::WhenOver;
    let exclusive_by_zone = Settings { shapes: vec![zone.clone()], reuse_ids, ..exclusive(2, Order::Loose) };
    let simple = Settings { shapes: vec![zone, team_and_zone], reuse_ids, ..settings() };
    [simple, exclusive(1, Order::Loose), exclusive_by_zone, exclusive(2, Order::Strict)]
}

pub(super) fn shape(keys: &[&str]) -> ShapeKeys {
    ShapeKeys::new(keys.iter().copied()).expect("legal keys")
}

/// A row as shown by records: from, trigger, to.
type Walked = (Option<MessageState>, Trigger, Option<MessageState>);

/// A shard, its oracle, and the data collected from the commands so far.
struct Pair {
    shard: Shard,
    /// Present only in the laws that ask for it.
    stored: Option<Stored>,
    /// A shard that gets the same commands and has no heads of messages that are over, only in the laws that ask for
    /// it.
    shedding: Option<Shedding>,
    oracle: Oracle,
    now: Timestamp,
    /// The times of the last command.
    last: StepTime,
    sent: Vec<NewMessage>,
    tokens: Vec<LeaseToken>,
    /// The filter and the cursor of the last walk.
    walk: Option<(Filter, Cursor)>,
    transitions: u64,
    seen: HashSet<Walked>,
    partial: u64,
    refused: Vec<Refusal>,
    counts: CountsOracle,
}

impl Pair {
    fn new(settings: &Settings) -> Self {
        let shard = Shard::new(0, 1, settings.clone()).expect("legal settings");
        let oracle = Oracle::new(settings.clone());
        let (sent, tokens, seen) = (Vec::new(), Vec::new(), HashSet::new());
        Self {
            shard,
            stored: None,
            shedding: None,
            oracle,
            now: START,
            last: START.into(),
            sent,
            tokens,
            walk: None,
            transitions: 0,
            seen,
            partial: 0,
            refused: Vec::new(),
            counts: CountsOracle::default(),
        }
    }

    fn stored(settings: &Settings) -> Self {
        let pair = Self::new(settings);
        Self { stored: Some(Stored::of(&pair.shard)), ..pair }
    }

    fn shedding(settings: &Settings) -> Self {
        let pair = Self::stored(settings);
        Self { shedding: Some(Shedding::of(settings)), ..pair }
    }

    /// Runs one random command on both.
    fn step(&mut self, number: u64) -> Result<(), TestCaseError> {
        let mut draw = Draw(number);
        let kind = draw.below(28);
        let elapsed = draw.pick(&[0, 1_000, 50_000, 250_000, 1_000_000, 3_000_000]);
        self.now = self.now + Duration::from_micros(elapsed);
        let command = self.command(kind, &mut draw);
        // A caller's lagging clock is ignored: the shard's clock never goes backwards.
        let said = if draw.below(8) == 7 { self.now - SECOND } else { self.now };
        let off = draw.pick(&[0, 0, 0, 0, -1, -5, 1, 100]);
        let wall = Timestamp::from_micros(self.now.micros() + off * 1_000_000);
        self.last = StepTime::with_wall_clock(self.now, wall).clamped_after(self.last);
        self.both(command, StepTime { now: said, ..self.last })
    }

    fn both(&mut self, command: Command, at: impl Into<StepTime>) -> Result<(), TestCaseError> {
        let at: StepTime = at.into();
        let now = at.now;
        let applied = self.shard.apply(command.clone(), at);
        if let Some(shedding) = &mut self.shedding {
            prop_assert_eq!(&shedding.apply(command.clone(), at), &applied, "without heads: {:?}", command);
            prop_assert_eq!(shedding.shard.header(), self.shard.header(), "after {:?}", command);
            prop_assert_eq!(shedding.shard.next_event_in(now), self.shard.next_event_in(now));
        }
        if let Some(stored) = &mut self.stored {
            stored.take(&self.shard, &applied);
        }
        let ApplyResult { reply, mut transitions, .. } = applied;
        self.counts.take(&self.shard, &transitions)?;
        transitions.iter_mut().for_each(|row| row.detail = TransitionDetail::default());
        let (expected, records) = self.oracle.apply(command.clone(), at);
        prop_assert_eq!(&reply, &expected, "the answer to {:?}", command);
        prop_assert_eq!(&transitions, &records, "the records of {:?}", command);
        let clock = now.max(self.shard.clock);
        let is_unfinished = self.oracle.filled.iter().any(Option::is_some) || self.oracle.shortened.is_some();
        let unfilled = is_unfinished.then_some(Duration::ZERO);
        let event = || self.oracle.next_event().map(|at| at.since(clock));
        prop_assert_eq!(self.shard.next_event_in(now), unfilled.or_else(event));
        if let (Ok(Reply::Leases { cursor, completeness, .. }), Command::Dequeue(asked)) = (&reply, &command) {
            self.partial += u64::from(*completeness == Completeness::Partial);
            self.walk = cursor.clone().map(|cursor| (asked.filter.clone(), cursor));
        }
        if let Err(refusal) = &reply
            && !self.refused.contains(refusal)
        {
            self.refused.push(refusal.clone());
        }
        if let Ok(Reply::Leases { leases, .. }) = &reply {
            self.tokens.extend(leases.iter().map(|leased| leased.token));
        }
        self.transitions += transitions.len() as u64;
        self.seen.extend(transitions.iter().map(|record| (record.from, record.trigger, record.to)));
        Ok(())
    }

    fn update(&self, draw: &mut Draw) -> Command {
        let visible_at = draw.pick(&[None, Some(-SECOND.as_secs_f64()), Some(0.5), Some(2.0)]);
        let at = |seconds: f64| Timestamp::from_micros(self.now.micros() + (seconds * 1e6) as i64);
        let priority = draw.pick(&[None, Some(-7), Some(7)]);
        let only_if_sooner = draw.below(2) == 1;
        let expected_version = draw.pick(&[None, None, Some(1), Some(3)]);
        let tokens = draw.pick(&[None, Some(3), Some(12)]);
        let token =
            tokens.map(|of| UpdateToken { text: draw.below(of).to_string().into(), fingerprint: draw.below(8) / 7 });
        let invisibility = draw.pick(&[None, Some(Duration::ZERO), Some(SECOND)]);
        let invisibility = invisibility.filter(|_| visible_at.is_none());
        let visible_at = visible_at.map(at);
        let payload_bytes = draw.pick(&[None, None, Some(0), Some(100), Some(3_000)]);
        let metadata = (draw.below(3) == 2).then(|| Self::metadata(draw));
        let update = MessageUpdate {
            priority,
            visible_at,
            invisibility,
            payload_bytes,
            metadata,
            only_if_sooner,
            expected_version,
            token,
        };
        Command::Update { message: self.message_ref(draw), update }
    }

    fn command(&mut self, kind: u64, draw: &mut Draw) -> Command {
        match kind {
            0..=7 | 26 | 27 => Command::Enqueue(Box::new(self.message(draw))),
            8..=10 => Command::Dequeue(self.dequeue(draw)),
            11..=16 => {
                let verb = draw.pick(&SETTLE_ACTIONS);
                let delay = draw.pick(&[None, Some(Duration::ZERO), Some(SECOND)]);
                let error = draw.pick(&[None, Some("timeout"), Some("io")]);
                let error = error.map(|signature| AttemptError { signature: signature.into(), text: "".into() });
                let failure = FailureReport { delay, draw: 1 << 31, error };
                self.token(draw).map_or(Command::Sweep { max: 1 }, |token| Command::Settle { token, verb, failure })
            }
            17 => {
                let lease = draw.pick(&[Duration::ZERO, SECOND / 2, SECOND * 2, SECOND * 9]);
                self.token(draw).map_or(Command::Sweep { max: 2 }, |token| Command::Extend { token, lease })
            }
            18 => Command::CancelMessage { message: self.message_ref(draw), reason: "asked".into() },
            19 => self.update(draw),
            23 => Command::Heartbeat { session: self.session(draw).id, received_up_to: self.received(draw) },
            24 => Command::Recall(self.session(draw)),
            25 if draw.below(4) == 3 => {
                let ending = draw.pick(&[Ending::Closed, Ending::Replaced]);
                Command::EndSession { session: self.session(draw).id, ending, max: draw.pick(&[1, 256]) }
            }
            20 if draw.below(3) == 2 => Command::Discard { message: self.message_ref(draw) },
            20 => Command::Redrive { message: self.message_ref(draw) },
            21 => {
                let through = self.shard.sequence().saturating_sub(draw.below(4));
                let max = draw.pick(&[1, 3, 256]);
                let kind = draw.below(7);
                let after = draw.pick(&[0, 0, through.saturating_sub(9)]);
                let filter = Self::filter(draw);
                let dry_run = draw.below(5) == 4;
                let bulk = BulkRequest { filter, after, through, max, dry_run, ..BulkRequest::default() };
                let signature: Option<Box<str>> = draw.pick(&[None, None, Some("timeout")]).map(Into::into);
                match kind {
                    0 | 1 => Command::Purge(BulkRequest { states: purged_states(draw), ..bulk }),
                    2 => Command::DiscardAll(BulkRequest { signature, ..bulk }),
                    6 => Command::CancelAll { bulk, reason: "asked".into() },
                    3 => Command::DiscardAll(BulkRequest { ended_by: Some(self.now - SECOND), ..bulk }),
                    _ => Command::RedriveAll(BulkRequest { signature, ..bulk }),
                }
            }
            22 if draw.below(4) == 3 => self.new_settings(draw),
            22 if draw.below(3) == 2 => {
                let value = RoutingValue::new(draw.pick(&["red", "blue"])).expect("a legal value");
                Command::SetValueLimit { value, limit: draw.pick(&[Some(1), None, Some(0), Some(3)]) }
            }
            22 => self.new_blocks(draw),
            _ => Command::Sweep { max: draw.pick(&[1, 5, 256]) }, // all other kinds
        }
    }

    fn dequeue(&self, draw: &mut Draw) -> Dequeue {
        let max = draw.pick(&[1, 2, 5, 9, 30]);
        let lease = (draw.below(2) == 1).then_some(SECOND * 2);
        let message = (draw.below(5) == 4).then(|| self.message_ref(draw));
        let filter = Self::filter(draw);
        let look_at = draw.pick(&[0, 3, 1]);
        let session = (draw.below(4) > 0).then(|| self.session(draw));
        let mut asked = Dequeue { max, lease, message, filter, cursor: None, session, look_at, worker: None };
        if let Some((filter, cursor)) = self.walk.clone().filter(|_| draw.below(3) > 0) {
            (asked.filter, asked.cursor) = (filter, Some(cursor));
        }
        asked
    }

    /// A call of a session, mostly the next one; more sessions appear with time. One in three only replays.
    fn session(&self, draw: &mut Draw) -> SessionCall {
        let passed = self.now.since(START);
        let number = 3 * u128::from(passed.as_secs() / 500) + u128::from(draw.below(3));
        let sequence = self.call().saturating_sub(draw.pick(&[0, 0, 1, 3, 6, 60])).max(1);
        let received_up_to = self.received(draw);
        let lease = (number % 3 > 0).then_some(2 * SECOND);
        SessionCall { id: SessionId(number), lease, sequence, attempt: draw.pick(&[1, 1, 2, 3]), received_up_to }
    }

    /// The number of the next call of any session.
    fn call(&self) -> u64 {
        1 + u64::try_from(self.now.since(START).as_millis() / 1_500).expect("a short test")
    }

    fn received(&self, draw: &mut Draw) -> Option<u64> {
        draw.pick(&[None, Some(0), Some(3)]).map(|back| self.call().saturating_sub(back))
    }

    /// Other settings under some version; the blocks stay.
    fn new_settings(&self, draw: &mut Draw) -> Command {
        let settings = self.changed_settings(draw);
        let [enqueue_blocked, dequeue_blocked] = self.oracle.blocked.clone();
        let version = self.version(draw);
        Command::Configure(Box::new(ShardSettings { version, settings, enqueue_blocked, dequeue_blocked }))
    }

    /// Other blocks under some version; the settings stay.
    fn new_blocks(&self, draw: &mut Draw) -> Command {
        let reason = |blocked: bool| blocked.then(|| "maintenance".into());
        let (enqueue, dequeue) = draw.pick(&[(false, false), (true, false), (false, true), (false, false)]);
        let (enqueue_blocked, dequeue_blocked) = (reason(enqueue), reason(dequeue));
        let (version, settings) = (self.version(draw), self.oracle.settings.clone());
        Command::Configure(Box::new(ShardSettings { version, settings, enqueue_blocked, dequeue_blocked }))
    }

    /// A version of settings: mostly a higher one, else the present or an older one.
    fn version(&self, draw: &mut Draw) -> u64 {
        (self.oracle.version + draw.pick(&[2, 2, 3, 5, 1, 0])).saturating_sub(1)
    }

    fn changed_settings(&self, draw: &mut Draw) -> Settings {
        let dedupe_window = draw.pick(&[SECOND * 2, SECOND, SECOND * 2]);
        let default_attempts = draw.pick(&[3, 1, 2]);
        let (canceled, errored) = (draw.pick(&[3, 2]) * SECOND, draw.pick(&[4, 2, 9]) * SECOND);
        // Settings with a retention below the window are refused.
        let completed = dedupe_window + draw.pick(&[0, 1, 3]) * SECOND;
        let retention = Retention { completed, canceled, errored };
        let mut changed = Settings { dedupe_window, default_attempts, retention, ..self.oracle.settings.clone() };
        let max_in_flight = draw.pick(&[1, 2, 3]);
        match &mut changed.exclusivity {
            Some(rule) if draw.below(9) == 8 => rule.strict_order_per_value ^= true,
            Some(rule) => rule.max_in_flight_per_value = max_in_flight,
            None => {}
        }
        if draw.below(2) == 1 {
            let shapes: &[&[&str]] = draw.pick(&[&[&["team"]], &[], &[&["zone"], &["team"]], &[&["team", "zone"]]]);
            changed.shapes = shapes.iter().map(|keys| shape(keys)).collect();
        }
        if draw.below(2) == 1 {
            let keys: &[&str] = draw.pick(&[&["team"], &[], &["zone", "team"], &["zone"]]);
            changed.count_by = keys.iter().map(|key| (*key).into()).collect();
            changed.count_by_values_max = draw.pick(&[1, 2, 10]);
        }
        changed
    }

    /// A new message, or sometimes an earlier one, unchanged or with different content.
    fn message(&mut self, draw: &mut Draw) -> NewMessage {
        let back = usize::try_from(draw.below(48)).expect("a small number");
        if let Some(sent) = (1..=6).contains(&back).then(|| self.sent.len().checked_sub(back)).flatten() {
            let mut again = self.sent[sent].clone();
            again.fingerprint ^= u64::from(draw.below(5) == 4);
            return again;
        }
        let number = self.sent.len() as u64;
        let since = draw.pick(&[None, None, Some(0_i64), Some(-1), Some(-3), Some(61), Some(59)]);
        let token_time = since.map(|since| Timestamp::from_micros(self.now.micros() + since * 1_000_000));
        let metadata = Self::metadata(draw);
        let value = metadata.get("team").and_then(|value| RoutingValue::new(value).ok());
        let by_value = self.oracle.settings.exclusivity.is_some() && draw.below(30) != 29;
        let by_key = RoutingValue::new("other").ok().filter(|_| number % 2 == 1);
        let sent = NewMessage {
            id: MessageId::new(&format!("id-{}", number - u64::from(number % 8 == 7))).expect("a legal id"),
            token_time,
            routing: if by_value { value } else { by_key },
            metadata,
            payload_bytes: u32::try_from(draw.below(150)).expect("a small number"),
            fingerprint: number << 1,
            priority: draw.pick(&[None, Some(5), Some(5), Some(6), Some(-3)]),
            class: None,
            invisibility: draw.pick(&[None, None, Some(SECOND / 2), Some(SECOND * 3)]),
            visible_at: draw.pick(&[None, None, None, Some(self.now - SECOND), Some(self.now + SECOND * 2)]),
            lease_duration: draw.pick(&[None, Some(SECOND * 3), Some(SECOND * 7)]),
            max_attempts: draw.pick(&[None, Some(1), Some(2), Some(40)]),
            ttl: draw.pick(&[None, None, None, Some(Duration::ZERO), Some(SECOND), Some(SECOND * 4)]),
        };
        self.sent.push(sent.clone());
        sent
    }

    fn metadata(draw: &mut Draw) -> Metadata {
        let team = draw.pick(&[Some(("team", "red")), Some(("team", "blue")), Some(("team", "green")), None]);
        let zone = draw.pick(&[None, Some(("zone", "a")), Some(("zone", "b"))]);
        Metadata::new(team.into_iter().chain(zone)).expect("legal pairs")
    }

    fn filter(draw: &mut Draw) -> Filter {
        let pairs: &[(&str, &str)] =
            draw.pick(&[&[], &[], &[("team", "red")], &[("zone", "b")], &[("zone", "a"), ("team", "blue")]]);
        Filter::new(pairs.iter().copied()).expect("legal pairs")
    }

    /// An issued token, mostly a recent one; sometimes a forged one.
    fn token(&self, draw: &mut Draw) -> Option<LeaseToken> {
        let back = usize::try_from(draw.below(12)).expect("a small number");
        let mut token = *self.tokens.get(self.tokens.len().checked_sub(1 + back)?)?;
        match draw.below(40) {
            38 => token.fence.serial += 1,
            39 => token.key.epoch += 1,
            _ => {} // every other draw leaves the token unchanged
        }
        Some(token)
    }

    fn message_ref(&self, draw: &mut Draw) -> MessageRef {
        let back = draw.below(20);
        let sequence = self.shard.sequence().saturating_sub(back);
        let by_id = self.sent.len().checked_sub(1 + usize::try_from(back).expect("a small number"));
        match by_id.filter(|_| draw.below(2) == 1) {
            Some(at) => {
                let routing = self.sent[at].routing.clone().filter(|_| draw.below(2) == 1);
                MessageRef::Id(self.sent[at].id.clone(), routing)
            }
            None => MessageRef::Key(MessageKey { sequence, ..Oracle::key(sequence) }),
        }
    }

    /// Compares the whole shard with the list and checks its consistency.
    fn check_whole(&self) -> Result<(), TestCaseError> {
        let limits = self.shard.index.exclusive.as_ref().map(|exclusive| exclusive.values.limits.clone());
        let mut rebuilt = ShardIndex::new(&self.oracle.settings, limits.unwrap_or_default());
        let mut fences = BTreeSet::new();
        prop_assert_eq!(self.shard.messages.len(), self.oracle.items.len(), "no message is lost");
        prop_assert_eq!(self.shard.id_index.len(), self.oracle.items.len(), "each has its id");
        for (shape, filled) in rebuilt.shapes.iter_mut().zip(&self.oracle.filled) {
            shape.filled_through = *filled;
        }
        for item in &self.oracle.items {
            let message = self.shard.get(&MessageRef::Key(Oracle::key(item.sequence)));
            let message = message.expect("no message is lost");
            rebuilt.enter(message);
            rebuilt.refresh_lanes(message);
            prop_assert_eq!((message.state, message.version), (item.state, item.version));
            prop_assert_eq!((message.priority, message.ttl_at.get()), (item.priority, item.ttl_at));
            if !item.state.is_terminal() && item.state != MessageState::Running {
                prop_assert_eq!(message.visible_at, item.visible_at, "only a change of state moves the time");
            }
            prop_assert_eq!(message.attempt_number(), item.tries, "attempts are exact");
            prop_assert_eq!(message.lease.is_some(), item.state == MessageState::Running, "who runs has a lease");
            prop_assert!(message.lease.is_none_or(|lease| fences.insert(lease.fence)), "each lease is one message's");
        }
        prop_assert_eq!(&rebuilt, &self.shard.index, "indexes are a function of the messages");
        for state in MessageState::ALL {
            let counted = self.oracle.items.iter().filter(|item| item.state == state);
            let bytes: u64 = counted.clone().map(|item| u64::from(item.sent.payload_bytes)).sum();
            let total = self.shard.totals().of(state);
            prop_assert_eq!((total.messages, total.bytes), (counted.count() as u64, bytes), "{}", state);
        }
        self.counts.check(&self.shard)?;
        let ranks: Vec<_> = self.shard.peek().map(|message| (message.priority, message.key.sequence)).collect();
        prop_assert!(ranks.is_sorted(), "{:?}", ranks);
        Ok(())
    }
}

#[test]
fn a_shard_without_the_heads_of_what_is_over_does_what_one_with_them_does() {
    let commands = proptest::collection::vec(any::<u64>(), 1..200);
    let mut runner = proptest::test_runner::TestRunner::new(config(60));
    let plain = Settings { count_by: Vec::new(), ..settings() };
    let ran = runner.run(&commands, |commands| {
        for settings in kinds().iter().chain([&plain]) {
            let mut pair = Pair::shedding(settings);
            for command in &commands {
                pair.step(*command)?;
                let (shedding, stored) = (pair.shedding.as_mut(), pair.stored.as_ref());
                let (shedding, stored) = shedding.zip(stored).expect("one with both");
                prop_assert_eq!(shedding.whole(), pair.shard.clone(), "after {}", command);
                shedding.restore(|stubs| stored.restore_with(stubs))?;
            }
        }
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() }
}

#[test]
fn a_shard_does_what_the_list_does_and_is_whole_after_each_command() {
    let commands = proptest::collection::vec(any::<u64>(), 1..120);
    let mut runner = proptest::test_runner::TestRunner::new(config(100));
    let ran = runner.run(&commands, |commands| {
        for settings in kinds() {
            let mut pair = Pair::new(&settings);
            for command in &commands {
                pair.step(*command)?;
                pair.check_whole()?;
            }
        }
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_shard_restored_from_what_was_stored_is_equal_and_goes_on_alike() {
    let commands = proptest::collection::vec(any::<u64>(), 1..300);
    let mut runner = proptest::test_runner::TestRunner::new(config(25));
    let ran = runner.run(&commands, |commands| {
        for settings in kinds() {
            let mut pair = Pair::stored(&settings);
            for command in &commands {
                pair.step(*command)?;
                let restored = pair.stored.as_ref().expect("one with a store").restore();
                prop_assert_eq!(restored.as_ref(), Ok(&pair.shard), "after {}", command);
                // From here on the oracle, which was never restored, checks the restored shard.
                pair.shard = restored.expect("just compared");
            }
        }
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The stored parts of a shard with one pending and one running message.
fn stored_of_two() -> Stored {
    let mut pair = Pair::stored(&settings());
    for _ in 0..2 {
        let message = NewMessage { invisibility: None, ttl: None, ..pair.message(&mut Draw(0)) };
        pair.both(Command::Enqueue(Box::new(message)), START).expect("as the oracle does");
    }
    pair.both(Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() }), START).expect("as the oracle does");
    pair.stored.expect("one with a store")
}

#[test]
fn parts_that_no_shard_has_stored_are_refused() {
    let refused = |damage: fn(&mut Stored)| {
        let mut stored = stored_of_two();
        damage(&mut stored);
        stored.restore().map(|_| ())
    };
    assert_eq!(refused(|_| ()), Ok(()));
    assert_eq!(refused(|stored| stored.header.number = 7), Err(ShardRestoreError::Foreign(2)));
    assert_eq!(refused(|stored| stored.header.epoch = 0), Err(ShardRestoreError::Foreign(2)));
    assert_eq!(refused(|stored| stored.header.sequence = 1), Err(ShardRestoreError::Beyond(2)));
    assert_eq!(refused(|stored| stored.header.serial = 0), Err(ShardRestoreError::Lease(1)));
    type Damage = fn(&mut MessageHead);
    let cases: [(Damage, ShardRestoreError); 4] = [
        (|message| message.lease = None, ShardRestoreError::Lease(1)),
        (|message| message.state = MessageState::Pending, ShardRestoreError::Lease(1)),
        (|message| message.attempts_left = message.max_attempts + 1, ShardRestoreError::Attempts(1)),
        (|message| message.key.sequence = 2, ShardRestoreError::Twice(2)),
    ];
    for (damage, expected) in cases {
        let mut stored = stored_of_two();
        damage(stored.heads.get_mut(&1).expect("two"));
        assert_eq!(stored.restore().map(|_| ()), Err(expected), "one part is wrong");
    }
    let mut stored = stored_of_two();
    let (id, routing) = (stored.heads[&2].id.clone(), stored.heads[&2].routing.clone());
    let head = stored.heads.get_mut(&1).expect("two");
    (head.id, head.routing) = (id, routing);
    assert_eq!(stored.restore().map(|_| ()), Err(ShardRestoreError::Twice(2)), "one id, two messages");
}

#[test]
fn stubs_that_no_shard_has_stored_are_refused() {
    let mut shard = Shard::new(0, 1, settings()).expect("legal settings").with_stubs(IdKey::default());
    let message = NewMessage { invisibility: None, ttl: None, ..Pair::new(&settings()).message(&mut Draw(0)) };
    shard.apply(Command::Enqueue(Box::new(message)), START).reply.expect("it is taken");
    let leased = shard.apply(Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() }), START).reply;
    let Ok(Reply::Leases { leases, .. }) = leased else { panic!("a lease") };
    let (token, verb, failure) = (leases[0].token, SettleAction::Complete, FailureReport::default());
    shard.apply(Command::Settle { token, verb, failure }, START).reply.expect("it is completed");
    shard.shed_heads();
    let stub = shard.messages.stubs().next().expect("it is over");
    let restored = |stubs: &[Stub]| {
        let parts = (shard.header(), shard.settings().clone(), shard.settings_version());
        let restoring = ShardRestorer::new(parts.0, parts.1, parts.2).expect("legal settings");
        restoring.with_stubs(IdKey::default()).stubs(stubs)
    };
    let with = |key: MessageKey| Stub { key, ..stub };
    assert_eq!(restored(&[stub]), Ok(()));
    assert_eq!(restored(&[with(MessageKey { shard: 7, ..stub.key })]), Err(ShardRestoreError::Foreign(1)));
    assert_eq!(restored(&[with(MessageKey { epoch: 9, ..stub.key })]), Err(ShardRestoreError::Foreign(1)));
    assert_eq!(restored(&[with(MessageKey { sequence: 0, ..stub.key })]), Err(ShardRestoreError::Beyond(0)));
    assert_eq!(restored(&[with(MessageKey { sequence: 2, ..stub.key })]), Err(ShardRestoreError::Beyond(2)));
    assert_eq!(restored(&[stub, stub]), Err(ShardRestoreError::Twice(1)));
}

/// One message with one attempt, released until a release costs the attempt.
fn released_until_errored() -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new(&settings());
    let mut message = pair.message(&mut Draw(0));
    message.max_attempts = Some(1);
    pair.both(Command::Enqueue(Box::new(message)), START)?;
    for releases in 1..=11 {
        pair.both(Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() }), START)?;
        let token = *pair.tokens.last().expect("the message is served again");
        pair.both(Command::Settle { token, verb: SettleAction::Release, failure: FailureReport::default() }, START)?;
        let state = pair.shard.get(&MessageRef::Key(token.key)).map(|message| message.state);
        prop_assert_eq!(state, Some(if releases <= 10 { MessageState::Pending } else { MessageState::Errored }));
    }
    pair.check_whole()?;
    Ok(pair)
}

/// Messages whose cancellation was requested while they ran, ended in each way that cancels them.
fn given_up_after_a_request() -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new(&settings());
    for verb in [Some(SettleAction::Fail), Some(SettleAction::Release), None] {
        let message = NewMessage { lease_duration: None, invisibility: None, ttl: None, ..pair.message(&mut Draw(0)) };
        pair.both(Command::Enqueue(Box::new(message)), START)?;
        pair.both(Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() }), START)?;
        let token = *pair.tokens.last().expect("a lease");
        let (message, reason) = (MessageRef::Key(token.key), "asked".into());
        pair.both(Command::CancelMessage { message, reason }, START)?;
        match verb {
            Some(verb) => pair.both(Command::Settle { token, verb, failure: FailureReport::default() }, START)?,
            None => pair.both(Command::Sweep { max: 1 }, START + SECOND)?,
        }
        let state = pair.shard.get(&MessageRef::Key(token.key)).map(|message| message.state);
        prop_assert_eq!(state, Some(MessageState::Canceled), "{:?}", verb);
    }
    Ok(pair)
}

/// One message whose lease expires, that is then made invisible, and then completed by the old worker.
fn completed_late_while_invisible() -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new(&settings());
    let message = NewMessage { lease_duration: None, invisibility: None, ttl: None, ..pair.message(&mut Draw(0)) };
    pair.both(Command::Enqueue(Box::new(message)), START)?;
    pair.both(Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() }), START)?;
    let token = *pair.tokens.last().expect("a lease");
    let later = START + SECOND;
    let update = MessageUpdate { visible_at: Some(later + SECOND), ..MessageUpdate::default() };
    pair.both(Command::Update { message: MessageRef::Key(token.key), update }, later)?;
    pair.both(Command::Settle { token, verb: SettleAction::Complete, failure: FailureReport::default() }, later)?;
    pair.check_whole()?;
    Ok(pair)
}

/// A pair with `count` messages, invisible for a second.
fn hidden(count: u64) -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new(&settings());
    for _ in 0..count {
        let message = NewMessage { invisibility: Some(SECOND), ttl: None, ..pair.message(&mut Draw(0)) };
        pair.both(Command::Enqueue(Box::new(message)), START)?;
    }
    Ok(pair)
}

#[test]
fn a_dequeue_says_more_when_its_bound_leaves_due_messages_over() {
    let ran = hidden(40).and_then(|mut pair| {
        let asked = Dequeue { max: 20, ..Dequeue::default() };
        for _ in 0..3 {
            pair.both(Command::Dequeue(asked.clone()), START + SECOND)?;
        }
        pair.check_whole()
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn calls_of_sessions_are_forgotten_as_the_list_forgets_them() {
    let ran = hidden(40).and_then(|mut pair| {
        for (sequence, attempt) in (1..=12).map(|call| (call, 1)).chain((1..=12).map(|call| (call, 2))) {
            let lease = Some(2 * SECOND);
            let call = SessionCall { id: SessionId(1), lease, sequence, attempt, received_up_to: Some(sequence / 2) };
            let asked = Dequeue { max: 2, session: Some(call), ..Dequeue::default() };
            pair.both(Command::Dequeue(asked), START + SECOND)?;
        }
        prop_assert!(pair.refused.contains(&Refusal::SequenceTooOld), "{:?}", pair.refused);
        pair.check_whole()
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn the_eleventh_release_costs_the_attempt() {
    if let Err(failure) = released_until_errored() {
        panic!("{failure}");
    }
}

/// The data collected from random commands on one kind of queue.
#[derive(Default)]
struct Walk {
    transitions: u64,
    seen: HashSet<Walked>,
    partial: u64,
    refused: Vec<Refusal>,
}

/// Runs random commands with at least a quarter of a million transitions: the four kinds make a million.
fn walk(settings: &Settings) -> Walk {
    let walk = RefCell::new(Walk::default());
    let commands = proptest::collection::vec(any::<u64>(), 1_500..1_501);
    let mut runner = proptest::test_runner::TestRunner::new(config(480));
    let ran = runner.run(&commands, |commands| {
        let mut pair = Pair::new(settings);
        for command in &commands {
            pair.step(*command)?;
        }
        pair.check_whole()?;
        let mut walk = walk.borrow_mut();
        walk.transitions += pair.transitions;
        walk.partial += pair.partial;
        walk.seen.extend(pair.seen);
        walk.refused.extend(pair.refused);
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
    let walk = walk.into_inner();
    assert!(walk.transitions >= 250_000, "{} transitions only", walk.transitions);
    assert!(walk.partial > 0, "no walk was partial");
    let met = |refusal: &Refusal| walk.refused.contains(refusal);
    let ended = [Ending::Closed, Ending::Replaced, Ending::Expired].map(Refusal::SessionEnded);
    let tokens = [Refusal::TokenExpired, InvalidCommandPart::TokenTime.into()];
    let others = [Refusal::SessionNotFound, Refusal::TryBarred, Refusal::LeaseLost];
    let unmet: Vec<_> = ended.iter().chain(&others).chain(&tokens).filter(|refusal| !met(refusal)).collect();
    assert!(unmet.is_empty(), "no run was refused so: {unmet:?}");
    walk
}

#[test]
fn a_simple_queue_does_what_the_list_does_in_every_row_of_the_table() {
    let [settings, ..] = kinds();
    // Random commands hardly ever take these paths.
    let rare = [released_until_errored(), completed_late_while_invisible(), given_up_after_a_request()];
    let walked = rare.into_iter().flat_map(|pair| pair.unwrap_or_else(|failure| panic!("{failure}")).seen);
    let seen: HashSet<Walked> = walk(&settings).seen.into_iter().chain(walked).collect();
    // A TTL begins when the window ends. Only a message that an earlier build stored may have one that ends before.
    let of_earlier_builds = (Some(MessageState::Invisible), Trigger::TtlOver, Some(MessageState::Canceled));
    assert!(!seen.contains(&of_earlier_builds), "a TTL ended before its message was visible");
    let unseen: Vec<_> = rows().filter(|row| *row != of_earlier_builds && !seen.contains(row)).collect();
    assert!(unseen.is_empty(), "rows of the table that no run walked: {unseen:?}");
}

#[test]
fn an_exclusive_queue_does_what_the_list_does() {
    let [_, settings, ..] = kinds();
    walk(&settings);
}

#[test]
fn an_exclusive_queue_with_shapes_does_what_the_list_does() {
    let [_, _, settings, _] = kinds();
    walk(&settings);
}

#[test]
fn a_queue_of_strict_order_does_what_the_list_does() {
    let [.., settings] = kinds();
    walk(&settings);
}
