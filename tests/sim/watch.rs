//! Looks at the replicas themselves while a run goes on: no watermark passes an acknowledged event that is in no
//! checkpoint.

use std::time::Duration;

use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, NamespaceId};

use crate::client::{COUNTERS, name_of};
use crate::cluster::Cluster;
use crate::cql::Datum;
use crate::ledger::Ledger;
use crate::world::World;

/// The one namespace and the one dataset of a run.
const NAMESPACE: NamespaceId = NamespaceId(1);
const DATASET: i64 = 1;
/// How often it looks.
const LOOK: Duration = Duration::from_secs(2);

/// Looks until a time.
pub async fn watch(world: World, cluster: Cluster, ledger: Ledger, until: Duration) {
    let mut last: [Timestamp; COUNTERS] = [Timestamp::MIN; COUNTERS];
    while world.now() < until {
        world.sleep(LOOK).await;
        for (counter, last) in last.iter_mut().enumerate() {
            let name = Counter::new(NAMESPACE, name_of(counter));
            let watermark = watermark_of(&cluster, &name);
            if watermark < *last {
                ledger.broke(format!("{:?}: a watermark went back from {last:?} to {watermark:?}", world.now()));
            }
            *last = watermark;
            let rolled_to = checkpoint_of(&cluster, &name);
            let unrolled = ledger.changes().into_iter().find(|change| {
                let passed = change.key.time <= watermark && change.key.time > rolled_to;
                change.counter == counter && change.acknowledged.is_some() && passed
            });
            if let Some(change) = unrolled {
                let now = world.now();
                ledger
                    .broke(format!("{now:?}: the watermark {watermark:?} passed {change:?}, rolled to {rolled_to:?}"));
                return;
            }
        }
    }
}

fn watermark_of(cluster: &Cluster, counter: &Counter) -> Timestamp {
    let found = cluster.peek("SELECT shard, rolled_to FROM watermarks WHERE dataset = ?", &[Datum::Int(DATASET)]);
    let shard = Datum::Int(i64::from(counter.touch_shard()));
    let row = found.into_iter().find(|row| row[0] == shard);
    match row.and_then(|row| row.into_iter().nth(1)) {
        Some(Datum::Int(micros)) => Timestamp::from_micros(micros),
        _ => Timestamp::MIN, // nothing was written yet
    }
}

/// The as_of of the newest checkpoint.
fn checkpoint_of(cluster: &Cluster, counter: &Counter) -> Timestamp {
    let text = "SELECT repairs, live FROM rollups WHERE dataset = ? AND ns = ? AND counter = ?";
    let ns = i64::try_from(counter.namespace().0).expect("a small number");
    let values = [Datum::Int(DATASET), Datum::Int(ns), Datum::Text(counter.name().as_str().into())];
    let rows = cluster.peek(text, &values).into_iter();
    let as_of = rows.filter_map(|row| match row.into_iter().nth(1) {
        Some(Datum::Blob(bytes)) => codec::decode_checkpoint(&bytes).ok().map(|checkpoint| checkpoint.as_of),
        _ => None, // a row that holds registers only
    });
    as_of.max().unwrap_or(Timestamp::MIN)
}
