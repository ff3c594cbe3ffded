//! The alerts that are shipped, on what real servers showed in trouble and in health: pages that were read from them are
//! played to promtool as series over the times that the alerts wait for, and exactly the alerts of that trouble fire.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use super::{QUEUE, alerts, metrics_in, root, use_it, used_server};
use crate::fleet::several_servers::{add_to, metric, metric_of};
use crate::servers::Memcached;
use crate::servers::cassandra::shared;
use crate::servers::lent_node::lent_node;
use crate::servers::prometheus::promtool;
use crate::servers::redis::{Build, RedisServer};
use crate::support::harness::{Launch, Server, eventually};

/// How far readings are apart when they are played.
const STEP: Duration = Duration::from_secs(5);
/// How long a server was well before trouble began: longer than any range of an alert but the hour of slices.
const BEFORE: Duration = Duration::from_secs(11 * 60);
/// How long trouble lasts: longer than an alert waits.
pub const TROUBLE: Duration = Duration::from_secs(3 * 60);
const WITHIN: Duration = Duration::from_secs(120);
const CLOSED_LAG: &str = "tallystone_closed_lag_seconds";

/// What Prometheus has seen of one server: pages, each for a time; none where the server did not answer.
#[derive(Clone)]
pub struct Seen {
    instance: &'static str,
    pages: Vec<(Option<String>, Duration)>,
}

impl Seen {
    /// A server that was well until now.
    pub fn well(instance: &'static str, page: String) -> Self {
        Self { instance, pages: vec![(Some(page), BEFORE)] }
    }

    /// What it showed after that; nothing if it did not answer.
    pub fn then(mut self, page: Option<String>, time: Duration) -> Self {
        self.pages.push((page, time));
        self
    }

    /// Its series as promtool takes them: only what alerts look at.
    fn series(&self, names: &BTreeSet<String>) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut steps = 0;
        for (page, time) in &self.pages {
            let count = usize::try_from(time.as_secs() / STEP.as_secs()).expect("a small number");
            let mut values = vec![("up".to_owned(), String::new(), f64::from(u8::from(page.is_some())))];
            values.extend(page.iter().flat_map(|page| parse(page)).filter(|(name, ..)| names.contains(name)));
            for (name, labels, value) in values {
                let comma = if labels.is_empty() { "" } else { "," };
                let labels = format!("job=\"tallystone\",instance=\"{}\"{comma}{labels}", self.instance);
                let series = all.entry(format!("{name}{{{labels}}}")).or_default();
                series.resize(steps, "_".to_owned());
                series.resize(steps + count, value.to_string());
            }
            steps += count;
            // What a server shows no more is stale at once.
            for series in all.values_mut().filter(|series| series.len() < steps) {
                series.resize(steps, "stale".to_owned());
            }
        }
        all.into_iter().map(|(name, values)| (name, values.join(" "))).collect()
    }

    fn lasted(&self) -> Duration {
        self.pages.iter().map(|(_, time)| *time).sum()
    }
}

/// The samples of a page: name, labels, value.
fn parse(page: &str) -> impl Iterator<Item = (String, String, f64)> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        Some((name.to_owned(), labels.strip_suffix('}')?.to_owned(), value.parse().ok()?))
    })
}

