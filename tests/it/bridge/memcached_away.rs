//! The counters of queues beside a memcached that dies: they are never kept there.

use serde_json::json;

use super::load::{Ledger, MEANWHILE, Pace, under_load};
use super::{CAUGHT_UP_WITHIN, NAMESPACE, call, create, wait_until_reported};
use crate::servers::Memcached;
use crate::support::harness::Launch;

#[test]
fn a_memcached_that_dies_under_load_changes_no_counter_of_a_queue() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut memcached = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev(data.path()).arg("--memcached").arg(&memcached.address().to_string());
    let server = launch.arg("--set").arg("cache.cluster=memcached").start();
    let ask = json!({"name": NAMESPACE});
    let namespace = call(&server, "/tallystone.admin.v1.NamespaceService", "GetNamespace", &ask);
    assert_eq!(namespace["namespace"]["storage"]["cacheCluster"], json!("embedded"), "{namespace}");
    let ledger = Ledger::default();
    create(&server, Ledger::queue());
    under_load(&server, &ledger, Pace::FULL, || {
        ledger.wait_for_more(MEANWHILE);
        memcached.end();
        ledger.wait_for_more(MEANWHILE);
        // Also while it is away the counters are those of the queue.
        wait_until_reported(&server, CAUGHT_UP_WITHIN);
        memcached = Memcached::start_at(memcached.address()).unwrap_or_else(|why| panic!("{why}"));
        ledger.wait_for_more(MEANWHILE);
    });
    ledger.check_nothing_refused();
    ledger.check_healed(&server);
}
