//! Servers of a fleet that are restarted one after the other, behind addresses that stay: no call of the client library
//! fails, and every add counts once.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::counter::v1::{AddCountRequest, Freshness, GetCountRequest};
use tokio::runtime::Runtime;

use super::fleet::nothing_was_told_too_early;
use super::rounds;
use crate::servers::cassandra;
use crate::servers::proxy::{Proxy, Wire};
use crate::support::harness::{EndsWith, Launch, Server, eventually};

const CALLERS: usize = 4;
/// What anything may take on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);

fn start() -> Server {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=rolling").start()
}

/// A client of its own connections, with the time that a restart on a busy machine takes.
fn client(runtime: &Runtime, ways: &[Proxy], first: usize) -> Client {
    let _inside = runtime.enter();
    let policy = RetryPolicy {
        attempts_max: 1_000,
        total: WITHIN,
        pause_first: Duration::from_millis(20),
        pause_max: Duration::from_millis(200),
        ..RetryPolicy::default()
    };
    let addresses: Vec<String> = ways.iter().map(|way| way.address().to_string()).collect();
    let order: Vec<&str> = addresses.iter().cycle().skip(first).take(ways.len()).map(String::as_str).collect();
    Client::of(&order, policy).expect("valid addresses")
}

#[test]
fn a_rolling_restart_fails_no_call_and_every_add_counts_once() {
    let mut servers = vec![start(), start()];
    let way = |server: &Server| Proxy::start(server.address, Wire::Http2).expect("a proxy");
    let ways: Vec<Proxy> = servers.iter().map(way).collect();
    let (stop, added) = (AtomicBool::new(false), AtomicI64::new(0));
    let wait_for_more = || {
        let wanted = added.load(Ordering::SeqCst) + 40;
        assert!(eventually(WITHIN, || added.load(Ordering::SeqCst) >= wanted), "adds go on");
    };
    thread::scope(|scope| {
        let (ways, stop, added) = (&ways, &stop, &added);
        let ends = EndsWith(stop);
        let caller = |at: usize| scope.spawn(move || add_until(ways, at, stop, added));
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        wait_for_more();
        for at in (0..ways.len()).cycle().take(rounds(2, 12) as usize) {
            let status = servers.remove(at).stop();
            assert!(status.success(), "an orderly stop: {status}");
            servers.insert(at, start());
            ways[at].lead_to(servers[at].address);
            wait_for_more();
        }
        drop(ends);
        callers.into_iter().for_each(|caller| caller.join().expect("no call fails"));
    });
    let runtime = Runtime::new().expect("a runtime");
    let client = client(&runtime, &ways, 0);
    let total = added.load(Ordering::SeqCst);
    assert_eq!(runtime.block_on(count(&client, Freshness::UpToDate)), total);
    let rolled_up = || runtime.block_on(count(&client, Freshness::RolledUp)) == total;
    assert!(eventually(WITHIN, rolled_up), "{}", servers[0].printed());
    for server in servers {
        nothing_was_told_too_early(&server);
        assert!(server.stop().success(), "an orderly stop");
    }
}

/// Adds one by one; every call has to come to a good end.
fn add_until(ways: &[Proxy], first: usize, stop: &AtomicBool, added: &AtomicI64) {
    let runtime = Runtime::new().expect("a runtime");
    let client = client(&runtime, ways, first);
    while !stop.load(Ordering::SeqCst) {
        let add = AddCountRequest {
            namespace: "default".to_owned(),
            counter_name: "views".to_owned(),
            delta: Some(1),
            ..AddCountRequest::default()
        };
        runtime.block_on(client.add_count(add)).unwrap_or_else(|error| panic!("{error}"));
        added.fetch_add(1, Ordering::SeqCst);
    }
}

async fn count(client: &Client, freshness: Freshness) -> i64 {
    let read = GetCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        freshness: freshness.into(),
        ..GetCountRequest::default()
    };
    client.get_count(read).await.expect("a reading").count
}
