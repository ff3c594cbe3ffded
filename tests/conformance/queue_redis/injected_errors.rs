//! An error at every call that a function makes: nothing has changed, or the shard says that it is inconsistent. In either
//! case no sequence and no serial is used twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::manual::ManualClock;
use tallystone_domain::queue::{Command, QueueId, Shard, ShardId};
use tallystone_ports::{
    Clock, EffectOutcome, MessageBody, ShardCommand, ShardOutbox, ShardReader, ShardStore, StoreErrorKind,
};
use tallystone_redis::client::RedisCommand;
use tallystone_redis::{QueueLibrary, RedisQueues};

use super::commands::{Chance, Past};
use super::keys::{ShardKeys, Snapshot, data_of};
use super::random::{learn, settings};
use super::server::{QueueServer, next_queue, past_clock};
use crate::servers::redis::{Build, or_skip};

/// The key that says which call fails: a number of its own for each attempt, then that of the call.
pub const FAULT: &str = "fault";
/// Commands of each kind that errors are injected into on each build, usually and with `tests/run --long`; they have to change
/// something.
const TRIED_OF_A_KIND: usize = 1;
const TRIED_OF_A_KIND_LONG: usize = 2;
/// The commands among which they are.
const COMMANDS_MAX: usize = 900;
/// The seeds of these commands, of which so many are taken as it needs.
const SEEDS: std::ops::RangeInclusive<u64> = 2..=80;
const KINDS: [&str; 18] = [
    "Enqueue",
    "Dequeue",
    "Settle",
    "Extend",
    "CancelMessage",
    "Update",
    "UpdateOfContent",
    "Redrive",
    "Discard",
    "RedriveAll",
    "DiscardAll",
    "Purge",
    "CancelAll",
    "Heartbeat",
    "EndSession",
    "Configure",
    "SetValueLimit",
    "Sweep",
];

/// The library, which counts its calls and fails one of them. Counting goes on until the key has another value.
pub fn faulty_library() -> String {
    let mut code = QueueLibrary::assemble().code;
    let mut replace = |old: &str, new: &str| {
        assert_eq!(code.matches(old).count(), 1, "{old}");
        code = code.replace(old, new);
    };
    replace("\n-- The tables and limits of the core.\n", "\nlocal CALLS, FAIL_AT, ATTEMPT = 0, 0, ''\n");
    replace(
        "  call = redis.call\n",
        "  call = function(...)
    CALLS = CALLS + 1
    if CALLS == FAIL_AT then
      error('INJECTED')
    end
    return redis.call(...)
  end
",
    );
    replace(
        "-- The functions of the library, under names with its hash",
        &format!(
            "local function counted(own)
  return function(keys, args)
    local attempt = redis.call('GET', '{FAULT}') or ''
    if attempt ~= ATTEMPT then
      ATTEMPT, CALLS, FAIL_AT = attempt, 0, tonumber(string.match(attempt, ':(%d+)') or 0)
    end
    return own(keys, args)
  end
end
F.enq, F.deq, F.set, F.ses, F.msg = counted(F.enq), counted(F.deq), counted(F.set), counted(F.ses), counted(F.msg)
F.upd = counted(F.upd)
F.bulk, F.swp, F.cfg, F.new = counted(F.bulk), counted(F.swp), counted(F.cfg), counted(F.new)
F.del, F.see = counted(F.del), counted(F.see)
F.cat, F.req, F.mem = counted(F.cat), counted(F.req), counted(F.mem)
F.opr, F.dir = counted(F.opr), counted(F.dir)
-- The functions of the library, under names with its hash"
        ),
    );
    code
}

/// A server with the faulty library.
struct FaultyServer {
    _server: QueueServer,
    keys: ShardKeys,
    queues: Arc<RedisQueues>,
    clock: ManualClock,
    attempts: u32,
}

