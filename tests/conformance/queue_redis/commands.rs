//! Random commands of every kind, as those with which the core is tested.

use std::time::Duration;

use tallystone_domain::Timestamp;
use tallystone_domain::limits::INVISIBILITY_MAX;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::command::{BulkRequest, Cursor, Dequeue, FailureReport, MessageUpdate, NewMessage};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::messages::message::{
    AttemptError, LeaseToken, MessageKey, MessageRef, Metadata, RoutingValue, SessionId,
};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::{SettleAction, UpdateToken};
use tallystone_domain::queue::session_records::{Ending, SessionCall};
use tallystone_domain::queue::setup::settings::IdReuse;
use tallystone_domain::queue::{Command, MessageState, Settings, ShardSettings};

const SETTLE_ACTIONS: [SettleAction; 4] =
    [SettleAction::Complete, SettleAction::Fail, SettleAction::Release, SettleAction::Cancel];
const SECOND: Duration = Duration::from_secs(1);

/// A sequence of random numbers that a seed names.
pub struct Chance(u64);

impl Chance {
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("a small number")].clone()
    }
}

/// What commands refer to.
pub struct Past {
    pub start: Timestamp,
    pub now: Timestamp,
    pub sent: Vec<NewMessage>,
    pub tokens: Vec<LeaseToken>,
    /// The filter and the cursor of the last walk.
    pub walk: Option<(Filter, Cursor)>,
    pub sequence: u64,
    pub settings: Settings,
    /// The version of the settings.
    pub version: u64,
    /// Whether settings and blocks change.
    pub may_configure: bool,
}

impl Past {
    /// The next commands that one call has: they see what those before them did, stored or not.
    pub fn commands_of_a_call(&mut self, chance: &mut Chance) -> Vec<Command> {
        let count = chance.pick(&[1, 1, 1, 2, 6]);
        // Neighbours that only dequeue share a choice.
        if count == 6 && chance.below(2) == 1 {
            return (0..count).map(|_| Command::Dequeue(self.plain_dequeue(chance))).collect();
        }
        (0..count).map(|_| self.command(chance)).collect()
    }

    /// The next command.
    pub fn command(&mut self, chance: &mut Chance) -> Command {
        match chance.below(31) {
            0..=8 => Command::Enqueue(Box::new(self.message(chance))),
            9..=12 => Command::Dequeue(self.dequeue(chance)),
            13..=18 => self.settlement(chance),
            19 => {
                let lease = chance.pick(&[Duration::ZERO, SECOND / 2, SECOND * 2, SECOND * 9]);
                self.token(chance).map_or(Command::Sweep { max: 2 }, |token| Command::Extend { token, lease })
            }
            20 => {
                Command::CancelMessage { message: self.message_ref(chance), reason: chance.pick(&["asked", ""]).into() }
            }
            21 => Command::Update { message: self.message_ref(chance), update: self.update(chance) },
            22 => Command::Heartbeat { session: self.session(chance).id, received_up_to: self.received(chance) },
            23 => Command::Recall(self.session(chance)),
            24 if chance.below(4) == 3 => {
                let ending = chance.pick(&[Ending::Closed, Ending::Replaced]);
                Command::EndSession { session: self.session(chance).id, ending, max: chance.pick(&[1, 256]) }
            }
            25 if chance.below(3) == 2 => Command::Discard { message: self.message_ref(chance) },
            25 => Command::Redrive { message: self.message_ref(chance) },
            26 => self.bulk(chance),
            27 if self.settings.exclusivity.is_some() && chance.below(2) == 1 => {
                let value = chance.pick(&["red", "blue", "green", "none"]);
                let value = RoutingValue::new(value).expect("a legal value");
                let limit = chance.pick(&[None, None, Some(1), Some(2), Some(3), Some(0), Some(10_001)]);
                Command::SetValueLimit { value, limit }
            }
            27 | 28 if self.may_configure => Command::Configure(Box::new(self.configure(chance))),
            _ => Command::Sweep { max: chance.pick(&[1, 5, 256]) }, // all other draws
        }
    }

