//! A cluster: calls find the owners of slots, whatever becomes of owners and slots.

use futures_util::future::join_all;
use tallystone::adapters::redis::limits::REDIS_CONNECT_WITHIN;

use super::*;
use crate::servers::redis::RedisCluster;

fn deployment(cluster: &RedisCluster) -> Deployment {
    Deployment::Cluster { seeds: cluster.addresses() }
}

/// A key of each of so many slots, spread over all nodes.
fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{{{number}}}count")).collect()
}

async fn add_to(client: &RedisClient, key: &str, within: Duration) -> Result<i64, CallFailure> {
    let mut answers = client.call_within(Slot::of(key.as_bytes()), vec![add(key, 1)], within).await;
    answers.replies.pop().expect("one answer").and_then(RedisReply::into_int)
}

#[tokio::test]
async fn every_slot_is_served_by_its_owner_from_one_seed_on() {
    for build in Build::ALL {
        let Some(cluster) = or_skip(RedisCluster::start(build)) else { continue };
        println!("on {}", build.name());
        // A replica knows the owners as well as they do.
        let client = open(Deployment::Cluster { seeds: vec![cluster.addresses()[5].clone()] }).await;
        for key in keys(60) {
            assert_eq!(add_to(&client, &key, TIMEOUT).await.expect("an add"), 1);
            let owner = cluster.owner_of(Slot::of(key.as_bytes()).number(), 0);
            assert_eq!(stored(&cluster.nodes[owner], &key), "1");
        }
        assert_eq!(client.primaries().len(), 3);
        assert!(client.health().await.iter().all(|node| node.reading.as_ref().is_ok_and(|facts| facts.replicas == 1)));
    }
}

#[tokio::test]
async fn when_a_primary_dies_other_slots_go_on_and_its_own_are_back_in_time() {
    for build in Build::ALL {
        let Some(mut cluster) = or_skip(RedisCluster::start(build)) else { continue };
        println!("on {}", build.name());
        let client = open(deployment(&cluster)).await;
        let keys = keys(30);
        for key in &keys {
            assert_eq!(add_to(&client, key, TIMEOUT).await.expect("an add"), 1);
        }
        let dead = cluster.owner_of(Slot::of(keys[0].as_bytes()).number(), 0);
        let owner = |key: &String| cluster.owner_of(Slot::of(key.as_bytes()).number(), 0);
        let (its, others): (Vec<String>, Vec<String>) = keys.iter().cloned().partition(|key| owner(key) == dead);
        eventually("its replica has everything", async || cluster.nodes[dead].replicas_are_in_step()).await;
        let well = (0..3).find(|at| *at != dead).expect("a node that goes on");
        let yardstick = beside(&cluster.nodes[well]);
        cluster.nodes[dead].kill();
        let killed = Instant::now();
        let within = 2 * RedisCluster::NODE_TIMEOUT + Duration::from_secs(2);
        let coming_back = async {
            loop {
                let answer = add_to(&client, &its[0], SHORT).await;
                if answer.is_ok() {
                    return killed.elapsed();
                }
                let failure = answer.expect_err("it failed");
                assert!(killed.elapsed() < BACK_WITHIN, "it does not come back: {failure:?}");
                SystemClock.sleep(LOOK_EVERY).await;
            }
        };
        let mut rounds = 0;
        let going_on = async {
            while killed.elapsed() < within {
                for added in join_all(others.iter().map(|key| add_to(&client, key, TIMEOUT))).await {
                    added.expect("healthy slots go on");
                }
                rounds += 1;
                SystemClock.sleep(LOOK_EVERY).await;
            }
        };
        let (back_after, ()) = tokio::join!(coming_back, going_on);
        let kept = yardstick.kept(killed);
        assert!(back_after <= within + kept, "{back_after:?}, of which the machine kept {kept:?}");
        assert!(rounds > 10, "{rounds}");
        for key in &its[1..] {
            assert_eq!(add_to(&client, key, TIMEOUT).await.expect("an add"), 2, "nothing was lost");
        }
    }
}

