//! Whether one hot counter hurts the others: latency of cold counters without it, beside it, and under the same load
//! spread out.

use anyhow::Result;

use crate::adds::{Aim, Unary};
use crate::client::Connections;
use crate::load::{Span, closed, open};
use crate::namespaces::{self, Settings};
use crate::report::Report;
use crate::target::Target;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Cold counters.
    pub counters: u64,
    /// Adds to cold counters per second.
    pub cold_rate: f64,
    /// Adds to the hot counter under way at once.
    pub hot_in_flight: usize,
    /// For each of the three runs.
    pub span: Span,
}

/// Latencies of the cold counters.
pub struct Outcome {
    /// Nothing else runs.
    pub alone: Report,
    /// The hot load runs, spread over other cold counters.
    pub beside_spread: Report,
    /// The hot load runs on one counter.
    pub beside_hot: Report,
    /// The hot load itself.
    pub hot: Report,
}

const NAMESPACE: &str = "hot";
const COLD_WORKERS: usize = 256;

/// Runs it on a server.
pub async fn run(target: &Target, plan: Plan) -> Result<Outcome> {
    let connections = Connections::open(&target.url(), 4).await?;
    // A connection of its own, so that only the server can make the cold ones wait.
    let hot_connections = Connections::open(&target.url(), 2).await?;
    namespaces::create(&mut connections.catalog(), &Settings::dev(NAMESPACE)).await?;
    let cold = Aim { namespace: NAMESPACE, first: 1, counters: plan.counters };
    let spread = Aim { namespace: NAMESPACE, first: plan.counters + 1, counters: plan.counters };
    let hot = Aim { namespace: NAMESPACE, first: 0, counters: 1 };

    let cold_load = || open(Unary::workers(&connections, cold, COLD_WORKERS), plan.cold_rate, plan.span);
    let hot_load = |aim| closed(Unary::workers(&hot_connections, aim, plan.hot_in_flight), plan.span);
    let alone = cold_load().await;
    let (beside_spread, _) = tokio::join!(cold_load(), hot_load(spread));
    let (beside_hot, hot) = tokio::join!(cold_load(), hot_load(hot));
    Ok(Outcome { alone, beside_spread, beside_hot, hot })
}