    fn settlement(&self, chance: &mut Chance) -> Command {
        let verb = chance.pick(&SETTLE_ACTIONS);
        let delay = chance.pick(&[None, Some(Duration::ZERO), Some(SECOND)]);
        let signature = chance.pick(&[None, Some("timeout"), Some("refused"), Some("")]);
        let error = signature.map(|signature| AttemptError { signature: signature.into(), text: "it failed".into() });
        let draw = u32::try_from(chance.below(1 << 32)).expect("below 2^32");
        let failure = FailureReport { delay, draw, error };
        self.token(chance).map_or(Command::Sweep { max: 1 }, |token| Command::Settle { token, verb, failure })
    }

    fn update(&self, chance: &mut Chance) -> MessageUpdate {
        let visible_at = chance.pick(&[None, Some(-1_000_000), Some(500_000), Some(2_000_000)]);
        let visible_at = visible_at.map(|micros: i64| Timestamp::from_micros(self.now.micros() + micros));
        let tokens: Option<u64> = chance.pick(&[None, Some(3), Some(12)]);
        let token = tokens
            .map(|of| UpdateToken { text: chance.below(of).to_string().into(), fingerprint: chance.below(8) / 7 });
        let invisibility = chance.pick(&[None, Some(Duration::ZERO), Some(SECOND)]).filter(|_| visible_at.is_none());
        MessageUpdate {
            priority: chance.pick(&[None, Some(-7), Some(7), Some(i64::MAX)]),
            visible_at,
            invisibility,
            payload_bytes: chance.pick(&[None, None, Some(0), Some(100), Some(3_900), Some(40_000)]),
            metadata: (chance.below(2) == 1).then(|| Self::metadata(chance)),
            only_if_sooner: chance.below(2) == 1,
            expected_version: chance.pick(&[None, None, Some(1), Some(3)]),
            token,
        }
    }

    fn bulk(&self, chance: &mut Chance) -> Command {
        let through = self.sequence.saturating_sub(chance.below(4));
        let asked = BulkRequest {
            filter: Self::filter(chance),
            after: chance.pick(&[0, 0, through.saturating_sub(9)]),
            through,
            max: chance.pick(&[1, 3, 256]),
            dry_run: chance.below(5) == 4,
            signature: chance.pick(&[None, None, Some("timeout")]).map(Into::into),
            ended_by: None,
            states: PurgedStates::default(),
        };
        match chance.below(7) {
            6 => Command::CancelAll {
                bulk: BulkRequest { signature: None, ..asked },
                reason: chance.pick(&["asked", ""]).into(),
            },
            0 | 1 => Command::Purge(BulkRequest { signature: None, states: Self::purged_states(chance), ..asked }),
            2 => Command::DiscardAll(asked),
            3 => {
                let ended_by = Some(Timestamp::from_micros(self.now.micros() - 1_000_000));
                Command::DiscardAll(BulkRequest { ended_by, ..asked })
            }
            _ => Command::RedriveAll(asked), // all other draws
        }
    }

    fn purged_states(chance: &mut Chance) -> PurgedStates {
        use MessageState::{Canceled, Completed, Invisible, Pending};
        let states: &[MessageState] = chance.pick(&[&[], &[Completed], &[Canceled, Pending], &[Invisible, Completed]]);
        PurgedStates::new(states.iter().copied()).expect("a purge covers them")
    }

    fn dequeue(&self, chance: &mut Chance) -> Dequeue {
        let mut asked = Dequeue {
            max: chance.pick(&[1, 2, 5, 9, 30]),
            lease: (chance.below(2) == 1).then_some(SECOND * 2),
            message: (chance.below(5) == 4).then(|| self.message_ref(chance)),
            filter: Self::filter(chance),
            cursor: None,
            session: (chance.below(4) > 0).then(|| self.session(chance)),
            look_at: chance.pick(&[0, 3, 1]),
            worker: chance.pick(&[None, Some("worker")]).map(Into::into),
        };
        if let Some((filter, cursor)) = self.walk.clone().filter(|_| chance.below(3) > 0) {
            (asked.filter, asked.cursor) = (filter, Some(cursor));
        }
        asked
    }

    /// A dequeue of the best messages, mostly without a session or in the first try of a call that only replays.
    fn plain_dequeue(&self, chance: &mut Chance) -> Dequeue {
        let session = self.session(chance);
        let replays = SessionCall { attempt: 1, lease: None, received_up_to: None, ..session };
        Dequeue {
            max: chance.pick(&[1, 1, 2, 3]),
            message: None,
            filter: Filter::new(chance.pick(&[&[][..], &[], &[("zone", "b")]]).iter().copied()).expect("legal pairs"),
            cursor: None,
            session: chance.pick(&[None, Some(replays), Some(replays), Some(session)]),
            ..self.dequeue(chance)
        }
    }

