//! A server on a real Cassandra: the schema from the command line, and a Cassandra that is killed and restarted under load.
//! `refused_starts` has what it says when it cannot start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use prost_types::Timestamp;
use serde_json::Value;
use tallystone::adapters::cassandra::schema::{self, Replication, SchemaState};
use tallystone::adapters::cassandra::{self as adapter, Credentials, OpenError, Options, StartupDeadline, connect};
use tallystone::adapters::system::SystemClock;
use tallystone::ports::StoreErrorKind;
use uuid::Uuid;

use crate::fleet::several_servers::add_to;
use crate::servers::cassandra::{read_a_row, shared};
use crate::servers::lent_node::lent_node;
use crate::support::harness::{EndsWith, HttpAnswer, Launch, PATIENCE, Server, eventually, http};
use crate::support::yardstick::Yardstick;

/// How long anything may take to come back on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(90);
/// Of so many acknowledged adds one is asked about; of all others, each.
const ACKNOWLEDGED_PER_QUESTION: usize = 20;
/// What a caller waits after an add that was not acknowledged.
const PAUSE: Duration = Duration::from_millis(50);

pub fn node() -> SocketAddr {
    shared().unwrap_or_else(|why| panic!("{why}"))
}

/// A yardstick beside a server on a node that answers, for waits that both have part in: an empty call of the server, and one of
/// the node that the server has no part in.
pub fn beside_with_node(server: &Server, node: SocketAddr) -> Yardstick {
    let address = server.address;
    // Whatever comes, it took its time.
    Yardstick::of_process(server.pid(), move || {
        drop(http(address, "GET", "/healthz", &[], ""));
        drop(read_a_row(node));
    })
}

/// The settings of a server on a keyspace.
pub fn settings(node: &str, keyspace: &str) -> Vec<String> {
    let settings = [
        "counters.engine=cassandra".to_owned(),
        "counters.cluster=main".to_owned(),
        "queues.engine=none".to_owned(),
        "clusters.main.kind=cassandra".to_owned(),
        format!("clusters.main.servers={node}"),
        format!("clusters.main.keyspace={keyspace}"),
        "clusters.main.replication=datacenter1:1".to_owned(),
        "server.listen=127.0.0.1:0".to_owned(),
    ];
    settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

/// The same with more time for a request, where no test is about a node that is silent.
pub fn patient_settings(node: &str, keyspace: &str) -> Vec<String> {
    let mut settings = settings(node, keyspace);
    settings.extend(["--set".to_owned(), "clusters.main.request_timeout_ms=20000".to_owned()]);
    settings
}

pub fn tallystone(verb: &[&str], settings: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    // These tests are about stores; `server::keys` is about keys. No call is refused because the machine is slow.
    command.args(verb).args(settings).env("TALLYSTONE__AUTH__MODE", "off").env("TALLYSTONE__LIMITS__CALL_TIME_MS", "0");
    command
}

/// Runs a command; answers its exit code and what it printed.
pub fn run(verb: &[&str], settings: &[String]) -> (i32, String) {
    let output = tallystone(verb, settings).output().expect("the binary of this build starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("nobody kills it"), String::from_utf8_lossy(&text).into_owned())
}

/// What `migrate apply` prints for a fresh keyspace.
fn applied_to(keyspace: &str) -> String {
    format!("keyspace {keyspace}: 1 migration applied")
}

/// Longer than a server waits for its start: a machine whose disk pauses must not fail a test.
pub fn patience() -> Arc<StartupDeadline> {
    Arc::new(StartupDeadline::start_within(Arc::new(SystemClock), Duration::from_secs(90)))
}

/// Opens a keyspace that exists. A request of a start has its own limits, which a node on a busy machine may miss; the start is
/// tried again then, as a supervisor does with a server.
pub async fn open_patiently(options: &Options) -> adapter::Cassandra {
    const TRIES: usize = 4;
    for tried in 1.. {
        match Box::pin(adapter::Cassandra::open(options, None, Arc::new(SystemClock), &patience())).await {
            Ok(opened) => return opened,
            Err(OpenError::Store { source, .. }) if source.kind == StoreErrorKind::Unavailable && tried < TRIES => {}
            Err(error) => panic!("the keyspace opens: {error:?}"),
        }
    }
    unreachable!("the last try returns or fails")
}

/// Opens a keyspace of the shared node, which the first call of the process makes.
pub async fn keyspace(name: &str) -> adapter::Cassandra {
    static MADE: tokio::sync::Mutex<BTreeSet<String>> = tokio::sync::Mutex::const_new(BTreeSet::new());
    let options = options(&node().to_string(), name);
    let mut made = MADE.lock().await;
    if made.insert(name.to_owned()) {
        let session = connect(&options, &patience()).await.expect("a session");
        let replication = Replication::new(vec![("datacenter1".to_owned(), 1)]);
        schema::make_keyspace(&session, name, &replication, &SystemClock).await.expect("a new keyspace");
        schema::apply(&session, name, schema::MIGRATIONS, &SystemClock, &|| ()).await.expect("the tables");
    }
    drop(made);
    open_patiently(&options).await
}

/// Sends a statement, as an administrator does.
pub fn query(node: &str, credentials: Option<Credentials>, statement: &str) {
    let options = Options { credentials, ..options(node, "system") };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let session = connect(&options, &patience()).await.unwrap_or_else(|why| panic!("{why}"));
        let sent = session.query_unpaged(statement, ()).await;
        sent.unwrap_or_else(|why| panic!("{statement}: {why}"));
    });
}

