//! The same on a Cassandra keyspace: the server is killed and another one takes over when its lease has lapsed.

use super::{World, asking, load, rounds};
use crate::servers::cassandra;
use crate::support::harness::{Launch, Server};

fn start(node: std::net::SocketAddr) -> Server {
    let keyspace = "clusters.cassandra.keyspace=crash_of_the_server";
    Launch::dev_on_cassandra(node).arg("--set").arg(keyspace).start()
}

#[test]
fn no_kill_on_cassandra_loses_or_doubles_an_add() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let mut world = World::new("no_kill_on_cassandra_loses_or_doubles_an_add");
    for round in 0..rounds(2, 20) {
        world.round = round;
        let mut server = start(node);
        assert!(world.checked(&mut server), "nobody has killed it yet");
        let acknowledgements = 50 + world.chance.below(200);
        let plan = world.plan(acknowledgements);
        load::run(&server, &mut world.records, plan, |server| server.signal(libc::SIGKILL));
        server.kill();
    }
    world.records.ledger.look_at_all();
    let mut server = start(node);
    assert!(world.checked(&mut server), "nobody kills it any more");
    if let Err(wrong) = asking::wait_until_rolled_up(&server, &world.records.ledger) {
        world.fail(&format!("rolled up: {wrong}\n{}", server.printed()));
    }
    let status = server.stop();
    assert!(status.success(), "an orderly stop: {status}");
}