    /// A call of a session, mostly the next one; more sessions appear with time. One in three only replays.
    fn session(&self, chance: &mut Chance) -> SessionCall {
        let passed = self.now.since(self.start);
        let number = 3 * u128::from(passed.as_secs() / 500) + u128::from(chance.below(3));
        let sequence = self.call().saturating_sub(chance.pick(&[0, 0, 1, 3, 12, 250])).max(1);
        let received_up_to = self.received(chance);
        let lease = (number % 3 > 0).then_some(2 * SECOND);
        SessionCall { id: SessionId(number), lease, sequence, attempt: chance.pick(&[1, 1, 2, 3]), received_up_to }
    }

    /// The number of the next call of any session.
    fn call(&self) -> u64 {
        1 + u64::try_from(self.now.since(self.start).as_millis() / 1_500).expect("a short test")
    }

    fn received(&self, chance: &mut Chance) -> Option<u64> {
        chance.pick(&[None, Some(0), Some(3)]).map(|back| self.call().saturating_sub(back))
    }

    /// Other settings or other blocks, mostly under the next version and sometimes under one that the shard has had.
    fn configure(&self, chance: &mut Chance) -> ShardSettings {
        let reason = |blocked: bool| blocked.then(|| "maintenance".into());
        let (enqueue, dequeue) = chance.pick(&[(false, false), (true, false), (false, true), (false, false)]);
        let changes = chance.below(4) == 3;
        let settings = if changes { self.changed_settings(chance) } else { self.settings.clone() };
        let version = (self.version + 1).saturating_sub(chance.pick(&[0, 0, 0, 1, 2]));
        ShardSettings { version, settings, enqueue_blocked: reason(enqueue), dequeue_blocked: reason(dequeue) }
    }

    fn changed_settings(&self, chance: &mut Chance) -> Settings {
        let default_attempts = chance.pick(&[3, 1, 2]);
        let mut changed = Settings { default_attempts, ..self.settings.clone() };
        changed.reuse_ids =
            chance.pick(&[changed.reuse_ids, changed.reuse_ids, IdReuse::AfterWindow, IdReuse::WhenOver]);
        changed.retention.completed = chance.pick(&[2, 3, 4, 80]) * SECOND;
        changed.retention.canceled = chance.pick(&[2, 3, 5]) * SECOND;
        changed.retention.errored = chance.pick(&[2, 4, 6]) * SECOND;
        if chance.below(2) == 1 {
            let keys: &[&str] = chance.pick(&[&["team"], &[], &["zone", "team"], &["zone"]]);
            changed.count_by = keys.iter().map(|key| (*key).into()).collect();
            changed.count_by_values_max = chance.pick(&[1, 2, 10]);
        }
        if chance.below(2) == 1 {
            let shapes: &[&[&str]] = chance.pick(&[&[&["team"]], &[], &[&["zone"], &["team"]], &[&["team", "zone"]]]);
            let shape = |keys: &&[&str]| ShapeKeys::new(keys.iter().copied()).expect("legal keys");
            changed.shapes = shapes.iter().map(shape).collect();
        }
        let max_in_flight = chance.pick(&[1, 2, 3]);
        match &mut changed.exclusivity {
            Some(rule) if chance.below(9) == 8 => rule.strict_order_per_value ^= true,
            Some(rule) => rule.max_in_flight_per_value = max_in_flight,
            None => {}
        }
        changed
    }

