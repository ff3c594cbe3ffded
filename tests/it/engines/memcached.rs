//! Best-effort counters on a real memcached that is killed, emptied, restarted, stopped and cut off: calls fail fast and
//! honestly, come back by themselves, and no other counter notices.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use serde_json::Value;
use tallystone::adapters::memcached::limits::MEMCACHED_QUIET_MAX;
use tallystone::adapters::memcached::{Cluster, Options};
use tallystone::adapters::system::SystemClock;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, CounterName, EventId, EventKey, NamespaceId};
use tallystone::ports::{Clock as _, EffectOutcome, FastAdd, FastAddOutcome, FastCounts, StoreError, StoreErrorKind};
use tempfile::TempDir;

use crate::servers::Memcached;
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{Launch, Server, http};
use crate::support::yardstick::Yardstick;

/// How long anything may take to come back on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// The pause between two looks at one that is away.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A time limit that a test can wait out, and that a busy machine keeps.
const TIMEOUT: Duration = Duration::from_secs(1);

fn memcached() -> Memcached {
    Memcached::start().unwrap_or_else(|why| panic!("{why}"))
}

async fn cluster(replicas: &[&Memcached]) -> Cluster {
    let replicas = replicas.iter().map(|server| vec![server.address().to_string()]).collect();
    let options = Options { replicas, key_prefix: "faults".to_owned(), timeout: TIMEOUT, dedupe_seconds: 0 };
    let opened = Cluster::open(options, Arc::new(SystemClock)).await;
    opened.unwrap_or_else(|absent| panic!("{absent:?}")).0
}

fn views() -> Counter {
    Counter::new(NamespaceId(1), CounterName::new("views").expect("a valid name"))
}

async fn add(cluster: &Cluster) -> Result<i64, StoreError> {
    Ok(cluster.add(&views(), FastAdd::of(1, None)).await?.value())
}

