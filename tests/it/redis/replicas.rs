//! Calls that count only once replicas have them.

use bytes::Bytes;
use futures_util::future::join_all;
use tallystone::adapters::redis::client::ServedBy;

use super::*;
use crate::servers::redis::ReplicaPair;

async fn added(client: &RedisClient) -> ServedBy {
    let answers = client.call(slot(), vec![add(KEY, 1)]).await;
    answers.replies[0].as_ref().expect("an add");
    answers.served.expect("it was served")
}

/// Whether so many replicas have it. The answer of a replica that stands still is waited for as long as the client asks Redis to.
async fn replicated(client: &RedisClient, served: &ServedBy, replicas: u32) -> Result<(), CallFailure> {
    client.replicated(served, Bytes::from_static(b"{q}wait"), replicas, BACK_WITHIN).await
}

#[tokio::test]
async fn a_call_is_replicated_or_in_doubt_and_a_frozen_replica_acknowledges_nothing() {
    for build in Build::ALL {
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        println!("on {}", build.name());
        let client = open(single(&pair.primary)).await;
        let served = added(&client).await;
        replicated(&client, &served, 1).await.expect("the replica has it");
        assert_eq!(stored(&pair.replica, KEY), "1");
        failed(replicated(&client, &served, 2).await, &FailureCause::TooFewReplicas, EffectOutcome::Unknown);
        pair.replica.pause();
        // A call, and a repeat that writes nothing.
        let served = added(&client).await;
        for _ in 0..2 {
            failed(replicated(&client, &served, 1).await, &FailureCause::TooFewReplicas, EffectOutcome::Unknown);
        }
        pair.replica.resume();
        eventually("the replica catches up", async || replicated(&client, &served, 1).await.is_ok()).await;
        assert_eq!(stored(&pair.replica, KEY), "2");
    }
}

#[tokio::test]
async fn many_calls_share_the_waits() {
    let Some(pair) = or_skip(ReplicaPair::start(Build::Redis7, &RedisSettings::default())) else { return };
    let client = open(single(&pair.primary)).await;
    let served = added(&client).await;
    let waits_before: u64 = calls_of(&pair.primary, "wait");
    let waited = join_all((0..1_000).map(|_| replicated(&client, &served, 1))).await;
    assert!(waited.iter().all(Result::is_ok), "{:?}", waited.iter().find(|waited| waited.is_err()));
    let waits = calls_of(&pair.primary, "wait") - waits_before;
    assert!((1..=100).contains(&waits), "{waits} round trips for 1,000 callers");
}

/// How often a command was called, as the server counts.
fn calls_of(server: &RedisServer, command: &str) -> u64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().and_then(|count| count.parse().ok()).expect("a count"))
}

#[tokio::test]
async fn what_another_life_of_the_server_answered_is_never_called_replicated() {
    for build in Build::ALL {
        let Some(mut pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        println!("on {}", build.name());
        let client = open(single(&pair.primary)).await;
        let served = added(&client).await;
        pair.primary.kill();
        failed(replicated(&client, &served, 0).await, &FailureCause::Unreachable, EffectOutcome::Unknown);
        pair.primary.restart().expect("it starts");
        eventually("the replica follows again", async || pair.replica.info("master_link_status") == "up").await;
        eventually("the server is back", async || add_within(&client, SHORT).await.is_ok()).await;
        failed(replicated(&client, &served, 1).await, &FailureCause::NoAnswer, EffectOutcome::Unknown);
        let anew = added(&client).await;
        assert_ne!(anew.run_id(), served.run_id());
        eventually("the new life has its replica", async || replicated(&client, &anew, 1).await.is_ok()).await;
    }
}

#[tokio::test]
async fn a_demoted_primary_acknowledges_no_replicas() {
    let Some(pair) = or_skip(ReplicaPair::start(Build::Redis7, &RedisSettings::default())) else { return };
    let client = open(single(&pair.primary)).await;
    let served = added(&client).await;
    replicated(&client, &served, 1).await.expect("the replica has it");
    pair.replica.cli(&["REPLICAOF", "NO", "ONE"]);
    pair.primary.cli(&["REPLICAOF", "127.0.0.1", &pair.replica.address().port().to_string()]);
    failed(replicated(&client, &served, 1).await, &FailureCause::Moving, EffectOutcome::Unknown);
}