    /// A new message, or sometimes an earlier one, unchanged or with different content.
    fn message(&mut self, chance: &mut Chance) -> NewMessage {
        let back = usize::try_from(chance.below(48)).expect("a small number");
        if let Some(sent) = (1..=6).contains(&back).then(|| self.sent.len().checked_sub(back)).flatten() {
            let mut again = self.sent[sent].clone();
            again.fingerprint ^= u64::from(chance.below(5) == 4);
            return again;
        }
        let number = self.sent.len() as u64;
        let metadata = Self::metadata(chance);
        let value = metadata.get("team").and_then(|value| RoutingValue::new(value).ok());
        let by_value = self.settings.exclusivity.is_some() && chance.below(30) < 29;
        let by_key = RoutingValue::new("other").ok().filter(|_| number % 2 == 1);
        let since = chance.pick(&[None, None, Some(0_i64), Some(-1), Some(-3), Some(61), Some(59)]);
        let token_time = since.map(|since| Timestamp::from_micros(self.now.micros() + since * 1_000_000));
        let named = number - u64::from(number % 8 == 7);
        let of_version = u128::from(named % 16) << 76 | u128::from(named);
        let id = match named % 6 {
            // A UUID of each version there is, and of one that there is not.
            0 => uuid::Uuid::from_u128(u128::from(named) << 96 | of_version).to_string(),
            // One that has the time of its token, in whole milliseconds.
            3 => {
                let millis = token_time.map_or(0, |time| time.micros().unsigned_abs() / 1_000);
                uuid::Uuid::from_u128(u128::from(millis) << 80 | of_version).to_string()
            }
            _ => format!("id-{named}"), // a text
        };
        let sent = NewMessage {
            id: MessageId::new(&id).expect("a legal id"),
            token_time,
            routing: if by_value { value } else { by_key },
            metadata,
            payload_bytes: u32::try_from(chance.below(150)).expect("a small number"),
            fingerprint: number << 1,
            priority: chance.pick(&[None, Some(5), Some(5), Some(6), Some(-3), Some(i64::MIN)]),
            class: chance.pick(&[None, None, None, None, None, Some("none")]).map(Into::into),
            invisibility: chance.pick(&[None, None, Some(SECOND / 2), Some(SECOND * 3)]),
            visible_at: self.visible_at(chance),
            lease_duration: chance.pick(&[None, Some(SECOND * 3), Some(SECOND * 7), Some(SECOND / 3)]),
            max_attempts: chance.pick(&[None, Some(1), Some(2), Some(40), Some(400)]),
            ttl: chance.pick(&[None, None, None, Some(Duration::ZERO), Some(SECOND), Some(SECOND * 4)]),
        };
        self.sent.push(sent.clone());
        sent
    }

    /// A time to be served from: mostly none; else long past, past, to come, or beyond what is allowed.
    fn visible_at(&self, chance: &mut Chance) -> Option<Timestamp> {
        let far = INVISIBILITY_MAX + SECOND;
        let times = [Timestamp::MIN, self.now - SECOND, self.now + SECOND * 2, self.now + far, Timestamp::MAX];
        let times = times.map(Some);
        chance.pick(&[None, None, None, None, None, times[0], times[1], times[2], times[2], times[3], times[4]])
    }

    fn metadata(chance: &mut Chance) -> Metadata {
        let team = chance.pick(&[Some(("team", "red")), Some(("team", "blue")), Some(("team", "green")), None]);
        let zone = chance.pick(&[None, Some(("zone", "a")), Some(("zone", "b"))]);
        Metadata::new(team.into_iter().chain(zone)).expect("legal pairs")
    }

    fn filter(chance: &mut Chance) -> Filter {
        let pairs: &[(&str, &str)] =
            chance.pick(&[&[], &[], &[("team", "red")], &[("zone", "b")], &[("zone", "a"), ("team", "blue")]]);
        Filter::new(pairs.iter().copied()).expect("legal pairs")
    }

    /// An issued token, mostly a recent one; sometimes a forged one.
    fn token(&self, chance: &mut Chance) -> Option<LeaseToken> {
        let back = usize::try_from(chance.below(12)).expect("a small number");
        let mut token = *self.tokens.get(self.tokens.len().checked_sub(1 + back)?)?;
        match chance.below(40) {
            37 => token.key.shard += 1,
            38 => token.fence.serial += 1,
            39 => token.key.epoch += 1,
            _ => {} // every other draw leaves the token unchanged
        }
        Some(token)
    }

    fn message_ref(&self, chance: &mut Chance) -> MessageRef {
        let back = chance.below(20);
        let by_id = self.sent.len().checked_sub(1 + usize::try_from(back).expect("a small number"));
        match by_id.filter(|_| chance.below(2) == 1) {
            Some(at) => {
                let routing = self.sent[at].routing.clone().filter(|_| chance.below(2) == 1);
                MessageRef::Id(self.sent[at].id.clone(), routing)
            }
            None => {
                let sequence = self.sequence.saturating_sub(back);
                MessageRef::Key(MessageKey { shard: 0, epoch: 1, sequence })
            }
        }
    }
}
