//! The shard on Redis answers as the core does: random commands at the same times, each with the same reply, rows and status.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::command::{NewMessage, Refusal};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::setup::settings::{Exclusivity, HistoryKept, IdReuse, MessageRetryPolicy, Retention};
use tallystone_domain::queue::{Command, MessageHead, MessageState, QueueId, Reply, Settings, Shard, ShardId};
use tallystone_ports::{Clock, MessageBody, ShardCommand, ShardOutbox, ShardReader, ShardStore};
use tallystone_redis::RedisQueues;
use tallystone_redis::client::{RedisClient, RedisCommand, RedisReply, Slot};

use super::commands::{Chance, Past};
use super::server::{next_queue, past_clock, shared};
use crate::servers::redis::Build;

/// How many transitions a run makes at least; a longer run is asked for by this variable.
const TRANSITIONS: &str = "TALLYSTONE_REDIS_TRANSITIONS";
const TRANSITIONS_DEFAULT: u64 = 6_000;
/// For every change, with `CI=true`, on Redis 7; they meet every refusal below several times. The other builds run the same
/// library, and make as many as a run at hand.
const TRANSITIONS_IN_CI: u64 = 20_000;
/// Of each build with `tests/run --long`.
const TRANSITIONS_LONG: u64 = 200_000;
/// The first seed; each run of commands takes the next one.
const SEED: &str = "TALLYSTONE_REDIS_SEED";
/// The commands of one shard, which is then dropped.
const COMMANDS_OF_A_SHARD: u64 = 1_500;
/// Refusals that a run must meet, or its commands do not reach what they should.
const REFUSALS: &[&str] = &[
    "Invalid(Priority)",
    "Invalid(PriorityClass)",
    "Invalid(Lease)",
    "Invalid(Payload)",
    "Full(Bytes)",
    "Invalid(TokenTime)",
    "NotFound",
    "WrongState(Running)",
    "VersionMismatch(2)",
    "LeaseLost",
    "TokenReused",
    "TokenExpired",
    "SessionNotFound",
    "SessionEnded(Expired)",
    "SessionEnded(Closed)",
    "SequenceTooOld",
    "TryBarred",
    "EnqueueBlocked(\"maintenance\")",
    "DequeueBlocked(\"maintenance\")",
    "Full(Answers)",
    "ValueHeld",
    "NotEmpty",
    "Invalid(ExclusivityValue)",
    "Invalid(ValueLimit)",
];
/// How often the whole shard is compared.
const AUDITED_EVERY: u64 = 50;
/// Of so many messages an audit has one explained.
const EXPLAINED_OF: usize = 16;

/// The kinds of queues, one for two seeds each: simple, exclusive with 1, 2 and again 2 messages of a value in flight, the last
/// of strict order.
fn exclusivity(seed: u64) -> Option<Exclusivity> {
    let (max_in_flight_per_value, strict_order_per_value) = match seed / 2 % 4 {
        0 => return None,
        1 => (1, false),
        2 => (2, false),
        _ => (2, true), // the only other remainder
    };
    Some(Exclusivity { key: "team".into(), max_in_flight_per_value, strict_order_per_value })
}

/// The filter shapes that the queues of these kinds begin with.
fn shapes(seed: u64) -> Vec<ShapeKeys> {
    let shape = |keys: &[&str]| ShapeKeys::new(keys.iter().copied()).expect("legal keys");
    match seed / 2 % 4 {
        0 => vec![shape(&["zone"]), shape(&["team", "zone"])],
        2 => vec![shape(&["zone"])],
        _ => Vec::new(), // every other kind gets some later
    }
}

