//! What the tests share: the real binary as a process, faults of clock and disk, texts to compare with.

pub mod certificates;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod clockskew;
pub mod golden;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod harness;
pub mod judging;
pub mod patience;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod powerloss;
pub mod yardstick;

use harness::{Server, http};
use yardstick::Yardstick;

/// What a test takes: `usual` in a usual run, `long` with `tests/run --long`.
pub fn usual_or_long<T>(usual: T, long: T) -> T {
    if std::env::var_os("TALLYSTONE_LONG_TESTS").is_some() { long } else { usual }
}

/// A yardstick beside a server: its `/healthz` asks no store. A server with TLS refuses it, which takes as long.
pub fn beside(server: &Server) -> Yardstick {
    let address = server.address;
    // Whatever comes, it took its time.
    Yardstick::of_process(server.pid(), move || drop(http(address, "GET", "/healthz", &[], "")))
}
