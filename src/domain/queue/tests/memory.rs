//! The count of the memory of a shard. `tests/conformance/queue_memory.rs` compares it with what a process takes.

use super::{Bench, message, settings};
use crate::limits::REUSED_ID_REPEATED_MAX;
use crate::queue::command::NewMessage;
use crate::queue::setup::settings::IdReuse;
use crate::queue::shard::memory::ShardMemory;
use crate::queue::{Command, Reply, Settings, ShardSettings};
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
    assert_eq!(pending.total(), pending.parts().iter().map(|(_, bytes)| bytes).sum::<u64>());
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
