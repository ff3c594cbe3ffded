//! The count of the memory of a shard beside the resident size of a process that has nothing else.

use std::process::Command as Process;
use std::time::Duration;

use uuid::Uuid;

use super::laws::Order;
use super::{Bench, exclusive, message, of, settings, shape, up_to};
use crate::queue::bulk_operation::PurgedStates;
use crate::queue::command::{BulkRequest, NewMessage};
use crate::queue::messages::id_hash::IdKey;
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::SettleAction;
use crate::queue::setup::settings::Retention;
use crate::queue::shard::memory::ShardMemory;
use crate::queue::{Command, MessageState, Settings, Shard};

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names the contents to a test that runs in a process of its own.
const CONTENTS: &str = "TALLYSTONE_TEST_MEMORY_OF";
const MESSAGES: u64 = 120_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// The resident bytes of this process, without those of files such as its own code.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells them");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the line is there");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes * 1024
}

/// An id as most callers make it: a UUID, whose order says nothing of the order of messages.
fn uuid(number: u64) -> MessageId {
    MessageId::of_uuid(Uuid::from_u64_pair(number.wrapping_mul(0x9E37_79B9_7F4A_7C15), number).into_bytes())
}

fn plain(number: u64) -> NewMessage {
    NewMessage { id: uuid(number), payload_bytes: 100, fingerprint: number, ..message("m", &[]) }
}

fn with_metadata(number: u64) -> NewMessage {
    let (tenant, zone) = (format!("tenant-{}", number % 500), format!("zone-{}", number % 5));
    let pairs = [("tenant", tenant.as_str()), ("zone", zone.as_str())];
    let NewMessage { metadata, .. } = message("m", &pairs);
    let id = MessageId::new(&format!("order-{number}-of-customer-{}", number % 1_000)).expect("a valid id");
    NewMessage { id, metadata, ..plain(number) }
}

fn exclusive_one(number: u64) -> NewMessage {
    let value = format!("customer-{}", number / 4);
    NewMessage { id: uuid(number), payload_bytes: 100, fingerprint: number, ..of(&value, "m", 0) }
}

fn with_token(bench: &Bench, number: u64) -> NewMessage {
    NewMessage { token_time: Some(bench.now), ..plain(number) }
}

/// These settings with room for all messages.
fn roomy(settings: Settings) -> Settings {
    Settings {
        count_by: Vec::new(),
        quota_messages: 100_000_000,
        quota_bytes: 64 << 30,
        dedupe_window: HOUR,
        dedupe_max_bytes: 4 << 30,
        retention: Retention { completed: HOUR, canceled: HOUR, errored: HOUR },
        ..settings
    }
}

fn fill(settings: Settings, one: impl Fn(u64) -> NewMessage, messages: u64) -> Bench {
    let mut bench = Bench::new(roomy(settings));
    for number in 0..messages {
        bench.put(one(number));
    }
    bench
}

fn empty_shard() -> Shard {
    Shard::new(0, 1, roomy(settings())).expect("valid settings")
}

/// Works off all messages of a shard, with some work between hundreds of them.
fn worked_off(shard: Shard, messages: u64, between: impl Fn(&mut Bench)) -> Bench {
    let mut bench = Bench::new(roomy(settings()));
    bench.shard = shard;
    for number in 1..=messages {
        bench.put(with_token(&bench, number));
        let lease = bench.take(up_to(1)).remove(0);
        let settle = Command::Settle { token: lease.token, verb: SettleAction::Complete, failure: Default::default() };
        bench.apply(settle).expect("it is leased");
        if number.is_multiple_of(100) {
            between(&mut bench);
            bench.now = bench.now + Duration::from_millis(20);
        }
    }
    bench
}

/// Leaves the answers of finished messages only.
fn purge(bench: &mut Bench) {
    let (states, through) = (PurgedStates::new([MessageState::Completed]).expect("a state"), u64::MAX);
    let bulk = BulkRequest { states, through, max: 100, ..BulkRequest::default() };
    bench.apply(Command::Purge(bulk)).expect("a purge");
}

