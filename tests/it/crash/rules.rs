//! Counter rules, killed at any moment: a rule at each 100 of a counter that several clients bring to 1,000 covers each
//! crossing once, whichever step of claim, message and settlement a kill comes between.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{CrashTest, rounds};
use crate::support::harness::{Launch, Server, eventually, http};

const CLIENTS: usize = 5;
/// What each add brings; 20 adds make a crossing.
const STEP: u64 = 5;
const EVERY: u64 = 100;
const GOAL: u64 = 1_000;
/// How long a busy machine may take to roll up what was added, and to evaluate the rule.
const WITHIN: Duration = Duration::from_secs(90);

fn call(server: &Server, service: &str, method: &str, body: &Value) -> Option<Value> {
    let answer = server_answer(server, service, method, body)?;
    assert_eq!(answer.0, 200, "{method} {body}: {}", answer.1);
    Some(answer.1)
}

/// The answer, or none if the server is gone.
fn server_answer(server: &Server, service: &str, method: &str, body: &Value) -> Option<(u16, Value)> {
    let path = format!("/tallystone.{service}/{method}");
    let headers = [("content-type", "application/json")];
    let answer = http(server.address, "POST", &path, &headers, &body.to_string()).ok()?;
    Some((answer.status, serde_json::from_str(&answer.body).ok()?))
}

fn rule(server: &Server) -> Value {
    let found = call(server, "rule.v1.RuleService", "GetRule", &json!({"name": "sales"}));
    found.expect("the server answers")["rule"].clone()
}

/// Makes queue and rule, or finds them as they were made.
fn set_up(server: &Server) {
    let queue = json!({"queue": {"name": "alerts", "shards": 2}});
    call(server, "queue.v1.QueueService", "CreateQueue", &queue).expect("the server answers");
    let rule = json!({"rule": {"name": "sales", "namespace": "default", "counter_name": "sold",
        "every": EVERY.to_string(), "queue": "alerts", "max_per_minute": 600}});
    call(server, "rule.v1.RuleService", "CreateRule", &rule).expect("the server answers");
}

/// Adds from several clients, each add with a token of its own. The server is killed after so many answers. Returns the
/// tokens without an answer.
fn add(server: &Server, tokens: Vec<String>, killed_after: Option<usize>) -> Vec<String> {
    let (waiting, unanswered, answers) = (Mutex::new(tokens), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let client = || {
        while let Some(token) = { waiting.lock().pop() } {
            let body = json!({"namespace": "default", "counter_name": "sold", "delta": STEP.to_string(),
                "idempotency_token": {"token": token}});
            match server_answer(server, "counter.v1.CounterService", "AddCount", &body) {
                Some((200, _)) => {
                    let answered = answers.fetch_add(1, Ordering::SeqCst) + 1;
                    if killed_after == Some(answered) {
                        server.signal(libc::SIGKILL);
                    }
                }
                Some((_, refused)) => match refused["details"][0]["reason"].as_str() {
                    // It came too late after the kill, for good.
                    Some("NOT_APPLIED") => waiting.lock().push(new_token()),
                    Some("PENDING") => waiting.lock().push(token),
                    _ => panic!("{refused}"), // nothing else refuses an add here
                },
                None => {
                    unanswered.lock().push(token);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
    [waiting.into_inner(), unanswered.into_inner()].concat()
}

fn new_token() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn is_rolled_up(server: &Server, count: u64) -> bool {
    let asked = json!({"namespace": "default", "counter_name": "sold", "freshness": "FRESHNESS_ROLLED_UP"});
    let answer = call(server, "counter.v1.CounterService", "GetCount", &asked).expect("the server answers");
    answer["count"] == json!(count.to_string())
}

/// How often each crossing is covered, by the messages that wait in the queue.
fn covered(server: &Server) -> BTreeMap<u64, u32> {
    let listed = call(server, "queue.v1.QueueService", "ListMessages", &json!({"queue": "alerts", "page_size": 1_000}));
    let listed = listed.expect("the server answers");
    let mut covered = BTreeMap::new();
    for message in listed["messages"].as_array().expect("messages") {
        let number = |key: &str| message["metadata"][key].as_str().and_then(|text| text.parse::<u64>().ok());
        let (from, through) = (number("crossed_from").expect("a number"), number("crossing").expect("a number"));
        assert_eq!(message["messageId"], json!(format!("rule-sales-1-{through}")), "{message}");
        (from + 1..=through).for_each(|crossing| *covered.entry(crossing).or_insert(0) += 1);
    }
    covered
}

#[test]
fn no_kill_skips_or_doubles_a_crossing_of_a_rule() {
    let mut world = CrashTest::new("no_kill_skips_or_doubles_a_crossing_of_a_rule");
    let lives = u64::from(rounds(3, 20));
    let mut count = 0;
    for life in 1..=lives {
        world.round = u32::try_from(life).expect("few");
        let server = Launch::dev(&world.data).start();
        set_up(&server);
        let next = GOAL * life / lives / STEP * STEP;
        let tokens: Vec<String> = (count / STEP..next / STEP).map(|_| new_token()).collect();
        count = next;
        let killed_after = 1 + world.rng.index(tokens.len() - CLIENTS);
        let left = add(&server, tokens, Some(killed_after));
        server.kill();
        let server = Launch::dev(&world.data).start();
        assert_eq!(add(&server, left, None), Vec::<String>::new(), "nothing kills it now");
        assert!(eventually(WITHIN, || is_rolled_up(&server, count)), "{count} is rolled up:\n{}", server.printed());
        server.kill();
        // The next start evaluates the rule at once, so these kills come before, between and after its steps.
        for _ in 0..rounds(4, 8) {
            let moment = Duration::from_micros(world.rng.below(900_000));
            Launch::dev(&world.data).start_and_kill_after(moment);
        }
    }
    let server = Launch::dev(&world.data).start();
    let is_done = || rule(&server)["firedThrough"] == json!((GOAL / EVERY).to_string());
    if !eventually(WITHIN, is_done) {
        world.fail(&format!("the rule has not fired: {}\n{}", rule(&server), server.printed()));
    }
    let (covered, rule) = (covered(&server), rule(&server));
    let expected: BTreeMap<u64, u32> = (1..=GOAL / EVERY).map(|crossing| (crossing, 1)).collect();
    if covered != expected || rule["uncertain"] != json!("0") || rule["generation"] != json!(1) {
        world.fail(&format!("each crossing once: {covered:?} {rule}\n{}", server.printed()));
    }
    assert!(server.stop().success());
}