/// Expects that at the end of what was seen these alerts fire, by name and instance, and no others.
pub fn expect_firing(seen: &[Seen], expected: &[(&str, &str)]) {
    let names: BTreeSet<String> =
        alerts().iter().flat_map(|alert| metrics_in(&alert.expression)).map(str::to_owned).collect();
    let end = seen.iter().map(Seen::lasted).max().expect("something was seen") - STEP;
    let rules = root().join("docs/observability/alerts.yml");
    let mut test = format!(
        "rule_files: [{:?}]\nevaluation_interval: {}s\ntests:\n- interval: {}s\n  input_series:\n",
        rules.display().to_string(),
        STEP.as_secs(),
        STEP.as_secs(),
    );
    for (series, values) in seen.iter().flat_map(|seen| seen.series(&names)) {
        writeln!(test, "  - series: '{series}'\n    values: '{values}'").expect("a text takes more");
    }
    let firing = "max by (alertname, instance) (ALERTS{alertstate=\"firing\"})";
    write!(test, "  promql_expr_test:\n  - expr: '{firing}'\n    eval_time: {}s\n    exp_samples:", end.as_secs())
        .expect("a text takes more");
    for (alert, instance) in expected {
        write!(test, "\n    - {{labels: '{{alertname=\"{alert}\", instance=\"{instance}\"}}', value: 1}}")
            .expect("a text takes more");
    }
    if expected.is_empty() {
        test.push_str(" []");
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("test.yml");
    fs::write(&file, &test).expect("the folder is ours");
    promtool(&["test", "rules", &file.display().to_string()], "").unwrap_or_else(|found| panic!("{found}"));
}

pub fn page(server: &Server) -> String {
    server.get("/metrics").body
}

#[test]
fn a_server_that_is_used_raises_no_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let mut seen = Seen::well("a", settled(&server));
    for _ in 0..5 {
        use_it(&server);
        seen = seen.then(Some(settled(&server)), TROUBLE);
    }
    expect_firing(&[seen], &[]);
}

#[test]
fn a_dataset_with_a_long_accept_limit_raises_no_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let made = server.post(
        "/tallystone.admin.v1.NamespaceService/CreateNamespace",
        r#"{"namespace": {"name": "slow", "storage": {"dataset": "slow"}, "dataset": {"acceptLimit": "90s"}}}"#,
    );
    assert_eq!(made.status, 200, "{}", made.body);
    add_to(&server, "slow", "views", 1);
    settled(&server);
    let of_slow = |name: &str| metric_of(&server, name, "dataset=\"slow\"");
    let is_late = || of_slow("tallystone_dataset_staleness_seconds") > 85.0 && of_slow(CLOSED_LAG) > 85.0;
    assert!(eventually(WITHIN, is_late), "{}", page(&server));
    assert_eq!(of_slow("tallystone_accept_limit_seconds"), 90.0);
    expect_firing(&[Seen::well("a", page(&server)).then(Some(page(&server)), TROUBLE)], &[]);
}

#[test]
fn a_killed_server_raises_the_alert_that_it_is_down() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let seen = Seen::well("a", settled(&server));
    let address = server.address;
    server.kill();
    let is_silent = crate::support::harness::http(address, "GET", "/metrics", &[], "").is_err();
    assert!(is_silent, "a killed server shows nothing");
    expect_firing(&[seen.then(None, TROUBLE)], &[("TallystoneDown", "a")]);
}

#[test]
fn a_store_without_room_raises_its_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let server = Launch::dev(&data).start();
    let seen = Seen::well("a", settled(&server));
    assert!(server.stop().success());
    // A reserve that no disk has.
    let server = Launch::dev(&data).arg("--set").arg("storage.reserve_bytes=1000000000000000").start();
    assert_eq!(metric(&server, "tallystone_store_full"), 1.0);
    expect_firing(&[seen.then(Some(page(&server)), TROUBLE)], &[("StoreFull", "a")]);
}

