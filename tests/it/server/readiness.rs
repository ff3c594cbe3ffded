//! Whether a server says it is ready when it is, on a real Cassandra that stops answering and goes on.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tallystone::adapters::cassandra::schema::MIGRATIONS;
use tokio_stream::StreamExt as _;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, Serving};
use tonic_health::pb::health_client::HealthClient;

use crate::engines::cassandra::{beside_with_node, node, query};
use crate::fleet::several_servers::{add_to, metric, metric_of};
use crate::servers::lent_node::lent_node;
use crate::support::beside;
use crate::support::harness::{Launch, PATIENCE, Server, eventually};

pub const COUNTERS: &str = "tallystone.counter.v1.CounterService";
pub const NAMESPACES: &str = "tallystone.admin.v1.NamespaceService";
pub const QUEUES: &str = "tallystone.queue.v1.QueueService";
const ADD: &str = "/tallystone.counter.v1.CounterService/AddCount";
const ADD_ONE: &str = r#"{"namespace": "default", "counter_name": "views", "delta": 1}"#;
/// How soon a server says that its store is away, and that it is back.
pub const AWAY_WITHIN: Duration = Duration::from_secs(15);
pub const BACK_WITHIN: Duration = Duration::from_secs(10);
/// A lease and what is needed to see that it has lapsed.
const LAPSED_WITHIN: Duration = Duration::from_secs(90);

/// What gRPC health says of a service, again and again as it changes.
pub struct Watched {
    changes: tonic::Streaming<tonic_health::pb::HealthCheckResponse>,
}

impl Watched {
    pub async fn of(address: SocketAddr, service: &str) -> Self {
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
        let mut client = HealthClient::new(channel.connect().await.expect("it takes connections"));
        let request = HealthCheckRequest { service: service.to_owned() };
        Self { changes: client.watch(request).await.expect("a watch begins").into_inner() }
    }

    /// The next status that is pushed within a time; none if there is none.
    pub async fn next(&mut self, within: Duration) -> Option<ServingStatus> {
        let next = tokio::time::timeout(within, self.changes.next()).await.ok()?;
        Some(next.expect("it has no end").expect("it goes on").status())
    }
}

/// What gRPC health says of a service at this moment.
pub async fn health(address: SocketAddr, service: &str) -> ServingStatus {
    Watched::of(address, service).await.next(PATIENCE).await.expect("the present status")
}

