//! The whole service as a fleet: two servers with queues on Redis, counters on Cassandra and a cache on memcached.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::load::{Ledger, Pace, under_load};
use super::on_cassandra::messages;
use super::{
    QUEUE, QUEUES, answer, call, check_levels, check_series, complete_all, count, create, depths, enqueue, lease_all,
    number, queue_call, reported_to, settle, sure_reading, wait_until_reported,
};
use crate::engines::cassandra::node;
use crate::servers::Memcached;
use crate::servers::lent_node::lent_node;
use crate::servers::redis::{Build, RedisServer, RedisSettings};
use crate::support::harness::{Launch, Server, eventually};
use crate::support::usual_or_long;

/// The limit for a fleet to catch up after a server was lost, on a busy machine.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(90);

fn redis() -> RedisServer {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    RedisServer::start_with(Build::Redis7, settings).unwrap_or_else(|why| panic!("{why}"))
}

struct Fleet {
    redis: RedisServer,
    memcached: Memcached,
    cassandra: SocketAddr,
    keyspace: &'static str,
}

impl Fleet {
    fn on(keyspace: &'static str, cassandra: SocketAddr) -> Self {
        let memcached = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
        Self { redis: redis(), memcached, cassandra, keyspace }
    }

    fn server(&self) -> Server {
        // A pause of half a second, however long a busy machine makes it, is shorter than a call waits for Redis.
        let launch = Launch::dev_on_cassandra(self.cassandra)
            .arg("--set")
            .arg("clusters.redis.request_timeout_ms=8000")
            .arg("--set")
            .arg(&format!("clusters.cassandra.keyspace={}", self.keyspace))
            .arg("--redis")
            .arg(&self.redis.address().to_string())
            .arg("--memcached")
            .arg(&self.memcached.address().to_string());
        launch.start()
    }
}

/// What happened to a message, as a server says.
fn trace(server: &Server, message: &str) -> Vec<Value> {
    let asked = json!({"queue": QUEUE, "message_id": message});
    let traced = call(server, "/tallystone.history.v1.HistoryService", "GetMessageTrace", &asked);
    traced["lives"][0]["transitions"].as_array().cloned().unwrap_or_default()
}

#[test]
fn two_servers_on_redis_cassandra_and_memcached_are_one_service() {
    let fleet = Fleet::on("one_service", node());
    let (one, other) = (fleet.server(), fleet.server());
    create(&one, json!({"shards": 2, "count_by": ["tenant"]}));
    // The other one has not followed the catalog yet.
    enqueue(&other, &messages(0, 30));
    enqueue(&one, &messages(30, 60));
    let leases = lease_all(&other);
    assert_eq!(leases.len(), 60);
    settle(&one, leases.values().take(40), &json!({"verb": "VERB_COMPLETE"}));
    let again = queue_call(&other, "Enqueue", json!({"queue": QUEUE, "message": messages(3, 4)[0]}));
    assert_eq!(again["alreadyEnqueued"], json!(true), "a repeat at another server is one");
    for server in [&one, &other] {
        wait_until_reported(server, CAUGHT_UP_WITHIN);
        check_levels(server);
        assert_eq!((count(server, "enqueued"), count(server, "completed")), (60, 40));
        assert!(eventually(CAUGHT_UP_WITHIN, || trace(server, "m3").len() >= 2), "{:?}", trace(server, "m3"));
    }
    assert_eq!(trace(&one, "m3"), trace(&other, "m3"), "both tell the same");

    // One is lost with changes that it has not reported; the other goes on, and reports them.
    enqueue(&one, &messages(60, 90));
    one.kill();
    enqueue(&other, &messages(90, 100));
    assert!(eventually(CAUGHT_UP_WITHIN, || count(&other, "enqueued") == 100), "{}", other.printed());
    assert_eq!(complete_all(&other), 40);
    let third = fleet.server();
    for server in [&third, &other] {
        wait_until_reported(server, CAUGHT_UP_WITHIN);
        assert!(eventually(CAUGHT_UP_WITHIN, || count(server, "completed") == 80), "{}", server.printed());
        check_levels(server);
    }
    check_series(&third, "enqueued");
    assert!(eventually(CAUGHT_UP_WITHIN, || trace(&third, "m70").len() >= 3), "{:?}", trace(&third, "m70"));
    assert!(third.stop().success() && other.stop().success());
}

#[test]
fn what_a_server_with_counters_of_its_own_lacks_of_another_is_after_its_reported_to() {
    let redis = redis();
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let [one, other] = folders.each_ref().map(|folder| {
        Launch::dev(&folder.path().join("data")).arg("--redis").arg(&redis.address().to_string()).start()
    });
    other.wait_for_line("these counters are this server's own");
    create(&one, json!({}));
    enqueue(&one, &messages(0, 1));
    assert!(eventually(CAUGHT_UP_WITHIN, || count(&other, "enqueued") == 1), "{}", other.printed());
    // A message is there already, so nobody is told of the next one.
    enqueue(&one, &messages(1, 2));
    let enqueued = SystemTime::now();
    let has_both = || {
        let reading = sure_reading(&other, "enqueued");
        let (is_known, counted) =
            (reported_to(&reading).is_some_and(|time| time >= enqueued), number(&reading["count"]));
        assert!(counted == 2 || !is_known, "it promises more than it has: {reading}");
        is_known
    };
    assert!(eventually(CAUGHT_UP_WITHIN, has_both), "it follows: {}", other.printed());
    assert!(one.stop().success() && other.stop().success());
}

