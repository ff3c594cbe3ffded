//! An error at every call of a function on what servers share: once that function is called again, the step is whole or absent.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tallystone_adapters::manual::ManualClock;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::limits::SESSION_KEPT;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::CallAttempt;
use tallystone_domain::queue::{CatalogQueue, QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    NewSession, QueueStores, SessionDirectory, SessionHeartbeat, SharedQueues, StoreError, StoreErrorKind,
};
use tallystone_redis::RedisSessions;
use tallystone_redis::client::RedisCommand;

use super::injected_errors::{FAULT, faulty_library};
use super::keys::{ShardKeys, Snapshot};
use super::server::{QueueServer, on_every_redis};
use crate::catalog::TriedEntry as _;
use crate::fleet_store::beat;
use crate::given::at;
use crate::operation_directory::{ended, row};
use crate::queue_catalog::request;

const LEASE: std::time::Duration = std::time::Duration::from_secs(40);
const ROOM: usize = 100;
const SETS: [&str; 2] = ["{tallystone}used_ids", "{tallystone}removed_members"];
const KNOWN: MemberId = MemberId([1; 16]);
const SHARD: ShardId = ShardId { queue: QueueId(7), number: 3 };

type Outcome = Result<(), StoreError>;
type Pending<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// What the steps are made on.
struct SharedBench {
    _server: QueueServer,
    keys: ShardKeys,
    stores: QueueStores,
    shared: SharedQueues,
    sessions: Arc<RedisSessions>,
    clock: ManualClock,
    attempts: u32,
    /// The failed steps that a later call has carried out.
    carried_out: u32,
}

/// A step, and a call of the same function that changes nothing itself.
struct Tried {
    name: &'static str,
    step: fn(&SharedBench) -> Pending<'_>,
    again: fn(&SharedBench) -> Pending<'_>,
}

impl SharedBench {
    async fn start(server: QueueServer, clock: ManualClock) -> Self {
        let keys = ShardKeys::shared(server.client().await);
        keys.send(RedisCommand::new("FUNCTION").arg("LOAD").arg("REPLACE").arg(faulty_library())).await;
        let stores = server.stores(&clock).await;
        let shared = server.shared(&clock).await;
        let sessions = Arc::new(RedisSessions::new(server.queues(&clock).await, ROOM));
        Self { _server: server, keys, stores, shared, sessions, clock, attempts: 0, carried_out: 0 }
    }

    /// The call of this number fails from now on, counted from here; none with 0.
    async fn fail_at(&mut self, call: usize) {
        self.attempts += 1;
        let value = format!("{}:{call}", self.attempts);
        self.keys.send(RedisCommand::new("SET").arg(FAULT).arg(value)).await;
    }

    /// What is there, but for the time.
    async fn state(&self) -> Snapshot {
        let mut found = self.keys.snapshot().await;
        found.remove(&Bytes::from_static(b"{tallystone}revision"));
        found.remove(&Bytes::from_static(b"{tallystone}session_clock"));
        for name in SETS {
            if let Some(value) = found.get_mut(name.as_bytes()) {
                *value = self.members_of(name).await;
            }
        }
        found
    }

    /// The members of a set in their order. As DUMP writes a set, they have none.
    async fn members_of(&self, name: &str) -> Bytes {
        let members = self.keys.send(RedisCommand::new("SMEMBERS").arg(name)).await.into_list().expect("a set");
        let mut members: Vec<Bytes> = members.into_iter().map(|one| one.into_bytes().expect("a member")).collect();
        members.sort_unstable();
        members.concat().into()
    }

    async fn open(&self, id: u128, label: &str) -> Outcome {
        let session = NewSession { id: SessionId(id), label: label.into(), lease: LEASE };
        self.sessions.open(session).await.map(drop)
    }

    async fn touch(&self, id: u128, shard: ShardId) -> Outcome {
        let call = CallAttempt { sequence: 1, attempt: 1 };
        self.sessions.add_shard(SessionId(id), shard, call).await.map(|answer| assert!(answer.is_ok(), "{answer:?}"))
    }

    /// Fails each call of a step in turn, from the same state. The step is done in the end.
    async fn try_step(&mut self, tried: &Tried) {
        let (whole_before, before) = (self.keys.snapshot().await, self.state().await);
        (tried.step)(self).await.expect("it works without an error");
        let after = self.state().await;
        assert!(after != before, "{} changes nothing", tried.name);
        for call in 1.. {
            self.keys.restore(&whole_before).await;
            self.fail_at(call).await;
            let answer = (tried.step)(self).await;
            self.fail_at(0).await;
            if answer.is_ok() {
                assert!(call > 3 && self.state().await == after, "call {call} of {}", tried.name);
                return;
            }
            let is_half = self.state().await != before;
            (tried.again)(self).await.expect("the next call works");
            let found = self.state().await;
            assert!(found == before || found == after, "call {call} of {} left {found:?}", tried.name);
            self.carried_out += u32::from(is_half && found == after);
        }
    }
}

async fn given(bench: &SharedBench) -> Outcome {
    let SharedBench { stores, shared, .. } = bench;
    stores.catalog.commit(CatalogQueue::record(1, None, "first", Some("new"))).await?;
    stores.catalog.save_request(request(1, "over", 3, 60), at(0)).await?;
    stores.catalog.save_request(request(1, "known", 3, 90_000), at(0)).await?;
    shared.membership.beat(KNOWN, &beat(9)).await?;
    shared.membership.beat(MemberId([2; 16]), &beat(9)).await?;
    for id in ["a", "b"] {
        shared.operations.put(&row(id, 1)).await?;
    }
    shared.operations.put(&ended("b", 2, 5)).await?;
    for (id, label) in [(1, "one"), (2, ""), (3, ""), (4, "four")] {
        bench.open(id, label).await?;
    }
    for id in [1, 2, 3] {
        bench.touch(id, SHARD).await?;
    }
    bench.sessions.end(SessionId(3), Ending::Closed).await.map(drop)
}

