//! A failover with many leases in the tier REPLICATED: none is given twice, and no session that comes back in time ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tallystone_domain::queue::messages::message::{MessageKey, SessionId};
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{Command, MessageState, QueueId, Reply, Settings, ShardId};
use tallystone_ports::{ShardCommand, ShardReader, ShardStore};
use tallystone_redis::client::Deployment;
use tallystone_redis::{ClientWire, RedisQueues};

use super::server::{client_at, eventually, next_queue, past_clock, queues_over};
use crate::queue_given::{dequeue, enqueue, settings};
use crate::servers::redis::{Build, SentinelGroup, or_skip};

const SECOND: Duration = Duration::from_secs(1);
const LEASES: u64 = 10_000;
const SESSIONS: u64 = 200;
const OF_A_SESSION: u64 = LEASES / SESSIONS;
/// Messages of one call.
const BATCH: u64 = 50;
const WAIT_AT_MOST: Duration = Duration::from_secs(10);
const SESSION_LEASE: Duration = Duration::from_secs(20);

struct Failover {
    queues: Arc<RedisQueues>,
    shard: ShardId,
}

impl Failover {
    async fn all(&self, commands: Vec<ShardCommand>) -> Vec<Reply> {
        let answers = self.queues.apply(self.shard, commands).await;
        answers.into_iter().map(|answer| answer.expect("the store takes it").reply.expect("it is allowed")).collect()
    }

    async fn fill(&self, count: u64) {
        for first in (0..count).step_by(usize::try_from(BATCH).expect("small")) {
            self.all((first..first + BATCH).map(|id| enqueue(&format!("m-{id}"), 0, b"")).collect()).await;
        }
    }

    /// Leases so many messages for a call of a session.
    async fn lease(&self, session: u64, sequence: u64) -> Vec<MessageKey> {
        let lease = Some(SESSION_LEASE);
        let call = SessionCall { id: SessionId(session.into()), lease, sequence, attempt: 1, received_up_to: None };
        let mut asked = dequeue(usize::try_from(OF_A_SESSION).expect("small"));
        let Command::Dequeue(own) = &mut asked.command else { panic!("it is a dequeue") };
        own.session = Some(call);
        own.lease = Some(3_600 * SECOND);
        let Reply::Leases { leases, .. } = self.all(vec![asked]).await.remove(0) else { panic!("leases") };
        leases.iter().map(|lease| lease.token.key).collect()
    }

    /// Hears these sessions. Whether each is there.
    async fn beat(&self, sessions: impl Iterator<Item = u64>) {
        for session in sessions {
            let beat = Command::Heartbeat { session: SessionId(session.into()), received_up_to: Some(1) };
            let reply = self.all(vec![ShardCommand::of(beat)]).await.remove(0);
            assert!(matches!(reply, Reply::Beaten { .. }), "session {session}: {reply:?}");
        }
    }

    /// Applies all that is due. The number of messages that changed.
    async fn sweep(&self) -> usize {
        let mut all = 0;
        loop {
            let swept = self.all(vec![ShardCommand::of(Command::Sweep { max: 64 })]).await.remove(0);
            let Reply::Touched { count, .. } = swept else { panic!("{swept:?}") };
            if count == 0 {
                return all;
            }
            all += count;
        }
    }

    async fn running(&self) -> u64 {
        let totals = self.queues.totals(self.shard).await.expect("totals");
        totals.view.messages[MessageState::Running as usize]
    }
}

#[tokio::test]
async fn a_failover_gives_none_of_ten_thousand_leases_twice_and_ends_no_session_that_beats_in_time() {
    let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    let primary = SentinelGroup::NAME.to_owned();
    let client = client_at(Deployment::Sentinel { sentinels: group.sentinels(), primary, login: None }).await;
    let clock = past_clock();
    let queues = queues_over(ClientWire::replicated(Arc::clone(&client), 1, WAIT_AT_MOST), &clock);
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    eventually("the replica is there", async || group.pair.primary.replicas_are_in_step()).await;
    let roomy = Settings { quota_messages: 2 * LEASES, quota_bytes: 1 << 30, dedupe_max_bytes: 1 << 30, ..settings() };
    queues.create(shard.queue, 1, roomy.into()).await.expect("a new queue");
    let given = Failover { queues, shard };
    given.fill(2 * LEASES).await;
    let mut leased = BTreeSet::new();
    for session in 0..SESSIONS {
        leased.extend(given.lease(session, 1).await);
    }
    given.beat(0..SESSIONS).await;
    assert_eq!(leased.len() as u64, LEASES);

    group.pair.primary.kill();
    // The sessions are silent for longer than their lease.
    clock.advance(SESSION_LEASE + SECOND);
    eventually("the replica is the primary", async || given.queues.totals(shard).await.is_ok()).await;
    // It has no replica of its own now, so what it acknowledges is not replicated; it is asked without.
    let given = Failover { queues: queues_over(ClientWire::new(client), &clock), shard };
    assert_eq!(given.sweep().await, 0, "nothing ends right after a failover");
    for session in SESSIONS..2 * SESSIONS {
        let more = given.lease(session, 1).await;
        assert!(more.iter().all(|key| leased.insert(*key)), "a lease that is held was given again");
    }
    assert_eq!(given.running().await, 2 * LEASES);

    // Half of the sessions come back within 15 s, and the new ones beat as usual.
    clock.advance(14 * SECOND);
    given.beat((0..SESSIONS / 2).chain(SESSIONS..2 * SESSIONS)).await;
    clock.advance(2 * SECOND);
    given.sweep().await;
    assert_eq!(given.running().await, 2 * LEASES - LEASES / 2, "those of the other half have ended, and no others");
    given.beat(0..SESSIONS / 2).await;
}