#[test]
fn a_keyspace_is_planned_made_and_watched_over_by_migrate() {
    let settings = patient_settings(&node().to_string(), "migrated");
    let (code, planned) = run(&["migrate", "plan"], &settings);
    assert_eq!(code, 0, "{planned}");
    for word in ["CREATE KEYSPACE IF NOT EXISTS migrated", "'datacenter1': 1", "-- 0001 tables", "migrated.rollups"] {
        assert!(planned.contains(word), "{word} in: {planned}");
    }
    let (code, status) = run(&["migrate", "status"], &settings);
    assert_eq!(code, 4, "{status}");
    assert!(status.contains("missing") && status.contains("keyspace migrated does not exist"), "{status}");
    let (code, applied) = run(&["migrate", "apply"], &settings);
    assert_eq!((code, applied.trim()), (0, applied_to("migrated").as_str()));
    let (code, again) = run(&["migrate", "apply"], &settings);
    assert_eq!((code, again.trim()), (0, "keyspace migrated is up to date"));
    let (code, status) = run(&["migrate", "status", "-o", "json"], &settings);
    assert_eq!(code, 0, "{status}");
    assert!(status.contains("\"applied\""), "{status}");
    let server = Launch::of(tallystone(&["server", "start"], &settings)).start();
    assert!(!server.printed().contains("anti-pattern"), "the node warns of statements: {}", server.printed());
    assert!(server.stop().success());
    let row = "INSERT INTO migrated.schema_migrations (slot, number, name, digest) VALUES (0, 99, 'x', 0)";
    query(&node().to_string(), None, row);
    let (code, status) = run(&["migrate", "status"], &settings);
    assert_eq!(code, 4, "{status}");
}

#[test]
fn a_data_centre_that_is_not_there_is_refused_by_the_name_of_its_setting() {
    let at = patient_settings(&node().to_string(), "elsewhere");
    let with = |setting: &str| [at.clone(), vec!["--set".to_owned(), setting.to_owned()]].concat();
    for (setting, key) in [
        ("clusters.main.replication=dc9:3", "clusters.main.replication"),
        ("clusters.main.replication=", "clusters.main.replication"),
        ("clusters.main.data_center=dc9", "clusters.main.data_center"),
    ] {
        let (code, said) = run(&["migrate", "apply"], &with(setting));
        assert_eq!(code, 4, "{setting}: {said}");
        assert!(said.contains(key) && said.contains("datacenter1"), "{setting}: {said}");
    }
    let (_, status) = run(&["migrate", "status"], &at);
    assert!(status.contains("keyspace elsewhere does not exist"), "nothing was made: {status}");
}

