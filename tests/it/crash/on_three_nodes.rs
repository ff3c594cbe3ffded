//! Two servers on three Cassandra nodes: one node may be killed, stopped or restarted and adds go on; while two are down
//! nothing is acknowledged by half, and afterwards everything is settled.

use std::time::Duration;

use serde_json::Value;

use super::fleet::{nothing_was_told_too_early, settle};
use super::load::{self, FAULT_PAUSE, Load, Plan, WhenGone};
use super::{CrashTest, rounds};
use crate::engines::cassandra::{run, settings};
use crate::servers::cluster::{Cluster, NODES, lent};
use crate::support::harness::{Launch, Server, eventually};

/// Faults of one node for every change: it is killed once, and stopped once.
const ROUNDS_OF_ONE: u32 = 2;
const ROUNDS_OF_ONE_LONG: u32 = 30;
/// How often two nodes are down for every change, and with `tests/run --long`.
const ROUNDS_OF_TWO: u32 = 1;
const ROUNDS_OF_TWO_LONG: u32 = 15;
const WORKERS: usize = 5;
/// What adds may take to be refused, or to come back, on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

/// What happens to one node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Paused,
}

/// Makes a keyspace with a copy on each node.
fn keyspace(cluster: &Cluster, name: &str) {
    let mut settings = settings(&cluster.servers(), name);
    settings.extend(["--set".to_owned(), format!("clusters.main.replication=datacenter1:{NODES}")]);
    let made = || run(&["migrate", "apply"], &settings).0 == 0;
    assert!(eventually(WITHIN, made), "{}", run(&["migrate", "apply"], &settings).1);
}

fn start(cluster: &Cluster, keyspace: &str) -> Server {
    let keyspace = format!("clusters.cassandra.keyspace={keyspace}");
    Launch::dev_on_cassandra(cluster.servers()).arg("--set").arg(&keyspace).start()
}

/// A load whose workers wait for what is away. Its faults last as long as nodes take to start, beside which it has to go on only.
fn plan(test: &mut CrashTest) -> Plan {
    Plan { workers: WORKERS, when_gone: WhenGone::Wait, pause: FAULT_PAUSE * 3, ..test.plan(50) }
}

#[test]
fn no_fault_of_one_cassandra_node_loses_or_doubles_an_add() {
    let mut cluster = lent().unwrap_or_else(|why| panic!("{why}"));
    let mut test = CrashTest::new("no_fault_of_one_cassandra_node_loses_or_doubles_an_add");
    keyspace(&cluster, "one_node");
    let servers = [(); 2].map(|()| start(&cluster, "one_node"));
    for round in 0..rounds(ROUNDS_OF_ONE, ROUNDS_OF_ONE_LONG) {
        test.round = round;
        let fault = if round % 2 == 0 { Fault::Killed } else { Fault::Paused };
        let at = test.rng.index(NODES);
        let plan = plan(&mut test);
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            match fault {
                Fault::Killed => cluster.kill(at),
                Fault::Paused => cluster.pause(at),
            }
            // A quorum is left, so adds go on.
            load.wait_for_more(100);
            cluster.bring_back(at).unwrap_or_else(|why| panic!("{fault:?}: {why}"));
            load.wait_for_more(100);
            load.end();
        });
        settle(&mut test, &servers[round as usize % 2]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    compare_and_stop(&mut test, servers);
}

#[test]
fn while_two_of_three_nodes_are_down_nothing_is_acknowledged_by_half() {
    let mut cluster = lent().unwrap_or_else(|why| panic!("{why}"));
    let mut test = CrashTest::new("while_two_of_three_nodes_are_down_nothing_is_acknowledged_by_half");
    keyspace(&cluster, "two_nodes");
    let servers = [(); 2].map(|()| start(&cluster, "two_nodes"));
    for round in 0..rounds(ROUNDS_OF_TWO, ROUNDS_OF_TWO_LONG) {
        test.round = round;
        let left = test.rng.index(NODES);
        let plan = plan(&mut test);
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            let [counter, _] = load.names(0);
            let gone: Vec<usize> = (0..NODES).filter(|at| *at != left).collect();
            gone.iter().for_each(|at| cluster.kill(*at));
            let refused = eventually(WITHIN, || load.refused() >= 3);
            assert!(refused, "{} refused, {} unknown:\n{}", load.refused(), load.unknown(), servers[0].printed());
            for server in &servers {
                is_flagged(server, &counter);
            }
            is_refused_to_start(&cluster, left);
            gone.iter().for_each(|at| cluster.bring_back(*at).unwrap_or_else(|why| panic!("{why}")));
            load.wait_for_more(50);
            load.end();
        });
        settle(&mut test, &servers[0]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    compare_and_stop(&mut test, servers);
}

/// Without a quorum a server says of no number that it is up to date, and of none that it is newer than it is.
fn is_flagged(server: &Server, counter: &str) {
    for freshness in ["UP_TO_DATE", "ROLLED_UP"] {
        let body = format!(r#"{{"namespace": "default", "counter_name": "{counter}", "freshness": "{freshness}"}}"#);
        let path = "/tallystone.counter.v1.CounterService/GetCount";
        let answer = server.post_briefly(path, &body); // the server answers, whatever Cassandra does
        if answer.status == 200 {
            let read: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(read["exactness"], "EXACTNESS_EXACT_AS_OF", "{freshness}: {read}");
        } else {
            let says = ["STORE_UNAVAILABLE", "DEADLINE_EXCEEDED"].iter().any(|reason| answer.body.contains(reason));
            assert!(says, "{freshness}: {} {}", answer.status, answer.body);
        }
    }
}

/// A server that would be started meanwhile says why it cannot be.
fn is_refused_to_start(cluster: &Cluster, left: usize) {
    let settings = settings(&cluster.address(left).to_string(), "two_nodes");
    let mut printed = String::new();
    // On a busy machine the node that is left may be late, which is another reason.
    let says_it = || {
        let (code, said) = run(&["server", "start"], &settings);
        assert_eq!(code, 5, "{said}");
        printed = said;
        printed.contains("a quorum of its replicas")
    };
    assert!(eventually(WITHIN, says_it), "{printed}");
}

fn compare_and_stop(test: &mut CrashTest, mut servers: [Server; 2]) {
    for server in &mut servers {
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(server), "nobody touches it any more");
    }
    for server in servers {
        nothing_was_told_too_early(&server);
        let status = server.stop();
        assert!(status.success(), "an orderly stop: {status}");
    }
}