#[test]
fn queues_whose_memory_runs_short_raise_their_alert_and_say_so_everywhere() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let server = Launch::dev(&data).start();
    use_it(&server);
    let well = settled(&server);
    assert!(server.stop().success());
    let server = Launch::dev(&data).arg("--set").arg("queues.memory_bytes=64KiB").start();
    let queue = |method: &str, body: &str| server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), body);
    assert_eq!(queue("CreateQueue", r#"{"queue": {"name": "heap"}}"#).status, 200);
    let enqueue = r#"{"queue": "heap", "message": {"payload": "Zm9v"}}"#;
    let refused = (0..1_000).map(|_| queue("Enqueue", enqueue)).find(|answer| answer.status != 200);
    let refused = refused.expect("64 KiB have no room for so many");
    assert_eq!(refused.status, 429, "{}", refused.body);
    for part in ["STORAGE_FULL", "queues.memory_bytes is 64 KiB", "messages that are not over", "retention"] {
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
    }
    let status = server.post("/tallystone.admin.v1.StatusService/GetStatus", "{}").json();
    let problem = status["problems"][0].as_str().unwrap_or_default();
    assert!(problem.contains("queues have used 10") && problem.contains("queue-memory.md"), "{status}");
    assert_eq!(status["queues"]["memory"]["limitBytes"], "65536", "{status}");
    let attention = || queue("ListQueueActivity", "{}").json()["queues"][0]["attention"][0].clone();
    let is_named = || attention()["reason"] == "ATTENTION_REASON_MEMORY_SHORT";
    assert!(eventually(WITHIN, is_named), "{}", attention());
    assert_eq!(attention()["runbook"], "docs/runbook/queue-memory.md");
    let page = page(&server);
    let seen = |instance, page: String| Seen::well(instance, well.clone()).then(Some(page), TROUBLE);
    let with_used = |used| with_queue_memory(&page, used, 1_000);
    let all = [seen("a", page.clone()), seen("b", with_used(849)), seen("c", with_used(850))];
    expect_firing(&all, &[("QueueMemoryShort", "a"), ("QueueMemoryShort", "c")]);
}

/// The page of a server whose messages take so much of so much memory.
fn with_queue_memory(page: &str, used: u64, limit: u64) -> String {
    let mut left = Some(used);
    let line = |line: &str| match line.split_once(['{', ' ']).unwrap_or_default().0 {
        "tallystone_queue_memory_bytes" => {
            let series = line.rsplit_once(' ').expect("a value").0;
            format!("{series} {}\n", left.take().unwrap_or_default())
        }
        "tallystone_queue_memory_limit_bytes" => format!("tallystone_queue_memory_limit_bytes {limit}\n"),
        _ => format!("{line}\n"),
    };
    page.lines().map(line).collect()
}

#[test]
fn a_killed_memcached_raises_its_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    let address = memcached.address().to_string();
    let server = Launch::dev(&folder.path().join("data")).arg("--memcached").arg(&address).start();
    let namespace = r#"{"namespace": {"name": "fast", "counterType": "BEST_EFFORT"}}"#;
    let made = server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", namespace);
    assert_eq!(made.status, 200, "{}", made.body);
    let seen = Seen::well("a", settled(&server));
    drop(memcached);
    let add = r#"{"namespace": "fast", "counterName": "views", "delta": 1}"#;
    let is_down = eventually(WITHIN, || {
        server.post("/tallystone.counter.v1.CounterService/AddCount", add);
        metric(&server, "tallystone_memcached_servers_down") == 1.0
    });
    assert!(is_down, "{}", page(&server));
    let after = page(&server);
    expect_firing(&[seen.then(Some(after), TROUBLE)], &[("MemcachedDown", "a")]);
}

#[test]
fn a_redis_that_stands_raises_its_alert() {
    let redis = RedisServer::start(Build::Redis7).unwrap_or_else(|why| panic!("{why}"));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let address = redis.address().to_string();
    let server = Launch::dev(&folder.path().join("data")).arg("--redis").arg(&address).start();
    use_it(&server);
    let seen = Seen::well("a", settled(&server));
    redis.pause();
    let is_silent = || metric_of(&server, "tallystone_store_silent_seconds", "_redis") > 16.0;
    assert!(eventually(WITHIN, is_silent), "{}", page(&server));
    assert!(server.get("/readyz").body.contains(&format!("Redis at {address} has not answered since")));
    let after = page(&server);
    redis.resume();
    expect_firing(&[seen.then(Some(after), TROUBLE)], &[("RedisSilent", "a"), ("ServiceNotReady", "a")]);
}

#[test]
fn a_redis_whose_memory_runs_short_or_is_thrown_away_raises_its_alerts() {
    let redis = RedisServer::start(Build::Redis7).unwrap_or_else(|why| panic!("{why}"));
    redis.cli(&["SETRANGE", "filler", "67108864", "x"]);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).arg("--redis").arg(&redis.address().to_string()).start();
    use_it(&server);
    let seen = Seen::well("a", settled(&server));
    let used: u64 = redis.info("used_memory").parse().expect("a number");
    redis.config_set("maxmemory", &(used / 88 * 100).to_string());
    redis.config_set("maxmemory-policy", "allkeys-lru");
    let of_redis = |name: &str| metric_of(&server, name, "store=\"_redis\"");
    let is_told = || of_redis("tallystone_store_memory_evicts") == 1.0;
    assert!(eventually(WITHIN, is_told), "{}", page(&server));
    let after = page(&server);
    expect_firing(&[seen.then(Some(after), TROUBLE)], &[("StoreEvicts", "a"), ("StoreMemoryShort", "a")]);
}