/// Two keyspaces of one node stand for two clusters: a server knows them by their names only.
#[test]
fn each_namespace_is_kept_in_the_cluster_that_it_names() {
    let node = node().to_string();
    let of_both = |home: &str, far: &str| {
        let far = [
            "clusters.far.kind=cassandra".to_owned(),
            format!("clusters.far.servers={node}"),
            format!("clusters.far.keyspace={far}"),
            "clusters.far.replication=datacenter1:1".to_owned(),
            "clusters.far.request_timeout_ms=20000".to_owned(),
        ];
        let far = far.map(|setting| ["--set".to_owned(), setting]).into_iter().flatten();
        patient_settings(&node, home).into_iter().chain(far).collect::<Vec<_>>()
    };
    let (code, refused) = run(&["server", "start"], &of_both("kept_home", "kept_home"));
    assert!(code == 2 && refused.contains("far.keyspace is also the keyspace of [clusters.main]"), "{refused}");
    let both = of_both("kept_home", "kept_far");
    let (code, made) = run(&["migrate", "apply"], &both);
    assert_eq!((code, made.trim()), (0, applied_to("kept_home").as_str()));
    let (code, refused) = run(&["server", "start"], &both);
    let says = refused.contains("[clusters.far]") && refused.contains("keyspace kept_far does not exist");
    assert!(code == 4 && says, "{refused}");
    let (code, made) = run(&["migrate", "apply", "--cluster", "far"], &both);
    assert_eq!((code, made.trim()), (0, applied_to("kept_far").as_str()));

    let server = Launch::of(tallystone(&["server", "start"], &both)).start();
    let storage = |cluster: &str, dataset: &str| {
        format!(r#"{{"rollupCluster": "{cluster}", "eventCluster": "{cluster}", "dataset": "{dataset}"}}"#)
    };
    let create = |name: &str, storage: &str| {
        let body = format!(r#"{{"namespace": {{"name": "{name}", "storage": {storage}}}}}"#);
        server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", &body)
    };
    for (name, cluster) in [("near", "main"), ("away", "far")] {
        let made = create(name, &storage(cluster, name));
        assert_eq!(made.status, 200, "{}", made.body);
    }
    let told = create("astray", &storage("main", "away"));
    let says = told.body.contains("DATASET_DIFFERS") && told.body.contains("is stored in cluster far");
    assert!(told.status != 200 && says, "{} {}", told.status, told.body);
    let apart = create("apart", r#"{"rollupCluster": "main", "eventCluster": "far", "dataset": "apart"}"#);
    assert!(apart.status == 400 && apart.body.contains("name the same store"), "{} {}", apart.status, apart.body);

    for (namespace, delta) in [("near", 3), ("away", 40)] {
        add_to(&server, namespace, "views", delta);
        assert!(eventually(BACK_WITHIN, || count_in(&server, namespace) == Some(delta)), "{}", server.printed());
    }
    assert!(server.stop().success());
    for (keyspace, namespace) in [("kept_home", 1), ("kept_far", 2)] {
        let kept = numbers(&node, &format!("SELECT ns FROM {keyspace}.rollups"));
        assert_eq!(kept, [namespace], "{keyspace} keeps what belongs there, and nothing else");
    }
    // A keyspace stays what it was first used as: otherwise what it holds would be removed as left over.
    for (home, far, says) in [
        ("kept_far", "kept_home", "keyspace kept_far keeps datasets of another catalog"),
        ("kept_other", "kept_far", "keyspace kept_far keeps datasets of another catalog"),
        ("kept_other", "kept_home", "keyspace kept_home has a catalog of its own"),
    ] {
        let exchanged = of_both(home, far);
        assert_eq!(run(&["migrate", "apply"], &exchanged).0, 0);
        let (code, refused) = run(&["server", "start"], &exchanged);
        assert!(code == 4 && refused.contains(says), "{home} {far}: {code}: {refused}");
    }

    let (code, refused) = run(&["server", "start"], &settings(&node, "kept_home"));
    let words = ["dataset away is stored in cluster far", "no [clusters.far]"];
    assert!(code == 2 && words.iter().all(|word| refused.contains(word)), "{code}: {refused}");
    let again = Launch::of(tallystone(&["server", "start"], &both)).start();
    assert!(eventually(BACK_WITHIN, || count_in(&again, "away") == Some(40)), "{}", again.printed());
    assert!(again.stop().success());
}

fn question(namespace: &str) -> String {
    format!(r#"{{"namespace": "{namespace}", "counterName": "views", "freshness": "ROLLED_UP"}}"#)
}

fn count_in(server: &Server, namespace: &str) -> Option<i64> {
    let answer = server.post("/tallystone.counter.v1.CounterService/GetCount", &question(namespace));
    let body: Value = serde_json::from_str(&answer.body).ok()?;
    body["count"].as_str()?.parse().ok()
}

/// A column of numbers as an administrator is shown it.
pub fn numbers(node: &str, statement: &str) -> Vec<i64> {
    let options = options(node, "system");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let session = connect(&options, &patience()).await.unwrap_or_else(|why| panic!("{why}"));
        let answered = session.query_unpaged(statement, ()).await.unwrap_or_else(|why| panic!("{statement}: {why}"));
        let rows = answered.into_rows_result().expect("it is a read");
        rows.rows::<(i64,)>().expect("it is a column of numbers").map(|row| row.expect("it is one").0).collect()
    })
}

fn options(node: &str, keyspace: &str) -> Options {
    Options {
        servers: vec![node.to_owned()],
        keyspace: keyspace.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: PATIENCE,
    }
}

/// Cassandra tells of a keyspace and of a table a moment before either can be used.
#[tokio::test(flavor = "multi_thread")]
async fn a_keyspace_that_another_server_is_making_can_be_looked_at_and_made_as_well() {
    let node = node().to_string();
    for round in 0..6 {
        let making = (0..4).map(|_| make_while_looking(options(&node, &format!("raced_{round}"))));
        for made in futures_util::future::join_all(making.map(tokio::spawn)).await {
            made.expect("it ends");
        }
    }
}

/// What `dev` does, on a session of its own, until the schema is there.
async fn make_while_looking(options: Options) {
    let session = connect(&options, &patience()).await.expect("the node answers");
    let keyspace = &options.keyspace;
    let replication = Replication::new(vec![("datacenter1".to_owned(), 1)]);
    loop {
        match schema::state(&session, keyspace, &SystemClock).await.expect("a keyspace half made is no error") {
            SchemaState::Current => return,
            SchemaState::NoKeyspace | SchemaState::Behind(_) => {}
            other => panic!("{other:?}"),
        }
        schema::make_keyspace(&session, keyspace, &replication, &SystemClock).await.expect("it is made once");
        schema::apply(&session, keyspace, schema::MIGRATIONS, &SystemClock, &|| ())
            .await
            .expect("each table is made once");
    }
}

#[test]
fn every_example_of_migrate_does_what_it_shows() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let text = format!(
        "[counters]\nengine = \"cassandra\"\ncluster = \"main\"\n[queues]\nengine = \"none\"\n[clusters.main]\nkind = \"cassandra\"\nservers = \"{}\"\n\
         keyspace = \"examples\"\nreplication = \"datacenter1:1\"\n",
        node()
    );
    std::fs::write(folder.path().join("tallystone.toml"), text).expect("a file can be written");
    for verb in ["plan", "apply", "status"] {
        let mut command = tallystone(&["migrate", verb, "--config", "tallystone.toml"], &[]);
        let output = command.current_dir(folder.path()).output().expect("the binary of this build starts");
        assert!(output.status.success() && !output.stdout.is_empty(), "{verb}: {output:?}");
    }
}

#[test]
fn a_queue_is_refused_for_good_on_a_server_that_keeps_none() {
    let server = Launch::dev_on_cassandra(node()).patient_with("cassandra").start();
    let answer = server.post("/tallystone.queue.v1.QueueService/CreateQueue", r#"{"queue": {"name": "mail"}}"#);
    assert_eq!(answer.status, 412, "{}", answer.body);
    assert!(answer.body.contains("QUEUES_NOT_KEPT") && answer.body.contains("queues.engine"), "{}", answer.body);
    assert!(server.stop().success());
}

#[test]
fn the_last_write_is_never_shown_in_the_future_nor_before_it_was_made() {
    let launch = Launch::dev_on_cassandra(node()).arg("--set").arg("clusters.cassandra.keyspace=last_write");
    let server = launch.patient_with("cassandra").start();
    let time = |shown: &Value| -> Timestamp { shown.as_str().expect("a time").parse().expect("a time") };
    let now = || Timestamp::from(SystemTime::now());
    let of = |time: Timestamp| (time.seconds, time.nanos);
    let added = add(&server, "views", &Uuid::now_v7());
    assert_eq!(added.status, 200, "{}", added.body);
    let made = time(&added.json()["eventTime"]);
    for freshness in ["ROLLED_UP", "UP_TO_DATE", "ROLLED_UP"] {
        let read = reading(&server, "views", freshness);
        let shown = time(&read["lastWriteTime"]);
        assert!(of(made) <= of(shown) && of(shown) <= of(now()), "made at {made}: {read}");
        let is_behind = of(time(&read["asOf"])) < of(made);
        assert!(
            !is_behind || read["behind"] == Value::Bool(true),
            "it is behind as long as the add is not in it: {read}"
        );
    }
    let is_rolled_up = || {
        let read = reading(&server, "views", "ROLLED_UP");
        read["behind"] != Value::Bool(true) && value(&read) == 1
    };
    assert!(eventually(BACK_WITHIN, is_rolled_up), "{}", reading(&server, "views", "ROLLED_UP"));
    let read = reading(&server, "views", "ROLLED_UP");
    assert!(of(time(&read["lastWriteTime"])) <= of(time(&read["asOf"])), "{read}");
    assert!(server.stop().success());
}

// ---- Faults ----

#[test]
fn a_cassandra_that_is_killed_and_restarted_under_load_leaves_no_add_in_doubt() {
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node.address()).arg("--set").arg("clusters.cassandra.keyspace=killed");
    let server = launch.start();
    let stop = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let ends = EndsWith(&stop);
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| load(&server, &stop))).collect();
        assert!(eventually(BACK_WITHIN, || count(&server, "loaded") >= 20), "adds are counted");
        node.kill();
        // Long enough that writes are in doubt and others are refused; adds go on all the time.
        let is_refused = || add(&server, "loaded", &Uuid::now_v7()).status == 503;
        assert!(eventually(BACK_WITHIN, is_refused), "adds are refused");
        node.bring_back().unwrap_or_else(|why| panic!("{why}"));
        let is_back = || add(&server, "after", &Uuid::now_v7()).status == 200;
        assert!(eventually(BACK_WITHIN, is_back), "adds come back by themselves");
        drop(ends);
        let answers = workers.into_iter().flat_map(|worker| worker.join().expect("no worker panics"));
        answers.collect::<BTreeMap<Uuid, HttpAnswer>>()
    });
    let mut applied = 0;
    for (at, (token, answer)) in answers.iter().enumerate() {
        if answer.status == 200 && at % ACKNOWLEDGED_PER_QUESTION != 0 {
            applied += 1;
            continue;
        }
        let verdict = settled(&server, token);
        applied += i64::from(verdict == "VERDICT_APPLIED");
        match answer.status {
            200 => assert_eq!(verdict, "VERDICT_APPLIED", "{token} was acknowledged"),
            503 => assert_eq!(verdict, "VERDICT_NOT_APPLIED", "{token} was refused: {}", answer.body),
            // It came later than its dataset accepts.
            412 => assert_eq!(verdict, "VERDICT_NOT_APPLIED", "{token} was too late: {}", answer.body),
            // In doubt until it was asked about.
            _ => assert!(answer.body.contains("OUTCOME_UNKNOWN") || answer.status == 504, "{}", answer.body),
        }
    }
    let others = answers.values().filter(|answer| answer.status != 200).count();
    assert!(others > 0 && applied >= 20, "{others} of {} were not acknowledged", answers.len());
    // The adds that waited for the kill count as well, whichever of them were applied.
    // Rows that came late are counted a while after their verdicts found them.
    let counted = || count(&server, "loaded") >= applied;
    assert!(eventually(BACK_WITHIN, counted), "{} counted of {applied} applied", count(&server, "loaded"));
    let rolled_up = || {
        let read = reading(&server, "loaded", "ROLLED_UP");
        read["behind"] != Value::Bool(true) && value(&read) == count(&server, "loaded")
    };
    assert!(eventually(BACK_WITHIN, rolled_up), "rollups catch up");
    assert!(server.stop().success());
}