/// Calls of each function that change nothing.
mod again {
    use super::*;

    pub fn catalog(bench: &SharedBench) -> Pending<'_> {
        Box::pin(async {
            let refused = bench.stores.catalog.commit(CatalogQueue::record(9, Some(5), "absent", Some("late"))).await;
            refused.map_or_else(
                |error| if error.kind == StoreErrorKind::Conflict { Ok(()) } else { Err(error) },
                |()| panic!("it is stale"),
            )
        })
    }

    pub fn requests(bench: &SharedBench) -> Pending<'_> {
        bench.stores.catalog.save_request(request(1, "known", 3, 90_000), at(0))
    }

    pub fn members(bench: &SharedBench) -> Pending<'_> {
        Box::pin(async { bench.shared.membership.beat(KNOWN, &beat(1)).await })
    }

    pub fn operations(bench: &SharedBench) -> Pending<'_> {
        Box::pin(async { bench.shared.operations.forget(Timestamp::from_micros(0)).await })
    }

    pub fn sessions(bench: &SharedBench) -> Pending<'_> {
        Box::pin(async { bench.sessions.remove_shards(SessionId(99), &[SHARD]).await })
    }
}

const STEPS: [Tried; 17] = [
    Tried {
        name: "a creation",
        step: |bench| bench.stores.catalog.commit(CatalogQueue::record(7, None, "mail", Some("new"))),
        again: again::catalog,
    },
    Tried {
        name: "a change",
        step: |bench| bench.stores.catalog.commit(CatalogQueue::record(7, Some(1), "mail", Some("second"))),
        again: again::catalog,
    },
    Tried {
        name: "a deletion",
        step: |bench| bench.stores.catalog.commit(CatalogQueue::record(7, Some(2), "mail", None)),
        again: again::catalog,
    },
    Tried {
        name: "a request, when another is over",
        step: |bench| bench.stores.catalog.save_request(request(2, "new", 3, 90_000), at(61)),
        again: again::requests,
    },
    Tried {
        name: "a heartbeat",
        step: |bench| Box::pin(async { bench.shared.membership.beat(KNOWN, &beat(10)).await }),
        again: again::members,
    },
    Tried {
        name: "the removal of a member",
        step: |bench| Box::pin(async { bench.shared.membership.remove(MemberId([2; 16])).await }),
        again: again::members,
    },
    Tried {
        name: "a new operation",
        step: |bench| Box::pin(async { bench.shared.operations.put(&row("c", 1)).await.map(drop) }),
        again: again::operations,
    },
    Tried {
        name: "the end of an operation",
        step: |bench| Box::pin(async { bench.shared.operations.put(&ended("a", 2, 70)).await.map(drop) }),
        again: again::operations,
    },
    Tried {
        name: "forgetting operations",
        step: |bench| Box::pin(async { bench.shared.operations.forget(at(6)).await }),
        again: again::operations,
    },
    Tried {
        name: "a session in place of another",
        step: |bench| Box::pin(bench.open(5, "one")),
        again: again::sessions,
    },
    Tried {
        name: "a call of a session",
        step: |bench| {
            let call = CallAttempt { sequence: 4, attempt: 2 };
            Box::pin(async move { bench.sessions.begin_call(SessionId(2), call).await.map(drop) })
        },
        again: again::sessions,
    },
    Tried {
        name: "reserved calls",
        step: |bench| Box::pin(async { bench.sessions.reserve_calls(SessionId(2), 10).await.map(drop) }),
        again: again::sessions,
    },
    Tried { name: "another shard", step: |bench| Box::pin(bench.touch(4, SHARD)), again: again::sessions },
    Tried {
        name: "a heartbeat of two sessions",
        step: |bench| {
            Box::pin(async {
                let sign = |id| SessionHeartbeat { id: SessionId(id), newest_call: 30, leased_for: LEASE };
                bench.sessions.heartbeat(&[sign(2), sign(4)]).await.map(drop)
            })
        },
        again: again::sessions,
    },
    Tried {
        name: "an end",
        step: |bench| Box::pin(async { bench.sessions.end(SessionId(2), Ending::Closed).await.map(drop) }),
        again: again::sessions,
    },
    Tried {
        name: "the last shard of a session",
        step: |bench| Box::pin(async { bench.sessions.remove_shards(SessionId(3), &[SHARD]).await }),
        again: again::sessions,
    },
    Tried {
        name: "forgetting sessions",
        step: |bench| Box::pin(async { bench.sessions.forget(ROOM).await.map(drop) }),
        again: again::sessions,
    },
];

#[tokio::test]
async fn an_error_in_what_servers_share_leaves_a_step_that_the_next_call_carries_out() {
    on_every_redis(async |server, clock| {
        let mut bench = SharedBench::start(server, clock).await;
        given(&bench).await.expect("it works without an error");
        for tried in &STEPS {
            if tried.name == "forgetting sessions" {
                bench.clock.advance(2 * SESSION_KEPT);
            }
            bench.try_step(tried).await;
        }
        assert!(bench.carried_out > 20, "too few steps were left half done: {}", bench.carried_out);
    })
    .await;
}
