//! Adds, one by one and many together, beside raw inserts of the same rows and beside native counter columns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tallystone_client::proto::counter::v1::AddCountRequest;

use crate::adds::{self, Aim, Batch, StreamShape, Unary};
use crate::cassandra::node::{Raw, What};
use crate::cassandra::{BATCHES, Bench, ROLLING_AFTER, Rounds, Subject, UNARY, published};
use crate::client::{Counters, counter_name, new_token, reason_of};
use crate::figures::{Figure, figure};
use crate::load::{Call, Span, closed};

/// Calls under way at once, as the figures are stated, and many.
const IN_FLIGHT: [usize; 2] = [64, 256];
const BATCHES_IN_FLIGHT: usize = 16;
const ITEMS: usize = 100;
const SHAPE: StreamShape = StreamShape { streams: 4, items: ITEMS, window: 16 };
/// Counters so few that the rows of several adds share a partition.
const FEW: u64 = 100;

/// Single adds.
pub async fn unary(bench: &Bench) -> Result<Vec<Figure>> {
    let subject = bench.subject(&published(UNARY)).await?;
    let aim = Aim { namespace: UNARY, first: 0, counters: bench.scale.counters };
    subject.warm(aim.counters).await?;
    warm_up(bench, &subject, aim).await;
    let mut figures = Vec::new();
    for in_flight in IN_FLIGHT {
        figures.extend(compare(bench, &subject, aim, in_flight).await?);
    }
    subject.quiet().await?;
    let next = Arc::new(AtomicU64::new(aim.counters));
    let workers = (0..IN_FLIGHT[0]).map(|number| Cold {
        client: subject.connections.counters(number),
        namespace: aim.namespace,
        next: Arc::clone(&next),
    });
    let mut cold = Rounds::default();
    cold.note("add, cold", &closed(workers.collect(), bench.span()).await);
    let what = format!("AddCount on counters that were never written, {} in flight", IN_FLIGHT[0]);
    figures.push(figure(&what, cold.text(), "(reported)", cold.failed == 0));
    Ok(figures)
}

/// Adds, raw inserts and native counters at equal concurrency.
async fn compare(bench: &Bench, subject: &Subject, aim: Aim, in_flight: usize) -> Result<Vec<Figure>> {
    let [mut inserts, mut counts, mut added] = [Rounds::default(), Rounds::default(), Rounds::default()];
    let raw = |what| closed(Raw::workers(&bench.node, what, aim.counters, in_flight), bench.span());
    for _ in 0..bench.scale.rounds {
        subject.quiet().await?;
        inserts.note("raw insert", &raw(What::Insert).await);
        counts.note("native counter", &raw(What::Count).await);
        let workers = Unary::workers(&subject.connections, aim, in_flight);
        added.note("add", &closed(workers, rolling(bench.span())).await);
    }
    let (of_inserts, of_counts) = (added.over(&inserts), added.over(&counts));
    let is_stated = in_flight == IN_FLIGHT[0];
    let (insert_wanted, count_wanted) = match is_stated {
        true => (">= 0.5 of raw inserts, goal 0.6", ">= 1.5 x native counters"),
        false => ("(reported)", "(reported)"),
    };
    let met = |ratio: f64, wanted: f64| added.failed == 0 && (!is_stated || ratio >= wanted);
    Ok(vec![
        figure(&format!("raw inserts of the same rows, {in_flight} in flight"), inserts.text(), "(the ceiling)", true),
        figure(&format!("native counter columns, {in_flight} in flight"), counts.text(), "(beside)", true),
        figure(
            &format!("AddCount, {} warm counters, {in_flight} in flight", aim.counters),
            format!("{} = {of_inserts:.2} of raw inserts", added.text()),
            insert_wanted,
            met(of_inserts, 0.5),
        ),
        figure(
            &format!("the same beside native counters, {in_flight} in flight"),
            format!("{of_counts:.2} x"),
            count_wanted,
            met(of_counts, 1.5),
        ),
    ])
}