/// Adds until it is told to stop; answers what each token was told. It pauses after an add that was not acknowledged: refusals come
/// at once, and each of their tokens is asked about later.
fn load(server: &Server, stop: &AtomicBool) -> Vec<(Uuid, HttpAnswer)> {
    let mut answers = Vec::new();
    let is_told = || stop.load(Ordering::Relaxed);
    while !is_told() {
        let token = Uuid::now_v7();
        let answer = add(server, "loaded", &token);
        let is_acknowledged = answer.status == 200;
        answers.push((token, answer));
        if !is_acknowledged {
            eventually(PAUSE, is_told);
        }
    }
    answers
}

fn settled(server: &Server, token: &Uuid) -> String {
    let body =
        format!(r#"{{"namespace": "default", "counter_name": "loaded", "idempotency_token": {{"token": "{token}"}}}}"#);
    let mut verdict = String::new();
    let is_settled = || {
        let answer = server.post("/tallystone.counter.v1.CounterService/CheckToken", &body);
        let parsed: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        verdict = parsed["verdict"].as_str().unwrap_or_default().to_owned();
        ["VERDICT_APPLIED", "VERDICT_NOT_APPLIED"].contains(&verdict.as_str())
    };
    assert!(eventually(BACK_WITHIN, is_settled), "{token} stays in doubt");
    verdict
}

fn add(server: &Server, name: &str, token: &Uuid) -> HttpAnswer {
    let body = format!(
        r#"{{"namespace": "default", "counter_name": "{name}", "delta": 1, "idempotency_token": {{"token": "{token}"}}}}"#
    );
    let path = "/tallystone.counter.v1.CounterService/AddCount";
    let sent = http(server.address, "POST", path, &[("content-type", "application/json")], &body);
    sent.expect("the server answers, whatever Cassandra does")
}

fn reading(server: &Server, name: &str, freshness: &str) -> Value {
    let body = format!(r#"{{"namespace": "default", "counter_name": "{name}", "freshness": "{freshness}"}}"#);
    let answer = server.post("/tallystone.counter.v1.CounterService/GetCount", &body);
    serde_json::from_str(&answer.body).unwrap_or_default()
}

fn value(reading: &Value) -> i64 {
    let count = &reading["count"];
    count.as_str().and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn count(server: &Server, name: &str) -> i64 {
    value(&reading(server, name, "UP_TO_DATE"))
}