/// How long Cassandra stands still.
fn stands_still_for() -> Duration {
    Duration::from_secs(usual_or_long(15, 120))
}

/// Waits for this long, which is what the test is about.
fn pass(time: Duration) {
    let began = Instant::now();
    assert!(eventually(2 * time, || began.elapsed() >= time));
}

#[test]
fn a_fleet_whose_engines_stand_still_and_one_of_whose_servers_is_killed_counts_all_that_was_taken() {
    let mut cassandra = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let fleet = Fleet::on("stands_still", cassandra.address());
    let (one, other) = (fleet.server(), fleet.server());
    let ledger = Ledger::default();
    create(&one, Ledger::queue());
    let pace = Pace { messages: 2, turn: Duration::from_millis(50) };
    under_load(&other, &ledger, pace, || {
        under_load(&one, &ledger, pace, || {
            ledger.wait_for_more(200);
            // Shorter than a call waits, so none has an unknown outcome.
            fleet.redis.pause();
            pass(Duration::from_millis(500));
            fleet.redis.resume();
            ledger.wait_for_more(200);
            cassandra.pause();
            let before = ledger.mutations();
            pass(stands_still_for());
            assert!(ledger.mutations() > before + 100, "queues go on: {:?}", ledger.refused());
            cassandra.bring_back().unwrap_or_else(|why| panic!("{why}"));
            ledger.wait_for_more(200);
        });
        one.kill();
        ledger.wait_for_more(200);
    });
    ledger.check_healed(&other);

    // Longer than a call waits: outcomes are unknown, and a repeat counts once.
    let counted = ledger.enqueued();
    fleet.redis.pause();
    let next =
        json!({"queue": QUEUE, "message": {"message_id": "last", "payload": "aGVsbG8=", "metadata": {"tenant": "t0"}}});
    let began = Instant::now();
    let late = answer(&other, QUEUES, "Enqueue", &next);
    assert!(late.body.contains("OUTCOME_UNKNOWN") || late.body.contains("STORE_UNAVAILABLE"), "{}", late.body);
    assert!(eventually(CAUGHT_UP_WITHIN, || began.elapsed() >= Duration::from_secs(5)));
    fleet.redis.resume();
    assert!(eventually(CAUGHT_UP_WITHIN, || answer(&other, QUEUES, "Enqueue", &next).status == 200));
    wait_until_reported(&other, CAUGHT_UP_WITHIN);
    check_levels(&other);
    assert!(eventually(CAUGHT_UP_WITHIN, || count(&other, "enqueued") == counted + 1), "{}", other.printed());
    assert!(other.stop().success());
}

#[test]
fn while_redis_stands_still_or_is_away_calls_say_so_and_nothing_acknowledged_is_lost() {
    let mut redis = redis();
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    create(&server, json!({"shards": 2}));
    enqueue(&server, &messages(0, 20));
    let one = json!({"queue": QUEUE, "message": messages(20, 21)[0]});

    redis.pause();
    let unread = answer(&server, QUEUES, "GetDepth", &json!({"queue": QUEUE}));
    assert!(unread.body.contains("STORE_UNAVAILABLE"), "a read has changed nothing: {}", unread.body);
    let late = answer(&server, QUEUES, "Enqueue", &one);
    assert!(late.body.contains("OUTCOME_UNKNOWN") || late.body.contains("STORE_UNAVAILABLE"), "{}", late.body);
    assert_eq!(server.get("/healthz").status, 200, "the server itself is well");
    redis.resume();
    let taken = || answer(&server, QUEUES, "Enqueue", &one).status == 200;
    assert!(eventually(CAUGHT_UP_WITHIN, taken), "a repeat is taken once Redis answers");
    assert_eq!(depths(&server)["depth.pending"], 21, "and counts once");

    redis.kill();
    let next = json!({"queue": QUEUE, "message": messages(21, 22)[0]});
    let refused = answer(&server, QUEUES, "Enqueue", &next);
    assert!(refused.body.contains("STORE_UNAVAILABLE") || refused.body.contains("OUTCOME_UNKNOWN"), "{}", refused.body);
    let names_redis = || server.get("/readyz").body.contains("Redis at");
    assert!(eventually(CAUGHT_UP_WITHIN, names_redis), "{}", server.get("/readyz").body);
    redis.restart().unwrap_or_else(|why| panic!("{why}"));
    let taken = || answer(&server, QUEUES, "Enqueue", &next).status == 200;
    assert!(eventually(CAUGHT_UP_WITHIN, taken), "{}", server.printed());
    assert_eq!(depths(&server)["depth.pending"], 22);
    assert_eq!(complete_all(&server), 22);
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_levels(&server);
    assert!(server.stop().success());
}
