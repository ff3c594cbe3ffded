//! The count of the memory of a shard beside the resident size of a process that has nothing else.

use std::process::Command as Process;
use std::time::Duration;

use tallystone_domain::Timestamp;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::command::{BulkRequest, Dequeue, FailureReport, LeaseGrant, NewMessage};
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::messages::id_hash::IdKey;
use tallystone_domain::queue::messages::message::{AttemptError, Metadata, RoutingValue, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, MessageState, Reply, Settings, Shard};
use uuid::Uuid;

use crate::queue_given::{enqueue, settings};

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names the contents to a test that runs in a process of its own.
const CONTENTS: &str = "TALLYSTONE_TEST_MEMORY_OF";
const MESSAGES: u64 = 120_000;
const SELF: &str = "queue_memory::the_memory_of_a_shard_is_told_to_the_process_that_asks";

/// The resident bytes of this process, without those of files such as its own code.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells them");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the line is there");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes * 1024
}

struct Filled {
    shard: Shard,
    now: Timestamp,
}

impl Filled {
    fn with(settings: Settings) -> Self {
        let (quota_messages, quota_bytes, dedupe_max_bytes) = (100_000_000, 64 << 30, 4 << 30);
        let settings = Settings { quota_messages, quota_bytes, dedupe_max_bytes, ..settings };
        let shard = Shard::new(0, 1, settings).expect("valid settings");
        Self { shard, now: Timestamp::from_secs(1_000_000) }
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.shard.apply(command, self.now).reply.expect("it is taken")
    }

    fn put(&mut self, message: NewMessage) {
        self.apply(Command::Enqueue(Box::new(message)));
    }

    fn put_all(mut self, messages: u64, one: impl Fn(u64) -> NewMessage) -> Self {
        (0..messages).for_each(|number| self.put(one(number)));
        self
    }

    fn take(&mut self, max: usize) -> Vec<LeaseGrant> {
        match self.apply(Command::Dequeue(Dequeue { max, ..Dequeue::default() })) {
            Reply::Leases { leases, .. } => leases,
            other => panic!("leases: {other:?}"),
        }
    }

    /// Ends messages one after the other, each by its first attempt, with some work between hundreds of them.
    fn work_off(
        mut self,
        messages: u64,
        (verb, failure): (SettleAction, FailureReport),
        between: fn(&mut Self),
    ) -> Self {
        for number in 1..=messages {
            self.put(NewMessage { token_time: Some(self.now), max_attempts: Some(1), ..plain(number) });
            let token = self.take(1)[0].token;
            self.apply(Command::Settle { token, verb, failure: failure.clone() });
            if number.is_multiple_of(100) {
                between(&mut self);
                self.now = self.now + Duration::from_millis(20);
            }
        }
        self
    }
}

/// A message with the id that most callers make: a UUID, whose order says nothing of the order of messages.
fn plain(number: u64) -> NewMessage {
    let Command::Enqueue(message) = enqueue("m", 0, &[7; 100]).command else { panic!("it is an enqueue") };
    let id = Uuid::from_u64_pair(number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number);
    NewMessage { id: MessageId::of_uuid(id.into_bytes()), ..*message }
}

fn with_metadata(number: u64) -> NewMessage {
    let (tenant, zone) = (format!("tenant-{}", number % 500), format!("zone-{}", number % 5));
    let metadata = Metadata::new([("tenant", tenant.as_str()), ("zone", zone.as_str())]).expect("valid pairs");
    let id = MessageId::new(&format!("order-{number}-of-customer-{}", number % 1_000)).expect("a valid id");
    NewMessage { id, metadata, ..plain(number) }
}

fn exclusive_one(number: u64) -> NewMessage {
    let value = format!("customer-{}", number / 4);
    let metadata = Metadata::new([("team", value.as_str())]).expect("valid pairs");
    NewMessage { routing: RoutingValue::new(&value).ok(), metadata, ..plain(number) }
}

/// Ids in the order of messages, one each 100 us.
fn of_version_7(number: u64) -> NewMessage {
    let moment =
        uuid::Timestamp::from_unix(uuid::NoContext, 1_000_000 + number / 10_000, (number % 10_000 * 100_000) as u32);
    NewMessage { id: MessageId::of_uuid(Uuid::new_v7(moment).into_bytes()), ..plain(number) }
}

fn failed() -> FailureReport {
    let text = "the other side does not answer: connection refused, after three attempts in ten seconds";
    let error = Some(AttemptError { signature: "CONNECT".into(), text: text.into() });
    FailureReport { error, ..FailureReport::default() }
}

/// A shard that keeps stubs of what is over.
fn of_stubs() -> Filled {
    let filled = Filled::with(settings());
    let shard = filled.shard.with_stubs(IdKey::default());
    Filled { shard, ..filled }
}

fn shed(filled: &mut Filled) {
    filled.shard.shed_heads();
}

/// Leaves the answers of finished messages only.
fn purge(filled: &mut Filled) {
    let (states, through) = (PurgedStates::new([MessageState::Completed]).expect("a state"), u64::MAX);
    filled.apply(Command::Purge(BulkRequest { states, through, max: 100, ..BulkRequest::default() }));
}

