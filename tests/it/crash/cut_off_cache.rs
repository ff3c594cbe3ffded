//! Two servers with their counts in one memcached that is killed, emptied and restarted, hangs, or is cut off from one of
//! them: adds go on, no reading is wrong, and no clear is undone.

use super::fleet::{nothing_was_told_too_early, settle};
use super::load::{self, Load, Plan, WhenGone};
use super::{CrashTest, rounds};
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::servers::{Memcached, cassandra};
use crate::support::harness::{Launch, Server};

/// Adds that go on during a fault, and after it.
const MEANWHILE: u64 = 40;

fn start(way: &Proxy) -> Server {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node).arg("--memcached").arg(&way.address().to_string());
    let launch = launch.arg("--set").arg("clusters.cassandra.keyspace=cut_off_cache");
    launch.arg("--set").arg("cache.cluster=memcached").start()
}

fn calls(server: &Server) -> u64 {
    let page = server.get("/metrics").body;
    let name = "tallystone_memcached_calls_total{cluster=\"memcached\"}";
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} is missing in:\n{page}"))
}

#[test]
fn whatever_memcached_does_under_a_fleet_no_count_is_wrong() {
    let mut memcached = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    let ways = [(); 2].map(|()| Proxy::start(memcached.address(), Wire::Plain).expect("a proxy"));
    let mut servers = ways.each_ref().map(start);
    let mut test = CrashTest::new("whatever_memcached_does_under_a_fleet_no_count_is_wrong");
    for round in 0..rounds(1, 15) {
        test.round = round;
        let plan = Plan { workers: 6, when_gone: WhenGone::Wait, ..test.plan(50) };
        load::run_on(&servers.each_ref(), &mut test.records, plan, |load: &Load| {
            for (at, fault) in [(0, Fault::Cut), (1, Fault::Hang), (0, Fault::LoseAnswers), (1, Fault::Cut)] {
                ways[at].set(fault);
                load.wait_for_more(MEANWHILE);
                ways[at].set(Fault::None);
                load.wait_for_more(MEANWHILE);
            }
            let address = memcached.address();
            memcached.flush();
            load.wait_for_more(MEANWHILE);
            memcached.end();
            load.wait_for_more(MEANWHILE);
            memcached = Memcached::start_at(address).unwrap_or_else(|why| panic!("{why}"));
            load.wait_for_more(MEANWHILE);
            load.end();
        });
        settle(&mut test, &servers[round as usize % 2]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    for server in &mut servers {
        assert!(calls(server) > 0, "memcached was asked");
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(server), "nobody touches it any more");
    }
    for server in servers {
        assert!(server.stop().success(), "an orderly stop");
    }
}
