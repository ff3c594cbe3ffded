//! Where settings come from, and what stands before the noun.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use serde_json::Value;

use super::{Desk, Ran};
use crate::support::harness::Launch;

/// Variables of the environment, whose values need not be text.
type Variables<'a> = &'a [(&'a str, &'a [u8])];

/// The binary in an environment of its own, without a server.
pub(super) fn alone(arguments: &[&str], environment: Variables) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    let environment = environment.iter().map(|(name, value)| (name, OsStr::from_bytes(value)));
    Ran::from(command.args(arguments).envs(environment).output().expect("the binary starts"))
}

#[test]
fn settings_that_cannot_be_used_are_a_wrong_command_line() {
    let cases: &[(&[&str], Variables, &str)] = &[
        (&["--set", "foo"], &[], "--set takes KEY=VALUE, not foo"),
        (&["--set", "server.drain=1"], &[], "did you mean server.drain_deadline_ms?"),
        (&["--set", "server.worker_threads=-1"], &[], "flag --set: server.worker_threads must be 0 or more"),
        (&["--set", "log.level=bogus[["], &[], "flag --set: log.level cannot be used"),
        (&["-c", "absent.toml"], &[], "cannot read absent.toml"),
        (&[], &[("TALLYSTONE_CONFIG", b"absent.toml")], "cannot read absent.toml"),
        (&[], &[("TALLYSTONE__LOG__FORMAT", b"xml")], "environment TALLYSTONE__LOG__FORMAT: log.format cannot be used"),
        (&[], &[("TALLYSTONE__SERVER__DRAIN_MS", b"1")], "did you mean server.drain_deadline_ms?"),
        (&[], &[("TALLYSTONE__LOG__LEVEL", b"\xff")], "TALLYSTONE__LOG__LEVEL is not valid UTF-8"),
        (&[], &[], "storage.data_dir is not set"),
    ];
    for (arguments, environment, words) in cases {
        let ran = alone(&[&["server", "check-config"], *arguments].concat(), environment);
        assert_eq!(ran.code, 2, "{arguments:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
        let started = alone(&[&["server", "start"], *arguments].concat(), environment);
        assert_eq!((started.code, started.err), (2, ran.err), "{arguments:?}: a start refuses what a check refuses");
    }
}

#[test]
fn the_environment_of_others_does_not_matter() {
    let odd: Variables = &[("OTHER", b"\xff\xfe"), ("TALLYSTONE_CONFIG", b""), ("TALLYSTONE_SERVER", b"")];
    let ran = alone(&["server", "check-config", "--data", "x"], odd);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = alone(&["counter", "get", "--timeout", "100ms", "views"], odd);
    assert!(ran.code != 2, "an empty address is as good as none: {}", ran.err);
}

#[test]
fn print_config_prints_every_setting_in_every_format() {
    let arguments = ["server", "print-config", "--set", "storage.data_dir=here", "-o"];
    let printed = |format: &'static str| {
        let ran = alone(&[&arguments[..], &[format]].concat(), &[]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let whole: Value = serde_json::from_str(&printed("json")).expect("one JSON document");
    let items = whole.as_array().expect("a list");
    let dir = items.iter().find(|item| item["key"] == "storage.data_dir").expect("every key is listed");
    assert_eq!((&dir["value"], &dir["origin"]), (&"here".into(), &"flag --set".into()));
    assert_eq!(printed("jsonl").lines().count(), items.len());
    assert_eq!(printed("csv").lines().count(), items.len() + 1);
    assert!(printed("csv").contains("\nstorage.data_dir,here,flag --set\n"), "{}", printed("csv"));
    assert_eq!(printed("table").lines().count(), items.len());
}

#[test]
fn what_a_command_has_a_use_for_may_stand_before_its_noun() {
    let desk = Desk::set();
    let address = desk.server.address.to_string();
    let asked = |arguments: &[&str]| alone(arguments, &[("TALLYSTONE_SERVER", b"127.0.0.1:1")]);
    let before = asked(&["--server", &address, "-o", "json", "--timeout", "20s", "ns", "ls"]).ok();
    let after = asked(&["ns", "ls", "--server", &address, "-o", "json"]).ok();
    assert_eq!(before, after);
    let nearer = asked(&["--server", "127.0.0.1:1", "-o", "csv", "ns", "--server", &address, "ls", "-o", "json"]).ok();
    assert_eq!(nearer, after, "what stands after the noun wins");
    asked(&["--server", &address, "server", "wait-ready"]).ok();
    let listed = asked(&["-o", "json", "server", "print-config"]).ok();
    assert!(serde_json::from_str::<Value>(&listed).is_ok_and(|listed| listed.is_array()), "{listed}");
    for useless in
        [&["--server", "x", "dev"][..], &["-o", "csv", "completion", "bash"], &["--timeout", "1s", "explain-error"]]
    {
        let ran = asked(useless);
        assert_eq!((ran.code, ran.err.contains("does not accept")), (2, true), "{useless:?}: {}", ran.err);
    }
}

#[test]
fn a_server_listens_on_a_name_and_says_how_it_was_called() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["dev", "--listen", "localhost:0", "--memory"]);
    let server = Launch::of(command).start();
    let line = server.wait_for_line("then:");
    assert!(line.contains(&format!("then:  {} counter get views", env!("CARGO_BIN_EXE_tallystone"))), "{line}");
    let line = server.wait_for_line("queue:");
    let server_of_it = line.split(" --server ").nth(1).expect("it listens elsewhere than by default").trim().to_owned();
    let pushed = Command::new(env!("CARGO_BIN_EXE_tallystone"))
        .args(["msg", "push", "-q", "timed/hello", "hello", "--timeout", "60s", "--server", &server_of_it])
        .output()
        .expect("the binary of this build starts");
    assert!(line.contains("msg push -q timed/hello hello") && pushed.status.success(), "{line} {pushed:?}");
    assert!(server.stop().success());
}

#[test]
fn a_first_start_without_room_says_once_why_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("text");
    let reserve = format!("storage.reserve_bytes={}", i64::MAX);
    let ran = alone(&["dev", "--listen", "127.0.0.1:0", "--data", data, "--set", &reserve], &[]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(ran.err.matches("the store is full").count(), 1, "{}", ran.err);
    assert!(ran.err.contains("or lower storage.reserve_bytes"), "{}", ran.err);
}

#[test]
fn of_several_servers_the_next_one_is_asked_when_one_fails() {
    let desk = Desk::set();
    // Nobody listens on port 1.
    let servers = format!("127.0.0.1:1, {}", desk.server.address);
    for command in [&["counter", "add", "views", "5"][..], &["counter", "get", "views", "--fresh"], &["ns", "ls"]] {
        desk.run(&[command, &["--server", &servers]].concat()).ok();
    }
    let applied = desk.run(&["apply", "-f", "views.toml", "--server", &servers]);
    assert_eq!(applied.code, 0, "{}", applied.err);
    let ran = desk.run(&["ns", "ls", "--server", "127.0.0.1:1,127.0.0.1:1", "--timeout", "1s"]);
    assert_eq!(ran.code, 5, "{}{}", ran.out, ran.err);
    assert_eq!(desk.run(&["ns", "ls", "--server", "127.0.0.1:1,"]).code, 2);
}
