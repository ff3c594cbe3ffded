//! Whoever reads what a process prints may go away at any time; that must not end a server, or change how a command ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::Desk;
use crate::support::harness::Launch;

fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tallystone"))
}

/// Ends a child as an operator does, and waits.
#[expect(unsafe_code, reason = "std sends no signals but SIGKILL")]
fn terminate(child: &mut Child) -> std::process::ExitStatus {
    let pid = i32::try_from(child.id()).expect("process numbers are small");
    // SAFETY: kill takes plain numbers, and the child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0, "the signal reaches the child");
    child.wait().expect("a child that was told to stop ends")
}

#[test]
fn a_server_closes_its_store_although_nobody_reads_what_it_prints() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let mut command = binary();
    let command = command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(&data).stdin(Stdio::null());
    for _ in 0..3 {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut line = String::new();
        let mut reader = BufReader::new(child.stdout.take().expect("stdout is piped"));
        reader.read_line(&mut line).expect("the first line is text");
        assert!(line.contains("listens on"), "{line}");
        drop((reader, child.stderr.take()));
        // At once, so that the stop may come while the server is still saying what to try.
        let status = terminate(&mut child);
        assert!(status.success(), "{status}");
    }
    Launch::dev(&data).start();
}

#[test]
fn a_command_ends_as_it_would_although_nobody_reads_its_errors() {
    let desk = Desk::set();
    let mut command = binary();
    let command = command.args(["ns", "describe", "nope"]).env("TALLYSTONE_SERVER", desk.server.address.to_string());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
}

#[test]
fn a_watch_whose_server_dies_says_that_changes_may_be_missed_and_speaks_of_no_tls() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["counter", "add", "views", "5"]).ok();
    let watches = [["counter", "watch", "views"], ["queue", "watch", "orders"]].map(|arguments| {
        let mut command = binary();
        let command = command.args(arguments).args(["-o", "jsonl"]);
        let command = command.env("TALLYSTONE_SERVER", desk.server.address.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut reader = BufReader::new(child.stdout.take().expect("stdout is piped"));
        reader.read_line(&mut String::new()).expect("the first reading is text");
        (child, reader)
    });
    let Desk { server, folder } = desk;
    server.kill();
    for (child, reader) in watches {
        let ended = child.wait_with_output().expect("it ends");
        let told = String::from_utf8(ended.stderr).expect("text");
        assert_eq!(ended.status.code(), Some(5), "{told}");
        assert!(told.contains("ended: ") && told.contains("start the command again"), "{told}");
        assert!(!told.contains("https://"), "it has answered, so its address is right: {told}");
        drop(reader);
    }
    drop(folder);
}

#[test]
fn a_reader_of_data_may_stop_but_data_that_cannot_be_written_is_a_failure() {
    let desk = Desk::set();
    let lists = ["server print-config", "server print-config -o json", "explain-error", "completion bash", "ns ls"];
    for line in lists.into_iter().chain(["--help", "queue --help", "help msg", "--version"]) {
        let ran = desk.shell(&format!("{{ tallystone {line}; echo $? >&2; }} | true"));
        assert_eq!(ran.err, "0\n", "{line}");
        let ran = desk.shell(&format!("tallystone {line} > /dev/full"));
        assert_eq!((ran.code, ran.err.contains("cannot write the output")), (1, true), "{line}: {}", ran.err);
    }
}
