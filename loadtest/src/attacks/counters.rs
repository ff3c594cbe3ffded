//! Attacks by calls of counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use tallystone_client::proto::admin::v1::{CreateNamespaceRequest, DatasetSettings, Namespace, Storage};
use tallystone_client::proto::counter::v1::{
    AddCountRequest, BatchAddCountsRequest, GetCountRequest, IdempotencyToken, RecountCounterRequest,
    TopCountersRequest, WatchCountsRequest,
};
use tokio::time::{interval, sleep, timeout_at};
use tokio_stream::StreamExt as _;
use tonic::Request;

use super::{Site, flood};
use crate::adds::{self, Aim, StreamShape};
use crate::client::{Connections, Counters, add_item, counter_name, new_token, reason_of};
use crate::load::Span;

/// The namespace of the plain attacks; `dev` makes it.
const NAMESPACE: &str = "default";
const COUNTERS: u64 = 10_000;
const WATCHED: u64 = 100;
const LATE: &str = "attack-late";
const VICTIM: &str = "attack-victim";
const ITEMS: u64 = 1_000;
const CALLS_MAX: u64 = 10_000_000;
const ADDED_WITHIN: Duration = Duration::from_secs(60);
/// Streams of one connection.
const STREAMS: usize = 500;

async fn add_batches(site: &Site, batches: u64, counter: impl Fn(u64) -> u64 + Copy) -> Result<()> {
    let connections = site.connections(2).await?;
    let failed = AtomicU64::new(0);
    let next = AtomicU64::new(0);
    let worker = async |worker: usize| {
        let mut client = connections.counters(worker);
        loop {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch >= batches {
                break;
            }
            let items = (batch * ITEMS..(batch + 1) * ITEMS).map(|item| add_item(counter(item), 1)).collect();
            let mut request = Request::new(BatchAddCountsRequest { namespace: NAMESPACE.to_owned(), items });
            request.set_timeout(ADDED_WITHIN);
            if client.batch_add_counts(request).await.is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    futures_util::future::join_all((0..8).map(worker)).await;
    ensure!(failed.into_inner() == 0, "the counters could not be filled");
    Ok(())
}

/// One counter with many events.
pub async fn fill_one(site: &Site) -> Result<()> {
    add_batches(site, site.events.div_ceil(ITEMS), |_| 0).await
}

/// Many counters.
pub async fn fill_many(site: &Site) -> Result<()> {
    add_batches(site, COUNTERS / ITEMS, |item| item).await
}

/// Recounts one counter again and again.
pub async fn recounts(site: &Site, callers: usize) -> Result<()> {
    let connections = site.connections(4).await?;
    flood(site, callers, CALLS_MAX, |number| {
        let mut client = Counters::new(connections.channel(number as usize));
        async move {
            let request = RecountCounterRequest {
                namespace: NAMESPACE.to_owned(),
                counter_name: counter_name(0),
                ..RecountCounterRequest::default()
            };
            client.recount_counter(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    Ok(())
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// A namespace with slices of 10 s, in a dataset of its name.
pub async fn short_slices(connections: &Connections, name: &str) -> Result<()> {
    namespace_in(connections, name, name).await
}

async fn namespace_in(connections: &Connections, name: &str, dataset: &str) -> Result<()> {
    let namespace = Namespace {
        name: name.to_owned(),
        storage: Some(Storage { dataset: dataset.to_owned(), ..Storage::default() }),
        dataset: Some(DatasetSettings {
            slice_width: seconds(10),
            close_after: seconds(3_600),
            delete_after: seconds(7_200),
            ..DatasetSettings::default()
        }),
        ..Namespace::default()
    };
    let request = CreateNamespaceRequest { namespace: Some(namespace), reason: "an attack".to_owned() };
    connections.catalog().create_namespace(request).await?;
    Ok(())
}

/// Two namespaces of one dataset: one is attacked, the other sees what that does.
pub async fn make_late(site: &Site) -> Result<()> {
    let connections = site.connections(1).await?;
    namespace_in(&connections, LATE, LATE).await?;
    namespace_in(&connections, VICTIM, LATE).await
}

/// Adds with times up to an hour back and almost no time; another namespace of the dataset adds and reads beside.
pub async fn late_adds(site: &Site) -> Result<()> {
    let connections = site.connections(4).await?;
    let attack = flood(site, 32, CALLS_MAX, |number| {
        let mut client = Counters::new(connections.channel(number as usize));
        async move {
            // Spread over the hour by a step that meets each slice.
            let back = Duration::from_secs(number * 37 % 3_500);
            let request = AddCountRequest {
                namespace: LATE.to_owned(),
                counter_name: counter_name(number % 100),
                delta: Some(1),
                idempotency_token: Some(IdempotencyToken {
                    token: format!("late-{number}"),
                    generation_time: Some((SystemTime::now() - back).into()),
                }),
                ..AddCountRequest::default()
            };
            let mut request = Request::new(request);
            request.set_timeout(Duration::from_millis(8 + number % 8));
            client.add_count(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    });
    tokio::join!(attack, victim(site, &connections));
    Ok(())
}

async fn victim(site: &Site, connections: &Connections) {
    let mut client = Counters::new(connections.channel(3));
    let mut ticks = interval(Duration::from_millis(20));
    while !site.is_over() {
        ticks.tick().await;
        let add = AddCountRequest {
            namespace: VICTIM.to_owned(),
            counter_name: "victim".to_owned(),
            delta: Some(1),
            idempotency_token: Some(new_token()),
            ..AddCountRequest::default()
        };
        let added = client.add_count(add).await.map(|_answer| ());
        let get = GetCountRequest {
            namespace: VICTIM.to_owned(),
            counter_name: "victim".to_owned(),
            freshness: tallystone_client::proto::counter::v1::Freshness::UpToDate.into(),
            ..GetCountRequest::default()
        };
        let read = client.get_count(get).await.map(|_answer| ());
        for answer in [added, read] {
            site.tell(
                answer.map_or_else(|status| format!("victim {}", reason_of(&status)), |()| "victim ok".to_owned()),
            );
        }
    }
}

/// Streams of large messages, as fast as they are acknowledged.
pub async fn streams(site: &Site, streams: usize) -> Result<()> {
    let connections = site.connections(1).await?;
    let aim = Aim { namespace: NAMESPACE, first: 0, counters: COUNTERS };
    let shape = StreamShape { streams, items: 1_000, window: 16 };
    let span = Span { warm_up: Duration::ZERO, measure: site.until() - tokio::time::Instant::now() };
    let report = adds::stream(&connections, aim, shape, span).await?;
    site.told.lock().expect("no teller panics").insert("adds".to_owned(), report.done);
    Ok(())
}

/// Watches the same counters, drops them all at once, and begins anew.
pub async fn watches(site: &Site, watches: usize) -> Result<()> {
    while !site.is_over() {
        let connections = site.connections(watches.div_ceil(STREAMS)).await?;
        let open = async |number: usize| {
            let mut client = connections.counters(number);
            let request = WatchCountsRequest {
                namespace: NAMESPACE.to_owned(),
                counter_names: (0..WATCHED).map(counter_name).collect(),
            };
            let opened = timeout_at(site.until(), client.watch_counts(request)).await.ok()?;
            match opened {
                Ok(stream) => {
                    site.tell("watched");
                    Some(stream)
                }
                Err(status) => {
                    site.tell(reason_of(&status));
                    None
                }
            }
        };
        let held = futures_util::future::join_all((0..watches).map(open)).await;
        drop(held);
        drop(connections);
        site.tell("dropped all");
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Rankings from many callers.
pub async fn tops(site: &Site, callers: usize) -> Result<()> {
    let connections = site.connections(4).await?;
    flood(site, callers, CALLS_MAX, |number| {
        let mut client = Counters::new(connections.channel(number as usize));
        async move {
            let request = TopCountersRequest { namespace: NAMESPACE.to_owned(), n: 100 };
            client.top_counters(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    Ok(())
}

/// Datasets with short slices, each of which gets an event now and then.
pub async fn datasets(site: &Site, datasets: usize) -> Result<()> {
    let connections = site.connections(4).await?;
    let mut made = Vec::new();
    let numbers = tokio_stream::iter(0..datasets);
    tokio::pin!(numbers);
    while let Some(number) = numbers.next().await {
        if site.is_over() {
            break;
        }
        let name = format!("attack-set-{number}");
        match short_slices(&connections, &name).await {
            Ok(()) => {
                site.tell("datasets");
                made.push(name);
            }
            Err(error) => site.tell(error.root_cause().to_string().chars().take(60).collect::<String>()),
        }
    }
    let made = &made;
    if made.is_empty() {
        return Ok(());
    }
    flood(site, 8, CALLS_MAX, |number| {
        let mut client = Counters::new(connections.channel(number as usize));
        let namespace = made[number as usize % made.len()].clone();
        async move {
            let request = AddCountRequest {
                namespace,
                counter_name: "one".to_owned(),
                delta: Some(1),
                idempotency_token: Some(new_token()),
                ..AddCountRequest::default()
            };
            client.add_count(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    Ok(())
}
