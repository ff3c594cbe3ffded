//! The same on a Cassandra keyspace: the server is killed and another one takes over when its lease has lapsed.

use super::{CrashTest, checks, load, rounds};
use crate::servers::cassandra;
use crate::support::harness::{Launch, Server};

fn start(node: std::net::SocketAddr) -> Server {
    let keyspace = "clusters.cassandra.keyspace=crash_of_the_server";
    Launch::dev_on_cassandra(node).arg("--set").arg(keyspace).start()
}

#[test]
fn no_kill_on_cassandra_loses_or_doubles_an_add() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let mut test = CrashTest::new("no_kill_on_cassandra_loses_or_doubles_an_add");
    for round in 0..rounds(2, 20) {
        test.round = round;
        let mut server = start(node);
        assert!(test.check(&mut server), "nobody has killed it yet");
        let acknowledgements = 50 + test.rng.below(200);
        let plan = test.plan(acknowledgements);
        load::run(&server, &mut test.records, plan, |server| server.signal(libc::SIGKILL));
        server.kill();
    }
    test.records.ledger.mark_all_unchecked();
    let mut server = start(node);
    assert!(test.check(&mut server), "nobody kills it any more");
    if let Err(wrong) = checks::wait_until_rolled_up(&server, &test.records.ledger) {
        test.fail(&format!("rolled up: {wrong}\n{}", server.printed()));
    }
    let status = server.stop();
    assert!(status.success(), "an orderly stop: {status}");
}
