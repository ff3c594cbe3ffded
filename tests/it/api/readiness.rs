//! Health by service where counters and queues are kept in different stores.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tallystone::adapters::cassandra::{Cassandra, Options};
use tallystone::adapters::embedded;
use tallystone::adapters::memory::FastTable;
use tallystone::adapters::system::SystemClock;
use tallystone::app::server::readiness::{Readiness, ServicesOfStore};
use tallystone::ports::{Clock, StoreHandle};
use tonic_health::pb::health_check_response::ServingStatus::{NotServing, Serving};

use super::{DRAIN_DEADLINE, Wire};
use crate::engines::cassandra::{patience, run, settings};
use crate::server::readiness::{AWAY_WITHIN, BACK_WITHIN, COUNTERS, QUEUES, Watched, health};
use crate::servers::cassandra::read_a_row;
use crate::servers::lent_node::lent_node;
use crate::support::harness::{PATIENCE, http};
use crate::support::yardstick::Yardstick;

const COUNTERS_ALONE: ServicesOfStore = ServicesOfStore { counters: true, queues: false };
const QUEUES_ALONE: ServicesOfStore = ServicesOfStore { counters: false, queues: true };

async fn keyspace(node: &str, clock: &Arc<dyn Clock>) -> Arc<Cassandra> {
    let options = Options {
        servers: vec![node.to_owned()],
        keyspace: "beside_queues".to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: std::time::Duration::from_secs(2),
    };
    Arc::new(Cassandra::open(&options, None, Arc::clone(clock), &patience()).await.expect("the keyspace opens"))
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_another_store_are_served_and_say_so_while_cassandra_is_away() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (mut node, made) = tokio::task::block_in_place(|| {
        let node = lent_node().unwrap_or_else(|why| panic!("{why}"));
        let made = run(&["migrate", "apply"], &settings(&node.address().to_string(), "beside_queues"));
        (node, made)
    });
    assert_eq!(made.0, 0, "{}", made.1);
    let keyspace = keyspace(&node.address().to_string(), &clock).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let embedded = Arc::new(embedded::open(embedded::Options::new(folder.path())).expect("a new store opens"));
    let stores = keyspace.stores(Arc::new(FastTable::new(Arc::clone(&clock), 1 << 20)));
    let queue_stores = embedded.queue_stores(Arc::clone(&clock));
    let mut server = Wire::bind_to(stores, queue_stores, DRAIN_DEADLINE, Arc::clone(&clock)).await;
    server.open().await;
    let asked: [(Arc<dyn StoreHandle>, ServicesOfStore); 2] =
        [(keyspace, COUNTERS_ALONE), (Arc::clone(&embedded) as Arc<dyn StoreHandle>, QUEUES_ALONE)];
    let readiness = Readiness::new(asked, Arc::clone(&server.engine), clock);
    let gateway = Arc::clone(&server.gateway);
    let judging = tokio::spawn(async move { readiness.run(&gateway).await });
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    let mut counters = Watched::of(server.address, COUNTERS).await;
    let mut queues = Watched::of(server.address, QUEUES).await;
    assert_eq!((counters.next(PATIENCE).await, queues.next(PATIENCE).await), (Some(Serving), Some(Serving)));

    let address = server.address;
    // Whatever comes, it took its time.
    let empty_call = move || drop(http(address, "GET", "/healthz", &[], ""));
    node.pause();
    let (paused, yardstick) = (Instant::now(), Yardstick::of(empty_call));
    assert_eq!(counters.next(PATIENCE).await, Some(NotServing));
    yardstick.holds(paused, AWAY_WITHIN, "it is pushed");
    assert_eq!((health(server.address, QUEUES).await, health(server.address, "").await), (Serving, NotServing));
    let page = server.http("GET", "/readyz", &[], "").await;
    assert_eq!(page.status, 503);
    let away = format!(
        "counters are not served: keyspace beside_queues of Cassandra at {} has not answered since",
        node.address()
    );
    assert!(page.body.contains(&away) && !page.body.contains("queues are not served"), "{}", page.body);
    server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "a", "payload": "aGVsbG8="}})).await;
    let taken = server.done("Dequeue", json!({"queue": "mail"})).await;
    assert_eq!(taken["leases"][0]["message"]["messageId"], "a", "{taken}");

    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let at = node.address();
    let empty_calls = move || {
        empty_call();
        drop(read_a_row(at));
    };
    let (resumed, yardstick) = (Instant::now(), Yardstick::of(empty_calls));
    assert_eq!(counters.next(PATIENCE).await, Some(Serving));
    yardstick.holds(resumed, BACK_WITHIN, "that it is back is pushed");
    assert_eq!(server.http("GET", "/readyz", &[], "").await.status, 200);
    assert_eq!(queues.next(std::time::Duration::ZERO).await, None, "nothing has changed for queues");
    judging.abort();
    server.stop.cancel();
}
