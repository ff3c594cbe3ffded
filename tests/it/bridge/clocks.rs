//! Queues, their counters and their history on a clock that is an hour off, and jumps under load.

use std::path::Path;
use std::process::ExitStatus;

use super::create;
use super::load::{Ledger, MEANWHILE, Pace, under_load};
use crate::support::clockskew::Clock;
use crate::support::harness::Launch;

pub const HOUR_MS: i64 = 3_600_000;

/// The same with a clock that the test moves.
pub fn with_clock(launch: Launch, clock: &Clock) -> Launch {
    clock.environment().into_iter().fold(launch, |launch, (name, value)| launch.env(name, &value))
}

#[test]
fn a_clock_that_jumps_an_hour_either_way_under_load_loses_and_doubles_no_mutation() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (clock, ledger) = (Clock::off_by(0), Ledger::default());
    let server = with_clock(Launch::dev(data.path()), &clock).start();
    create(&server, Ledger::queue());
    under_load(&server, &ledger, Pace::FULL, || {
        for off in [0, HOUR_MS, -HOUR_MS, HOUR_MS, 0] {
            clock.jump_to(off);
            ledger.wait_for_more(MEANWHILE);
        }
    });
    ledger.check_healed(&server);
    assert!(server.stop().success(), "an orderly stop");
    // So do starts with a clock that is off.
    for off in [-HOUR_MS, HOUR_MS] {
        assert!(server_at(&clock, data.path(), off, &ledger).success(), "an orderly stop");
    }
    clock.jump_to(0);
    let server = with_clock(Launch::dev(data.path()), &clock).start();
    ledger.check_healed(&server);
    ledger.check_nothing_refused();
}

/// Loads a server that starts with its clock off, and stops it.
fn server_at(clock: &Clock, data: &Path, off: i64, ledger: &Ledger) -> ExitStatus {
    clock.jump_to(off);
    let server = with_clock(Launch::dev(data), clock).start();
    under_load(&server, ledger, Pace::FULL, || ledger.wait_for_more(MEANWHILE));
    server.stop()
}
