//! A Redis that comes back empty: its queues are refused until an operator deletes them.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::memory;
use tallystone::adapters::redis::client::FunctionLibrary;
use tallystone::adapters::redis::{ClientWire, QueueLibrary, RedisQueueOptions, RedisQueues};
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::domain::queue::QueueName;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::driver::Driver;
use tallystone::engine::queues::{DeletionRequest, DequeueRequest, QueueDraft, QueueError, Queues, SentMessage};
use tallystone::ports::QueueStores;

use super::{eventually, open_with, options, single};
use crate::servers::redis::{Build, RedisServer, or_skip};

fn name() -> QueueName {
    QueueName::new("mail").expect("a name")
}

fn author() -> Author {
    Author { actor: "test".to_owned(), reason: String::new() }
}

async fn enqueue(queues: &Queues) -> Result<(), QueueError> {
    let caller = CallerId::of_address([192, 0, 2, 1].into());
    queues.work.enqueue(&caller, &name(), SentMessage::default()).await.map(drop)
}

/// A server of queues on Redis, with its catalog elsewhere.
async fn queues_on(server: &RedisServer) -> (Queues, Driver) {
    let clock = Arc::new(SystemClock);
    let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
    let mut options = options(single(server));
    options.library = FunctionLibrary { name, code };
    let wire = Arc::new(ClientWire::new(open_with(options).await));
    let slack = Duration::from_secs(2);
    let options = RedisQueueOptions { epoch: 1, clock_slack: slack, outbox_entries: 100, durability: None };
    let shards = RedisQueues::new(wire, clock.clone(), options);
    let stores = QueueStores::of(shards, memory::queue_stores(clock.clone()).catalog);
    let driver = Driver::new(clock.clone());
    let started = Queues::start(stores, clock, Arc::new(SystemEntropy), driver.clone(), Arc::default()).await;
    (started.expect("it starts"), driver)
}

/// Whether a call was refused because the store has lost the queue.
fn is_lost(answer: Result<(), QueueError>) -> bool {
    let Err(QueueError::Store(error)) = answer else { return false };
    error.source().is_some_and(|why| why.to_string().contains("STORE_LOST"))
}

#[tokio::test]
async fn a_lost_queue_is_refused_until_an_operator_deletes_it() {
    let Some(mut server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let (queues, driver) = queues_on(&server).await;
    queues.catalog.create(QueueDraft::of(name()), author()).await.expect("created");
    enqueue(&queues).await.expect("enqueued");
    server.restart_empty().expect("it starts");
    eventually("the loss is told", async || is_lost(enqueue(&queues).await)).await;
    let ask = DequeueRequest { max: 1, ..DequeueRequest::default() };
    assert!(
        is_lost(queues.work.dequeue(&name(), ask).await.map(drop)),
        "nobody takes an empty store for an empty queue"
    );
    let deletion = DeletionRequest { name: name(), id: None, expected: None, token: None };
    assert_eq!(queues.catalog.delete(deletion, author()).await.expect("the operator gives it up"), 0);
    queues.catalog.create(QueueDraft::of(name()), author()).await.expect("created anew");
    enqueue(&queues).await.expect("enqueued");
    driver.abandon().await;
}
