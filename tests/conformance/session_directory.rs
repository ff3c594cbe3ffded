//! The laws of `SessionDirectory`.

use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::memory::MemorySessions;
use tallystone_domain::limits::{SESSION_ENDS_KEPT_MIN, SESSION_KEPT, SESSION_SHARDS_MAX};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply};
use tallystone_domain::queue::{QueueId, Refusal, ShardId};
use tallystone_ports::{EffectOutcome, EndedSession, NewSession, SessionDirectory, SessionHeartbeat, StoreErrorKind};
use tallystone_redis::RedisSessions;

use crate::given;
use crate::queue_redis::server::on_every_redis;

const LEASE: Duration = Duration::from_secs(40);
/// How long a session lives in silence.
const LIFE: Duration = Duration::from_secs(51);
const SECOND: Duration = Duration::from_secs(1);
/// The rows for which a directory of the laws has room.
const ROOM: usize = 12_000;

/// A directory with its clock.
struct DirectoryBench {
    directory: Arc<dyn SessionDirectory>,
    clock: ManualClock,
}

/// Runs a law on every session directory; a new one is added here.
async fn on_every_session_directory(law: impl AsyncFn(DirectoryBench)) {
    println!("on Memory");
    let clock = ManualClock::at(given::T0);
    law(DirectoryBench { directory: Arc::new(MemorySessions::with_room(Arc::new(clock.clone()), ROOM)), clock }).await;
    on_every_redis(async |server, clock| {
        let directory = Arc::new(RedisSessions::new(server.queues(&clock).await, ROOM));
        law(DirectoryBench { directory, clock }).await;
    })
    .await;
}

fn shard(number: u32) -> ShardId {
    ShardId { queue: QueueId(7), number }
}

fn call(sequence: u64, attempt: u32) -> CallAttempt {
    CallAttempt { sequence, attempt }
}

fn pulse(newest_call: u64, touched: u64) -> Result<HeartbeatReply, Refusal> {
    Ok(HeartbeatReply { newest_call, touched })
}

fn ended(id: u128, how: Ending, shards: &[ShardId]) -> EndedSession {
    EndedSession { id: SessionId(id), how, shards: shards.to_vec() }
}

impl DirectoryBench {
    async fn open(&self, id: u128, label: &str) -> Option<EndedSession> {
        let session = NewSession { id: SessionId(id), label: label.into(), lease: LEASE };
        self.directory.open(session).await.expect("room")
    }

    async fn begin(&self, id: u128, attempt: CallAttempt) -> Result<HeartbeatReply, Refusal> {
        self.directory.begin_call(SessionId(id), attempt).await.expect("an answer")
    }

    async fn touch(&self, id: u128, number: u32, attempt: CallAttempt) -> Result<bool, Refusal> {
        self.directory.add_shard(SessionId(id), shard(number), attempt).await.expect("an answer")
    }

    async fn hear(&self, id: u128, leased_for: Duration) -> Result<HeartbeatReply, Refusal> {
        let sign = SessionHeartbeat { id: SessionId(id), newest_call: 0, leased_for };
        self.directory.heartbeat(&[sign]).await.expect("an answer").remove(0)
    }

    async fn end(&self, id: u128, how: Ending) -> Option<EndedSession> {
        self.directory.end(SessionId(id), how).await.expect("an answer")
    }

    async fn is_known(&self, id: u128) -> bool {
        self.directory.get(SessionId(id)).await.expect("an answer").is_some()
    }
}

