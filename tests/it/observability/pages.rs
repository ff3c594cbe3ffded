//! What a server says of its namespaces, of the reports of its queues, its build and its process.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tallystone::domain::limits::{METRIC_NAMESPACES_MAX, METRIC_QUEUE_TIMES_MAX};

use super::{QUEUE, expect_times_of_leases, use_it, used_server};
use crate::fleet::several_servers::{metric, metric_of};
use crate::support::harness::{Launch, Server, eventually};

const WITHIN: Duration = Duration::from_secs(60);

fn done(server: &Server, method: &str, body: &str) {
    let answer = server.post(&format!("/tallystone.{method}"), body);
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
}

/// The value of a series by namespace; none where the page does not have it.
fn of(page: &str, metric: &str, namespace: &str) -> Option<u64> {
    let series = format!("{metric}{{namespace=\"{namespace}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

/// The writes of a namespace with an outcome; none where the page does not have it.
fn written(page: &str, namespace: &str, outcome: &str) -> Option<u64> {
    let series = format!("tallystone_namespace_writes_total{{namespace=\"{namespace}\",outcome=\"{outcome}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

#[test]
fn writes_and_reads_are_counted_by_namespace() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    for (name, kind) in [("exact", "EVENTUAL"), ("fast", "BEST_EFFORT")] {
        let body = format!(r#"{{"namespace": {{"name": "{name}", "counterType": "{kind}"}}}}"#);
        done(&server, "admin.v1.NamespaceService/CreateNamespace", &body);
        for _ in 0..3 {
            let add = format!(r#"{{"namespace": "{name}", "counterName": "views", "delta": 1}}"#);
            done(&server, "counter.v1.CounterService/AddCount", &add);
        }
        let names = format!(r#"{{"namespace": "{name}", "counterNames": ["views", "clicks"]}}"#);
        done(&server, "counter.v1.CounterService/BatchGetCounts", &names);
        // An event of the far past is refused.
        let late = format!(
            r#"{{"namespace": "{name}", "counterName": "views", "delta": 1, "idempotencyToken": {{"token": "late", "generationTime": "2001-01-01T00:00:00Z"}}}}"#
        );
        let answer = server.post("/tallystone.counter.v1.CounterService/AddCount", &late);
        assert_eq!(answer.status == 200, kind == "BEST_EFFORT", "{}", answer.body);
    }
    let page = server.get("/metrics").body;
    for (name, writes) in [("exact", (3, 1)), ("fast", (4, 0))] {
        let reads = of(&page, "tallystone_namespace_reads_total", name).expect("it is shown");
        let of = |outcome: &str| written(&page, name, outcome).expect("it is shown");
        assert_eq!(((of("applied"), of("failed")), reads), (writes, 2), "{name}: {page}");
    }
}

#[test]
fn namespaces_beyond_the_bound_are_counted_as_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let all = METRIC_NAMESPACES_MAX + 3;
    for number in 0..all {
        let body = format!(r#"{{"namespace": {{"name": "n{number}", "counterType": "BEST_EFFORT"}}}}"#);
        done(&server, "admin.v1.NamespaceService/CreateNamespace", &body);
        let add = format!(r#"{{"namespace": "n{number}", "counterName": "views", "delta": 1}}"#);
        done(&server, "counter.v1.CounterService/AddCount", &add);
    }
    let page = server.get("/metrics").body;
    let metric = "tallystone_namespace_writes_total{";
    let applied = |line: &&str| line.starts_with(metric) && line.contains("outcome=\"applied\"");
    let lines: Vec<&str> = page.lines().filter(applied).collect();
    assert_eq!(lines.len(), METRIC_NAMESPACES_MAX + 1, "{lines:?}");
    let sum: usize = lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
    assert_eq!(sum, all, "nothing is left out: {lines:?}");
    assert!(written(&page, "_other", "applied").is_some_and(|others| others >= 3), "{lines:?}");
}

#[test]
fn the_reports_of_queues_and_the_flow_of_each_queue_are_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let bridge = |name: &str| metric(&server, &format!("tallystone_bridge_{name}"));
    let is_reported = || bridge("reports_total") > 0.0 && bridge("waiting_shards") == 0.0;
    assert!(eventually(WITHIN, is_reported), "{}", server.get("/metrics").body);
    let has_taken_over = || bridge("totals_reported_total") + bridge("takeovers_total") > 1.0;
    assert!(eventually(WITHIN, has_taken_over), "{}", server.get("/metrics").body);
    assert_eq!((bridge("active"), bridge("failures_total")), (1.0, 0.0));
    // The lag is that of a step, however long nothing happens.
    assert!(eventually(WITHIN, || bridge("report_lag_seconds") < 2.0), "{}", server.get("/metrics").body);
    let flow =
        |name: &str| metric_of(&server, &format!("tallystone_queue_{name}_total"), &format!("queue=\"{QUEUE}\""));
    assert_eq!((flow("enqueued"), flow("leased"), flow("completed")), (2.0, 1.0, 0.0));
    let body = format!(r#"{{"queue": "{QUEUE}", "maxMessages": 1}}"#);
    let held = server.post("/tallystone.queue.v1.QueueService/Dequeue", &body).json();
    let token = held["leases"][0]["leaseToken"].as_str().expect("a lease");
    let reports = bridge("reports_total");
    done(&server, "queue.v1.QueueService/Complete", &format!(r#"{{"queue": "{QUEUE}", "leaseToken": "{token}"}}"#));
    assert_eq!((flow("leased"), flow("completed")), (2.0, 1.0));
    assert!(eventually(WITHIN, || bridge("reports_total") > reports), "{}", server.get("/metrics").body);
}

#[test]
fn there_are_as_many_waits_as_leases_and_as_many_runs_as_settlements() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    expect_times_of_leases(&Launch::dev(&folder.path().join("data")).start());
}

#[test]
fn histograms_of_queues_have_the_bounds_from_hundredths_of_a_second_to_a_week() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let page = used_server(folder.path()).get("/metrics").body;
    let wanted = "0.01 0.03 0.1 0.3 1.0 3.0 10.0 30.0 60.0 300.0 900.0 3600.0 21600.0 86400.0 604800.0 +Inf";
    for family in ["wait", "run"] {
        let series = format!("tallystone_queue_{family}_seconds_bucket{{le=\"");
        let of_queue = page.lines().filter(|line| line.contains(&format!("queue=\"{QUEUE}\"")));
        let bounds: Vec<&str> = of_queue.filter_map(|line| line.strip_prefix(&series)?.split('"').next()).collect();
        assert_eq!(bounds.join(" "), wanted, "{family}: {page}");
    }
}

/// The part of a page that is about how long messages waited and ran.
fn lines_of_times(page: &str) -> impl Iterator<Item = &str> {
    let names = ["tallystone_queue_wait_seconds", "tallystone_queue_run_seconds"];
    page.lines().filter(move |line| names.iter().any(|name| line.contains(name)))
}

#[test]
fn the_histograms_of_100_queues_are_less_than_three_tenths_of_the_rest_of_the_page() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).start();
    let shown_as = |queue: &str| format!("tallystone_queue_wait_seconds_count{{queue=\"{queue}\"}} 0\n");
    for number in 0..METRIC_QUEUE_TIMES_MAX {
        let queue = format!("idle-{number}");
        done(&server, "queue.v1.QueueService/CreateQueue", &format!(r#"{{"queue": {{"name": "{queue}"}}}}"#));
        assert!(server.get("/metrics").body.contains(&shown_as(&queue)), "a series is there before its first rise");
    }
    for number in METRIC_QUEUE_TIMES_MAX..100 {
        let queue = format!("queue-{number:03}");
        done(&server, "queue.v1.QueueService/CreateQueue", &format!(r#"{{"queue": {{"name": "{queue}"}}}}"#));
        let message = format!(r#"{{"queue": "{queue}", "message": {{"payload": "Zm9v"}}}}"#);
        done(&server, "queue.v1.QueueService/Enqueue", &message);
        done(&server, "queue.v1.QueueService/Dequeue", &format!(r#"{{"queue": "{queue}", "wait": "10s"}}"#));
    }
    let shown = || server.get("/metrics").body.matches("tallystone_queue_ready_messages{queue=").count();
    assert!(eventually(WITHIN, || shown() == 100), "all queues were looked at: {}", shown());
    let page = server.get("/metrics").body;
    let times: usize = lines_of_times(&page).map(|line| line.len() + 1).sum();
    assert!(times * 10 <= (page.len() - times) * 3, "{times} of {}", page.len());
    assert!(!page.contains("_wait_seconds_count{queue=\"idle-"), "those that give leases come first: {page}");
    let waits = |line: &&str| line.starts_with("tallystone_queue_wait_seconds_count");
    let waits: Vec<&str> = lines_of_times(&page).filter(waits).collect();
    assert_eq!(waits.len(), METRIC_QUEUE_TIMES_MAX + 1, "{waits:?}");
    let sum: f64 = waits.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert_eq!(sum, (100 - METRIC_QUEUE_TIMES_MAX) as f64, "nothing is left out: {waits:?}");
}

#[test]
fn a_server_without_reports_says_so() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(&folder.path().join("data")).arg("--set").arg("bridge.enabled=false").start();
    use_it(&server);
    for name in ["active", "report_lag_seconds", "reports_total", "takeovers_total", "waiting_shards"] {
        assert_eq!(metric(&server, &format!("tallystone_bridge_{name}")), 0.0, "{name}");
    }
}

#[test]
fn the_build_and_what_the_process_takes_are_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let page = server.get("/metrics").body;
    let build = format!("\ntallystone_build_info{{version=\"{}\",profile=\"debug\"}} 1\n", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&build), "{page}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let age = now - metric(&server, "process_start_time_seconds");
    assert!((-2.0..120.0).contains(&age), "it was started a moment ago: {age}");
    let cpu = metric(&server, "process_cpu_seconds_total");
    assert!(cpu > 0.0 && cpu < 120.0, "{cpu}");
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it is running");
    let resident = |line: &str| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok();
    let resident = status.lines().find_map(resident).expect("it has memory") * 1024.0;
    let told = metric(&server, "process_resident_memory_bytes");
    assert!((0.5..2.0).contains(&(told / resident)), "{told} of {resident}");
    assert!(metric(&server, "process_virtual_memory_bytes") >= told);
    assert!(metric(&server, "process_threads") > 2.0);
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it is running").count();
    let told = metric(&server, "process_open_fds");
    assert!((told - open as f64).abs() < 8.0, "{told} of {open}");
    assert!(metric(&server, "process_max_fds") >= told);
}