/// Adds until one is applied, and answers its value and how many before may have been applied.
async fn add_until_applied(cluster: &Cluster) -> (i64, i64) {
    let deadline = Instant::now() + BACK_WITHIN;
    let mut unknown = 0;
    loop {
        match add(cluster).await {
            Ok(value) => return (value, unknown),
            Err(error) => {
                unknown += i64::from(error.outcome == EffectOutcome::Unknown);
                assert!(Instant::now() < deadline, "it does not come back: {error}: {:?}", error.source);
                SystemClock.sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Adds until the server is paused: then a call fails at once, and nothing was done.
async fn add_until_paused(cluster: &Cluster) {
    let deadline = Instant::now() + BACK_WITHIN;
    while cluster.health().servers_down == 0 {
        let error = add(cluster).await.expect_err("nobody answers");
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}: {:?}", error.source);
        assert!(Instant::now() < deadline, "it is never paused");
    }
}

#[tokio::test]
async fn a_killed_memcached_fails_adds_at_once_and_starts_from_zero_when_it_is_back() {
    let server = memcached();
    let cluster = cluster(&[&server]).await;
    for value in 1..=3 {
        assert_eq!(add(&cluster).await.expect("an add"), value);
    }
    // The pooled connection is dead and idle: the first call after it makes another, which cannot be made, so nothing is
    // in doubt. The clock of the adapter has to move on first: right after an answer a connection is taken to be alive.
    let quiet_since = Instant::now();
    assert!(crate::support::harness::eventually(BACK_WITHIN, || quiet_since.elapsed() > 2 * MEMCACHED_QUIET_MAX));
    let address = server.kill();
    add_until_paused(&cluster).await;
    assert_eq!(cluster.health().unknown, 0, "a fresh connection is tried where a pooled one has died unseen");
    let (refused, began) = (cluster.health().refused, Instant::now());
    while cluster.health().refused == refused && began.elapsed() < BACK_WITHIN {
        let error = add(&cluster).await.expect_err("nobody is there");
        assert_eq!((error.kind, error.outcome), (StoreErrorKind::Unavailable, EffectOutcome::NotApplied));
    }
    assert!(cluster.health().refused > refused, "a paused server is not asked");

    let _server = Memcached::start_at(address).expect("the port is free again");
    assert_eq!(add_until_applied(&cluster).await, (1, 0), "nothing survives, and nothing was in doubt");
    assert_eq!(cluster.health().servers_down, 0);
}

#[tokio::test]
async fn a_memcached_that_stops_answering_leaves_adds_unknown_and_each_counts_once_or_not_at_all() {
    let server = memcached();
    let cluster = cluster(&[&server]).await;
    assert_eq!(add(&cluster).await.expect("an add"), 1);
    server.pause();
    let began = Instant::now();
    let error = add(&cluster).await.expect_err("nobody answers");
    assert_eq!(
        (error.kind, error.outcome),
        (StoreErrorKind::Unavailable, EffectOutcome::Unknown),
        "{:?}",
        error.source
    );
    assert!(began.elapsed() >= TIMEOUT, "it was waited for");
    add_until_paused(&cluster).await;
    let unknown = i64::try_from(cluster.health().unknown).expect("a few");
    server.resume();
    let (value, later) = add_until_applied(&cluster).await;
    assert!((2..=2 + unknown + later).contains(&value), "{value} after {unknown} and {later} in doubt");
}

/// Those that were sent before are in doubt; nobody waits for a second time limit, and nothing was done for those who waited.
#[tokio::test]
async fn adds_that_wait_for_a_memcached_that_falls_silent_are_told_with_the_first_that_nothing_was_done() {
    let server = memcached();
    let cluster = cluster(&[&server]).await;
    let views = views();
    let add = |delta: i64| cluster.add(&views, FastAdd::of(delta, None));
    assert_eq!(add(1).await.expect("an add").value(), 1);
    server.pause();
    let told = join_all((1..=60).map(|place| add(1 << place))).await;
    let health = cluster.health();
    assert!(health.servers_down == 1 && health.unknown <= 30 && health.refused >= 30, "{health:?}");
    server.resume();
    let deadline = Instant::now() + BACK_WITHIN;
    let value = loop {
        match cluster.get(&views).await {
            Ok(value) => break value.expect("it was there"),
            Err(error) => assert!(Instant::now() < deadline, "it does not come back: {error}"),
        }
        SystemClock.sleep(LOOK_EVERY).await;
    };
    for (place, told) in (1..=60).zip(told) {
        let error = told.expect_err("nobody answers");
        let is_there = value & (1 << place) != 0;
        assert!(error.outcome == EffectOutcome::Unknown || !is_there, "{place}: {error}");
    }
}

#[tokio::test]
async fn an_emptied_memcached_starts_every_counter_from_zero() {
    let server = memcached();
    let cluster = cluster(&[&server]).await;
    assert_eq!(add(&cluster).await.expect("an add"), 1);
    let mut connection = TcpStream::connect(server.address()).expect("memcached takes connections");
    connection.write_all(b"flush_all\r\n").expect("it reads");
    let mut answer = [0; 4];
    connection.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"OK\r\n");
    assert_eq!(cluster.get(&views()).await.expect("a read"), None);
    assert_eq!(add(&cluster).await.expect("an add"), 1);
}

#[tokio::test]
async fn a_dead_replica_fails_no_add_and_no_read_but_a_clear() {
    let (first, second) = (memcached(), memcached());
    let cluster = cluster(&[&first, &second]).await;
    assert_eq!(add(&cluster).await.expect("an add"), 1);
    let _address = first.kill();
    for value in 2..=20 {
        assert_eq!(add(&cluster).await.expect("the other replica takes it"), value);
        assert_eq!(cluster.get(&views()).await.expect("the other replica answers"), Some(value));
    }
    let error = cluster.clear(&views()).await.expect_err("a dead replica may show the old value again");
    assert_eq!(error.outcome, EffectOutcome::Unknown);
}

#[tokio::test]
async fn a_key_that_holds_no_number_is_reported_and_left_alone() {
    let server = memcached();
    let cluster = cluster(&[&server]).await;
    let mut connection = TcpStream::connect(server.address()).expect("memcached takes connections");
    connection.write_all(b"set faults/1/views 0 0 3\r\nabc\r\n").expect("it reads");
    let mut answer = [0; 8];
    connection.read_exact(&mut answer).expect("it answers");
    let error = add(&cluster).await.expect_err("no number");
    assert_eq!((error.kind, error.outcome), (StoreErrorKind::Corrupt, EffectOutcome::NotApplied), "{:?}", error.source);
    let error = cluster.get(&views()).await.expect_err("no number");
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
}

/// A development server on a memcached, with a best-effort namespace `fast`.
fn dev(folder: &Path, memcached: SocketAddr) -> Server {
    let launch = Launch::dev(&folder.join("data")).arg("--memcached").arg(&memcached.to_string());
    let server = launch.patient_with("memcached").start();
    let body = r#"{"namespace": {"name": "fast", "counterType": "BEST_EFFORT"}}"#;
    let (status, answer) = call(&server, "admin.v1.NamespaceService/CreateNamespace", body);
    assert_eq!(status, 200, "{answer}");
    server
}

fn call(server: &Server, method: &str, body: &str) -> (u16, Value) {
    let path = format!("/tallystone.{method}");
    let answer = http(server.address, "POST", &path, &[("content-type", "application/json")], body);
    let answer = answer.expect("the server answers");
    (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body)))
}

