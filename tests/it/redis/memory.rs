//! The memory of Redis: used and allowed bytes are shown, and that they run short is told before producers fail.

use serde_json::json;

use super::opening::{opened, stores};
use super::serving::status;
use super::*;
use crate::servers::redis::{RedisCluster, SentinelGroup};
use crate::support::harness::{Server, eventually as holds_within};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
/// Bytes of a filler beside which what tests and servers use does not count.
const FILLER: u64 = 64 << 20;

fn enqueue(server: &Server, id: &str) -> (u16, String) {
    let body = json!({"queue": "mail", "message": {"message_id": id, "payload": "aGVsbG8="}});
    let answer = server.post(&format!("{QUEUES}/Enqueue"), &body.to_string());
    (answer.status, answer.body)
}

/// Sets the limit so that a server has used this share of it.
fn use_percent(redis: &RedisServer, percent: u64) {
    let used: u64 = redis.info("used_memory").parse().expect("a number");
    redis.config_set("maxmemory", &(used / percent * 100).to_string());
}

/// The value of a metric of the server at an address.
fn metric(server: &Server, name: &str, redis: &RedisServer) -> f64 {
    let series = format!("tallystone_store_memory_{name}{{store=\"_redis\",server=\"{}\"}} ", redis.address());
    let page = server.get("/metrics").body;
    let value = page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {page}"))
}

#[track_caller]
fn shows(server: &Server, code: i32, words: &[&str]) -> String {
    let is_so = || {
        let (ended, shown) = status(server);
        ended == code && words.iter().all(|words| shown.contains(words))
    };
    assert!(holds_within(BACK_WITHIN, is_so), "{code} {words:?}: {:?}", status(server));
    status(server).1
}

#[test]
fn a_redis_that_fills_up_is_told_before_it_refuses_messages() {
    for build in Build::ALL {
        let Some(redis) = or_skip(RedisServer::start(build)) else { continue };
        println!("on {}", build.name());
        redis.cli(&["SETRANGE", "filler", &FILLER.to_string(), "x"]);
        let server = dev_on(&redis).start();
        let created = server.post(&format!("{QUEUES}/CreateQueue"), &json!({"queue": {"name": "mail"}}).to_string());
        assert_eq!(created.status, 200, "{created:?}");
        let address = redis.address().to_string();
        shows(&server, 0, &[&address, "MiB used, no limit"]);
        assert!(metric(&server, "bytes", &redis) > FILLER as f64 && metric(&server, "limit_bytes", &redis) == 0.0);
        assert!(server.get("/console/health").body.contains("no limit"));

        use_percent(&redis, 80);
        shows(&server, 0, &[&address, "MiB of ", "MiB used"]);
        use_percent(&redis, 88);
        let shown =
            shows(&server, 1, &[&format!("the server {address} of the store redis has used 8"), "raise maxmemory"]);
        assert!(shown.contains("ready, up "), "{shown}");
        assert_eq!(server.get("/readyz").status, 200, "it serves");
        let share = metric(&server, "bytes", &redis) / metric(&server, "limit_bytes", &redis);
        assert!((0.85..0.95).contains(&share), "{share}");
        let page = server.get("/console/health").body;
        assert!(page.contains("of its memory") && !page.contains("No problems."), "{page}");
        assert_eq!(enqueue(&server, "a").0, 200, "producers notice nothing yet");

        use_percent(&redis, 97);
        let is_full = || enqueue(&server, "b").1.contains("STORAGE_FULL");
        assert!(holds_within(BACK_WITHIN, is_full), "{:?}", enqueue(&server, "b"));
        redis.config_set("maxmemory", "0");
        assert!(holds_within(BACK_WITHIN, || enqueue(&server, "c").0 == 200), "{:?}", enqueue(&server, "c"));
        shows(&server, 0, &["no limit"]);
    }
}

#[test]
fn a_policy_that_throws_messages_away_is_a_problem_whatever_the_limit_is() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = dev_on(&redis).start();
    shows(&server, 0, &["no limit"]);
    for limit in ["0", "1gb"] {
        redis.config_set("maxmemory", limit);
        redis.config_set("maxmemory-policy", "allkeys-lru");
        shows(&server, 1, &["throws messages away", "maxmemory-policy allkeys-lru", "set maxmemory-policy noeviction"]);
        assert_eq!(metric(&server, "evicts", &redis), 1.0);
        redis.config_set("maxmemory-policy", "noeviction");
        shows(&server, 0, &[]);
    }
}

/// The servers whose memory is shown for a deployment.
async fn servers_shown(deployment: Deployment) -> Vec<String> {
    let stores = opened(stores(deployment)).await.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    let memory = stores.handle.memory();
    assert!(memory.iter().all(|memory| memory.used_bytes > 0 && memory.limit_bytes.is_none()), "{memory:?}");
    stores.handle.close().await;
    let mut servers: Vec<String> = memory.into_iter().map(|memory| memory.server).collect();
    servers.sort();
    servers
}

#[tokio::test]
async fn the_primary_behind_sentinels_and_each_primary_of_a_cluster_are_shown() {
    for build in Build::ALL {
        println!("on {}", build.name());
        if let Some(group) = or_skip(SentinelGroup::start(build)) {
            let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
            let shown = servers_shown(Deployment::Sentinel { sentinels, primary, login: None }).await;
            assert_eq!(shown.len(), 1, "{shown:?}");
        }
        if let Some(cluster) = or_skip(RedisCluster::start(build)) {
            let shown = servers_shown(Deployment::Cluster { seeds: cluster.addresses() }).await;
            assert!(shown.len() == 3 && shown.iter().all(|server| cluster.addresses().contains(server)), "{shown:?}");
        }
    }
}
