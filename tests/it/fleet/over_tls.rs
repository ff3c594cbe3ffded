//! Servers of a fleet that tell each other of their writes by TLS, each with a certificate that the others ask for.

use std::path::Path;
use std::time::Duration;

use crate::servers::cassandra::shared;
use crate::support::certificates::{Authority, Pair};
use crate::support::harness::{Launch, Server, eventually};

const WITHIN: Duration = Duration::from_secs(90);
const KEYSPACE: &str = "over_tls";

fn start(role: &str, pair: &Pair, authority: &Authority, peers: &Path) -> Server {
    let node = shared().unwrap_or_else(|why| panic!("{why}"));
    let settings = [
        format!("clusters.cassandra.keyspace={KEYSPACE}"),
        format!("tls.cert_file={}", pair.cert.display()),
        format!("tls.key_file={}", pair.key.display()),
        "tls.client_auth=required".to_owned(),
        format!("tls.client_ca_file={}", authority.file.display()),
        format!("tls.peer_ca_file={}", peers.display()),
    ];
    let launch = Launch::dev_on_cassandra(node).arg("--roles").arg(role);
    settings.iter().fold(launch, |launch, setting| launch.arg("--set").arg(setting)).start()
}

/// Runs curl with the certificate of a client; answers what it printed.
fn curl(server: &Server, authority: &Authority, pair: &Pair, path: &str, body: Option<&str>) -> String {
    let mut command = std::process::Command::new("curl");
    command.args(["-sS", "-m", "30", "--cacert"]).arg(&authority.file).arg("--cert").arg(&pair.cert);
    command.arg("--key").arg(&pair.key).args(["-H", "content-type: application/json"]);
    if let Some(body) = body {
        command.args(["-d", body]);
    }
    let ran = command.arg(format!("https://{}{path}", server.address)).output().expect("curl is installed");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
fn signals_reach_a_roller_by_tls_and_none_that_is_not_trusted() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let pair = authority.local("server");
    let roller = start("roller", &pair, &authority, &authority.file);
    let writer = start("writer", &pair, &authority, &authority.file);
    let distrustful = start("writer", &pair, &authority, &stranger.file);
    let metric = |server: &Server, name: &str| -> f64 {
        let page = curl(server, &authority, &pair, "/metrics", None);
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in:\n{page}"))
    };
    let add = |server: &Server| {
        let body = r#"{"namespace": "default", "counter_name": "views", "delta": 1}"#;
        curl(server, &authority, &pair, "/tallystone.counter.v1.CounterService/AddCount", Some(body));
    };
    let (sent, dropped) = ("tallystone_rollup_signals_sent_total", "tallystone_rollup_signals_dropped_total");
    let is_sent = || {
        add(&writer);
        metric(&writer, sent) > 0.0
    };
    assert!(eventually(WITHIN, is_sent), "{}", writer.printed());
    assert!(metric(&roller, "tallystone_rollup_signals_taken_total") > 0.0, "{}", roller.printed());
    let is_dropped = || {
        add(&distrustful);
        metric(&distrustful, dropped) > 0.0
    };
    assert!(eventually(WITHIN, is_dropped), "{}", distrustful.printed());
    assert_eq!(metric(&distrustful, sent), 0.0, "{}", distrustful.printed());
}
