//! A stranger with a valid key sends anything while the server is killed again and again. Beside it a ledger is kept by a
//! caller that repeats each call until it is answered: nothing that was acknowledged is lost, and nothing is there twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use super::protobuf::{Caller, make};
use super::{Target, asking_for_keys, called};
use crate::driver::{Rng, number_of};
use crate::harness::{EndsWith, Server, eventually, http};

/// The kills of the short form; the long one takes an hour.
const KILLS: u64 = 3;
const KILLS_LONG: u64 = 60;
/// How long the stranger calls before each kill.
const CALLS_FOR: Duration = Duration::from_secs(3);
const CALLS_FOR_LONG: Duration = Duration::from_secs(58);
const RIGHT_WITHIN: Duration = Duration::from_secs(60);
const NAME: &str = "ledger";

/// Who keeps the ledger: what it needs to call.
#[derive(Clone)]
struct Ledger {
    address: Arc<Mutex<SocketAddr>>,
    key: String,
}

impl Ledger {
    /// One call, repeated until it is answered with success, or as one that was not applied and never will be. Answers whether it
    /// succeeded. A server that is away, or says that the call may be repeated, is asked again.
    fn succeeds(&self, path: &str, body: &Value) -> bool {
        let bearer = format!("Bearer {}", self.key);
        let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
        loop {
            let address = *self.address.lock().expect("nobody panics with it");
            match http(address, "POST", path, &headers, &body.to_string()) {
                Ok(answer) if answer.status == 200 => return true,
                Ok(answer) if answer.json()["details"][0]["reason"] == "NOT_APPLIED" => return false,
                Ok(answer) => {
                    assert!(answer.status == 504 || answer.body.contains("RetryInfo"), "{path}: {}", answer.body);
                }
                Err(_gone) => thread::yield_now(),
            }
        }
    }

    /// Adds and enqueues until it is told to stop. Answers how many of each succeeded.
    fn keep(&self, stop: &AtomicBool) -> [u64; 2] {
        let mut kept = [0, 0];
        while !stop.load(Ordering::Relaxed) {
            let token = Uuid::now_v7().to_string();
            let add = json!({
                "namespace": NAME, "counterName": "acts", "delta": 1, "idempotencyToken": {"token": token},
            });
            kept[0] += u64::from(self.succeeds("/tallystone.counter.v1.CounterService/AddCount", &add));
            let enqueue = json!({"queue": NAME, "message": {"messageId": token, "payload": "bGVkZ2Vy"}});
            kept[1] += u64::from(self.succeeds("/tallystone.queue.v1.QueueService/Enqueue", &enqueue));
        }
        kept
    }
}

fn prepare(target: &Target) {
    for (path, body) in [
        ("/tallystone.admin.v1.NamespaceService/CreateNamespace", json!({"namespace": {"name": NAME}})),
        ("/tallystone.queue.v1.QueueService/CreateQueue", json!({"queue": {"name": NAME}})),
    ] {
        let answer = called(&target.server, &target.admin, "POST", path, &body.to_string());
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}

/// The count and the depth of the ledger, as the server says them.
fn found(server: &Server, admin: &str) -> [Value; 2] {
    let ask = |path, body: Value| called(server, admin, "POST", path, &body.to_string()).json();
    let request = json!({"namespace": NAME, "counterName": "acts", "freshness": "UP_TO_DATE"});
    let count = ask("/tallystone.counter.v1.CounterService/GetCount", request);
    let depth = ask("/tallystone.queue.v1.QueueService/GetDepth", json!({"queue": NAME}));
    [count["count"].clone(), depth["pending"].clone()]
}

#[test]
fn nothing_acknowledged_is_lost_over_kills_beside_a_stranger_with_a_key() {
    let is_long = std::env::var_os("TALLYSTONE_LONG_TESTS").is_some();
    let (kills, calls_for) = if is_long { (KILLS_LONG, CALLS_FOR_LONG) } else { (KILLS, CALLS_FOR) };
    let seed = number_of("TALLYSTONE_FUZZ_SEED").unwrap_or(1);
    println!("kills: seed {seed}, {kills} kills (TALLYSTONE_FUZZ_SEED)");
    let mut rng = Rng::new(seed);
    let mut target = Target::start();
    prepare(&target);
    let ledger = Ledger { address: Arc::new(Mutex::new(target.server.address)), key: target.admin.clone() };
    let (mut kept, mut calls) = ([0, 0], 0);
    for kill in 1..=kills {
        let stop = Arc::new(AtomicBool::new(false));
        let keeper = thread::spawn({
            let (ledger, stop) = (ledger.clone(), Arc::clone(&stop));
            move || ledger.keep(&stop)
        });
        let ends = EndsWith(&stop);
        let caller = Caller::connect(target.server.url());
        let until = Instant::now() + calls_for;
        while Instant::now() < until {
            let input = make(&target, &mut rng, &[]);
            caller.judge(&mut target, &input);
            calls += 1;
        }
        target.check();
        target.kill_and_restart();
        *ledger.address.lock().expect("nobody panics with it") = target.server.address;
        drop(ends);
        let more = keeper.join().expect("the ledger is acknowledged");
        kept = [kept[0] + more[0], kept[1] + more[1]];
        let expected = kept.map(|kept| json!(kept.to_string()));
        let is_right = eventually(RIGHT_WITHIN, || found(&target.server, &target.admin) == expected);
        assert!(is_right, "kill {kill}: {kept:?} were acknowledged, found {:?}", found(&target.server, &target.admin));
    }
    println!("kills: {calls} calls of the stranger, {kept:?} entries of the ledger");
    assert!(kept[0].min(kept[1]) > kills && calls > kills, "{kept:?} entries, {calls} calls");
}

impl Target {
    /// kill -9, and a new process on the same data.
    fn kill_and_restart(&mut self) {
        self.server.signal(KILL);
        self.server.wait();
        self.server = asking_for_keys(self.data.path());
    }
}

const KILL: i32 = 9;
