//! The share of watches that one caller has: whoever fills it up takes nobody else's.

use std::net::{IpAddr, Ipv4Addr};

use futures_util::StreamExt;
use tallystone::domain::limits::{CALLER_WATCHES_MAX, CONNECTION_CALLS_MAX};
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone::proto::counter::v1::{WatchCountsRequest, WatchCountsResponse};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_types::StatusExt;

use super::Wire;

/// Connects from an address of this machine.
async fn connect(server: &Wire, from: [u8; 4]) -> CounterServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).expect("a valid address");
    let endpoint = endpoint.local_address(Some(IpAddr::from(Ipv4Addr::from(from))));
    CounterServiceClient::new(endpoint.connect().await.expect("the server takes connections"))
}

async fn watch(client: &mut CounterServiceClient<Channel>) -> Result<Streaming<WatchCountsResponse>, Status> {
    let request = WatchCountsRequest { namespace: "shop".to_owned(), counter_names: vec!["views".to_owned()] };
    Ok(client.watch_counts(request).await?.into_inner())
}

#[tokio::test]
async fn a_caller_that_watches_as_much_as_one_may_is_refused_and_others_are_not() {
    let server = Wire::start().await;
    let mut watches = Vec::new();
    while watches.len() < CALLER_WATCHES_MAX {
        let mut client = connect(&server, [127, 0, 0, 2]).await;
        for _ in 0..(CONNECTION_CALLS_MAX as usize / 2).min(CALLER_WATCHES_MAX - watches.len()) {
            watches.push(watch(&mut client).await.expect("room"));
        }
    }
    let mut client = connect(&server, [127, 0, 0, 2]).await;
    let refused = watch(&mut client).await.expect_err("one too many");
    let details = refused.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("RETRY_LATER"), "{refused}");
    assert!(refused.message().contains("CALLER_WATCHES_MAX"), "{refused}");
    let mut other = connect(&server, [127, 0, 0, 3]).await;
    let mut shown = watch(&mut other).await.expect("another caller has a share of its own");
    assert!(shown.next().await.expect("the present value").is_ok());
    drop(watches);
    let mut again = watch(&mut client).await;
    while again.is_err() {
        // The server hears of each end by itself.
        tokio::task::yield_now().await;
        again = watch(&mut client).await;
    }
}
