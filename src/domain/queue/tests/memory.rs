//! The count of the memory of a shard. `tests/conformance/queue_memory.rs` compares it with what a process takes.

use std::time::Duration;

use super::{Bench, message, settings};
use crate::limits::REUSED_ID_REPEATED_MAX;
use crate::queue::command::NewMessage;
use crate::queue::setup::settings::{IdReuse, Retention};
use crate::queue::shard::memory::ShardMemory;
use crate::queue::{Command, Refusal, Reply, Settings, ShardSettings};
use crate::time::Timestamp;

fn roomy() -> Settings {
    Settings { quota_messages: 10_000, quota_bytes: 1 << 30, dedupe_max_bytes: 1 << 30, ..settings() }
}

fn with_token(bench: &Bench, number: u64) -> NewMessage {
    NewMessage { token_time: Some(bench.now), ..message(&format!("message-{number}"), &[("team", "blue")]) }
}

#[test]
fn the_memory_of_a_shard_is_counted_by_what_takes_it_and_nothing_is_left_behind() {
    let mut bench = Bench::new(roomy());
    assert_eq!(bench.shard.memory(), ShardMemory::default());
    for number in 0..1_000 {
        bench.put(with_token(&bench, number));
    }
    let pending = bench.shard.memory();
    assert!(pending.heads > 100_000 && pending.indexes > 20_000 && pending.answers > 100, "{pending:?}");
    assert_eq!((pending.stubs, pending.sessions), (0, 0));
    assert_eq!(pending.total(), pending.parts().iter().map(|part| part.bytes).sum::<u64>());
    assert_eq!(bench.apply(Command::Delete).map(|_| ()), Ok(()));
    let left = bench.shard.memory();
    assert_eq!((left.heads, left.stubs, left.indexes), (0, 0, 0), "{left:?}");
}

/// Whether an enqueue of this message would add it, compared with what a copy of the shard does.
fn adds(bench: &Bench, sent: &NewMessage) -> bool {
    let would = bench.shard.would_add(sent, bench.now.into());
    let mut copy = bench.shard.clone();
    let reply = copy.apply(Command::Enqueue(Box::new(sent.clone())), bench.now).reply;
    assert_eq!(would, matches!(reply, Ok(Reply::Enqueued { already_enqueued: false, .. })), "{sent:?}: {reply:?}");
    would
}

#[test]
fn whether_an_enqueue_would_add_a_message_is_known_before() {
    for reuse_ids in [IdReuse::AfterWindow, IdReuse::WhenOver] {
        let mut bench = Bench::new(Settings { reuse_ids, quota_messages: 3, ..roomy() });
        let (sent, other) = (with_token(&bench, 1), with_token(&bench, 2));
        assert!(adds(&bench, &sent), "nothing is there yet");
        let sequence = bench.put(sent.clone());
        assert!(!adds(&bench, &sent) && adds(&bench, &other));
        let old = NewMessage { token_time: Some(Timestamp::from_secs(1)), ..other.clone() };
        assert!(!adds(&bench, &old), "its token has expired");
        let invalid = NewMessage { max_attempts: Some(0), ..other.clone() };
        assert!(!adds(&bench, &invalid));
        let cancel = Command::CancelMessage { message: super::by_key(sequence), reason: "asked".into() };
        bench.apply(cancel).expect("it waits");
        assert!(!adds(&bench, &sent), "a repeat of its token");
        let later = NewMessage { token_time: None, ..sent };
        assert!(!adds(&bench, &later), "the same content within a minute");
        assert_eq!(adds(&bench, &NewMessage { fingerprint: 77, ..later.clone() }), reuse_ids == IdReuse::WhenOver);
        bench.now = bench.now + REUSED_ID_REPEATED_MAX;
        assert_eq!(adds(&bench, &later), reuse_ids == IdReuse::WhenOver, "it gives its id away");
        bench.put(with_token(&bench, 3));
        bench.put(with_token(&bench, 4));
        assert!(!adds(&bench, &with_token(&bench, 5)), "the quota is reached");
        let settings = ShardSettings::from(bench.shard.settings().clone());
        let blocked = ShardSettings { version: 1, enqueue_blocked: Some("moving".into()), ..settings };
        bench.apply(Command::Configure(Box::new(blocked))).expect("configured");
        assert!(!adds(&bench, &later));
    }
}

#[test]
fn answers_older_than_the_window_are_dropped_before_their_bucket_is_over_and_no_others() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let retention = Retention { completed: HOUR, canceled: HOUR, errored: HOUR };
    for sweeps_first in [true, false] {
        let mut bench = Bench::new(Settings { dedupe_window: HOUR, retention, ..roomy() });
        let cancel = |bench: &mut Bench, sequence: u64| {
            let message = super::by_key(sequence);
            bench.apply(Command::CancelMessage { message, reason: "asked".into() }).expect("it waits");
        };
        let old: Vec<NewMessage> = (0..50).map(|number| with_token(&bench, number)).collect();
        for sent in &old {
            let sequence = bench.put(sent.clone());
            cancel(&mut bench, sequence);
        }
        bench.now = bench.now + HOUR / 30; // in the same bucket of ten minutes
        let young = with_token(&bench, 99);
        let sequence = bench.put(young.clone());
        cancel(&mut bench, sequence);
        bench.now = bench.now + HOUR - HOUR / 60; // the old ones are older than the window, the young one is not
        let sweep = |bench: &mut Bench| bench.apply(Command::Sweep { max: 256 }).expect("swept");
        if sweeps_first {
            sweep(&mut bench);
            assert!(bench.shard.memory().answers > 50 * 100, "{:?}", bench.shard.memory());
        }
        assert_eq!(bench.shard.drop_outlived_answers(bench.now), sweeps_first);
        sweep(&mut bench);
        assert!(!bench.shard.drop_outlived_answers(bench.now), "none was kept since");
        assert!(bench.shard.memory().answers < 100, "{:?}", bench.shard.memory());
        for sent in old {
            assert_eq!(bench.apply(Command::Enqueue(Box::new(sent))).map(|_| ()), Err(Refusal::TokenExpired));
        }
        let repeat = bench.apply(Command::Enqueue(Box::new(young)));
        assert!(matches!(repeat, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{repeat:?}");
    }
}
