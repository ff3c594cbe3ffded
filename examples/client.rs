//! Counts with the client library: adds that count once, a read that never goes back, and what to do when an add fails.
//!
//! ```text
//! cargo run -- dev                                                            # in one terminal
//! cargo run --package tallystone-client --example client -- 127.0.0.1:7450    # in another; name more servers if there are any
//! ```

use std::error::Error;
use std::time::Duration;

use tallystone_client::proto::counter::v1::{AddCountRequest, CheckTokenRequest, Freshness, GetCountRequest, Verdict};
use tallystone_client::{Client, RetryPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    println!("views: {}", count_a_view(&addresses).await?);
    Ok(())
}

/// Adds one view and reads how many there are.
pub async fn count_a_view(addresses: &[&str]) -> Result<i64, Box<dyn Error>> {
    // A server that hangs is left after a second; a call that is slow is asked of the next server too.
    let policy = RetryPolicy {
        attempt_max: Duration::from_secs(1),
        hedge_after: Some(Duration::from_millis(200)),
        ..RetryPolicy::default()
    };
    let client = Client::of(addresses, policy)?;
    let add = AddCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        delta: Some(1),
        ..AddCountRequest::default()
    };
    if let Err(failed) = client.add_count(add).await {
        if !failed.error.may_be_applied {
            return Err(failed.into());
        }
        // Nobody knows whether it counted, but its token does, for ever.
        let question = CheckTokenRequest {
            namespace: "default".to_owned(),
            counter_name: "views".to_owned(),
            idempotency_token: Some(failed.token.clone()),
        };
        if client.check_token(question).await?.verdict() != Verdict::Applied {
            return Err(failed.into());
        }
    }
    let read = GetCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        freshness: Freshness::UpToDate.into(),
        ..GetCountRequest::default()
    };
    Ok(client.get_count(read).await?.count)
}