impl FaultyServer {
    async fn start(build: Build) -> Option<Self> {
        let server = or_skip(QueueServer::start(build))?;
        let keys = ShardKeys::of_shard(server.client().await);
        keys.send(RedisCommand::new("FUNCTION").arg("LOAD").arg("REPLACE").arg(faulty_library())).await;
        let clock = past_clock();
        let queues = server.queues(&clock).await;
        Some(Self { _server: server, keys, queues, clock, attempts: 0 })
    }

    /// The call of this number fails from now on, counted from here.
    async fn fail_at(&mut self, call: usize) {
        self.attempts += 1;
        let value = format!("{}:{call}", self.attempts);
        self.keys.send(RedisCommand::new("SET").arg(FAULT).arg(value)).await;
    }

    async fn heal(&self) {
        self.keys.send(RedisCommand::new("UNLINK").arg(FAULT)).await;
    }

    /// Whether the shard refuses everything as inconsistent.
    async fn is_inconsistent(&self, shard: ShardId) -> bool {
        let sweep = ShardCommand::of(Command::Sweep { max: 1 });
        let Err(told) = self.queues.apply(shard, vec![sweep]).await.remove(0) else { return false };
        let source = std::error::Error::source(&told).map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("INCONSISTENT"), "{source}");
        assert_eq!((told.kind, told.outcome), (StoreErrorKind::Corrupt, EffectOutcome::NotApplied), "{told}");
        let read = self.queues.peek(shard, 1).await.expect_err("reads say so too");
        assert_eq!(read.kind, StoreErrorKind::Corrupt);
        true
    }

    /// The shard after all that is due. It is as before afterwards.
    async fn with_what_is_due(&self, shard: ShardId, before: &Snapshot) -> Snapshot {
        let sweep = ShardCommand::of(Command::Sweep { max: 64 });
        self.queues.apply(shard, vec![sweep]).await.remove(0).expect("a sweep");
        let swept = self.keys.snapshot().await;
        self.keys.restore(before).await;
        swept
    }

    /// Fails each call of a command in turn, from the same state. Whether the command changes the shard at all. The state is
    /// as before afterwards.
    async fn try_command(&mut self, shard: ShardId, sent: &ShardCommand) -> bool {
        let before = self.keys.snapshot().await;
        self.queues.apply(shard, vec![sent.clone()]).await.remove(0).expect("it works without an error");
        let after = self.keys.snapshot().await;
        let last = self.keys.header().await.expect("a header");
        if after == before {
            return false;
        }
        self.keys.restore(&before).await;
        let before = self.keys.snapshot().await;
        let (first, due) = (self.keys.header().await.expect("a header"), self.with_what_is_due(shard, &before).await);
        for call in 1.. {
            self.fail_at(call).await;
            let answer = self.queues.apply(shard, vec![sent.clone()]).await.remove(0);
            self.heal().await;
            let found = self.keys.snapshot().await;
            let told = format!("call {call} of {:?}", sent.command);
            let header = self.keys.header().await.expect("a header");
            if answer.is_ok() {
                assert!(call > 2 && !header.is_inconsistent, "{told}");
                break;
            }
            if found != before {
                assert!(self.is_inconsistent(shard).await, "{told}");
                // What is due is written before a dequeue takes a number.
                let is_due_only = matches!(sent.command, Command::Dequeue(_))
                    && (header.sequence, header.serial) == (first.sequence, first.serial)
                    && messages_are_of(&found, &before, &due);
                if data_of(&found) != data_of(&before) && !is_due_only {
                    assert_eq!((header.sequence, header.serial), (last.sequence, last.serial), "{told}");
                }
                self.keys.restore(&before).await;
            }
        }
        self.keys.restore(&before).await;
        true
    }
}

/// Whether each key with messages is as in one of two states: so none was leased or made since.
fn messages_are_of(found: &Snapshot, before: &Snapshot, due: &Snapshot) -> bool {
    let (found, before, due) = (data_of(found), data_of(before), data_of(due));
    let is_home = |name: &[u8]| name.first() == Some(&b'h') && name[1..].iter().all(u8::is_ascii_digit);
    let is_one_of =
        |(name, dump): (&Vec<u8>, &&bytes::Bytes)| before.get(name) == Some(dump) || due.get(name) == Some(dump);
    found.iter().filter(|(name, _)| is_home(name)).all(is_one_of)
}