#[tokio::test]
async fn session_directory_law_1_a_row_reads_as_the_steps_left_it() {
    on_every_session_directory(async |bench| {
        assert!(!bench.is_known(1).await);
        bench.open(1, "worker").await;
        bench.begin(1, call(3, 1)).await.expect("alive");
        bench.begin(1, call(4, 2)).await.expect("alive");
        assert_eq!(bench.touch(1, 5, call(4, 2)).await, Ok(true));
        let row = bench.directory.get(SessionId(1)).await.expect("an answer").expect("it is there");
        assert_eq!((row.id, &*row.label, row.lease, row.ended), (SessionId(1), "worker", LEASE, None));
        assert_eq!((row.newest_call, row.touched), (4, 1));
        assert_eq!(row.shards.into_iter().collect::<Vec<_>>(), [shard(5)]);
        assert_eq!(row.bars.into_iter().collect::<Vec<_>>(), [(4, 2)]);
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_2_a_label_has_one_session_and_the_earlier_one_is_answered_once() {
    on_every_session_directory(async |bench| {
        assert_eq!(bench.open(9, "worker").await, None);
        assert_eq!([bench.open(1, "").await, bench.open(2, "").await], [None, None], "no label is not a label");
        assert_eq!(bench.touch(9, 3, call(1, 1)).await, Ok(true));
        let earlier = ended(9, Ending::Replaced, &[shard(3)]);
        assert_eq!(bench.open(4, "worker").await, Some(earlier), "whichever id is greater");
        assert_eq!(bench.open(4, "worker").await, None, "a repeat");
        assert_eq!(bench.begin(9, call(2, 1)).await, Err(Refusal::SessionEnded(Ending::Replaced)));
        for alive in [1, 2, 4] {
            assert_eq!(bench.begin(alive, call(1, 1)).await, pulse(0, 0));
        }
        bench.end(4, Ending::Closed).await;
        assert_eq!(bench.open(5, "worker").await, None, "it had ended");
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_2_racing_opens_of_a_label_leave_one() {
    on_every_session_directory(async |bench| {
        let opens = (1..=20).map(|id| bench.open(id, "worker"));
        let replaced: Vec<_> = futures_util::future::join_all(opens).await.into_iter().flatten().collect();
        assert_eq!(replaced.len(), 19);
        let mut alive = Vec::new();
        for id in 1..=20 {
            alive.extend(bench.begin(id, call(1, 1)).await.ok().map(|_| id));
        }
        assert_eq!(alive.len(), 1, "{alive:?}");
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_3_silence_for_longer_than_the_lease_and_its_lateness_ends_a_session() {
    on_every_session_directory(async |bench| {
        for id in 1..=3 {
            bench.open(id, "").await;
        }
        bench.clock.advance(LIFE);
        assert_eq!(bench.begin(1, call(1, 1)).await, pulse(0, 0));
        assert_eq!(bench.hear(2, Duration::ZERO).await, pulse(0, 0));
        bench.clock.advance(SECOND);
        let expired = Refusal::SessionEnded(Ending::Expired);
        assert_eq!(bench.directory.reserve_calls(SessionId(3), 1).await.expect("an answer"), Err(expired.clone()));
        assert_eq!(bench.begin(3, call(1, 1)).await, Err(expired.clone()), "it stays so");
        bench.clock.advance(LIFE);
        assert_eq!(bench.begin(1, call(2, 1)).await, Err(expired.clone()));
        assert_eq!(bench.hear(2, Duration::ZERO).await, Err(expired));
        assert_eq!(bench.begin(8, call(1, 1)).await, Err(Refusal::SessionNotFound));
        assert_eq!(bench.hear(8, Duration::ZERO).await, Err(Refusal::SessionNotFound));
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_4_calls_are_begun_once_and_numbers_are_given_once() {
    on_every_session_directory(async |bench| {
        bench.open(1, "").await;
        assert_eq!(bench.begin(1, call(5, 1)).await, pulse(0, 0));
        assert_eq!(bench.begin(1, call(5, 3)).await, pulse(5, 0));
        assert_eq!(bench.begin(1, call(5, 2)).await, Err(Refusal::TryBarred));
        assert_eq!(bench.begin(1, call(3, 1)).await, pulse(5, 0), "the caller decides about earlier calls");
        let reserved = async |count| bench.directory.reserve_calls(SessionId(1), count).await.expect("an answer");
        assert_eq!([reserved(10).await, reserved(10).await], [Ok(6), Ok(16)]);
        let sign = SessionHeartbeat { id: SessionId(1), newest_call: 40, leased_for: Duration::ZERO };
        assert_eq!(bench.directory.heartbeat(&[sign]).await.expect("an answer"), [pulse(25, 0)]);
        assert_eq!(reserved(1).await, Ok(41));
        for sequence in 50..=58 {
            bench.begin(1, call(sequence, 2)).await.expect("alive");
        }
        assert_eq!(bench.begin(1, call(5, 4)).await, Err(Refusal::SequenceTooOld), "it left the last eight");
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_5_shards_are_bounded_and_barred_attempts_get_none() {
    on_every_session_directory(async |bench| {
        bench.open(1, "").await;
        for number in 0..SESSION_SHARDS_MAX as u32 {
            assert_eq!(bench.touch(1, number, call(1, 1)).await, Ok(true));
        }
        assert_eq!(bench.touch(1, SESSION_SHARDS_MAX as u32, call(1, 1)).await, Ok(false));
        assert_eq!(bench.touch(1, 0, call(1, 1)).await, Ok(true), "it has it");
        bench.begin(1, call(1, 2)).await.expect("alive");
        assert_eq!(bench.touch(1, 0, call(1, 1)).await, Err(Refusal::TryBarred));
        assert_eq!(bench.touch(1, 0, call(1, 2)).await, Ok(true));
        bench.end(1, Ending::Closed).await;
        assert_eq!(bench.touch(1, 0, call(1, 2)).await, Err(Refusal::SessionEnded(Ending::Closed)));
        assert_eq!(bench.touch(2, 0, call(1, 1)).await, Err(Refusal::SessionNotFound));
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_6_the_first_ending_stays() {
    on_every_session_directory(async |bench| {
        bench.open(1, "").await;
        bench.touch(1, 2, call(1, 1)).await.expect("alive");
        let closed = ended(1, Ending::Closed, &[shard(2)]);
        assert_eq!(bench.end(1, Ending::Closed).await.as_ref(), Some(&closed));
        assert_eq!(bench.end(1, Ending::Expired).await, Some(closed));
        assert_eq!(bench.end(2, Ending::Closed).await, None);
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_7_ends_are_followed_in_their_order_or_said_to_be_missing() {
    on_every_session_directory(async |bench| {
        for id in 1..=6 {
            bench.open(id, if id <= 2 { "worker" } else { "" }).await;
        }
        let since = async |after, limit| bench.directory.ended_since(after, limit).await.expect("an answer");
        let begun = since(None, 9).await;
        assert!(begun.ends.is_empty() && begun.is_complete);
        bench.end(3, Ending::Closed).await;
        bench.end(3, Ending::Expired).await;
        bench.open(7, "worker").await;
        bench.clock.advance(2 * LEASE);
        bench.begin(4, call(1, 1)).await.expect_err("it was silent");
        let first = since(Some(begun.next), 2).await;
        assert_eq!(first.ends, [(SessionId(3), Ending::Closed), (SessionId(2), Ending::Replaced)]);
        let second = since(Some(first.next), 9).await;
        assert_eq!(second.ends, [(SessionId(4), Ending::Expired)]);
        assert_eq!(since(Some(second.next), 9).await.ends, []);
        assert!(first.is_complete && second.is_complete);
        assert!(!since(Some(second.next + 1), 9).await.is_complete, "a position that was never given");
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_7_many_ends_are_kept() {
    on_every_session_directory(async |bench| {
        let begun = bench.directory.ended_since(None, 1).await.expect("an answer");
        for id in 0..SESSION_ENDS_KEPT_MIN as u128 {
            bench.open(id, "worker").await;
        }
        bench.end(SESSION_ENDS_KEPT_MIN as u128 - 1, Ending::Closed).await;
        let read = bench.directory.ended_since(Some(begun.next), SESSION_ENDS_KEPT_MIN).await.expect("an answer");
        assert_eq!((read.ends.len(), read.is_complete), (SESSION_ENDS_KEPT_MIN, true));
        assert_eq!(read.ends[0], (SessionId(0), Ending::Replaced));
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_8_an_end_is_unfinished_while_shards_are_left() {
    on_every_session_directory(async |bench| {
        for id in 1..=4 {
            bench.open(id, "").await;
            bench.touch(id, 1, call(1, 1)).await.expect("alive");
            bench.touch(id, 2, call(1, 1)).await.expect("alive");
        }
        let unfinished = async |limit| bench.directory.unfinished(5 * SECOND, limit).await.expect("an answer");
        bench.end(2, Ending::Closed).await;
        bench.clock.advance(SECOND);
        bench.end(1, Ending::Replaced).await;
        bench.end(3, Ending::Expired).await;
        bench.clock.advance(4 * SECOND);
        let second = ended(2, Ending::Closed, &[shard(1), shard(2)]);
        assert_eq!(unfinished(9).await, std::slice::from_ref(&second), "the other is younger");
        bench.clock.advance(SECOND);
        let first = ended(1, Ending::Replaced, &[shard(1), shard(2)]);
        assert_eq!(unfinished(9).await, [second.clone(), first], "no shard ends a silent one twice");
        assert_eq!(unfinished(1).await, [second]);
        let remove = async |id, shards: &[ShardId]| {
            bench.directory.remove_shards(SessionId(id), shards).await.expect("an answer");
        };
        remove(2, &[shard(1), shard(2)]).await;
        remove(1, &[shard(2), shard(8)]).await;
        remove(77, &[shard(2)]).await;
        assert_eq!(unfinished(9).await, [ended(1, Ending::Replaced, &[shard(1)])]);
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_9_rows_are_kept_for_their_time_and_then_forgotten() {
    on_every_session_directory(async |bench| {
        for id in 1..=4 {
            bench.open(id, "").await;
        }
        bench.open(5, "worker").await;
        let forget = async |limit| bench.directory.forget(limit).await.expect("an answer");
        bench.hear(2, 3 * LEASE).await.expect("alive");
        bench.end(3, Ending::Closed).await;
        bench.touch(4, 1, call(1, 1)).await.expect("alive");
        bench.end(4, Ending::Closed).await;
        bench.clock.advance(SESSION_KEPT);
        assert_eq!(forget(9).await, 1);
        assert!(!bench.is_known(3).await && bench.is_known(4).await, "an end that is not finished is kept");
        bench.clock.advance(LEASE);
        assert_eq!([forget(1).await, forget(9).await], [1, 1], "the first and the labelled");
        assert!(!bench.is_known(1).await && bench.is_known(2).await && !bench.is_known(5).await);
        bench.clock.advance(2 * LEASE);
        bench.directory.remove_shards(SessionId(4), &[shard(1)]).await.expect("an answer");
        assert_eq!(forget(9).await, 2);
        assert_eq!(bench.begin(2, call(1, 1)).await, Err(Refusal::SessionNotFound));
        assert_eq!(bench.open(6, "worker").await, None, "nobody has the label");
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_10_a_full_directory_refuses_and_has_room_again() {
    on_every_session_directory(async |bench| {
        for id in 0..ROOM as u128 {
            bench.open(id, "").await;
        }
        let session = NewSession { id: SessionId(ROOM as u128), label: "".into(), lease: LEASE };
        let full = bench.directory.open(session.clone()).await.expect_err("no room");
        assert_eq!((full.kind, full.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
        bench.clock.advance(LEASE + SESSION_KEPT);
        assert_eq!(bench.directory.forget(1).await.expect("an answer"), 1);
        assert_eq!(bench.directory.open(session).await.expect("room"), None);
    })
    .await;
}

#[tokio::test]
async fn session_directory_law_11_a_list_shows_each_row_once_in_the_order_of_opening() {
    on_every_session_directory(async |bench| {
        for id in [5, 3, 8, 1] {
            bench.open(id, "").await;
        }
        let (mut listed, mut after, mut pages) = (Vec::new(), 0, 0);
        loop {
            let page = bench.directory.list(after, 2).await.expect("an answer");
            listed.extend(page.rows.iter().map(|row| row.id.0));
            pages += 1;
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!((listed, pages), (vec![5, 3, 8, 1], 2));
    })
    .await;
}
