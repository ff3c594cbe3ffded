//! Cassandra writes what it was sent and its answers are lost on the way, one by one and for seconds: every token is settled
//! by CheckToken afterwards, and what was acknowledged counts once.

use std::time::Duration;

use super::fleet::{nothing_was_told_too_early, settle};
use super::ledger::Fate;
use super::load::{self, Load, Plan, WhenGone};
use super::{CrashTest, rounds};
use crate::servers::cassandra;
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{Launch, eventually};

/// What a write may take until its caller hears that its outcome is unknown, on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);
/// Answers that are lost one by one in a round.
const ONE_BY_ONE: u64 = 10;

/// Loses all answers until an add is in doubt. If none was on its way when the connections broke, all are refused, and it
/// has to be tried again.
fn lose_until_in_doubt(load: &Load, proxy: &Proxy) {
    let unknown = load.unknown();
    let in_doubt = eventually(WITHIN, || {
        let refused = load.refused();
        proxy.set(Fault::LoseAnswers);
        eventually(WITHIN, || load.unknown() > unknown || load.refused() > refused + 3);
        proxy.set(Fault::None);
        load.wait_for_more(2);
        load.unknown() > unknown
    });
    assert!(in_doubt, "an add whose answer is lost for good is in doubt");
}

#[test]
fn answers_lost_between_server_and_cassandra_leave_no_token_unsettled() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let proxy = Proxy::start(node, Wire::Plain).expect("a proxy");
    let keyspace = "clusters.cassandra.keyspace=lost_answers";
    let start = |address| Launch::dev_on_cassandra(address).arg("--set").arg(keyspace).start();
    // Only one of the two is behind the proxy.
    let servers = [start(proxy.address()), start(node)];
    let mut test = CrashTest::new("answers_lost_between_server_and_cassandra_leave_no_token_unsettled");
    for round in 0..rounds(1, 20) {
        test.round = round;
        let plan = Plan { workers: 6, when_gone: WhenGone::Wait, ..test.plan(50) };
        // Copies of adds go to one server alone, so that nothing but the lost answers tells of them.
        load::run_on(&[&servers[0]], &mut test.records, plan, |load: &Load| {
            for _ in 0..ONE_BY_ONE {
                let lost = proxy.lost();
                proxy.set(Fault::LoseOne);
                assert!(eventually(WITHIN, || proxy.lost() > lost), "there are answers to lose");
                load.wait_for_more(2);
            }
            lose_until_in_doubt(load, &proxy);
            load.wait_for_more(20);
            load.end();
        });
        assert!(test.records.ledger.count(Fate::Unknown) > 0, "there is something to settle");
        // By the server that knows nothing of them but what the log holds.
        settle(&mut test, &servers[1]);
        servers.iter().for_each(nothing_was_told_too_early);
    }
    for mut server in servers {
        test.records.ledger.mark_all_unchecked();
        assert!(test.check(&mut server), "nobody touches it any more");
        assert!(server.stop().success(), "an orderly stop");
    }
}
