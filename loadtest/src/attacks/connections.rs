//! Connections that are held, and what is left for others.

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tallystone_client::proto::counter::v1::{AddCountRequest, BatchAddCountsRequest};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout_at};

use super::{Site, counters, flood, raw};
use crate::client::{Counters, add_item, counter_name, new_token, reason_of};

/// Descriptors that this program keeps for other things than connections.
const KEPT: u64 = 200;
const WINDOW: u32 = 65_535;

/// Takes as many descriptors as this process may have.
pub fn raise_descriptors() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Opens connections and keeps them in `tasks`; answers their senders, without which they would close.
async fn hold(site: &Site, count: usize, tasks: &mut JoinSet<()>) -> Vec<h2::client::SendRequest<bytes::Bytes>> {
    let mine = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(KEPT);
    let count = count.min(usize::try_from(mine).unwrap_or(usize::MAX));
    let mut held = Vec::new();
    for _ in 0..count {
        match timeout_at(site.until(), raw::connect(site, WINDOW, tasks)).await {
            Ok(Ok(sender)) => {
                held.push(sender);
                site.tell("connected");
            }
            Ok(Err(_)) => site.tell("refused"),
            Err(_elapsed) => break,
        }
    }
    held
}

/// Holds connections that never call.
pub async fn idle(site: &Site, count: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    let _held = hold(site, count, &mut tasks).await;
    sleep_until(site.until()).await;
    Ok(())
}

/// Holds connections while others add.
pub async fn beside_adds(site: &Site, count: usize, adds: u64) -> Result<()> {
    let connections = site.connections(4).await?;
    let mut tasks = JoinSet::new();
    let held = async {
        let held = hold(site, count, &mut tasks).await;
        sleep_until(site.until()).await;
        drop(held);
    };
    let adding = flood(site, 64, adds, |number| {
        let mut client = Counters::new(connections.channel(number as usize));
        async move {
            let request = AddCountRequest {
                namespace: "default".to_owned(),
                counter_name: counter_name(number),
                delta: Some(1),
                idempotency_token: Some(new_token()),
                ..AddCountRequest::default()
            };
            client.add_count(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    });
    tokio::join!(held, adding);
    Ok(())
}

/// Holds connections while batches go to datasets that need files of their own.
pub async fn refused_batches(site: &Site, count: usize) -> Result<()> {
    const BATCHES: u64 = 20_000;
    const DATASETS: usize = 200;
    let connections = site.connections(4).await?;
    let mut tasks = JoinSet::new();
    let held = async {
        let held = hold(site, count, &mut tasks).await;
        sleep_until(site.until()).await;
        drop(held);
    };
    let batches = async {
        for number in 0..DATASETS {
            if site.is_over() || counters::short_slices(&connections, &format!("attack-set-{number}")).await.is_err() {
                break;
            }
        }
        flood(site, 16, BATCHES, |number| {
            let mut client = Counters::new(connections.channel(number as usize));
            let namespace = format!("attack-set-{}", number as usize % DATASETS);
            async move {
                let items = (0..1_000).map(|item| add_item(item, 1)).collect();
                let answer = client.batch_add_counts(BatchAddCountsRequest { namespace, items }).await;
                let answer = answer.map_err(|status| reason_of(&status))?.into_inner();
                match answer.results.iter().find_map(|result| result.error.as_ref()) {
                    Some(error) => Err(format!("item {}", error.reason)),
                    None => Ok(()),
                }
            }
        })
        .await;
    };
    tokio::join!(held, batches);
    Ok(())
}
