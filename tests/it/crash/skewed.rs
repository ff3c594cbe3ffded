//! Two servers of a fleet whose wall clocks are off by two seconds each way, and then change places: the limit follows the
//! slower one, and nothing is lost or doubled.

use super::fleet::{nothing_was_told_too_early, settle};
use super::load::{self, Load, Plan, WhenGone};
use super::{CrashTest, rounds};
use crate::servers::cassandra;
use crate::support::clockskew::Clock;
use crate::support::harness::{Launch, Server};

const OFF_MS: i64 = 2_000;

fn start(clock: &Clock) -> Server {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=skewed");
    clock.environment().into_iter().fold(launch, |launch, (name, value)| launch.env(name, &value)).start()
}

/// A server's clock in milliseconds, as it answers it.
fn time_of(server: &Server) -> i64 {
    let body = r#"{"namespace": "default", "counter_name": "clock", "delta": 1}"#;
    let answer = server.post("/tallystone.counter.v1.CounterService/AddCount", body);
    let answer: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let time = answer["serverTime"].as_str().unwrap_or_else(|| panic!("no time in {answer}"));
    let time: jiff::Timestamp = time.parse().expect("a time");
    time.as_millisecond()
}

#[test]
fn clocks_two_seconds_off_either_way_lose_and_double_nothing() {
    let mut test = CrashTest::new("clocks_two_seconds_off_either_way_lose_and_double_nothing");
    let clocks = [Clock::off_by(OFF_MS), Clock::off_by(-OFF_MS)];
    let mut servers = clocks.each_ref().map(start);
    // The one that is behind is asked first, so a pause between the two only adds to the difference.
    let [behind, ahead] = [time_of(&servers[1]), time_of(&servers[0])];
    assert!(ahead - behind >= 2 * OFF_MS, "the clocks are not apart: {ahead} and {behind}");
    for round in 0..rounds(1, 20) {
        test.round = round;
        let plan = Plan { workers: 6, when_gone: WhenGone::Wait, ..test.plan(100) };
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            for sign in [-1, 1] {
                clocks[0].jump_to(sign * OFF_MS);
                clocks[1].jump_to(-sign * OFF_MS);
                load.wait_for_more(100);
            }
            load.end();
        });
        settle(&mut test, &servers[round as usize % 2]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    for server in &mut servers {
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(server), "nobody touches it any more");
    }
    for server in servers {
        nothing_was_told_too_early(&server);
        assert!(server.stop().success(), "an orderly stop");
    }
}