/// Runs a command on a server; answers its exit code and what it printed to stderr.
fn run(server: &Server, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(arguments).args(["--server", &server.address.to_string()]);
    let output = command.output().expect("the binary of this build starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("nobody kills it"), printed)
}

fn wait_ready(server: &Server, timeout: &str) -> (i32, String) {
    run(server, &["server", "wait-ready", "--timeout", timeout])
}

fn is_ready(server: &Server) -> bool {
    server.get("/readyz").status == 200
}

#[test]
fn a_server_whose_cassandra_does_not_answer_says_so_and_is_ready_again_soon_after_it_does() {
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let server =
        Launch::dev_on_cassandra(node.address()).arg("--set").arg("clusters.cassandra.keyspace=silent").start();
    let address = server.address;
    add_to(&server, "default", "views", 1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let [mut counters, mut whole, mut queues] =
        [COUNTERS, "", QUEUES].map(|service| runtime.block_on(Watched::of(address, service)));
    let next = |watched: &mut Watched, within| runtime.block_on(watched.next(within));
    for watched in [&mut counters, &mut whole, &mut queues] {
        assert_eq!(next(watched, PATIENCE), Some(Serving));
    }

    node.pause();
    let paused = Instant::now();
    let yardstick = beside(&server);
    yardstick.comes(paused, AWAY_WITHIN, "it is not ready", || !is_ready(&server));
    let said = server.get("/readyz").body;
    assert!(said.contains("keyspace silent of Cassandra at 127.0.0.1:"), "{said}");
    assert!(said.contains("has not answered since 20"), "{said}");
    for watched in [&mut counters, &mut whole] {
        assert_eq!(next(watched, PATIENCE), Some(NotServing));
        yardstick.holds(paused, AWAY_WITHIN, "it is pushed");
    }
    assert_eq!(runtime.block_on(health(address, NAMESPACES)), NotServing);
    // A server on Cassandra keeps no queues, and tells all who ask for one, whether Cassandra answers or not.
    assert_eq!(runtime.block_on(health(address, QUEUES)), Serving);
    let (code, printed) = wait_ready(&server, "1s");
    assert!(code == 5 && printed.contains("was not ready within"), "{code}: {printed}");
    let (code, printed) = run(&server, &["status"]);
    assert!(code == 5 && printed.contains("counters are not served: keyspace silent"), "{code}: {printed}");
    assert_eq!(server.get("/healthz").status, 200);
    let ready = |server: &Server, service| metric_of(server, "tallystone_ready", &format!("service=\"{service}\""));
    assert_eq!((ready(&server, COUNTERS), ready(&server, QUEUES)), (0.0, 1.0));
    assert!(metric_of(&server, "tallystone_store_silent_seconds", "store=\"silent\"") >= 8.0);
    // What is not ready is asked all the same.
    let tried = server.post_briefly(ADD, ADD_ONE);
    assert!(tried.status >= 500, "{} {}", tried.status, tried.body);

    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let (resumed, yardstick) = (Instant::now(), beside_with_node(&server, node.address()));
    yardstick.comes(resumed, BACK_WITHIN, "it is ready again", || is_ready(&server));
    for watched in [&mut counters, &mut whole] {
        assert_eq!(next(watched, PATIENCE), Some(Serving));
    }
    assert_eq!(wait_ready(&server, "60s"), (0, String::new()));
    let all_is_well = || run(&server, &["status"]).0 == 0;
    assert!(eventually(LAPSED_WITHIN, all_is_well), "{:?}", run(&server, &["status"]));
    assert_eq!(next(&mut queues, Duration::ZERO), None, "nothing has changed for queues");
    add_to(&server, "default", "views", 1);
    assert!(server.stop().success());
}

#[test]
fn a_server_that_has_lapsed_as_a_member_of_its_fleet_is_not_ready_until_it_is_one_again() {
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let server =
        Launch::dev_on_cassandra(node.address()).arg("--set").arg("clusters.cassandra.keyspace=lapsed").start();
    add_to(&server, "default", "views", 1);
    node.pause();
    let has_lapsed = || server.get("/readyz").body.contains("has not been a member of its fleet since 20");
    assert!(eventually(LAPSED_WITHIN, has_lapsed), "{}\n{}", server.get("/readyz").body, server.printed());
    // The store was last told at least a lease ago, and both lags say so by the clock alone.
    let [staleness, closed_lag] = ["tallystone_dataset_staleness_seconds", "tallystone_closed_lag_seconds"];
    for lag in [staleness, closed_lag] {
        let before = metric(&server, lag);
        assert!(before >= 28.0, "{lag} {before}");
        assert!(eventually(PATIENCE, || metric(&server, lag) >= before + 1.0), "{lag} grows beyond {before}");
    }
    assert_eq!(metric(&server, "tallystone_fleet_members"), 0.0, "nobody here knows how many there are");
    assert_eq!(metric(&server, "tallystone_fleet_lease_seconds"), 0.0);
    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let yardstick = beside_with_node(&server, node.address());
    yardstick.comes(Instant::now(), BACK_WITHIN, "it is ready again", || is_ready(&server));
    let tried = server.post(ADD, ADD_ONE).body;
    assert!(!tried.contains("member") && !tried.contains("still joining"), "it writes again when it says so: {tried}");
    add_to(&server, "default", "views", 1);
    for lag in [staleness, closed_lag] {
        assert!(eventually(LAPSED_WITHIN, || metric(&server, lag) < 15.0), "{lag} {}", metric(&server, lag));
    }
    let is_alone = || metric(&server, "tallystone_fleet_members") == 1.0;
    assert!(eventually(LAPSED_WITHIN, is_alone), "{}", metric(&server, "tallystone_fleet_members"));
    assert!(server.stop().success());
}

#[test]
fn a_keyspace_that_answers_without_its_tables_is_not_ready_until_it_has_them_again() {
    const KEYSPACE: &str = "dropped_tables";
    let server =
        Launch::dev_on_cassandra(node()).arg("--set").arg("clusters.cassandra.keyspace=dropped_tables").start();
    add_to(&server, "default", "views", 1);
    let is_told = |words: &str| {
        let told = || server.get("/readyz");
        let is_so = || told().status == 503 && told().body.contains(words);
        assert!(eventually(LAPSED_WITHIN, is_so), "{words}: {:?}", told());
        let sentence = format!("has lost what it had: STORE_LOST: {words}");
        let (code, printed) = run(&server, &["status"]);
        assert!(code == 5 && printed.contains(&sentence), "{code}: {printed}");
        server.wait_for_line(&sentence);
    };
    let execute = |text: &str| query(&node().to_string(), None, text);
    execute(&format!("DROP TABLE {KEYSPACE}.history_gaps"));
    is_told("the tables history_gaps were dropped; restore a snapshot");
    let all = MIGRATIONS.iter().flat_map(|migration| migration.statements(KEYSPACE));
    all.filter(|text| text.contains(".history_gaps ")).for_each(|text| execute(&text));
    assert!(eventually(LAPSED_WITHIN, || is_ready(&server)), "{:?}", server.get("/readyz"));
    execute(&format!("TRUNCATE {KEYSPACE}.catalog"));
    is_told("the store has lost its catalog.");
    execute(&format!("DROP KEYSPACE {KEYSPACE}"));
    is_told("the keyspace or all of its tables were dropped; restore a snapshot");
}
