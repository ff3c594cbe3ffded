//! Rollup signals are taken from members of the fleet only, on a real Cassandra.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::cassandra::Options;
use tallystone::adapters::memory::FastTable;
use tallystone::adapters::system::SystemClock;
use tallystone::domain::fleet::{FleetSecret, Heartbeat, SECRET_BYTES};
use tallystone::ports::Clock;
use tallystone::proto::SECRET_METADATA;
use tallystone::proto::internal::v1::rollup_signal_service_client::RollupSignalServiceClient;
use tallystone::proto::internal::v1::{RollupSignal, SignalRollupsRequest};
use tokio::runtime::Runtime;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::engines::cassandra::open_patiently;
use crate::fleet::several_servers::{add_to, metric};
use crate::servers::cassandra::shared;
use crate::support::harness::{Launch, Server, eventually};
use crate::support::patience::patient_channel;

const KEYSPACE: &str = "strangers";
const WITHIN: Duration = Duration::from_secs(90);

fn start_on(keyspace: &str) -> Server {
    let node = shared().unwrap_or_else(|why| panic!("{why}"));
    Launch::dev_on_cassandra(node).arg("--set").arg(&format!("clusters.cassandra.keyspace={keyspace}")).start()
}

/// The heartbeats of the fleet, as whoever may read its keyspace finds them.
async fn beats() -> Vec<Heartbeat> {
    let options = Options {
        servers: vec![shared().unwrap_or_else(|why| panic!("{why}")).to_string()],
        keyspace: KEYSPACE.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: Duration::from_secs(10),
    };
    let clock = Arc::new(SystemClock);
    let opened = open_patiently(&options).await;
    let fleet = opened.stores(Arc::new(FastTable::new(clock, 1 << 20))).fleet.expect("several servers may share it");
    let members = fleet.members.members().await.expect("it answers");
    opened.close().await;
    members.into_iter().map(|(_, beat)| beat).collect()
}

/// Sends one signal with this as the secret; answers how many counters were taken.
async fn signal(server: &Server, secret: Option<&[u8]>) -> Result<u32, Status> {
    let now = SystemClock.now().micros();
    let signal = RollupSignal {
        namespace_id: 1,
        counter_name: "views".to_owned(),
        oldest_event_micros: now,
        newest_event_micros: now,
    };
    let mut request = Request::new(SignalRollupsRequest { signals: vec![signal] });
    if let Some(secret) = secret {
        request.metadata_mut().insert_bin(SECRET_METADATA, MetadataValue::from_bytes(secret));
    }
    let mut client = RollupSignalServiceClient::new(patient_channel(&server.url()).await);
    client.signal_rollups(request).await.map(|answer| answer.into_inner().taken)
}

fn is_refused(answer: &Result<u32, Status>) -> bool {
    let Err(status) = answer else { return false };
    let reason = status.get_details_error_info().map(|info| info.reason);
    status.code() == Code::PermissionDenied && reason.as_deref() == Some("NOT_A_MEMBER")
}

#[test]
fn a_signal_is_taken_with_the_secret_of_a_member_and_from_nobody_else() {
    let (one, other) = (start_on(KEYSPACE), start_on(KEYSPACE));
    add_to(&one, "default", "views", 1);
    let are_two = || [&one, &other].iter().all(|server| metric(server, "tallystone_fleet_members") == 2.0);
    assert!(eventually(WITHIN, are_two), "{}", one.printed());
    let runtime = Runtime::new().expect("a runtime");
    let secrets: Vec<FleetSecret> = runtime
        .block_on(beats())
        .into_iter()
        .map(|beat| beat.secret.expect("a server of this build has one"))
        .collect();
    assert_eq!(secrets.len(), 2);
    assert_ne!(secrets[0], secrets[1], "each process has its own");
    let mut nearly = secrets[0].0;
    nearly[SECRET_BYTES - 1] ^= 1;
    let longer = [secrets[0].0.as_slice(), &[0]].concat();
    let wrong: [Option<&[u8]>; 6] =
        [None, Some(&[]), Some(&[0; SECRET_BYTES]), Some(&nearly), Some(&secrets[0].0[1..]), Some(&longer)];
    for server in [&one, &other] {
        for secret in wrong {
            let answer = runtime.block_on(signal(server, secret));
            assert!(is_refused(&answer), "{secret:?}: {answer:?}");
        }
        for secret in &secrets {
            let answer = runtime.block_on(signal(server, Some(&secret.0)));
            assert!(answer.as_ref().is_ok_and(|taken| *taken == 1), "{answer:?}");
        }
    }
    // The gateway takes JSON for this service from nobody.
    let path = "/tallystone.internal.v1.RollupSignalService/SignalRollups";
    let answer = one.post(path, r#"{"signals": [{"namespace_id": "1", "counter_name": "views"}]}"#);
    assert!([403, 404].contains(&answer.status), "{} {}", answer.status, answer.body);
    assert!(other.stop().success());
    let taken = |secret: &FleetSecret| runtime.block_on(signal(&one, Some(&secret.0))).is_ok();
    let is_one_left = || secrets.iter().filter(|secret| taken(secret)).count() == 1;
    assert!(eventually(WITHIN, is_one_left), "the secret of a member that has left is good no more");
    assert!(one.stop().success());
}

#[test]
fn a_server_without_a_secret_counts_right_among_those_that_have_one() {
    let server = start_on("secretless");
    let node = shared().unwrap_or_else(|why| panic!("{why}"));
    // The first heartbeat of a roller at an address where nobody is, as a build writes it that knows no secrets.
    let beat = "0x08011801220b3132372e302e302e313a31";
    let row = format!(
        "UPDATE secretless.members USING TIMESTAMP 1 SET beat = {beat} WHERE slot = 0 AND member = 0b6f2c1e-7d3a-4e58-9c41-5a2f8d9e1b71"
    );
    crate::engines::cassandra::query(&node.to_string(), None, &row);
    let is_seen = || metric(&server, "tallystone_fleet_members") == 2.0;
    assert!(eventually(WITHIN, is_seen), "{}", server.printed());
    let runtime = Runtime::new().expect("a runtime");
    let answer = runtime.block_on(signal(&server, Some(&[])));
    assert!(is_refused(&answer), "an empty secret is not that of a member without one: {answer:?}");
    add_to(&server, "default", "views", 5);
    let body = r#"{"namespace": "default", "counter_name": "views", "freshness": "ROLLED_UP"}"#;
    let path = "/tallystone.counter.v1.CounterService/GetCount";
    let is_rolled_up = || server.post(path, body).json()["count"] == "5";
    assert!(eventually(WITHIN, is_rolled_up), "{}", server.printed());
}
