//! A fleet that changes under load: its settings do, a roller is killed, servers are stopped for moments at any place of
//! what they do. Every count stays exact.

use std::time::Duration;

use serde_json::{Value, json};

use super::fleet::{nothing_was_told_too_early, settle};
use super::load::{self, Load, Plan, WhenGone};
use super::{CrashTest, rounds};
use crate::fleet::several_servers::{WRITTEN, metric_of};
use crate::servers::cassandra;
use crate::support::harness::{Launch, Server, eventually};

/// What a change of settings may take on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);

fn launch(keyspace: &str) -> Launch {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    Launch::dev_on_cassandra(node).arg("--set").arg(&format!("clusters.cassandra.keyspace={keyspace}"))
}

fn plan(test: &mut CrashTest) -> Plan {
    Plan { workers: 6, when_gone: WhenGone::Wait, ..test.plan(50) }
}

fn compare_and_stop(test: &mut CrashTest, servers: Vec<Server>) {
    for mut server in servers {
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(&mut server), "nobody touches it any more");
        nothing_was_told_too_early(&server);
        assert!(server.stop().success(), "an orderly stop");
    }
}

#[test]
fn settings_that_change_under_load_lose_and_double_nothing() {
    let mut test = CrashTest::new("settings_that_change_under_load_lose_and_double_nothing");
    let servers = [(); 2].map(|()| launch("changed_settings").start());
    for round in 0..rounds(1, 20) {
        test.round = round;
        let plan = plan(&mut test);
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            // The last ones are the first ones, so that every round begins alike.
            for (at, (coalesce, queues, batch, buckets, seconds)) in
                [(100, 1, 1, 1, 10), (5_000, 16, 256, 16, 3_600), (100, 3, 7, 2, 60), (1_000, 8, 32, 4, 600)]
                    .into_iter()
                    .enumerate()
            {
                change(&servers[at % 2], coalesce, [queues, batch], [buckets, seconds]);
                load.wait_for_more(50);
            }
            load.end();
        });
        settle(&mut test, &servers[round as usize % 2]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    compare_and_stop(&mut test, servers.into());
}

fn change(server: &Server, coalesce_ms: u32, [queues, batch]: [u32; 2], [buckets, seconds]: [u32; 2]) {
    let namespace: Value = json!({"namespace": {
        "name": "default",
        "rollup": {"coalesceMs": coalesce_ms, "numQueues": queues, "rollupBatchCount": batch},
        "timePartition": {"bucketsPerId": buckets, "secondsPerBucket": seconds},
    }});
    let mut said = String::new();
    let is_changed = || {
        let answer = server.post("/tallystone.admin.v1.NamespaceService/UpdateNamespace", &namespace.to_string());
        said = answer.body;
        answer.status == 200
    };
    assert!(eventually(WITHIN, is_changed), "{said}");
}

#[test]
fn a_roller_that_is_killed_leaves_its_counters_to_another_one() {
    let mut test = CrashTest::new("a_roller_that_is_killed_leaves_its_counters_to_another_one");
    let start = |roles: &str| launch("killed_roller").arg("--roles").arg(roles).start();
    let writer = start("writer");
    let (mut victim, mut heir) = (start("roller"), start("roller"));
    for round in 0..rounds(1, 10) {
        test.round = round;
        let plan = plan(&mut test);
        let before = metric_of(&heir, "tallystone_rolls_total", WRITTEN);
        // The rollers refuse the adds that come to them; a reader may have any of the three roll for it.
        load::run_on(&[&writer, &victim, &heir], &mut test.records, plan, |load: &Load| {
            victim.signal(libc::SIGKILL);
            load.wait_for_more(50);
            load.end();
        });
        victim.kill();
        settle(&mut test, &writer);
        assert!(metric_of(&heir, "tallystone_rolls_total", WRITTEN) > before, "the other one rolls what it left");
        nothing_was_told_too_early(&writer);
        (victim, heir) = (heir, start("roller"));
    }
    compare_and_stop(&mut test, vec![writer, victim, heir]);
}

#[test]
fn servers_stopped_for_moments_at_any_place_lose_and_double_nothing() {
    let mut test = CrashTest::new("servers_stopped_for_moments_at_any_place_lose_and_double_nothing");
    let servers = [(); 2].map(|()| launch("moments").start());
    for round in 0..rounds(1, 15) {
        test.round = round;
        let pauses: Vec<(usize, Duration)> = (0..rounds(6, 12)).map(|_| pause(&mut test)).collect();
        let plan = plan(&mut test);
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            for (victim, long) in pauses {
                servers[victim].signal(libc::SIGSTOP);
                // Nothing to wait for: this is how long it is stopped.
                eventually(long, || false);
                servers[victim].signal(libc::SIGCONT);
                load.wait_for_more(10);
            }
            load.end();
        });
        settle(&mut test, &servers[round as usize % 2]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    compare_and_stop(&mut test, servers.into());
}

/// Who is stopped, and for how long: up to two seconds, in the long form up to forty.
fn pause(test: &mut CrashTest) -> (usize, Duration) {
    let most = u64::from(rounds(2_000, 40_000));
    (test.rng.index(2), Duration::from_millis(100 + test.rng.below(most)))
}