fn add_over_http(server: &Server, namespace: &str) -> (u16, Value) {
    let body = format!(r#"{{"namespace": "{namespace}", "counterName": "views", "delta": 1}}"#);
    call(server, "counter.v1.CounterService/AddAndGetCount", &body)
}

#[test]
fn a_dead_memcached_fails_best_effort_counters_only_and_they_come_back() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let server = dev(folder.path(), memcached.address());
    let (status, answer) = add_over_http(&server, "fast");
    assert_eq!(status, 200, "{answer}");
    let list = r#"{"namespace": "fast"}"#;
    let (status, answer) = call(&server, "counter.v1.CounterService/ListCounters", list);
    assert_eq!((status, &answer["details"][0]["reason"]), (412, &"WRONG_COUNTER_TYPE".into()), "{answer}");
    assert_eq!(memcached_items(memcached.address()), 1, "the counter is in memcached");

    let address = memcached.kill();
    let deadline = Instant::now() + BACK_WITHIN;
    loop {
        let (status, answer) = add_over_http(&server, "fast");
        let answer = answer.to_string();
        if status == 503 {
            assert!(answer.contains("STORE_UNAVAILABLE"), "{answer}");
            break;
        }
        // A connection whose end was not seen yet leaves the call in doubt.
        assert!(status == 500 && answer.contains("OUTCOME_UNKNOWN"), "{status}: {answer}");
        assert!(Instant::now() < deadline, "it stays in doubt: {answer}");
    }
    for _ in 0..20 {
        let (status, answer) = add_over_http(&server, "default");
        assert_eq!(status, 200, "an exact counter never needs memcached: {answer}");
    }

    let _memcached = Memcached::start_at(address).expect("the port is free again");
    let deadline = Instant::now() + BACK_WITHIN;
    while add_over_http(&server, "fast").0 != 200 {
        assert!(Instant::now() < deadline, "it does not come back");
    }
}

/// The items of a memcached, without those of the probe at the start.
fn memcached_items(address: SocketAddr) -> u64 {
    let mut connection = TcpStream::connect(address).expect("memcached takes connections");
    connection.write_all(b"stats\r\nquit\r\n").expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    let items = answer.lines().find_map(|line| line.strip_prefix("STAT curr_items ")).expect("it counts its items");
    items.trim().parse::<u64>().expect("a number") - 1
}