#[tokio::test]
async fn a_slot_on_its_way_by_setslot_is_refused_unapplied_until_it_has_arrived() {
    for build in Build::ALL {
        let Some(cluster) = or_skip(RedisCluster::start(build)) else { continue };
        println!("on {}", build.name());
        let client = open(deployment(&cluster)).await;
        let number = slot().number();
        let from = cluster.owner_of(number, 0);
        let to = (from + 1) % 3;
        cluster.begin_move(number, from, to);
        // The key is not there: for the owner it may be at the other node already.
        for _ in 0..3 {
            failed(add_within(&client, REFUSED_FOR).await, &FailureCause::Moving, EffectOutcome::NotApplied);
        }
        let adding = client.call_within(slot(), vec![add(KEY, 1), add(KEY, 1)], BACK_WITHIN);
        let arriving = async { cluster.end_move(number, from, to) };
        let (answers, ()) = tokio::join!(adding, arriving);
        assert_eq!(answers.replies, [Ok(RedisReply::Int(1)), Ok(RedisReply::Int(2))], "the refused calls left nothing");
        assert_eq!(answers.served.expect("it was served").address(), cluster.addresses()[to]);
        assert_eq!(stored(&cluster.nodes[to], KEY), "2");
    }
}

#[tokio::test]
async fn a_slot_moved_by_migrateslots_of_valkey_delays_no_call_beyond_two_seconds() {
    const ITEMS: usize = 20_000;
    let Some(cluster) = or_skip(RedisCluster::start(Build::Valkey9)) else { return };
    let client = open(deployment(&cluster)).await;
    let number = slot().number().to_string();
    let from = cluster.owner_of(slot().number(), 0);
    let to = (from + 1) % 3;
    let payload = "x".repeat(100);
    for first in (0..ITEMS).step_by(64) {
        let items = (first..ITEMS.min(first + 64)).map(|item| append("{q}list", &format!("{item}{payload}"))).collect();
        assert!(client.call(slot(), items).await.replies.iter().all(Result::is_ok));
    }
    cluster.nodes[from].cli(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &number, &number, "NODE", &cluster.id(to)]);
    // The third node moves nothing.
    let (mut added, mut longest, yardstick) = (0, Duration::ZERO, beside(&cluster.nodes[(from + 2) % 3]));
    let deadline = Instant::now() + BACK_WITHIN;
    while cluster.owner_of(slot().number(), to) != to || added < 100 {
        let began = Instant::now();
        added += 1;
        assert_eq!(add_one(&client).await.expect("it goes on"), added);
        longest = longest.max(began.elapsed().saturating_sub(yardstick.kept(began)));
        assert!(Instant::now() < deadline, "the slot does not arrive");
    }
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    assert_eq!(add_one(&client).await.expect("it goes on"), added + 1);
    assert_eq!(stored(&cluster.nodes[to], KEY), (added + 1).to_string());
    assert_eq!(cluster.nodes[to].cli(&["LLEN", "{q}list"]), ITEMS.to_string(), "nothing was lost");
}

#[tokio::test]
async fn a_cluster_without_its_owner_refuses_a_slot_unapplied() {
    let Some(cluster) = or_skip(RedisCluster::start(Build::Redis7)) else { return };
    let client = open(deployment(&cluster)).await;
    let number = slot().number();
    let owner = cluster.owner_of(number, 0);
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    cluster.nodes[owner].cli(&["CLUSTER", "DELSLOTS", &number.to_string()]);
    failed(add_within(&client, REFUSED_FOR).await, &FailureCause::Moving, EffectOutcome::NotApplied);
    cluster.nodes[owner].cli(&["CLUSTER", "ADDSLOTS", &number.to_string()]);
    let answer = client.call_within(slot(), vec![add(KEY, 1)], BACK_WITHIN + REDIS_CONNECT_WITHIN).await;
    assert!(answer.replies[0].is_ok(), "{answer:?}");
}
