//! Any program as a worker: what it is told, how its end settles its message, and how the worker itself ends.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use super::{Desk, Ran};

/// A worker that runs until it is told to stop.
struct Worker {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Worker {
    fn start(desk: &Desk, exec: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["work", "-q", "orders", "--exec", exec]).current_dir(desk.folder.path());
        command.env("TALLYSTONE_SERVER", desk.server.address.to_string());
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let err = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        Self { child, out, err }
    }

    /// The next line that the command prints.
    fn said(&mut self) -> String {
        self.out.next().expect("the command prints a line").expect("text")
    }

    /// Sends SIGTERM, and waits until the worker says that it took it.
    fn terminate(&mut self, words: &str) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child was not waited for, so the number is its own.
        #[allow(unsafe_code, reason = "std sends no signal but SIGKILL")]
        let sent = unsafe { libc::kill(pid, libc::SIGTERM) };
        assert_eq!(sent, 0, "the signal reaches the child");
        let told = self.err.by_ref().map(|line| line.expect("text")).find(|line| line.contains(words));
        assert!(told.is_some(), "the worker does not say {words:?}");
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().expect("a worker that was told to stop ends").code()
    }
}

fn fill(desk: &Desk, settings: &str, ids: &[&str]) {
    desk.shell(&format!("tallystone queue create orders {settings}")).ok();
    for id in ids {
        desk.run(&["msg", "push", "-q", "orders", &format!("for {id}"), "--id", id, "--meta", "tenant-id=x"]).ok();
    }
}

fn depth(desk: &Desk) -> String {
    let line = desk.run(&["queue", "depth", "orders", "-o", "csv"]).ok();
    let cells: Vec<_> = line.lines().nth(1).expect("a row").split(',').collect();
    format!(
        "pending {} running {} errored {} completed {} canceled {}",
        cells[1], cells[2], cells[3], cells[4], cells[5]
    )
}

fn work(desk: &Desk, exec: &str, more: &str) -> Ran {
    desk.shell(&format!("tallystone work -q orders --until-empty {more} --exec '{exec}'"))
}

#[test]
fn every_message_is_worked_once_with_its_payload_and_what_is_known_of_it() {
    let desk = Desk::set();
    fill(&desk, "--shards 2", &["a", "b", "c"]);
    let told = "$TALLYSTONE_QUEUE $TALLYSTONE_ATTEMPT $TALLYSTONE_METADATA_TENANT_ID $TALLYSTONE_METADATA";
    let exec = format!("cat > out-$TALLYSTONE_MESSAGE_ID; test $TALLYSTONE_FENCE -gt 0 && echo {told}");
    let ran = work(&desk, &exec, "--concurrency 2");
    assert_eq!(ran.err, "3 completed, 0 failed, 0 released or lost\n");
    assert_eq!(ran.ok(), "orders 1 x {\"tenant-id\":\"x\"}\n".repeat(3));
    for id in ["a", "b", "c"] {
        let payload = fs::read_to_string(desk.folder.path().join(format!("out-{id}"))).expect("the command ran");
        assert_eq!(payload, format!("for {id}"));
    }
    assert_eq!(depth(&desk), "pending 0 running 0 errored 0 completed 3 canceled 0");
}

#[test]
fn a_command_that_fails_fails_its_message_with_its_code_and_last_words() {
    let desk = Desk::set();
    fill(&desk, "--max-attempts 1", &["a"]);
    let ran = work(&desk, "echo first >&2; echo bad luck >&2; exit 3", "");
    assert_eq!(ran.code, 6, "{}", ran.err);
    assert!(ran.err.contains("bad luck\na: exit 3: bad luck\n"), "{}", ran.err);
    assert!(ran.err.contains("count those out of attempts with `tallystone dlq ls -q orders`"), "{}", ran.err);
    assert!(desk.run(&["dlq", "ls", "-q", "orders", "--messages"]).ok().contains("exit 3: bad luck"));
    desk.run(&["dlq", "redrive", "-q", "orders"]).ok();
    let ran = work(&desk, "kill -9 $$", "");
    assert!(ran.err.contains("a: signal 9\n"), "{}", ran.err);
}

#[test]
fn a_command_that_cannot_be_run_costs_no_attempt_and_ends_the_worker() {
    let desk = Desk::set();
    fill(&desk, "--max-attempts 1", &["a"]);
    let ran = work(&desk, "./absent", "");
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("error: the command cannot be run (exit code 127)"), "{}", ran.err);
    assert!(!ran.err.contains("signal"), "nobody sent one: {}", ran.err);
    assert_eq!(depth(&desk), "pending 1 running 0 errored 0 completed 0 canceled 0");
    let ran = desk.run(&["work", "-q", "absent", "--exec", "true"]);
    assert_eq!((ran.code, ran.err.contains("QUEUE_NOT_FOUND")), (3, true), "{}", ran.err);
}

#[test]
fn a_lease_is_renewed_while_its_command_runs() {
    let desk = Desk::set();
    fill(&desk, "--max-attempts 1", &["a"]);
    let ran = work(&desk, "sleep 9", "--lease 8s");
    assert_eq!((ran.code, ran.err.as_str()), (0, "1 completed, 0 failed, 0 released or lost\n"));
}

#[test]
fn a_command_whose_message_is_canceled_is_ended() {
    let desk = Desk::set();
    fill(&desk, "--default-lease 9s", &["a"]);
    let exec = "tallystone msg cancel -q orders --id a > canceled; sleep 600";
    let ran = work(&desk, exec, "");
    assert!(ran.err.contains("a: cancel requested; ending its command"), "{}", ran.err);
    assert_eq!((ran.code, depth(&desk).ends_with("completed 0 canceled 1")), (0, true), "{}", ran.err);
}

#[test]
fn the_first_stop_signal_lets_running_commands_finish() {
    let desk = Desk::set();
    fill(&desk, "", &["a", "b"]);
    let mut worker = Worker::start(&desk, "echo started; while ! test -e go; do sleep 0.05; done");
    assert_eq!(worker.said(), "started");
    worker.terminate("stopping; 1 message in progress");
    desk.write("go", "");
    assert_eq!(worker.code(), Some(0));
    assert_eq!(depth(&desk), "pending 1 running 0 errored 0 completed 1 canceled 0");
}

#[test]
fn the_second_stop_signal_ends_running_commands_and_releases_their_messages() {
    let desk = Desk::set();
    fill(&desk, "--max-attempts 1", &["a"]);
    let mut worker = Worker::start(&desk, "echo started; sleep 600");
    assert_eq!(worker.said(), "started");
    worker.terminate("stopping; 1 message in progress");
    worker.terminate("releasing 1 message");
    assert_eq!(worker.code(), Some(0));
    assert_eq!(depth(&desk), "pending 1 running 0 errored 0 completed 0 canceled 0");
}