#[test]
fn messages_out_of_attempts_raise_their_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let call = |method: &str, body: &str| {
        let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    };
    call("CreateQueue", r#"{"queue": {"name": "mail", "defaultMaxAttempts": 1}}"#);
    call("Enqueue", r#"{"queue": "mail", "message": {"payload": "Zm9v"}}"#);
    let seen = Seen::well("a", settled(&server));
    let held = call("Dequeue", r#"{"queue": "mail"}"#);
    let token = held["leases"][0]["leaseToken"].as_str().expect("a lease");
    call("Fail", &format!(r#"{{"queue": "mail", "leaseToken": "{token}"}}"#));
    // The page tells of queues by a reading of the last second.
    let is_told = || page(&server).contains("\ntallystone_queue_messages{queue=\"mail\",state=\"errored\"} 1.0\n");
    assert!(eventually(WITHIN, is_told), "{}", page(&server));
    let after = page(&server);
    assert!(after.contains("\ntallystone_queue_errored_total{queue=\"mail\"} 1\n"), "{after}");
    expect_firing(&[seen.then(Some(after), TROUBLE)], &[("MessagesErrored", "a")]);
}

/// The page of a server once it has rolled up what it was given.
pub fn settled(server: &Server) -> String {
    let mut shown = String::new();
    // The page that shows it is the one that counts: on a busy machine the next one may show more. The lag is not there until
    // the server knows its watermarks.
    let is_settled = || {
        shown = page(server);
        let mut lags = parse(&shown).filter(|(name, ..)| name == "tallystone_watermark_lag_seconds");
        lags.next().is_some_and(|(.., lag)| lag < 60.0) && age_of_counts(&shown) < 20.0
    };
    assert!(eventually(WITHIN, is_settled), "{}", page(server));
    shown
}

fn on_cassandra(node: impl std::fmt::Display, keyspace: &str) -> Server {
    Launch::dev_on_cassandra(node).arg("--set").arg(&format!("clusters.cassandra.keyspace={keyspace}")).start()
}

#[test]
fn a_killed_member_of_a_fleet_raises_the_alerts_of_both() {
    let node = shared().unwrap_or_else(|why| panic!("{why}"));
    let [one, other] = [(); 2].map(|()| on_cassandra(node, "alerted"));
    for server in [&one, &other] {
        add_to(server, "default", "views", 1);
        assert!(eventually(WITHIN, || metric(server, "tallystone_fleet_members") == 2.0), "{}", page(server));
    }
    let [killed, left] = [("a", settled(&one)), ("b", settled(&other))].map(|(name, page)| Seen::well(name, page));
    expect_firing(&[killed.clone(), left.clone()], &[]);
    one.kill();
    // The killed member holds counts back until its lease has lapsed, so the oldest ones may show just before that or with it.
    let (mut oldest, mut last) = (page(&other), String::new());
    let has_seen = || {
        last = page(&other);
        if age_of_counts(&last) > age_of_counts(&oldest) {
            oldest.clone_from(&last);
        }
        greatest(&last, "tallystone_fleet_members_lapsed_total") > 0.0
    };
    assert!(eventually(WITHIN, has_seen), "{}", page(&other));
    assert!(age_of_counts(&oldest) > 20.0, "{oldest}");
    for shown in [oldest, last] {
        let mut expected = vec![("TallystoneDown", "a")];
        if age_of_counts(&shown) > 20.0 {
            expected.push(("CountsStale", "b"));
        }
        if greatest(&shown, "tallystone_fleet_members_lapsed_total") > 0.0 {
            expected.extend([("FleetMemberLost", "b"), ("FleetSmaller", "b")]);
        }
        expect_firing(&[killed.clone().then(None, TROUBLE), left.clone().then(Some(shown), TROUBLE)], &expected);
    }
}

/// The greatest value of a metric on a page.
fn greatest(page: &str, metric: &str) -> f64 {
    parse(page).filter(|(name, ..)| name == metric).map(|(.., value)| value).fold(0.0, f64::max)
}

/// By how many seconds the counts of a dataset on a page are older than they may be, at most.
fn age_of_counts(page: &str) -> f64 {
    let of = |metric: &'static str| parse(page).filter(move |(name, ..)| name == metric);
    let limits: BTreeMap<String, f64> =
        of("tallystone_accept_limit_seconds").map(|(_, set, limit)| (set, limit)).collect();
    of("tallystone_dataset_staleness_seconds").map(|(_, set, age)| age - limits[&set]).fold(0.0, f64::max)
}

#[test]
fn a_server_under_a_new_name_that_still_counts_the_one_it_replaces_raises_no_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let page = settled(&used_server(folder.path()));
    let members = |count: u8| {
        let lines = page.lines().map(|line| match line.starts_with("tallystone_fleet_members ") {
            true => format!("tallystone_fleet_members {count}\n"),
            false => format!("{line}\n"),
        });
        Some(lines.collect::<String>())
    };
    assert_ne!(members(3), members(2), "{page}");
    let dead_life = Duration::from_secs(30);
    let rest = |from: Duration| from - dead_life;
    // The alerts are evaluated while its first samples are new, and once they are older than its five minutes.
    for lasted in [TROUBLE, 3 * TROUBLE] {
        let left =
            Seen::well("a", members(2).expect("a page")).then(members(3), dead_life).then(members(2), rest(lasted));
        let new = Seen { instance: "c", pages: vec![(None, BEFORE)] };
        let new = new.then(members(3), dead_life).then(members(2), rest(lasted));
        expect_firing(&[left, new], &[]);
    }
}

#[test]
fn a_stopped_store_raises_its_alerts() {
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let server = Launch::dev_on_cassandra(node.address())
        .arg("--memory")
        .arg("--set")
        .arg("clusters.cassandra.keyspace=stopped")
        .start();
    add_to(&server, "default", "views", 1);
    use_it(&server);
    let mut seen = Seen::well("a", settled(&server));
    node.pause();
    // Queues go on. What they do now reaches neither their counters nor the history.
    let message = format!(r#"{{"queue": "{QUEUE}", "message": {{"payload": "Zm9v"}}}}"#);
    let answer = server.post("/tallystone.queue.v1.QueueService/Enqueue", &message);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut last = Instant::now();
    let mut lags = Vec::new();
    let is_over = eventually(WITHIN, || {
        // A call that is told nothing ends with its deadline.
        let add = r#"{"namespace": "default", "counterName": "views", "delta": 1}"#;
        let _ = crate::support::harness::http(
            server.address,
            "POST",
            "/tallystone.counter.v1.CounterService/AddCount",
            &[("content-type", "application/json"), ("grpc-timeout", "2S")],
            add,
        );
        if last.elapsed() >= STEP {
            seen.pages.push((Some(page(&server)), STEP));
            lags.push(metric(&server, CLOSED_LAG));
            last = Instant::now();
        }
        // The store is told of nothing, so what this server has closed stands still, long after its lease is over too.
        metric(&server, "tallystone_fleet_leases_lapsed_total") > 0.0
            && metric(&server, CLOSED_LAG) > 70.0
            && metric(&server, "tallystone_bridge_report_lag_seconds") > 65.0
            && metric(&server, "tallystone_history_lag_seconds") > 65.0
    });
    assert!(is_over, "{}", page(&server));
    assert!(lags.len() > 5 && lags.windows(2).all(|two| two[0] < two[1]), "it only grows: {lags:?}");
    let last = page(&server);
    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let seen = seen.then(Some(last), TROUBLE);
    expect_firing(
        &[seen],
        &[
            ("CallsFail", "a"),
            ("CountsStale", "a"),
            ("HistoryRelayLags", "a"),
            ("MembershipLost", "a"),
            ("QueueReportsLag", "a"),
            ("ServiceNotReady", "a"),
            ("StoreRequestsFail", "a"),
            ("StoreSilent", "a"),
            ("WritesHang", "a"),
        ],
    );
}
