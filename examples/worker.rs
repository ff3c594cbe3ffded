//! A queue with the client library: typed messages in, a worker that works them off, and an end in two phases.
//!
//! ```text
//! cargo run -- dev                                                            # in one terminal
//! cargo run --package tallystone-client --example worker -- 127.0.0.1:7450    # in another
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tallystone_client::proto::queue::v1 as pb;
use tallystone_client::queues::{Job, Message, Outcome, Queue, Shutdown};
use tallystone_client::{Client, RetryPolicy};

/// What a message of the queue holds.
#[derive(Serialize, Deserialize)]
pub struct Order {
    /// Whose it is.
    pub customer: String,
    /// What is to be paid.
    pub cents: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    println!("paid: {} cents", work_off(&addresses).await?);
    Ok(())
}

/// Takes in three orders, works off all there are, and answers what was paid.
pub async fn work_off(addresses: &[&str]) -> Result<u64, Box<dyn Error>> {
    let client = Client::of(addresses, RetryPolicy::default())?;
    let queue = pb::Queue { name: "orders".to_owned(), ..Default::default() };
    let create = pb::CreateQueueRequest { queue: Some(queue), ..Default::default() };
    // Settings of a queue are many, so the call is kept off the stack.
    let created = Box::pin(client.retried(&create, |request| {
        let mut queues = client.queues();
        async move { queues.create_queue(request).await }
    }));
    created.await?;
    let orders: Queue<Order> = client.queue("orders");
    for (customer, cents) in [("ann", 250), ("bob", 100), ("ann", 50)] {
        let order = Order { customer: customer.to_owned(), cents };
        // The id is made here and stays over retries, so an order is taken in once.
        orders.send(Message::new(&order)?.metadata("customer", customer).max_attempts(5)).await?;
    }

    let paid = Arc::new(AtomicU64::new(0));
    let worker = orders.worker().concurrency(4).session_lease(Duration::from_secs(15)).until_empty();
    let shutdown = Shutdown::default();
    // A service would call `shutdown.stop_leasing()` at its first SIGTERM and `shutdown.abort_jobs()` at the second.
    let total = Arc::clone(&paid);
    let pay = move |order: Order, job: Job| {
        let total = Arc::clone(&total);
        async move {
            if order.cents == 0 {
                return Outcome::failed("no amount", job.message().message_id.clone());
            }
            total.fetch_add(order.cents, Ordering::Relaxed);
            Outcome::Complete
        }
    };
    Box::pin(orders.run(&worker, pay, &shutdown)).await?;
    Ok(paid.load(Ordering::Relaxed))
}
