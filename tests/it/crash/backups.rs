//! Backups of a server under load, with kills: each one, restored, is the state of one moment; one that was cut off is none.
//!
//! Each writer adds 1 to its counter and, once that is acknowledged, enqueues a message into its queue. So at any one moment
//! its queue holds as many messages as its counter says, or one less: rows of different moments would break that.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::counter::v1::AddCountRequest;
use tallystone::proto::queue::v1::{EnqueueRequest, Message};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::queues::connect;
use super::{CrashTest, rounds};
use crate::support::harness::{Launch, Server, eventually};

const WRITERS: usize = 4;
/// What anything may take on a busy machine.
const WITHIN: Duration = Duration::from_secs(120);
/// What each writer has to get acknowledged before a backup begins, and after it.
const MORE: u64 = 30;

/// What a writer has sent, and of what it knows that it is there.
#[derive(Default)]
struct Written {
    adds: Fate,
    messages: Fate,
}

#[derive(Default)]
struct Fate {
    sent: AtomicU64,
    acknowledged: AtomicU64,
}

impl Fate {
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

type Bounds = Vec<[u64; 2]>;

fn counter(writer: usize) -> String {
    format!("w{writer}")
}

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a name that is text")
}

fn backup(server: &Server, dir: &Path) -> Child {
    let address = server.address.to_string();
    tool(&["backup", path(dir), "--server", &address, "--timeout", "60s"]).spawn().expect("the tool starts")
}

fn ended(command: &mut Command) -> Output {
    command.output().expect("the tool starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn ask(server: &Server, service: &str, body: &Value) -> Value {
    server.post(service, &body.to_string()).json()
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap_or_else(|| panic!("a number: {value}")).parse().expect("a number that is not negative")
}

/// Adds and enqueues in turn until the server is gone.
fn write(server: &Server, writer: usize, written: &Written) {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        // Nothing is repeated, so what is sent once is there once at most. Only a server that is gone ends a writer.
        let policy = RetryPolicy { attempts_max: 1, total: WITHIN, attempt_max: WITHIN, ..RetryPolicy::default() };
        let Ok(adds) = Client::of(&[&server.address.to_string()], policy) else { return };
        let Ok(mut messages) = connect(server).await else { return };
        loop {
            let add = AddCountRequest {
                namespace: "default".to_owned(),
                counter_name: counter(writer),
                delta: Some(1),
                ..AddCountRequest::default()
            };
            written.adds.sent.fetch_add(1, Ordering::SeqCst);
            if adds.add_count(add).await.is_err() {
                return;
            }
            written.adds.acknowledged.fetch_add(1, Ordering::SeqCst);
            let message = Message { message_id: Uuid::now_v7().to_string(), payload: vec![7], ..Message::default() };
            written.messages.sent.fetch_add(1, Ordering::SeqCst);
            let request = EnqueueRequest { queue: counter(writer), message: Some(message) };
            if messages.enqueue(request).await.is_err() {
                return;
            }
            written.messages.acknowledged.fetch_add(1, Ordering::SeqCst);
        }
    });
}

/// Waits until every writer has got more acknowledged.
fn wait_for_more(written: &[Written]) {
    let wanted: Vec<u64> = written.iter().map(|one| one.messages.acknowledged() + MORE).collect();
    let all = || written.iter().zip(&wanted).all(|(one, wanted)| one.messages.acknowledged() >= *wanted);
    assert!(eventually(WITHIN, all), "the load goes on");
}

/// The counts and depths that a server shows, after it has shown that its log says the same.
fn shown(server: &Server) -> Bounds {
    let one = |writer: usize| {
        let name = counter(writer);
        let of_counter = json!({"namespace": "default", "counterName": name, "freshness": "FRESHNESS_UP_TO_DATE"});
        let count = number(&ask(server, "/tallystone.counter.v1.CounterService/GetCount", &of_counter)["count"]);
        let is_rolled_up = || {
            let of_counter = json!({"namespace": "default", "counterName": name});
            let recount = ask(server, "/tallystone.counter.v1.CounterService/RecountCounter", &of_counter);
            assert_eq!(recount["countBefore"], recount["countAfter"], "{recount}");
            number(&recount["countAfter"]) == count
        };
        assert!(eventually(WITHIN, is_rolled_up), "the log of {name} says {count}");
        let depth = ask(server, "/tallystone.queue.v1.QueueService/GetDepth", &json!({"queue": name}));
        [count, number(&depth["pending"])]
    };
    (0..WRITERS).map(one).collect()
}