fn kind_of(command: &Command) -> String {
    if matches!(command, Command::Update { update, .. } if update.has_content()) {
        return "UpdateOfContent".to_owned();
    }
    format!("{command:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

fn tried_of_a_kind() -> usize {
    if std::env::var_os("TALLYSTONE_LONG_TESTS").is_some() { TRIED_OF_A_KIND_LONG } else { TRIED_OF_A_KIND }
}

/// Random commands on one shard; calls of some of each kind fail.
async fn fail_calls_of_random_commands(server: &mut FaultyServer, seed: u64, tried: &mut BTreeMap<String, usize>) {
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    server.queues.create(shard.queue, 1, settings(seed).into()).await.expect("a new queue");
    let mut core = Shard::new(0, 1, settings(seed)).expect("valid settings");
    let mut chance = Chance::of(seed);
    let start = server.clock.now();
    let mut past = Past {
        start,
        now: start,
        sent: Vec::new(),
        tokens: Vec::new(),
        walk: None,
        sequence: 0,
        settings: settings(seed),
        version: 0,
        may_configure: true,
    };
    for step in 0..COMMANDS_MAX {
        server.clock.advance(Duration::from_micros(chance.pick(&[0, 1_000, 50_000, 250_000, 1_000_000, 3_000_000])));
        past.now = server.clock.now();
        let command = past.command(&mut chance);
        let body = MessageBody { payload: format!("payload {step}").into(), ..MessageBody::default() };
        let sent = ShardCommand { command: command.clone(), body };
        if let Some(count) = tried.get_mut(&kind_of(&command)).filter(|count| **count < tried_of_a_kind()) {
            *count += usize::from(server.try_command(shard, &sent).await);
        }
        let answer = server.queues.apply(shard, vec![sent]).await.remove(0).expect("the store takes it");
        let applied = core.apply(command.clone(), answer.at);
        assert_eq!(answer.reply, applied.reply, "step {step}: {command:?}");
        learn(&mut past, &command, &answer.reply, &core);
        if tried.values().all(|count| *count == tried_of_a_kind()) {
            break;
        }
    }
    check_deletion(server, shard).await;
}

/// Fails each call of a deletion and then of a drop.
async fn check_deletion(server: &mut FaultyServer, shard: ShardId) {
    let before = server.keys.snapshot().await;
    let delete = || vec![ShardCommand::of(Command::Delete)];
    server.queues.apply(shard, delete()).await.remove(0).expect("it works without an error");
    let after = server.keys.snapshot().await;
    for call in 1.. {
        server.keys.restore(&before).await;
        server.fail_at(call).await;
        let answer = server.queues.apply(shard, delete()).await.remove(0);
        server.heal().await;
        if answer.is_ok() {
            assert!(call > 10, "{call}");
            break;
        }
        if !server.keys.header().await.expect("a header").is_inconsistent {
            server.queues.apply(shard, delete()).await.remove(0).expect("a repeat ends it");
            assert_eq!(names_of(&server.keys.snapshot().await), names_of(&after), "call {call} of a deletion");
        }
    }
    check_drop(server, shard, &before).await;
}

fn names_of(snapshot: &Snapshot) -> Vec<Vec<u8>> {
    snapshot.keys().map(|name| name.to_vec()).collect()
}

async fn check_drop(server: &mut FaultyServer, shard: ShardId, before: &Snapshot) {
    let entry = RedisCommand::new("HGETALL").arg("{tallystone}queues");
    let entries = server.keys.send(entry).await.into_list().expect("the registry");
    let entries: Vec<_> = entries.into_iter().map(|part| part.into_bytes().expect("a text")).collect();
    for call in 1.. {
        server.keys.restore(before).await;
        let again = entries.iter().fold(RedisCommand::new("HSET").arg("{tallystone}queues"), RedisCommand::arg);
        server.keys.send(again).await;
        server.fail_at(call).await;
        let answer = server.queues.drop_queue(shard.queue).await;
        server.heal().await;
        let entry = RedisCommand::new("HGET").arg("{tallystone}queues").arg(shard.queue.to_string());
        let entry = server.keys.send(entry).await.into_bytes().expect("it was created");
        if answer.is_ok() && entry.starts_with(b"dropped ") {
            assert!(call > 10, "{call}");
            return;
        }
        assert!(entry.starts_with(b"dropping "), "call {call}: a server goes on");
        if answer.is_ok() || server.keys.snapshot().await != *before {
            let absent = server.queues.peek(shard, 1).await.map(drop).map_err(|error| error.kind);
            assert_eq!(absent, Err(StoreErrorKind::Conflict), "call {call} of a drop");
        }
        server.queues.drop_queue(shard.queue).await.expect("a repeat ends it");
        let left = server.keys.snapshot().await;
        let left: Vec<_> = data_of(&left).into_keys().collect();
        assert!(left.is_empty() || left == [b"o".to_vec()], "call {call} of a drop left {left:?}");
    }
}

/// Fails each call of a creation: there is no shard, or a whole one, and a repeat makes it.
async fn check_creation(server: &mut FaultyServer) {
    let made = |number: u128| ShardId { queue: QueueId(number), number: 0 };
    let whole = made(next_queue());
    server.queues.create(whole.queue, 1, settings(2).into()).await.expect("a new queue");
    let expected = server.keys.snapshot().await;
    for call in 1.. {
        server.keys.clear().await;
        let shard = made(next_queue());
        server.fail_at(call).await;
        let answer = server.queues.create(shard.queue, 1, settings(2).into()).await;
        server.heal().await;
        if answer.is_ok() {
            assert!(call > 4, "{call}");
            return;
        }
        if let Err(absent) = server.queues.peek(shard, 1).await {
            assert_eq!((absent.kind, absent.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
        }
        server.queues.create(shard.queue, 1, settings(2).into()).await.expect("a repeat makes it");
        assert_eq!(data_of(&server.keys.snapshot().await), data_of(&expected), "call {call} of a creation");
    }
}

/// Fails each call of a report: nothing changes.
async fn check_reads(server: &mut FaultyServer) {
    server.keys.clear().await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    server.queues.create(shard.queue, 1, settings(2).into()).await.expect("a new queue");
    let message = crate::queue_given::enqueue("a", 0, b"payload");
    server.queues.apply(shard, vec![message]).await.remove(0).expect("the store takes it");
    let before = server.keys.snapshot().await;
    for call in 1.. {
        server.fail_at(call).await;
        let answer = server.queues.report(shard, None).await;
        server.heal().await;
        assert!(server.keys.snapshot().await == before, "call {call} of a read");
        if answer.is_ok() {
            assert!(call > 4, "{call}");
            return;
        }
    }
}

#[tokio::test]
async fn an_error_at_any_call_of_a_function_leaves_nothing_or_an_inconsistent_shard() {
    for build in Build::ALL {
        println!("on {}", build.name());
        let Some(mut server) = FaultyServer::start(build).await else { continue };
        check_creation(&mut server).await;
        check_reads(&mut server).await;
        let mut tried: BTreeMap<String, usize> = KINDS.iter().map(|kind| ((*kind).to_owned(), 0)).collect();
        // Settings and blocks change in every second one.
        for seed in SEEDS.step_by(2) {
            if tried.values().any(|count| *count < tried_of_a_kind()) {
                server.keys.clear().await;
                fail_calls_of_random_commands(&mut server, seed, &mut tried).await;
            }
        }
        assert!(
            tried.values().all(|count| *count == tried_of_a_kind()),
            "too few commands changed something: {tried:?}"
        );
    }
}