/// A process takes memory in large pieces, which must be few beside what is measured.
fn messages_of(contents: &str) -> u64 {
    if contents == "finished" { 4 * MESSAGES } else { MESSAGES }
}

/// The contents by name, of so many messages.
fn shard_with(contents: &str, messages: u64) -> Bench {
    match contents {
        "plain" => fill(settings(), plain, messages),
        "metadata" => fill(settings(), with_metadata, messages),
        "shapes" => fill(Settings { shapes: vec![shape(&["tenant"])], ..settings() }, with_metadata, messages),
        "exclusive" => fill(exclusive(2, Order::Loose), exclusive_one, messages),
        "finished" => {
            let shard = empty_shard().with_stubs(IdKey::default());
            worked_off(shard, messages, |bench| bench.shard.shed_heads())
        }
        "answers" => worked_off(empty_shard(), messages, purge),
        other => panic!("no contents {other}"),
    }
}

/// Runs in the process that the test below starts, and does nothing otherwise.
#[test]
fn the_memory_of_a_shard_is_told_to_the_process_that_asks() {
    let Ok(contents) = std::env::var(CONTENTS) else { return };
    let warm_up = shard_with(&contents, 2_000);
    let before = resident_bytes();
    let bench = shard_with(&contents, messages_of(&contents));
    let resident = resident_bytes() - before;
    println!("resident {resident} counted {}", bench.shard.memory().total());
    drop(warm_up);
}

/// The resident and the counted bytes of these contents, in a process of their own.
fn measured(contents: &str) -> (u64, u64) {
    let own = std::env::current_exe().expect("the test binary");
    let mut process = Process::new(own);
    process.args(["--exact", "--nocapture"]).env(CONTENTS, contents);
    process.arg("queue::tests::memory::the_memory_of_a_shard_is_told_to_the_process_that_asks");
    let output = process.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.lines().find(|line| line.contains("counted")).unwrap_or(&text).split(' ').collect();
    let number = |after: &str| {
        let place = words.iter().position(|word| word.ends_with(after)).unwrap_or_else(|| panic!("{contents}: {text}"));
        words[place + 1].trim().parse().expect("a number")
    };
    (number("resident"), number("counted"))
}

#[test]
fn the_count_of_the_memory_of_a_shard_is_within_15_percent_of_what_a_process_takes() {
    let mut told = Vec::new();
    for contents in ["plain", "metadata", "shapes", "exclusive", "finished", "answers"] {
        let (resident, counted) = measured(contents);
        let percent = counted * 100 / resident;
        let messages = messages_of(contents);
        told.push((contents, resident / messages, counted / messages, percent));
    }
    let is_near = |(.., percent): &(_, _, _, u64)| (85..=115).contains(percent);
    assert!(told.iter().all(is_near), "contents, resident and counted bytes of a message, percent: {told:?}");
}

#[test]
fn the_memory_of_a_shard_is_counted_by_what_takes_it_and_nothing_is_left_behind() {
    let mut bench = Bench::new(roomy(settings()));
    assert_eq!(bench.shard.memory(), ShardMemory::default());
    for number in 0..1_000 {
        bench.put(with_token(&bench, number));
    }
    let pending = bench.shard.memory();
    assert!(pending.heads > 100_000 && pending.indexes > 20_000 && pending.answers > 100, "{pending:?}");
    assert_eq!((pending.stubs, pending.sessions), (0, 0));
    assert_eq!(pending.total(), pending.parts().iter().map(|(_, bytes)| bytes).sum::<u64>());
    assert_eq!(bench.apply(Command::Delete).map(|_| ()), Ok(()));
    let left = bench.shard.memory();
    assert_eq!((left.heads, left.stubs, left.indexes), (0, 0, 0), "{left:?}");
}
