//! Queues, their counters and their history on a disk that has no room for the history, or for messages.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use super::load::{Ledger, MEANWHILE, Pace, under_load};
use super::{CAUGHT_UP_WITHIN, create};
use crate::fleet::several_servers::metric;
use crate::store_faults::full_disk::{inside, may_mount};
use crate::support::harness::{Launch, eventually};

const MIB: u64 = 1024 * 1024;

/// Lets a file grow until its file system has just so many bytes left.
fn leave_free(filler: &Path, bytes: u64) {
    let mut file = File::options().append(true).create(true).open(filler).expect("a file can be made");
    let space = rustix::fs::fstatvfs(&file).expect("the file system answers");
    let more = (space.f_bavail * space.f_frsize).checked_sub(bytes).expect("so much was free");
    file.write_all(&vec![1; usize::try_from(more).expect("small")]).expect("there is room for it");
}

/// On a small file system of its own, which needs the right to mount one.
#[test]
fn a_disk_without_room_for_the_history_holds_up_no_queue_and_the_history_catches_up() {
    const DISK: u64 = 256 * MIB;
    const RESERVE: u64 = 32 * MIB;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on disk");
    let Some(wrapper) = may_mount(folder.path()) else { return };
    let server = Launch::dev_on_tmpfs(folder.path(), DISK, &wrapper);
    let server = server.env("TALLYSTONE__STORAGE__RESERVE_BYTES", &RESERVE.to_string()).start();
    let (filler, ledger) = (inside(&server, folder.path()).join("filler"), Ledger::default());
    create(&server, Ledger::queue());
    let failures = || metric(&server, "tallystone_history_failures_total");
    let is_refused = || ledger.refused().contains_key("STORAGE_FULL");
    under_load(&server, &ledger, Pace::FULL, || {
        ledger.wait_for_more(MEANWHILE);
        assert_eq!(failures(), 0.0);

        // Below twice the reserve only the history yields.
        leave_free(&filler, RESERVE + RESERVE / 2);
        assert!(eventually(CAUGHT_UP_WITHIN, || failures() > 0.0), "the history takes no rows");
        ledger.wait_for_more(MEANWHILE);
        ledger.check_nothing_refused();
        assert!(metric(&server, "tallystone_outbox_bytes") > 0.0, "rows wait");

        // Below the reserve enqueues are refused, too.
        leave_free(&filler, RESERVE / 2);
        assert!(eventually(CAUGHT_UP_WITHIN, is_refused), "enqueues are refused");
        fs::remove_file(&filler).expect("the filler can go");
        let enqueued = ledger.enqueued();
        assert!(eventually(CAUGHT_UP_WITHIN, || ledger.enqueued() > enqueued + 20), "enqueues return with the space");
    });
    assert_eq!(ledger.refused().into_keys().collect::<Vec<_>>(), ["STORAGE_FULL"]);
    ledger.check_healed(&server);
    assert_eq!(metric(&server, "tallystone_history_gaps_total"), 0.0);
    assert!(server.stop().success());
}