#[test]
fn a_start_without_any_memcached_says_so_soon_and_ends_as_unavailable() {
    let folder: TempDir = tempfile::tempdir().expect("a temporary directory");
    // Nobody listens on port 1.
    let empty_run = || drop(Command::new(env!("CARGO_BIN_EXE_tallystone")).arg("--version").output());
    let (began, yardstick) = (Instant::now(), Yardstick::of(empty_run));
    let launch = Launch::dev(&folder.path().join("data")).arg("--memcached").arg("127.0.0.1:1");
    let Err((status, printed)) = launch.try_start() else { panic!("it started") };
    assert_eq!(status.code(), Some(5), "{printed}");
    assert!(printed.contains("no memcached server of cluster memcached is usable: 127.0.0.1:1: "), "{printed}");
    assert!(printed.contains("correct clusters.memcached.servers"), "{printed}");
    yardstick.holds(began, Duration::from_secs(10), "the start ends");
}

#[test]
fn a_start_with_an_absent_server_among_others_warns_and_counts() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let servers = format!("{} | 127.0.0.1:1", memcached.address());
    let launch = Launch::dev(&folder.path().join("data")).arg("--memcached").arg(&servers);
    let server = launch.patient_with("memcached").start();
    let body = r#"{"namespace": {"name": "fast", "counterType": "BEST_EFFORT"}}"#;
    assert_eq!(call(&server, "admin.v1.NamespaceService/CreateNamespace", body).0, 200);
    let (status, answer) = add_over_http(&server, "fast");
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_remembered_token_counts_at_most_once_whatever_is_lost() {
    let server = memcached();
    let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
    let options = Options {
        replicas: vec![vec![proxy.address().to_string()]],
        key_prefix: "tokens".to_owned(),
        timeout: TIMEOUT,
        dedupe_seconds: 3_600,
    };
    let opened = Cluster::open(options, Arc::new(SystemClock)).await;
    let cluster = opened.unwrap_or_else(|absent| panic!("{absent:?}")).0;
    let token = |n: u32| FastAdd { token: Some(key(n)), ..FastAdd::of(1, None) };
    let mut certain = 0;
    for n in 0..40_u32 {
        // Every third add loses the answer to one of its commands, so nobody knows what became of it.
        proxy.set(if n % 3 == 0 { Fault::LoseAnswers } else { Fault::None });
        let first = cluster.add(&views(), token(n)).await;
        proxy.set(Fault::None);
        let mut outcomes = vec![first];
        let deadline = Instant::now() + BACK_WITHIN;
        while outcomes.last().is_some_and(Result::is_err) {
            assert!(Instant::now() < deadline, "it does not come back");
            outcomes.push(cluster.add(&views(), token(n)).await);
            SystemClock.sleep(LOOK_EVERY).await;
        }
        certain += i64::from(matches!(outcomes[0], Ok(FastAddOutcome::Applied(_))));
        let again = cluster.add(&views(), token(n)).await.expect("an add");
        assert!(matches!(again, FastAddOutcome::Seen(_)), "a repeat adds nothing: {again:?}");
    }
    assert!(proxy.lost() > 0, "answers were lost");
    let value = cluster.get(&views()).await.expect("a read").expect("a value");
    assert!((certain..=40).contains(&value), "{value} of 40 adds, {certain} of them acknowledged at once");
}

fn key(n: u32) -> EventKey {
    EventKey { time: Timestamp::from_secs(1_800_000_000), id: EventId::text(&n.to_string()) }
}

