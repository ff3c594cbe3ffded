//! Queues on Redis while its clock, or that of the server, is off and jumps.

use super::clocks::{HOUR_MS, with_clock};
use super::create;
use super::load::{Ledger, MEANWHILE, Pace, under_load};
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};
use crate::support::clockskew::Clock;
use crate::support::harness::Launch;

const JUMPS_MS: [i64; 6] = [2_000, -2_000, HOUR_MS, -HOUR_MS, HOUR_MS, 0];

fn redis(environment: Vec<(String, String)>) -> Option<RedisServer> {
    let settings = RedisSettings { environment, ..RedisSettings::of(&["appendonly yes", "appendfsync everysec"]) };
    or_skip(RedisServer::start_with(Build::Redis7, settings))
}

#[test]
fn a_redis_whose_clock_jumps_either_way_under_load_loses_and_doubles_no_mutation() {
    let clock = Clock::off_by(0);
    let environment = clock.environment().map(|(name, value)| (name.to_owned(), value));
    let Some(redis) = redis(environment.into()) else { return };
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    jump_under_load(&server, &clock);
    assert!(server.stop().success(), "an orderly stop");
}

#[test]
fn a_server_on_redis_whose_clock_jumps_either_way_under_load_loses_and_doubles_no_mutation() {
    let Some(redis) = redis(Vec::new()) else { return };
    let clock = Clock::off_by(0);
    let data = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string());
    let server = with_clock(launch, &clock).start();
    jump_under_load(&server, &clock);
    assert!(server.stop().success(), "an orderly stop");
}

fn jump_under_load(server: &crate::support::harness::Server, clock: &Clock) {
    let ledger = Ledger::default();
    create(server, Ledger::queue());
    under_load(server, &ledger, Pace::FULL, || {
        for off in JUMPS_MS {
            clock.jump_to(off);
            ledger.wait_for_more(MEANWHILE);
        }
    });
    ledger.check_healed(server);
    ledger.check_nothing_refused();
}
