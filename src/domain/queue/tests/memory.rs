//! The count of the memory of a shard. `tests/conformance/queue_memory.rs` compares it with what a process takes.

use super::{Bench, message, settings};
use crate::queue::command::NewMessage;
use crate::queue::setup::settings::IdReuse;
use crate::queue::shard::memory::ShardMemory;
use crate::queue::{Command, Settings};

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

#[test]
fn what_is_answered_without_a_new_message_is_known_before() {
    for reuse_ids in [IdReuse::AfterWindow, IdReuse::WhenOver] {
        let mut bench = Bench::new(Settings { reuse_ids, ..roomy() });
        let (sent, other) = (with_token(&bench, 1), with_token(&bench, 2));
        assert!(!bench.shard.has_answer_for(&sent), "nothing is there yet");
        let sequence = bench.put(sent.clone());
        assert!(bench.shard.has_answer_for(&sent) && !bench.shard.has_answer_for(&other));
        let reason = "asked".into();
        let cancel = Command::CancelMessage { message: super::by_key(sequence), reason };
        bench.apply(cancel).expect("it waits");
        assert!(bench.shard.has_answer_for(&sent), "a repeat of its token");
        let later = NewMessage { token_time: None, ..sent };
        assert_eq!(bench.shard.has_answer_for(&later), reuse_ids == IdReuse::AfterWindow, "it may give its id away");
    }
}
