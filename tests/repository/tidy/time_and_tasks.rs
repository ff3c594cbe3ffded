//! Time and chance come through ports; tasks have an owner; queues have an end; tests do not sleep.

use super::{Except, expect_none, mentions_except, mentions_where, names_any};

const CLOCKS: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "Utc::now",
    "Local::now",
    "Zoned::now",
    "Timestamp::now",
    "OffsetDateTime::now_utc",
    "libc::clock_gettime",
    "libc::gettimeofday",
];

const CHANCE: &[&str] = &[
    "Uuid::now_v7",
    "Uuid::now_v1",
    "Uuid::new_v4",
    "rand",
    "getrandom",
    "fastrand",
    "thread_rng",
    "RandomState::new",
    "libc::getrandom",
];

const TIMERS: &[&str] =
    &["time::sleep", "time::sleep_until", "time::interval", "time::interval_at", "thread::sleep", "time::Instant"];

const SPAWNS: &[&str] = &[
    "tokio::spawn",
    "task::spawn",
    "task::spawn_local",
    "task::spawn_blocking",
    "task::JoinHandle",
    "thread::spawn",
    "thread::Builder",
    "rt::spawn",
    "Handle::current",
];

#[test]
fn only_the_system_adapter_reads_a_clock_or_draws_random_bytes() {
    const EXCEPT: &[Except] = &[
        Except("src/adapters/system", "it is the clock and the entropy"),
        Except("src/client", "a library for applications; it runs in their process, on their clock"),
        Except("tests/", "tests of the real binary measure real time"),
        Except("loadtest/", "measures real time"),
    ];
    let found = mentions_except(EXCEPT, |_, mention| names_any(mention, CLOCKS) || names_any(mention, CHANCE));
    expect_none("take ports::Clock or ports::Entropy, so that a test can own time and chance", found);
}

#[test]
fn only_the_system_adapter_and_the_wire_wait_on_a_timer() {
    const EXCEPT: &[Except] = &[
        Except("src/adapters/system", "it is the clock"),
        Except("src/api/", "deadlines of calls are wall matters of the wire"),
        Except("src/client", "a library for applications"),
        Except("src/app/", "the drain deadline"),
        Except("loadtest/", "measures real time"),
    ];
    let found = mentions_except(EXCEPT, |source, mention| {
        !source.in_test(mention) && (names_any(mention, TIMERS) || mention.names("tokio::time"))
    });
    expect_none("wait with ports::Clock::sleep", found);
}

#[test]
fn no_test_sleeps() {
    const EXCEPT: &[Except] =
        &[Except("tests/it/support/harness", "polls a process of ours until it is ready or a deadline has passed")];
    let found = mentions_except(EXCEPT, |source, mention| {
        source.in_test(mention)
            && names_any(mention, &["time::sleep", "time::sleep_until", "thread::sleep", "libc::usleep"])
    });
    expect_none("wait on a signal or move the clock", found);
}

#[test]
fn every_task_has_an_owner() {
    const EXCEPT: &[Except] = &[
        Except("src/adapters/embedded/commit/committer", "the one writer thread; joined when the store closes"),
        Except("src/adapters/embedded/disk/background", "starts threads; whoever asks for one joins it"),
        Except(
            "src/adapters/embedded/commit/keyspace_worker",
            "the thread beside it that makes keyspaces; joined with it",
        ),
        Except("src/adapters/embedded/store_core", "reads of the store library block; joined by the caller"),
        Except("src/adapters/files/admin_log", "files block; joined by the call"),
        Except("src/api/http/json", "reads and writes large bodies off the runtime; joined by the call"),
        Except("src/app/", "the composition root owns what it starts"),
        Except("loadtest/", "joins what it starts"),
    ];
    let found = mentions_except(EXCEPT, |source, mention| !source.in_test(mention) && names_any(mention, SPAWNS));
    expect_none("let the loop driver start it, or a JoinSet that its owner joins", found);
}

#[test]
fn every_queue_has_an_end() {
    let found = mentions_where(|_, mention| {
        names_any(mention, &["unbounded_channel", "std::sync::mpsc::channel", "UnboundedSender", "channel::unbounded"])
    });
    expect_none("use a bounded channel and name its bound in domain/limits.rs", found);
}
