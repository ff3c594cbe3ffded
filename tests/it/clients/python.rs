//! The programs of docs/python.md work as they stand there, against a real server that is killed in between.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::domain::Reason;
use tallystone::domain::reason::{Effect, Retry};

use crate::servers::free_port;
use crate::support::harness::{Launch, Server, eventually};

const PAGE: &str = include_str!("../../../docs/python.md");
/// How long a program of the page may take on a busy machine.
const ENDED_WITHIN: Duration = Duration::from_secs(300);

/// The code blocks of the page in one language, without their fences.
fn blocks(language: &str) -> Vec<&'static str> {
    let blocks = PAGE.split("\n```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// A folder with the programs of the page, set up by its first commands; the packages are kept between runs.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = kept.join("python");
        fs::create_dir_all(&folder).expect("the target directory takes folders");
        let proto = folder.join("proto");
        if !proto.exists() {
            // A link that leads nowhere is of a checkout that is gone.
            let _ = fs::remove_file(&proto);
            symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("proto"), &proto).expect("a link is made");
        }
        for program in blocks("python") {
            let name = if program.contains("class Worker") { "worker.py" } else { "counter.py" };
            fs::write(folder.join(name), program).expect("a file is written");
        }
        let set_up = Command::new("sh").args(["-ec", blocks("")[0]]).current_dir(&folder).output().expect("sh starts");
        let said = String::from_utf8_lossy(&set_up.stderr);
        assert!(set_up.status.success(), "python3 with venv is needed, as tests/run installs it: {said}");
        folder
    })
}

/// A development server at an address, where it is found again after a kill.
fn dev_at(address: &str, data: &Path) -> Launch {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["dev", "--listen", address, "--data"]).arg(data);
    Launch::of(command)
}