/// A process takes memory in large pieces, which must be few beside what is measured.
fn messages_of(contents: &str) -> u64 {
    if ["finished", "dead letters"].contains(&contents) { 4 * MESSAGES } else { MESSAGES }
}

/// The contents by name, of so many messages.
fn shard_with(contents: &str, messages: u64) -> Filled {
    let completed = (SettleAction::Complete, FailureReport::default());
    match contents {
        "plain" => Filled::with(settings()).put_all(messages, plain),
        "version 7" => Filled::with(settings()).put_all(messages, of_version_7),
        "metadata" => Filled::with(settings()).put_all(messages, with_metadata),
        "shapes" => {
            let shape = ShapeKeys::new(["tenant"]).expect("valid keys");
            Filled::with(Settings { shapes: vec![shape], ..settings() }).put_all(messages, with_metadata)
        }
        "exclusive" => {
            let rule = Exclusivity { key: "team".into(), max_in_flight_per_value: 2, strict_order_per_value: false };
            Filled::with(Settings { exclusivity: Some(rule), ..settings() }).put_all(messages, exclusive_one)
        }
        "running" => {
            let mut filled = Filled::with(settings()).put_all(messages, plain);
            while !filled.take(100).is_empty() {}
            filled
        }
        "sessions" => with_sessions(messages, Leases::Held),
        "confirmed" => with_sessions(messages, Leases::Confirmed),
        "settled" => with_sessions(messages, Leases::GivenBack),
        "errored" => Filled::with(settings()).work_off(messages, (SettleAction::Fail, failed()), |_| {}),
        "dead letters" => of_stubs().work_off(messages, (SettleAction::Fail, failed()), shed),
        "finished" => of_stubs().work_off(messages, completed, shed),
        "answers" => Filled::with(settings()).work_off(messages, completed, purge),
        other => panic!("no contents {other}"),
    }
}

/// Sessions with three leases each, which their workers hold, have confirmed, or have given back. A shard has at most 50,000
/// sessions.
fn with_sessions(messages: u64, leases: Leases) -> Filled {
    let mut filled = Filled::with(settings()).put_all(messages, plain);
    for number in 1..=messages / 3 {
        let id = SessionId(Uuid::from_u64_pair(number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number).as_u128());
        let lease = Some(Duration::from_secs(600));
        let call = SessionCall { id, lease, sequence: 1, attempt: 1, received_up_to: None };
        let asked = Dequeue { max: 3, session: Some(call), ..Dequeue::default() };
        let Reply::Leases { leases: given, .. } = filled.apply(Command::Dequeue(asked)) else { panic!("leases") };
        if leases != Leases::Held {
            filled.apply(Command::Heartbeat { session: id, received_up_to: Some(1) });
        }
        for LeaseGrant { token, .. } in given.into_iter().filter(|_| leases == Leases::GivenBack) {
            let (verb, failure) = (
                SettleAction::Fail,
                FailureReport { delay: Some(Duration::from_secs(3_600)), ..FailureReport::default() },
            );
            filled.apply(Command::Settle { token, verb, failure });
        }
    }
    filled
}

/// How far the leases of a session are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leases {
    Held,
    Confirmed,
    GivenBack,
}

/// Runs in the process that the test below starts, and does nothing otherwise.
#[test]
fn the_memory_of_a_shard_is_told_to_the_process_that_asks() {
    let Ok(contents) = std::env::var(CONTENTS) else { return };
    let warm_up = shard_with(&contents, 2_000);
    let before = resident_bytes();
    let filled = shard_with(&contents, messages_of(&contents));
    let resident = resident_bytes() - before;
    println!("resident {resident} counted {}", filled.shard.memory().total());
    drop(warm_up);
}

/// The resident and the counted bytes of these contents, in a process of their own.
fn measured(contents: &str) -> (u64, u64) {
    let mut process = Process::new(std::env::current_exe().expect("the test binary"));
    let output = process.args(["--exact", "--nocapture", SELF]).env(CONTENTS, contents).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |after: &str| {
        let place = words.iter().position(|word| *word == after).unwrap_or_else(|| panic!("{contents}: {text}"));
        words[place + 1].parse().expect("a number")
    };
    (number("resident"), number("counted"))
}

#[test]
fn the_count_of_the_memory_of_a_shard_is_within_15_percent_of_what_a_process_takes() {
    let mut told = Vec::new();
    let all = [
        "plain",
        "version 7",
        "metadata",
        "shapes",
        "exclusive",
        "running",
        "sessions",
        "confirmed",
        "settled",
        "errored",
        "dead letters",
        "finished",
        "answers",
    ];
    for contents in all {
        let ((resident, counted), messages) = (measured(contents), messages_of(contents));
        told.push((contents, resident / messages, counted / messages, counted * 100 / resident));
    }
    let is_near = |(.., percent): &(_, _, _, u64)| (85..=115).contains(percent);
    assert!(told.iter().all(is_near), "contents, resident and counted bytes of a message, percent: {told:?}");
}