/// Restores a backup and looks at it through a server of its own.
fn restored(dir: &Path, data: &Path) -> Bounds {
    let verified = ended(&mut tool(&["backup", "verify", path(dir)]));
    assert!(verified.status.success(), "{}", said(&verified));
    let output = ended(&mut tool(&["restore", path(dir), "--data", path(data)]));
    assert!(output.status.success(), "{}", said(&output));
    let server = Launch::dev(data).start();
    let found = shown(&server);
    assert!(server.stop().success(), "an orderly stop");
    let again = Launch::dev(data).start();
    assert_eq!(shown(&again), found, "after a restart");
    again.kill();
    found
}

/// Whatever bytes are wrong, a backup is refused, and nothing is restored from it.
fn refuses_what_is_damaged(dir: &Path, data: &Path) {
    let file = dir.join("backup.tly");
    let whole = fs::read(&file).expect("readable");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    for bytes in [&flipped[..], &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
        fs::write(&file, bytes).expect("writable");
        for arguments in [&["backup", "verify", path(dir)][..], &["restore", path(dir), "--data", path(data)][..]] {
            let refused = ended(&mut tool(arguments));
            assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {}", said(&refused));
            assert!(said(&refused).contains("is damaged"), "{}", said(&refused));
        }
        assert!(!data.exists(), "nothing was restored");
    }
}

#[test]
fn a_backup_under_load_with_kills_is_the_state_of_one_moment() {
    let mut test = CrashTest::new("a_backup_under_load_with_kills_is_the_state_of_one_moment");
    let written: Vec<Written> = (0..WRITERS).map(|_| Written::default()).collect();
    for round in 0..rounds(2, 40) {
        test.round = round;
        let server = Launch::dev(&test.data).start();
        for writer in 0..WRITERS {
            let queue = json!({"queue": {"name": counter(writer)}});
            ask(&server, "/tallystone.queue.v1.QueueService/CreateQueue", &queue);
        }
        let dir = test.folder.path().join(format!("backup-{round}"));
        let cut = test.folder.path().join(format!("cut-{round}"));
        let (before, after) = thread::scope(|scope| {
            for (writer, written) in written.iter().enumerate() {
                let server = &server;
                scope.spawn(move || write(server, writer, written));
            }
            wait_for_more(&written);
            let before: Bounds =
                written.iter().map(|one| [one.adds.acknowledged(), one.messages.acknowledged()]).collect();
            let made = backup(&server, &dir).wait_with_output().expect("the tool ends");
            let after: Bounds = written.iter().map(|one| [one.adds.sent(), one.messages.sent()]).collect();
            assert!(made.status.success(), "{}", said(&made));
            wait_for_more(&written);
            // Whenever the kill comes, what has the name of a backup is one.
            let cut_off = backup(&server, &cut);
            if round % 2 == 1 {
                let begun = cut.with_extension("partial");
                eventually(Duration::from_secs(2), || begun.exists() || cut.exists());
            }
            server.signal(libc::SIGKILL);
            cut_off.wait_with_output().expect("the tool ends");
            (before, after)
        });
        server.kill();
        let data = test.folder.path().join(format!("restored-{round}"));
        let found = restored(&dir, &data);
        for ((found, before), after) in found.iter().zip(&before).zip(&after) {
            for at in 0..2 {
                assert!((before[at]..=after[at]).contains(&found[at]), "{before:?} {found:?} {after:?}");
            }
        }
        // Adds that were sent and not answered by a killed server may be there without a message.
        let one_moment = |[count, depth]: [u64; 2]| (depth..=depth + 1 + u64::from(round)).contains(&count);
        assert!(found.iter().all(|found| one_moment(*found)), "{found:?}");
        if cut.exists() {
            let verified = ended(&mut tool(&["backup", "verify", path(&cut)]));
            assert!(verified.status.success(), "{}", said(&verified));
        }
        refuses_what_is_damaged(&dir, &test.folder.path().join("refused"));
    }
    let server = Launch::dev(&test.data).start();
    let kept = shown(&server);
    for (kept, written) in kept.iter().zip(&written) {
        assert!(kept[0] >= written.adds.acknowledged() && kept[0] <= written.adds.sent(), "backups change nothing");
    }
    assert!(server.stop().success(), "an orderly stop");
}

