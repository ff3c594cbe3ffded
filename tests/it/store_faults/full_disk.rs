//! Adds are refused before the disk is full, reads go on, and writes return with the space, without a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{add, add_to_many, count, data_directory};
use crate::support::beside;
use crate::support::clockskew::Clock;
use crate::support::harness::{HttpAnswer, Launch, Server};

const MIB: u64 = 1024 * 1024;
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn without_its_reserve_the_store_refuses_writes_and_serves_reads() {
    let (_folder, data) = data_directory();
    let server = Launch::dev(&data).start();
    assert_eq!(add(&server, "views", 2).status, 200);
    assert!(server.stop().success());

    let more_than_any_disk = (1_u64 << 60).to_string();
    let full = Launch::dev(&data).env("TALLYSTONE__STORAGE__RESERVE_BYTES", &more_than_any_disk).start();
    let refused = add(&full, "views", 5);
    assert!(is_full(&refused), "{refused:?}");
    assert_eq!(count(&full, "views"), Ok(2));
    let metrics = full.get("/metrics").body;
    let gauge = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("tallystone_store_{name} ")));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    assert!(gauge("full") == 1.0 && gauge("free_bytes") > 0.0, "{metrics}");
    assert!(full.stop().success());
    assert_eq!(count(&Launch::dev(&data).start(), "views"), Ok(2));
}

/// The slices of the present are missing then, and cannot be made.
#[test]
fn a_server_that_starts_on_a_full_disk_days_later_serves_reads_and_takes_writes_after_it() {
    const DAYS: i64 = 5;
    let (_folder, data) = data_directory();
    let server = Launch::dev(&data).start();
    assert_eq!(add(&server, "views", 2).status, 200);
    assert!(server.stop().success());

    let later = Clock::off_by(DAYS * 86_400_000);
    let start = |reserve: u64| {
        let launch = Launch::dev(&data).env("TALLYSTONE__STORAGE__RESERVE_BYTES", &reserve.to_string());
        later.environment().iter().fold(launch, |launch, (name, value)| launch.env(name, value)).start()
    };
    let full = start(1 << 60);
    let refused = add(&full, "views", 5);
    assert!(is_full(&refused), "{refused:?}");
    assert_eq!(count(&full, "views"), Ok(2));
    assert!(full.stop().success());
    let server = start(MIB);
    assert_eq!(add(&server, "views", 5).status, 200);
    assert_eq!(count(&server, "views"), Ok(7));
}

#[test]
fn without_its_reserve_the_store_refuses_enqueues_and_serves_reads() {
    const SERVICE: &str = "/tallystone.queue.v1.QueueService";
    let enqueue = |server: &Server, id: &str| {
        let message = format!(r#"{{"queue": "mail", "message": {{"message_id": "{id}", "payload": "aGVsbG8="}}}}"#);
        server.post(&format!("{SERVICE}/Enqueue"), &message)
    };
    let (_folder, data) = data_directory();
    let server = Launch::dev(&data).start();
    let created = server.post(&format!("{SERVICE}/CreateQueue"), r#"{"queue": {"name": "mail"}}"#);
    assert_eq!((created.status, enqueue(&server, "a").status), (200, 200), "{created:?}");
    assert!(server.stop().success());

    let more_than_any_disk = (1_u64 << 60).to_string();
    let full = Launch::dev(&data).env("TALLYSTONE__STORAGE__RESERVE_BYTES", &more_than_any_disk).start();
    let refused = enqueue(&full, "b");
    assert!(is_full(&refused), "{refused:?}");
    let peeked = full.post(&format!("{SERVICE}/PeekMessages"), r#"{"queue": "mail", "max_messages": 9}"#);
    assert!(peeked.status == 200 && peeked.body.contains("aGVsbG8=") && !peeked.body.contains("\"b\""), "{peeked:?}");
    assert!(full.stop().success());
    let server = Launch::dev(&data).start();
    let repeated = enqueue(&server, "a");
    assert!(
        repeated.status == 200 && repeated.body.replace(' ', "").contains("\"alreadyEnqueued\":true"),
        "{repeated:?}"
    );
    assert_eq!(enqueue(&server, "b").status, 200, "what was refused was not applied, and is taken later");
}

/// On a small file system of its own, which needs the right to mount one: as root, or in a user namespace.
#[test]
fn writes_stop_before_the_disk_is_full_and_return_with_the_space() {
    const DISK: u64 = 256 * MIB;
    const RESERVE: u64 = 96 * MIB;
    let (_folder, data) = data_directory();
    let Some(wrapper) = may_mount(&data) else { return };
    let server = Launch::dev_on_tmpfs(&data, DISK, &wrapper)
        .env("TALLYSTONE__STORAGE__RESERVE_BYTES", &RESERVE.to_string())
        .start();
    assert_eq!(add(&server, "views", 1).status, 200);

    // Somebody else fills the disk.
    let filler = inside(&server, &data).join("filler");
    fs::write(&filler, vec![1; usize::try_from(DISK - RESERVE).expect("small")]).expect("there is room for it");
    let yardstick = beside(&server);
    yardstick.comes(Instant::now(), NOTICED_WITHIN, "adds are refused", || is_full(&add(&server, "other", 1)));
    assert_eq!(count(&server, "views"), Ok(1), "reads go on");
    fs::remove_file(&filler).expect("the filler can go");
    let yardstick = beside(&server);
    yardstick
        .comes(Instant::now(), NOTICED_WITHIN, "adds return with the space", || add(&server, "views", 1).status == 200);
    assert_eq!(count(&server, "views"), Ok(2), "what was refused does not count");

    // The server fills the disk itself.
    let mut applied = [0_i64; 1_000];
    let full = (0..2_000).any(|_| {
        let done = add_to_many(&server, 0..1_000, 256);
        applied.iter_mut().take(done).for_each(|count| *count += 1);
        done < 1_000
    });
    assert!(full, "the store refuses before the disk is full");
    let readable = count(&server, "many/0").expect("reads go on");
    assert!(readable >= applied[0] - 1 && readable > 10, "{readable} of {}", applied[0]);
    assert!(server.stop().success(), "an orderly stop works on a full disk");
}

fn is_full(answer: &HttpAnswer) -> bool {
    answer.status != 200 && answer.body.contains("\"STORAGE_FULL\"")
}

/// How to start a program in a mount namespace of its own. None if that is not allowed, which fails where `CI` is set.
pub fn may_mount(place: &Path) -> Option<Vec<&'static str>> {
    let ways = [vec!["unshare", "--mount"], vec!["unshare", "--user", "--map-root-user", "--mount"]];
    let found = ways.into_iter().find(|way| {
        let tried = Command::new(way[0]).args(&way[1..]).args(["mount", "-t", "tmpfs", "tmpfs"]).arg(place).output();
        tried.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "full disk: not run, because this machine lets nobody mount a tmpfs");
        eprintln!("full disk: not run, because this machine lets nobody mount a tmpfs");
    }
    found
}

/// The data directory as the server sees it.
pub fn inside(server: &Server, data: &Path) -> PathBuf {
    let below_root = data.strip_prefix("/").expect("an absolute path");
    Path::new(&format!("/proc/{}/root", server.pid())).join(below_root)
}