#[test]
fn counters_of_memcached_cannot_be_listed_and_the_command_says_what_can_be_done() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let server = dev(folder.path(), memcached.address());
    assert_eq!(add_over_http(&server, "fast").0, 200);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["counter", "ls", "-n", "fast", "--server"]).arg(server.address.to_string());
    let ran = command.output().expect("the command starts");
    let (out, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert_eq!((ran.status.code(), out.as_ref()), (Some(4), ""), "{told}");
    for words in ["WRONG_COUNTER_TYPE", "memcached, which cannot list names", "GetCount"] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// The service writes totals each minute, so this test takes longer than one.
#[test]
fn a_memcached_that_forgets_in_mid_run_ends_the_verdict_and_each_counter_is_named_with_its_time() {
    const EXPERIMENTS: &str = "experiment.v1.ExperimentService";
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let server = dev(folder.path(), memcached.address());
    let experiment = r#"{"experiment": {"name": "checkout", "namespace": "fast", "arms": [{"name": "A"}, {"name": "B"}],
        "metric": "bought", "plannedExposures": "20000"}}"#;
    let (status, answer) = call(&server, &format!("{EXPERIMENTS}/CreateExperiment"), experiment);
    assert_eq!(status, 200, "{answer}");
    for (counter, count) in [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)] {
        let add = format!(r#"{{"namespace": "fast", "counterName": "exp/checkout/{counter}", "delta": "{count}"}}"#);
        let (status, answer) = call(&server, "counter.v1.CounterService/AddCount", &add);
        assert_eq!(status, 200, "{answer}");
    }
    let compared = || call(&server, &format!("{EXPERIMENTS}/CompareExperiment"), r#"{"name": "checkout"}"#).1;
    let is_higher = || compared()["contrasts"][0]["verdict"] == "EXPERIMENT_VERDICT_HIGHER";
    assert!(crate::support::harness::eventually(Duration::from_secs(180), is_higher), "{}", compared());
    let now = || prost_types::Timestamp::from(SystemTime::now()).seconds;
    let flushed = now();
    memcached.flush();
    let fell = compared();
    let found = flushed..=now();
    assert_eq!(fell["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_NOT_TRUSTED", "{fell}");
    let doubts = fell["doubts"].as_array().expect("doubts");
    for (counter, lost) in [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)] {
        let doubt = doubts.iter().find(|doubt| doubt["counterName"] == counter);
        let text = doubt.and_then(|doubt| doubt["text"].as_str()).unwrap_or_default();
        let at = text.strip_prefix(&format!("{counter} fell by {lost} at ")).map(str::parse::<prost_types::Timestamp>);
        let Some(Ok(at)) = at else { panic!("{counter}: {fell}") };
        assert!(found.contains(&at.seconds), "seconds {found:?}: {text}");
    }
}

/// Sets values of one size until the server has no memory for another one.
fn fill(server: &Memcached, bytes: usize) {
    let mut connection = TcpStream::connect(server.address()).expect("memcached takes connections");
    let value = "x".repeat(bytes);
    for number in 0.. {
        let set = format!("set filler-{bytes}-{number} 0 0 {bytes}\r\n{value}\r\n");
        connection.write_all(set.as_bytes()).expect("it reads");
        let mut answer = [0; 256];
        let length = connection.read(&mut answer).expect("it answers");
        if String::from_utf8_lossy(&answer[..length]).contains("out of memory") {
            return;
        }
    }
}

#[tokio::test]
async fn a_server_that_answers_without_memory_for_new_values_is_told_apart_from_one_that_serves() {
    let free = crate::servers::free_port().and_then(|free| free.local_addr()).expect("a free port");
    // The last of two arguments counts.
    let server = Memcached::start_with(free, &["-M", "-m", "2"]).unwrap_or_else(|why| panic!("{why}"));
    let cluster = cluster(&[&server]).await;
    assert_eq!(cluster.health().servers_full, 0);
    (0..200).step_by(20).for_each(|bytes| fill(&server, bytes));
    let refused = add(&cluster).await.expect_err("there is no memory");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied), "{refused:?}");
    let health = cluster.health();
    assert_eq!((health.servers, health.servers_full, health.servers_down), (1, 1, 0), "{health:?}");
}