#[test]
fn finished_messages_and_dead_letters_of_a_backup_are_the_same_after_the_restore() {
    let queue = |server: &Server, method: &str, body: Value| {
        let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), &body.to_string());
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    };
    let leases = |server: &Server, most: u32| {
        let answer = queue(server, "Dequeue", json!({"queue": "q", "maxMessages": most}));
        answer["leases"].as_array().expect("leases").clone()
    };
    let all = |server: &Server| {
        let states = ["MESSAGE_STATE_PENDING", "MESSAGE_STATE_COMPLETED", "MESSAGE_STATE_ERRORED"];
        let list = |state| queue(server, "ListMessages", json!({"queue": "q", "state": state, "pageSize": 100}));
        states.map(|state| list(state)["messages"].clone())
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (data, dir, restored) =
        (folder.path().join("data"), folder.path().join("backup"), folder.path().join("restored"));
    let server = Launch::dev(&data).start();
    queue(&server, "CreateQueue", json!({"queue": {"name": "q", "shards": 1}}));
    let message = |at: u32| match at {
        0..2 => json!({"messageId": format!("m-{at}"), "priority": "1", "maxAttempts": 1}),
        _ => json!({"messageId": format!("m-{at}"), "priority": "2"}),
    };
    for first in [0, 50] {
        let messages: Vec<Value> = (first..first + 50).map(message).collect();
        queue(&server, "BatchEnqueue", json!({"queue": "q", "messages": messages}));
    }
    for lease in leases(&server, 2) {
        queue(&server, "Fail", json!({"queue": "q", "leaseToken": lease["leaseToken"]}));
    }
    // More than a whole page of 64.
    for lease in leases(&server, 80) {
        queue(&server, "Complete", json!({"queue": "q", "leaseToken": lease["leaseToken"]}));
    }
    let expected = all(&server);
    assert_eq!(expected.each_ref().map(|listed| listed.as_array().map_or(0, Vec::len)), [18, 80, 2]);
    let made = backup(&server, &dir).wait_with_output().expect("the tool ends");
    assert!(made.status.success(), "{}", said(&made));
    server.kill();
    let output = ended(&mut tool(&["restore", path(&dir), "--data", path(&restored)]));
    assert!(output.status.success(), "{}", said(&output));

    let server = Launch::dev(&restored).start();
    assert_eq!(all(&server), expected);
    let repeated = queue(&server, "Enqueue", json!({"queue": "q", "message": message(7)}));
    assert_eq!((&repeated["alreadyEnqueued"], &repeated["state"]), (&json!(true), &json!("MESSAGE_STATE_COMPLETED")));
    queue(&server, "RedriveMessages", json!({"queue": "q", "messageId": "m-1"}));
    let [pending, completed, errored] = all(&server).map(|listed| listed.as_array().map_or(0, Vec::len));
    assert_eq!((pending, completed, errored), (19, 80, 1), "one dead letter is back");
    assert!(server.stop().success(), "an orderly stop");
}

#[test]
fn leases_of_a_backup_are_settled_after_the_restore_and_fences_go_on_growing() {
    let queue = |server: &Server, method: &str, body: Value| {
        let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), &body.to_string());
        (answer.status, answer.json())
    };
    let lease = |server: &Server| {
        let (status, answer) = queue(server, "Dequeue", json!({"queue": "q", "leaseDuration": "3600s"}));
        assert_eq!((status, answer["leases"].as_array().map_or(0, Vec::len)), (200, 1), "{answer}");
        answer["leases"][0].clone()
    };
    let complete = |server: &Server, lease: &Value| {
        queue(server, "Complete", json!({"queue": "q", "leaseToken": lease["leaseToken"]}))
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (data, dir, restored) =
        (folder.path().join("data"), folder.path().join("backup"), folder.path().join("restored"));
    let server = Launch::dev(&data).start();
    assert_eq!(queue(&server, "CreateQueue", json!({"queue": {"name": "q", "shards": 1}})).0, 200);
    for id in ["a", "b", "c"] {
        assert_eq!(queue(&server, "Enqueue", json!({"queue": "q", "message": {"messageId": id}})).0, 200);
    }
    let before = lease(&server);
    let made = backup(&server, &dir).wait_with_output().expect("the tool ends");
    assert!(made.status.success(), "{}", said(&made));
    let lost = [lease(&server), lease(&server)];
    server.kill();
    let output = ended(&mut tool(&["restore", path(&dir), "--data", path(&restored)]));
    assert!(output.status.success(), "{}", said(&output));

    let server = Launch::dev(&restored).start();
    for lease in &lost {
        let (status, answer) = complete(&server, lease);
        assert!(status >= 400 && answer.to_string().contains("LEASE_LOST"), "{status} {answer}");
    }
    let again = [lease(&server), lease(&server)];
    let ids =
        |leases: &[Value]| -> Vec<Value> { leases.iter().map(|lease| lease["message"]["messageId"].clone()).collect() };
    assert_eq!(ids(&again), ids(&lost), "what was leased after the backup is leased again");
    let greatest = lost.iter().map(|lease| number(&lease["fence"])).max().expect("two leases");
    assert!(again.iter().all(|lease| number(&lease["fence"]) > greatest), "{lost:?} {again:?}");
    for lease in [&before, &again[0], &again[1]] {
        let (status, answer) = complete(&server, lease);
        assert_eq!(status, 200, "{answer}");
    }
    assert!(server.stop().success(), "an orderly stop");
}
