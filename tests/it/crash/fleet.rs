//! The same on two servers that share a Cassandra keyspace: one of them is killed, stopped for longer than its lease, or
//! ended in good order, while copies of every add go to both.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::checks::{self, CheckError};
use super::load::{self, Plan};
use super::{CrashTest, rounds};
use crate::engines::cassandra::{beside_with_node, node};
use crate::support::harness::{Launch, Server};

/// What happens to one of the two servers.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Killed without a word; another one takes its place.
    Killed,
    /// Ended in good order; another one takes its place.
    Ended,
    /// Stopped in the middle of whatever it does, and let go on after so many seconds.
    Paused(&'static str),
}

const FAULTS: [Fault; 5] =
    [Fault::Ended, Fault::Paused("36"), Fault::Killed, Fault::Paused("0.7"), Fault::Paused("12")];

/// How soon a server that goes on is ready again.
const READY_WITHIN: Duration = Duration::from_secs(10);

fn start(node: SocketAddr) -> Server {
    let keyspace = "clusters.cassandra.keyspace=crash_of_a_fleet";
    Launch::dev_on_cassandra(node).arg("--set").arg(keyspace).start()
}

#[test]
fn no_fault_of_a_member_loses_or_doubles_an_add() {
    let node = node();
    let mut test = CrashTest::new("no_fault_of_a_member_loses_or_doubles_an_add");
    let (mut victim, mut witness) = (start(node), start(node));
    for round in 0..rounds(3, 40) {
        test.round = round;
        let fault = FAULTS[round as usize % FAULTS.len()];
        let plan = Plan { then: 100, ..test.plan(100) };
        let mut pause = None;
        load::run_on(&[&victim, &witness], &mut test.records, plan, |_| pause = begin(fault, &victim));
        victim = end(fault, pause, victim, || start(node));
        settle(&mut test, &witness);
        nothing_was_told_too_early(&victim);
        nothing_was_told_too_early(&witness);
        std::mem::swap(&mut victim, &mut witness);
    }
    for server in [&mut victim, &mut witness] {
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(server), "nobody touches it any more");
    }
    for server in [victim, witness] {
        nothing_was_told_too_early(&server);
        let status = server.stop();
        assert!(status.success(), "an orderly stop: {status}");
    }
}

/// Answers who ends the pause, if it is one.
fn begin(fault: Fault, server: &Server) -> Option<Child> {
    match fault {
        Fault::Killed => server.signal(libc::SIGKILL),
        Fault::Ended => server.signal(libc::SIGTERM),
        Fault::Paused(seconds) => {
            server.signal(libc::SIGSTOP);
            let go_on = "sleep \"$2\"; kill -CONT \"$1\"";
            let mut command = Command::new("sh");
            command.args(["-c", go_on, "sh", &server.pid().to_string(), seconds]);
            return Some(command.spawn().expect("there is a shell"));
        }
    }
    None
}

/// Waits until the fault is over; answers the server that stands in its place.
fn end(fault: Fault, pause: Option<Child>, mut server: Server, another: impl Fn() -> Server) -> Server {
    match fault {
        Fault::Killed => {
            server.kill();
            another()
        }
        Fault::Ended => {
            let status = server.wait();
            assert!(status.success(), "an orderly stop: {status}\n{}", server.printed());
            another()
        }
        Fault::Paused(_) => {
            let ended = pause.expect("somebody ends the pause").wait();
            assert!(ended.is_ok_and(|status| status.success()), "the server goes on");
            // One that was stopped for longer than its lease joins the fleet first.
            let is_ready = || server.get("/readyz").status == 200;
            let yardstick = beside_with_node(&server, node());
            yardstick.comes(Instant::now(), READY_WITHIN, "a server that goes on is ready", is_ready);
            server
        }
    }
}

/// Settles every token, holds what was read meanwhile to that, and waits until all counts are what they say. A row that came late is counted a while after it was
/// found: its mark stands in a step that has to be over.
pub fn settle(test: &mut CrashTest, server: &Server) {
    let seed = test.rng.below(u64::MAX);
    match checks::settle_all(server, &mut test.records, seed) {
        Ok(()) => {}
        Err(CheckError::Mismatch(wrong) | CheckError::NoAnswer(wrong)) => {
            test.fail(&format!("in round {}: {wrong}\n{}", test.round, server.printed()))
        }
    }
    if let Err(wrong) = checks::wait_until_rolled_up(server, &test.records.ledger) {
        test.fail(&format!("in round {}, rolled up: {wrong}\n{}", test.round, server.printed()));
    }
}

pub fn nothing_was_told_too_early(server: &Server) {
    let page = server.get("/metrics").body;
    let line = page.lines().find(|line| line.starts_with("tallystone_acknowledged_below_limit_total"));
    let line = line.expect("the metric is there");
    assert!(line.ends_with(" 0"), "{line}\n{}", server.printed());
}