/// Settings of a queue where everything happens within seconds. Each second seed fills the records of tokens; there the
/// settings and blocks do not change, because a change drops records one by one in the core and by whole buckets here.
pub fn settings(seed: u64) -> Settings {
    let second = Duration::from_secs(1);
    // In every third queue an audit finds many finished messages.
    let kept = if seed.is_multiple_of(3) { 40 } else { 1 };
    Settings {
        default_lease: second,
        max_run_time: 5 * second,
        retry: MessageRetryPolicy { initial: second / 4, factor_percent: 200, max: second, jitter_percent: 50 },
        retention: Retention { completed: kept * 2 * second, canceled: kept * 3 * second, errored: 4 * second },
        dedupe_window: 2 * second,
        dedupe_max_bytes: if seed % 2 == 1 { 16 * 256 } else { 1 << 20 },
        quota_messages: 60,
        quota_bytes: 4_000,
        count_by: vec!["team".into()],
        count_by_values_max: 2,
        history: HistoryKept::All,
        reuse_ids: if seed % 5 < 2 { IdReuse::AfterWindow } else { IdReuse::WhenOver },
        exclusivity: exclusivity(seed),
        shapes: shapes(seed),
        ..Settings::default()
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

#[tokio::test]
async fn the_shard_on_redis_answers_as_the_core_does() {
    answers_as_the_core_does_on(Build::Redis7).await;
}

#[tokio::test]
async fn the_shard_on_redis_8_answers_as_the_core_does() {
    answers_as_the_core_does_on(Build::Redis8).await;
}

#[tokio::test]
async fn the_shard_on_valkey_answers_as_the_core_does() {
    answers_as_the_core_does_on(Build::Valkey9).await;
}

/// How many transitions are made unless the variable says it.
fn usual_transitions(build: Build) -> u64 {
    if std::env::var_os("TALLYSTONE_LONG_TESTS").is_some() {
        TRANSITIONS_LONG
    } else if build == Build::Redis7 && std::env::var("CI").is_ok_and(|value| value == "true") {
        TRANSITIONS_IN_CI
    } else {
        TRANSITIONS_DEFAULT
    }
}

async fn answers_as_the_core_does_on(build: Build) {
    let Some(server) = shared(build) else { return };
    let clock = past_clock();
    let (queues, client) = (server.queues(&clock).await, server.client().await);
    let wanted = number_of(TRANSITIONS).unwrap_or_else(|| usual_transitions(build));
    let (mut seed, mut transitions) = (number_of(SEED).unwrap_or(1), 0);
    let mut refused = BTreeSet::new();
    while transitions < wanted {
        println!("seed {seed}: replay with {SEED}={seed}");
        transitions += run((&queues, &client), &clock, seed, &mut refused).await;
        seed += 1;
    }
    let unmet: Vec<_> = REFUSALS.iter().filter(|refusal| !refused.contains(**refusal)).collect();
    assert!(wanted < TRANSITIONS_DEFAULT || unmet.is_empty(), "no command was refused so: {unmet:?}");
}

/// Runs the commands of a seed on both shards; returns how many transitions they made.
pub async fn run(
    (queues, client): (&RedisQueues, &RedisClient),
    clock: &tallystone_adapters::manual::ManualClock,
    seed: u64,
    refused: &mut BTreeSet<String>,
) -> u64 {
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings(seed).into()).await.expect("a new queue");
    let mut core = Shard::new(0, 1, settings(seed)).expect("valid settings");
    let mut chance = Chance::of(seed);
    let (start, mut transitions) = (clock.now(), 0);
    let mut past = Past {
        start,
        now: start,
        sent: Vec::<NewMessage>::new(),
        tokens: Vec::new(),
        walk: None,
        sequence: 0,
        settings: settings(seed),
        version: 0,
        may_configure: seed.is_multiple_of(2),
    };
    for step in 0..COMMANDS_OF_A_SHARD {
        let elapsed = chance.pick(&[0, 1_000, 50_000, 250_000, 1_000_000, 3_000_000]);
        // Now and then hours pass, which some times of finished messages have a form of their own for.
        let hours = if chance.below(100) == 99 { chance.below(6) } else { 0 };
        clock.advance(Duration::from_micros(elapsed) + Duration::from_secs(3_600 * hours));
        past.now = clock.now();
        let commands = past.commands_of_a_call(&mut chance);
        // Formatted only for a failure: it is most of the work otherwise.
        let all = commands.clone();
        let told = || format!("seed {seed}, step {step}: {all:?}");
        let body = MessageBody { payload: format!("payload {step}").into(), ..MessageBody::default() };
        let sent = commands.iter().map(|command| ShardCommand { command: command.clone(), body: body.clone() });
        let answers = queues.apply(shard, sent.collect()).await;
        assert_eq!(answers.len(), commands.len(), "{}", told());
        let mut view = None;
        for (command, answer) in commands.into_iter().zip(answers) {
            let told = || format!("{}: {command:?}", told());
            let answer = answer.unwrap_or_else(|error| {
                panic!("{}: {error}: {:?}", told(), std::error::Error::source(&error).map(ToString::to_string))
            });
            let applied = core.apply(command.clone(), answer.at);
            assert_eq!(answer.reply, applied.reply, "{}", told());
            assert_eq!(answer.transitions, applied.transitions, "{}", told());
            assert_eq!(answer.walked, applied.walked, "{}", told());
            assert_eq!(answer.at, past.now, "{}", told());
            transitions += applied.transitions.len() as u64;
            refused.extend(answer.reply.as_ref().err().map(|refusal| format!("{refusal:?}")));
            view = Some(answer.view);
            learn(&mut past, &command, &answer.reply, &core);
        }
        let view = view.expect("a command was applied");
        assert_eq!(view.next_event_in, core.next_event_in(past.now), "{}", told());
        assert_eq!(view.messages, core.totals().messages(), "{}", told());
        let of_core = (core.head(), core.head_arrived(), core.settings_version());
        assert_eq!((view.head, view.head_arrived, view.settings_version), of_core, "{}", told());
        if step % AUDITED_EVERY == AUDITED_EVERY - 1 {
            audit(queues, shard, &core, past.now, &told()).await;
            audit_explanations(queues, shard, &core, past.now, step, &told()).await;
            audit_sizes(client, shard, &core, &told()).await;
        }
    }
    queues.drop_queue(shard.queue).await.expect("it is there");
    let left = keys(client, shard).await;
    let may_stay = |key: &String| key.ends_with("}m") || key.ends_with("}o");
    assert!(left.iter().all(may_stay), "seed {seed}: what is left of a dropped shard: {left:?}");
    transitions
}

pub fn learn(past: &mut Past, command: &Command, reply: &Result<Reply, Refusal>, core: &Shard) {
    past.sequence = core.sequence();
    (past.settings, past.version) = (core.settings().clone(), core.settings_version());
    if let Ok(Reply::Leases { leases, cursor, .. }) = reply {
        past.tokens.extend(leases.iter().map(|lease| lease.token));
        if let Command::Dequeue(asked) = command {
            past.walk = cursor.clone().map(|cursor| (asked.filter.clone(), cursor));
        }
    }
}

/// Compares all messages, sessions and counts of the two shards.
async fn audit(queues: &RedisQueues, shard: ShardId, core: &Shard, now: Timestamp, told: &str) {
    let totals = queues.totals(shard).await.expect("totals");
    assert_eq!((totals.totals, totals.sequence), (*core.totals(), core.sequence()), "{told}");
    for state in MessageState::ALL {
        let found = queues.list(shard, state, 0, 1_000).await.expect("a list");
        let heads: Vec<_> = found.messages.iter().map(|message| message.head.clone()).collect();
        let expected: Vec<_> = core.list(state, 0).map(|head| core.with_effective_expiry(head)).collect();
        assert_eq!(heads, expected, "{state}, {told}");
        for message in &found.messages {
            let body = String::from_utf8_lossy(&message.body.payload).into_owned();
            let is_over = matches!(state, MessageState::Completed | MessageState::Canceled);
            assert!(if is_over { body.is_empty() } else { body.starts_with("payload ") }, "{state}, {told}");
        }
    }
    let pending = queues.peek(shard, 1_000).await.expect("a peek");
    let ranks: Vec<_> = pending.messages.iter().map(|message| message.head.rank()).collect();
    assert_eq!(ranks, core.peek().map(MessageHead::rank).collect::<Vec<_>>(), "{told}");
    let sessions = queues.sessions(shard).await.expect("sessions");
    assert_eq!(sessions, core.sessions().map(|(id, session)| (id, session.clone())).collect::<Vec<_>>(), "{told}");
    let ids: Vec<_> = sessions.iter().map(|(id, _)| *id).collect();
    assert_eq!(queues.leases_of(shard, ids.clone()).await.expect("counts"), core.lease_counts(&ids), "{told}");
    let report = queues.report(shard, None).await.expect("a report");
    let expected = tallystone_ports::ShardReport::of(core, None, now);
    assert_eq!(report.counts, expected.counts, "{told}");
    assert_eq!(report.values, expected.values, "{told}");
    assert_eq!(report.signatures, expected.signatures, "{told}");
    assert_eq!(report.position, expected.position, "{told}");
}

/// Compares why messages wait, and what a dequeue would find. Each audit takes some of the messages, and the last one all.
async fn audit_explanations(queues: &RedisQueues, shard: ShardId, core: &Shard, now: Timestamp, step: u64, told: &str) {
    let is_last = step == COMMANDS_OF_A_SHARD - 1;
    let (every, first) = if is_last { (1, 0) } else { (EXPLAINED_OF, (step / AUDITED_EVERY) as usize % EXPLAINED_OF) };
    let heads = MessageState::ALL.into_iter().flat_map(|state| core.list(state, 0));
    for head in heads.skip(first).step_by(every) {
        let message = MessageRef::Key(head.key);
        let (causes, at) = queues.explain(shard, message.clone()).await.expect("an explanation");
        assert_eq!((causes, at), (core.explain(&message, now), now), "{}, {told}", head.id);
    }
    let filters: [&[(&str, &str)]; 5] =
        [&[], &[("team", "red")], &[("zone", "a")], &[("team", "blue"), ("zone", "b")], &[("team", "none")]];
    for filter in filters.map(|pairs| Filter::new(pairs.iter().copied()).expect("legal pairs")) {
        assert_eq!(queues.depth(shard, filter.clone()).await.expect("a count"), core.depth(&filter), "{told}");
        let (preview, _) = queues.preview_dequeue(shard, filter.clone()).await.expect("a preview");
        assert_eq!(preview, core.preview_dequeue(&filter, now), "{filter:?}, {told}");
    }
}

/// The keys of a shard.
pub async fn keys(client: &RedisClient, shard: ShardId) -> Vec<String> {
    let asked = RedisCommand::new("KEYS").arg(format!("{}*", keys_of(shard)));
    let found = client.call_one(Slot::of(b""), asked).await.and_then(RedisReply::into_list).expect("keys");
    let texts = found.into_iter().map(RedisReply::into_bytes).map(|key| key.expect("a key"));
    texts.map(|key| String::from_utf8(key.to_vec()).expect("keys are text")).collect()
}

fn keys_of(shard: ShardId) -> String {
    let id = shard.queue.0.to_be_bytes();
    format!("{{{}.{}}}", URL_SAFE_NO_PAD.encode(&id[4..]), shard.number)
}

/// Compares the sizes of the indexes of values and shapes with a count of the messages.
async fn audit_sizes(client: &RedisClient, shard: ShardId, core: &Shard, told: &str) {
    let prefix = keys_of(shard);
    let size = async |name: &str| {
        let key = format!("{prefix}{name}");
        let asked = RedisCommand::new("ZCARD").arg(&key);
        client.call_one(Slot::of(key.as_bytes()), asked).await.and_then(RedisReply::into_int).expect("a size")
    };
    let rule = core.settings().exclusivity.as_ref();
    let is_strict = rule.is_some_and(|rule| rule.strict_order_per_value);
    let count = |counts: bool, states: &[MessageState]| match counts {
        true => states.iter().map(|state| core.list(*state, 0).count() as i64).sum(),
        false => 0,
    };
    let lanes = count(rule.is_some(), &[MessageState::Pending]);
    let running = count(rule.is_some(), &[MessageState::Running]);
    let blocking = count(is_strict, &[MessageState::Running, MessageState::Invisible]);
    let shapes = &core.settings().shapes;
    if core.header().shapes_filled.iter().all(Option::is_none) {
        let mut in_groups = 0;
        for key in keys(client, shard).await {
            if let Some(name) = key.strip_prefix(&prefix).filter(|name| name.starts_with('y') && name.contains('.')) {
                in_groups += size(name).await;
            }
        }
        let of_shape =
            |head: &&MessageHead, shape: &ShapeKeys| shape.iter().all(|key| head.metadata.get(key).is_some());
        let expected: usize = shapes.iter().map(|shape| core.peek().filter(|head| of_shape(head, shape)).count()).sum();
        assert_eq!(in_groups, expected as i64, "messages in the groups of shapes, {told}");
    }
    assert_eq!([size("l").await, size("r").await, size("b").await], [lanes, running, blocking], "{told}");
    audit_storage(client, shard, core, told).await;
}

/// Compares how many messages, ids and sessions are stored with those that there are: nothing is left of those that are gone.
async fn audit_storage(client: &RedisClient, shard: ShardId, core: &Shard, told: &str) {
    let prefix = keys_of(shard);
    let length = async |command: &'static str, key: String| {
        let asked = RedisCommand::new(command).arg(&key);
        client.call_one(Slot::of(key.as_bytes()), asked).await.and_then(RedisReply::into_int).expect("a length")
    };
    let (mut parts, mut finished, mut ids) = (0, 0, 0);
    for key in keys(client, shard).await {
        let Some(name) = key.strip_prefix(&prefix) else { continue };
        let is_numbered = |kind: &str| {
            name.strip_prefix(kind)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if is_numbered("h") {
            parts += length("HLEN", key.clone()).await;
        } else if is_numbered("fm") {
            finished += length("HLEN", key.clone()).await;
        } else if is_numbered("i") {
            ids += length("HLEN", key.clone()).await;
        }
    }
    let count =
        |states: &[MessageState]| -> i64 { states.iter().map(|state| core.list(*state, 0).count() as i64).sum() };
    let ended = [MessageState::Completed, MessageState::Canceled];
    let open = [MessageState::Pending, MessageState::Invisible, MessageState::Running, MessageState::Errored];
    assert_eq!(
        [parts, finished, ids],
        [3 * count(&open), count(&ended), count(&MessageState::ALL)],
        "stored messages, {told}"
    );
    let (pending, sessions) = (count(&[MessageState::Pending]), core.sessions().count() as i64);
    let found = [length("ZCARD", format!("{prefix}p")).await, length("HLEN", format!("{prefix}s")).await];
    assert_eq!(found, [pending, sessions], "pending messages and sessions, {told}");
}
