//! What a server keeps is readable by its own user alone, and a server that others can reach says that it is open.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::harness::Launch;

/// Every path below a directory, itself included, with its mode.
fn modes(dir: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let mut found = vec![(dir.to_owned(), mode(dir))];
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(modes(&path));
        } else {
            found.push((path.clone(), mode(&path)));
        }
    }
    found
}

fn assert_private(dir: &Path) {
    let found = modes(dir);
    assert!(found.len() > 5, "a store has files: {found:?}");
    for (path, mode) in found {
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
}

#[test]
fn nobody_else_may_read_the_data_also_of_an_earlier_build() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let add = r#"{"namespace": "default", "counterName": "views", "delta": 1}"#;
    let server = Launch::dev(&data).start();
    assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", add).status, 200);
    assert_private(&data);
    assert!(server.stop().success());
    for (path, mode) in modes(&data) {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o055)).expect("a mode");
    }
    let server = Launch::dev(&data).start();
    assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", add).status, 200);
    assert_private(&data);

    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    let run = |arguments: &[&std::ffi::OsStr]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_tallystone")).args(arguments).output().expect("the command starts");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    };
    let address = server.address.to_string();
    // A shell adds the slash to the name of a directory.
    let with_slash = format!("{}/", backup.display());
    run(&["backup".as_ref(), with_slash.as_ref(), "--server".as_ref(), address.as_ref()]);
    run(&["restore".as_ref(), backup.as_ref(), "--data".as_ref(), restored.as_ref()]);
    assert_private(&restored);
    for (path, mode) in modes(&backup) {
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
}

#[test]
fn a_server_that_others_can_reach_warns_that_it_asks_nobody_who_they_are() {
    let warns = |listen: &str| {
        let program = env!("CARGO_BIN_EXE_tallystone");
        // Log and notices in one stream, in the order they come.
        let command = format!("exec {program} dev --memory --set auth.mode=off --listen {listen} 2>&1");
        let mut server = Command::new("sh").args(["-c", &command]).stdout(Stdio::piped()).spawn().expect("sh starts");
        let lines = BufReader::new(server.stdout.take().expect("stdout is piped")).lines().map_while(Result::ok);
        // The next step is the last that a start prints.
        let said: Vec<String> = lines.take_while(|line| !line.starts_with("queue:")).collect();
        server.kill().expect("a child can be killed");
        server.wait().expect("a killed child ends");
        assert!(said.iter().any(|line| line.contains("listens on")), "{said:?}");
        said.iter().any(|line| line.starts_with("warning: there is no authentication"))
    };
    assert!(warns("0.0.0.0:0"));
    assert!(!warns("127.0.0.1:0"));
}

#[test]
fn an_answer_of_no_leaves_everything_as_it_is_and_is_no_error() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let add = r#"{"namespace": "default", "counterName": "views", "delta": 7}"#;
    assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", add).status, 200);
    let line = format!("{} counter clear views --server {}", env!("CARGO_BIN_EXE_tallystone"), server.address);
    // `script` gives the command a terminal, without which it does not ask.
    let command = format!("echo n | script -qec '{line}' /dev/null");
    let asked = Command::new("sh").args(["-c", &command]).output().expect("sh starts");
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success() && said.contains("[y/N]") && said.contains("nothing was changed"), "{said}");
    assert!(!said.contains("error"), "{said}");
    let get = r#"{"namespace": "default", "counterName": "views", "freshness": "UP_TO_DATE"}"#;
    assert_eq!(server.post("/tallystone.counter.v1.CounterService/GetCount", get).json()["count"], "7");
}
