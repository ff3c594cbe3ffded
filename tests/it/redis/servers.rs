//! The servers of these tests are what they are said to be, and do what tests ask of them.

use std::time::Duration;

use crate::servers::redis::{Build, RedisCluster, RedisServer, RedisSettings, ReplicaPair, SentinelGroup, or_skip};
use crate::support::harness::eventually;

use super::BACK_WITHIN;

#[test]
fn each_server_answers_and_is_of_its_version() {
    for build in Build::ALL {
        let Some(server) = or_skip(RedisServer::start(build)) else { continue };
        let info = server.cli(&["INFO", "server"]);
        let line = |name: &str| info.lines().find(|line| line.starts_with(name)).unwrap_or_default().trim().to_owned();
        println!("{}: {} {}", build.name(), line("redis_version:"), line("valkey_version:"));
        let expected = match build {
            Build::Redis7 => "redis_version:7.0.",
            Build::Redis8 => "redis_version:8.",
            Build::Valkey9 => "valkey_version:9.",
        };
        assert!(info.lines().any(|line| line.starts_with(expected)), "{info}");
        assert_eq!(line("valkey_version:").is_empty(), build != Build::Valkey9, "{info}");
        let modules = server.cli(&["MODULE", "LIST"]);
        assert!(!modules.contains("graph"), "it runs without the module of its package: {modules}");
        assert_eq!(server.cli(&["FUNCTION", "LOAD", super::CODE]), "tallystone_test");
        assert_eq!(server.cli(&["FCALL", "tt_add", "1", "key", "7"]), "7");
        server.flush_functions();
        server.try_cli(&["FCALL", "tt_add", "1", "key", "7"]).expect_err("it is gone");
    }
}

#[test]
fn what_was_persisted_is_there_after_a_kill_and_gone_from_an_empty_server() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    for build in Build::ALL {
        let Some(mut server) = or_skip(RedisServer::start_with(build, settings.clone())) else { continue };
        server.cli(&["SET", "key", "value"]);
        server.kill();
        server.try_cli(&["PING"]).expect_err("nobody listens");
        server.restart().expect("it starts");
        assert_eq!(server.cli(&["GET", "key"]), "value", "{}", build.name());
        server.restart_empty().expect("it starts");
        assert_eq!(server.cli(&["GET", "key"]), "", "{}", build.name());
    }
}

#[test]
fn a_stopped_server_answers_once_it_goes_on() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    server.pause();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.cli(&["PING"]));
        assert!(!eventually(Duration::from_millis(100), || asked.is_finished()), "it is stopped");
        server.resume();
        assert_eq!(asked.join().expect("it answers"), "PONG");
    });
}

#[test]
fn a_password_is_asked_for_and_a_limit_of_memory_holds() {
    let settings =
        RedisSettings { password: Some("secret".to_owned()), ..RedisSettings::of(&["maxmemory-policy noeviction"]) };
    let Some(server) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    assert_eq!(server.cli(&["PING"]), "PONG");
    server.config_set("requirepass", "another");
    server.try_cli(&["PING"]).expect_err("the password was changed");
}

#[test]
fn a_replica_has_what_its_primary_has() {
    for build in Build::ALL {
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        pair.primary.cli(&["SET", "key", "value"]);
        assert!(eventually(BACK_WITHIN, || pair.primary.replicas_are_in_step()), "{}", build.name());
        assert_eq!(pair.replica.cli(&["GET", "key"]), "value");
        pair.replica.try_cli(&["SET", "key", "other"]).expect_err("a replica takes no writes");
    }
}

#[test]
fn sentinels_make_the_replica_the_primary_of_a_dead_one() {
    let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    assert_eq!(group.sentinels().len(), 3);
    group.pair.primary.kill();
    let is_primary = || group.pair.replica.try_cli(&["ROLE"]).is_ok_and(|role| role.starts_with("master"));
    assert!(eventually(BACK_WITHIN, is_primary));
}

#[test]
fn a_cluster_has_three_primaries_with_a_replica_each() {
    for build in Build::ALL {
        let Some(cluster) = or_skip(RedisCluster::start(build)) else { continue };
        let view = cluster.nodes[0].cli(&["CLUSTER", "NODES"]);
        println!("on {}: {view}", build.name());
        let owners: std::collections::BTreeSet<usize> =
            [0, 8_000, 16_383].into_iter().map(|slot| cluster.owner_of(slot, 0)).collect();
        assert_eq!(owners.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(cluster.nodes[3..].iter().all(|node| node.info("role") == "slave"));
    }
}