/// Starts a command of the page, with a server and further arguments of the test's own.
fn start(program: &str, arguments: &[&str], server: &str) -> Child {
    Command::new(folder().join(".venv/bin/python"))
        .arg(program)
        .args(arguments)
        .current_dir(folder())
        .env("TALLYSTONE_SERVER", server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts")
}

/// Waits for its end. One that hangs is killed, and what it printed is shown.
fn ended(mut child: Child) -> Output {
    let in_time = eventually(ENDED_WITHIN, || child.try_wait().expect("a child can be asked").is_some());
    if !in_time {
        child.kill().expect("a child can be killed");
    }
    let output = child.wait_with_output().expect("its output is read");
    assert!(in_time && output.status.success(), "{output:?}");
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("a text")
}

fn done(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("/tallystone.{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {answer:?}");
    answer.json()
}

#[test]
fn the_python_client_counts_each_change_once_though_the_server_is_killed() {
    const ADDS: usize = 300;
    let data = tempfile::tempdir().expect("a temporary directory");
    let address = free_port().and_then(|free| free.local_addr()).expect("a free port").to_string();
    let launch = || dev_at(&address, data.path());
    let server = launch().start();
    let added = |server: &Server| -> u64 {
        let body = json!({"namespace": "default", "counterName": "views", "freshness": "UP_TO_DATE"});
        let answer = done(server, "counter.v1.CounterService/GetCount", &body);
        answer["count"].as_str().and_then(|count| count.parse().ok()).expect("a count")
    };
    let child = start("counter.py", &["views", &ADDS.to_string()], &address);
    assert!(eventually(ENDED_WITHIN, || added(&server) > 20), "the client adds");
    server.kill();
    let server = launch().start();
    let output = ended(child);
    assert!(text(&output).ends_with(&format!("views is {ADDS}\n")), "{output:?}");
    assert_eq!(added(&server), ADDS as u64);
}

#[test]
fn the_python_worker_settles_every_message_though_the_server_is_killed() {
    const MESSAGES: usize = 60;
    let data = tempfile::tempdir().expect("a temporary directory");
    let address = free_port().and_then(|free| free.local_addr()).expect("a free port").to_string();
    let launch = || dev_at(&address, data.path());
    let server = launch().start();
    let queue = json!({"queue": {"name": "mail", "retryPolicy": {"initial": "0.001s", "max": "0.001s"}}});
    done(&server, "queue.v1.QueueService/CreateQueue", &queue);
    let payload = |n: usize| if n == 0 { "YmFk" } else { "Z29vZA==" };
    for n in 0..MESSAGES {
        let message = json!({"messageId": format!("m-{n}"), "payload": payload(n)});
        done(&server, "queue.v1.QueueService/Enqueue", &json!({"queue": "mail", "message": message}));
    }
    let depth = |server: &Server| done(server, "queue.v1.QueueService/GetDepth", &json!({"queue": "mail"}));
    let child = start("worker.py", &["mail", "--until-empty"], &address);
    let completed = |server: &Server| depth(server)["completed"].as_str().and_then(|many| many.parse::<usize>().ok());
    assert!(eventually(ENDED_WITHIN, || completed(&server) > Some(10)), "the worker completes");
    server.kill();
    let server = launch().start();
    ended(child);
    let depth = depth(&server);
    let states = ["completed", "errored", "pending", "running"].map(|state| depth[state].clone());
    assert_eq!(states, [json!((MESSAGES - 1).to_string()), json!("1"), json!("0"), json!("0")], "{depth}");
}

/// A worker whose handler first loses its lease and fails, then is refused by a call of its own, then works.
const UNLUCKY: &str = r#"
import sys
import grpc
from worker import Worker, pb

tries = []

def handle(message):
    tries.append(message)
    if len(tries) == 1:
        worker.stub.CloseSession(pb.CloseSessionRequest(session_id=worker.session))
        raise ValueError("\ud800 the lease is lost")
    if len(tries) == 2:
        worker.stub.GetMessage(pb.GetMessageRequest(queue="mail", message_id="nobody"))
    print("done", len(tries), message.error.signature, flush=True)

with grpc.insecure_channel(sys.argv[1]) as channel:
    worker = Worker(channel, "mail", handle)
    worker.run(until_empty=True)
"#;

#[test]
fn the_python_worker_goes_on_after_a_lost_lease_and_fails_what_its_handler_was_refused() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let queue = json!({"queue": {"name": "mail", "retryPolicy": {"initial": "0.001s", "max": "0.001s"}}});
    done(&server, "queue.v1.QueueService/CreateQueue", &queue);
    done(&server, "queue.v1.QueueService/Enqueue", &json!({"queue": "mail", "message": {"payload": "Z29vZA=="}}));
    let address = server.address.to_string();
    let output = ended(start("-c", &[UNLUCKY, &address], &address));
    assert_eq!(text(&output), "done 3 _InactiveRpcError\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("LEASE_LOST"), "{output:?}");
    let depth = done(&server, "queue.v1.QueueService/GetDepth", &json!({"queue": "mail"}));
    assert_eq!((&depth["completed"], &depth["errored"]), (&json!("1"), &json!("0")), "{depth}");
}

#[test]
fn the_table_of_refusals_says_of_each_reason_what_the_reasons_say() {
    let mut told = Vec::new();
    for row in PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in cells[1].split('`').skip(1).step_by(2) {
            let reason = Reason::from_name(name).unwrap_or_else(|| panic!("there is no reason {name}"));
            let info = reason.info();
            assert_eq!(cells[3].starts_with("send the same token again"), info.retry == Retry::SameToken, "{row}");
            assert_eq!(cells[2].starts_with("no"), info.effect == Effect::Nothing, "{row}");
            told.push(info.name);
        }
    }
    let is_told = |reason: &&Reason| told.contains(&reason.info().name);
    let is_another = |reason: &&Reason| reason.info().retry == Retry::Never && reason.info().effect == Effect::Nothing;
    let left_out: Vec<_> = Reason::ALL.iter().filter(|one| !is_told(one) && !is_another(one)).collect();
    assert!(left_out.is_empty(), "these are not as any other: {left_out:?}");
}
