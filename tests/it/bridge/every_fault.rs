//! Faults of every kind one after the other on one data directory, and a full check after them.

use std::time::Duration;

use serde_json::json;

use super::clocks::{HOUR_MS, with_clock};
use super::histories::{Histories, check_finds_nothing};
use super::load::{Ledger, MEANWHILE, Pace, under_load};
use super::{CAUGHT_UP_WITHIN, QUEUE, check_levels, complete_all, create, queue_call, wait_until_reported};
use crate::servers::Memcached;
use crate::support::clockskew::Clock;
use crate::support::harness::{Launch, Server};

#[test]
fn after_faults_of_every_kind_a_full_check_is_clean() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on disk");
    let (clock, mut memcached) = (Clock::off_by(0), Memcached::start().unwrap_or_else(|why| panic!("{why}")));
    let address = memcached.address().to_string();
    let start = || {
        let launch = with_clock(Launch::dev(data.path()), &clock).arg("--memcached").arg(&address);
        launch.arg("--set").arg("cache.cluster=memcached").start()
    };
    let (server, ledger) = (start(), Ledger::default());
    create(&server, Ledger::queue());
    under_load(&server, &ledger, Pace::FULL, || {
        ledger.wait_for_more(MEANWHILE);
        clock.jump_to(HOUR_MS);
        memcached.end();
        ledger.wait_for_more(MEANWHILE);
        change_keys(&server, &["region"]);
        clock.jump_to(-HOUR_MS);
        ledger.wait_for_more(MEANWHILE);
        change_keys(&server, &["tenant", "region"]);
        memcached = Memcached::start_at(memcached.address()).unwrap_or_else(|why| panic!("{why}"));
        ledger.wait_for_more(MEANWHILE);
        clock.jump_to(0);
    });
    // What was answered is on disk, and what the reporter and the relay had in hand is lost with them.
    server.kill();
    for _ in 0..3 {
        Launch::dev(data.path()).start_and_kill_after(Duration::from_millis(120));
    }
    let server = start();
    under_load(&server, &ledger, Pace::FULL, || ledger.wait_for_more(MEANWHILE));
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    ledger.check_counters(&server);
    check_levels(&server);
    check_finds_nothing(&server);
    complete_all(&server);
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert_eq!(check_levels(&server)["depth.pending"], 0);
    check_finds_nothing(&server);
    let histories = Histories::read(&server, 1_000);
    histories.check();
    assert_eq!(histories.gaps, []);
}

fn change_keys(server: &Server, keys: &[&str]) {
    queue_call(server, "UpdateQueue", json!({"queue": {"name": QUEUE, "count_by": keys}}));
}