/// Many adds in a call.
pub async fn batches(bench: &Bench) -> Result<Vec<Figure>> {
    let subject = bench.subject(&published(BATCHES)).await?;
    let aim = Aim { namespace: BATCHES, first: 0, counters: bench.scale.counters };
    let few = Aim { counters: FEW.min(aim.counters), ..aim };
    subject.warm(aim.counters).await?;
    warm_up(bench, &subject, aim).await;
    let [mut inserts, mut many, mut groups] = [Rounds::default(), Rounds::default(), Rounds::default()];
    let [mut batched, mut streamed, mut of_few] = [Rounds::default(), Rounds::default(), Rounds::default()];
    let raw = |what, in_flight| closed(Raw::workers(&bench.node, what, aim.counters, in_flight), bench.span());
    for _ in 0..bench.scale.rounds {
        subject.quiet().await?;
        inserts.note("raw insert", &raw(What::Insert, IN_FLIGHT[0]).await);
        many.note("raw insert, 256", &raw(What::Insert, IN_FLIGHT[1]).await);
        groups.note("raw groups of 100", &raw(What::Group(ITEMS), BATCHES_IN_FLIGHT).await);
        let workers = |aim| Batch::workers(&subject.connections, aim, ITEMS, BATCHES_IN_FLIGHT);
        batched.note("batch", &closed(workers(aim), rolling(bench.span())).await);
        streamed.note("stream", &adds::stream(&subject.connections, aim, SHAPE, bench.span()).await?);
        of_few.note("batch, few counters", &closed(workers(few), bench.span()).await);
    }
    let line = |what: String, rounds: &Rounds| {
        let (ratio, beside_many) = (rounds.over(&inserts), rounds.over(&many));
        let text = format!("{} = {ratio:.2} of raw inserts ({beside_many:.2} of those at 256)", rounds.text());
        figure(&what, text, ">= 0.85 of raw inserts, goal 2 x", ratio >= 0.85 && rounds.failed == 0)
    };
    let counters = aim.counters;
    Ok(vec![
        figure("raw inserts, 64 in flight", inserts.text(), "(the ceiling)", true),
        figure("raw inserts, 256 in flight", many.text(), "(beside)", true),
        figure("raw groups of 100 rows of one partition, 16 in flight", groups.text(), "(beside)", true),
        line(format!("BatchAddCounts(100), 16 in flight, {counters} warm counters"), &batched),
        line(format!("StreamAddCounts, 4 streams, {counters} warm counters"), &streamed),
        line(format!("BatchAddCounts(100), 16 in flight, {} counters", few.counters), &of_few),
    ])
}

/// Runs everything in turns without looking, so that the node has compiled what it needs.
async fn warm_up(bench: &Bench, subject: &Subject, aim: Aim) {
    let part = Duration::from_secs(bench.scale.warm_up_seconds) / 3;
    let span = Span { warm_up: Duration::ZERO, measure: part };
    for what in [What::Insert, What::Count] {
        closed(Raw::workers(&bench.node, what, aim.counters, IN_FLIGHT[0]), span).await;
    }
    closed(Unary::workers(&subject.connections, aim, IN_FLIGHT[0]), span).await;
}

fn rolling(span: Span) -> Span {
    Span { warm_up: ROLLING_AFTER, ..span }
}

/// One AddCount at a time, each to a counter that was never written.
struct Cold {
    client: Counters,
    namespace: &'static str,
    next: Arc<AtomicU64>,
}

impl Call for Cold {
    async fn call(&mut self) -> Result<u64, String> {
        let request = AddCountRequest {
            namespace: self.namespace.to_owned(),
            counter_name: counter_name(self.next.fetch_add(1, Ordering::Relaxed)),
            delta: Some(1),
            idempotency_token: Some(new_token()),
            provenance: String::new(),
        };
        self.client.add_count(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}
