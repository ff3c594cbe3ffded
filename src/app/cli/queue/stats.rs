//! `queue stats`: what a queue does, read from its counters alone. Nothing here scans the queue.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;

use crate::output::{CliResponse, Format, TableRows, time_cell};
use crate::queue::stats_text::{BY_ERROR, BY_VALUE, QueueStats, StatsText};
use crate::{ClientContext, Failure, pages};
use tallystone_domain::limits::{STATS_NAMES_LISTED_MAX, STATS_ROWS_SHOWN_MAX};
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::counter_names::{counter_name, key_text};
use tallystone_domain::queue::name::QueueName;
use tallystone_domain::queue::tally::flows::Flow;
use tallystone_domain::queue::tally::steps::{ATTEMPT_STEPS, TIME_STEPS};
use tallystone_proto::counter::v1 as counter;
use tallystone_proto::queue::v1 as pb;

/// The namespace of the counters of queues.
const NAMESPACE: &str = "tallystone.queues";
/// The flows whose rate is shown.
const RATES: [Flow; 8] = [
    Flow::Enqueued,
    Flow::Dequeued,
    Flow::Completed,
    Flow::Failed,
    Flow::Released,
    Flow::LeaseExpired,
    Flow::Canceled,
    Flow::Errored,
];
/// The time over which rates are measured, and the step of the series.
const RATE_TIME: Duration = Duration::from_secs(60);
const RATE_STEP: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The queue.
    name: String,
}

const READINGS: &[&str] = &["counter_name", "count", "as_of", "reported_to"];

impl ClientContext {
    pub(super) async fn queue_stats(&self, args: StatsArgs) -> Result<(), Failure> {
        let name = QueueName::new(&args.name).map_err(|invalid| Failure::usage(invalid.to_string()))?;
        let request = pb::GetQueueRequest { queue: args.name.clone() };
        let queue = call!(ask self, queues.get_queue, &request)?.queue.unwrap_or_default();
        let signatures = self.names_with_most(&name, "failed~error=").await?;
        let mut values = Vec::new();
        for key in queue.count_by {
            let pairs = self.names_with_most(&name, &format!("depth.pending~{}", key_text(&key))).await?;
            values.push((key, pairs));
        }
        let mut names: Vec<String> = base_counters();
        names.extend(signatures.iter().flat_map(|pair| BY_ERROR.map(|of| format!("{of}~{pair}"))));
        let pairs = values.iter().flat_map(|(_, pairs)| pairs);
        names.extend(pairs.flat_map(|pair| BY_VALUE.map(|of| format!("{of}~{pair}"))));
        let readings = self.readings(&name, &names).await?;
        match self.output.format() {
            Format::Table => {
                let rates = self.rates(&name).await?;
                let by_name = readings.results.into_iter().filter_map(|result| {
                    let (_, counter) = result.counter_name.split_once('~')?;
                    Some((counter.to_owned(), result.reading?))
                });
                let stats = QueueStats { queue: args.name, readings: by_name.collect(), rates, signatures, values };
                self.output.bytes(StatsText::of(&stats).as_bytes())
            }
            Format::Json | Format::Jsonl | Format::Csv => {
                let cells = readings.results.iter().map(|result| {
                    let reading = result.reading.unwrap_or_default();
                    let times = [&reading.as_of, &reading.reported_to].map(|time| time_cell(time.as_ref()));
                    [vec![result.counter_name.clone(), reading.count.to_string()], times.to_vec()].concat()
                });
                let rows = TableRows { columns: READINGS, cells: cells.collect() };
                let full_name = "tallystone.counter.v1.BatchGetCountsResponse";
                self.output.answer(&CliResponse::many(full_name, &readings, "results"), &rows)
            }
        }
    }

    async fn readings(&self, name: &QueueName, names: &[String]) -> Result<counter::BatchGetCountsResponse, Failure> {
        let mut whole = counter::BatchGetCountsResponse::default();
        for names in names.chunks(tallystone_domain::limits::BATCH_ITEMS_MAX) {
            let counter_names = names.iter().map(|of| counter_name(name, of)).collect();
            let request =
                counter::BatchGetCountsRequest { namespace: NAMESPACE.into(), counter_names, ..Default::default() };
            whole.results.extend(call!(ask self, counters.batch_get_counts, &request)?.results);
        }
        if let Some(error) = whole.results.iter().find_map(|result| result.error.as_ref()) {
            return Err(Failure::other(format!("a counter cannot be read: {} ({})", error.message, error.reason)));
        }
        Ok(whole)
    }

    /// The pairs of the counters with a prefix that have the greatest counts, as their names have them.
    async fn names_with_most(&self, name: &QueueName, prefix: &str) -> Result<Vec<String>, Failure> {
        let prefix = counter_name(name, prefix);
        let (mut found, _) = pages::rows(STATS_NAMES_LISTED_MAX, async |page_size, page_token| {
            let (namespace, prefix) = (NAMESPACE.to_owned(), prefix.clone());
            let request = counter::ListCountersRequest { namespace, prefix, page_size, page_token };
            let page = call!(ask self, counters.list_counters, &request)?;
            Ok((page.counters, page.next_page_token))
        })
        .await?;
        found.sort_by(|one, other| (other.count, &one.counter_name).cmp(&(one.count, &other.counter_name)));
        found.truncate(STATS_ROWS_SHOWN_MAX);
        // The queue, then the counter, then the pair, which may have a `~` of its own.
        let pair = |summary: &counter::CounterSummary| Some(summary.counter_name.splitn(3, '~').nth(2)?.to_owned());
        Ok(found.iter().filter_map(pair).collect())
    }

    /// Events a second of the main flows, over the steps of the last minute that have ended.
    async fn rates(&self, name: &QueueName) -> Result<BTreeMap<&'static str, f64>, Failure> {
        use tallystone_ports::Clock as _;
        let now = tallystone_adapters::system::SystemClock.now();
        let request = counter::BatchGetCountSeriesRequest {
            namespace: NAMESPACE.to_owned(),
            counter_names: RATES.iter().map(|flow| counter_name(name, flow.name())).collect(),
            from: Some(tallystone_api::time::write(now - RATE_TIME - RATE_STEP)),
            to: Some(tallystone_api::time::write(now)),
            step: format!("{}s", RATE_STEP.as_secs()),
            ..counter::BatchGetCountSeriesRequest::default()
        };
        let answer = call!(ask self, counters.batch_get_count_series, &request)?;
        let rate = |(flow, result): (&Flow, counter::GetSeriesResult)| {
            let rows = result.series?.rows;
            let ended: Vec<i64> = rows.iter().filter(|row| !row.open).map(|row| row.sum).collect();
            let newest = &ended[ended.len().saturating_sub(6)..];
            let seconds = RATE_STEP.as_secs_f64() * newest.len() as f64;
            (!newest.is_empty()).then(|| (flow.name(), newest.iter().sum::<i64>() as f64 / seconds))
        };
        Ok(RATES.iter().zip(answer.results).filter_map(rate).collect())
    }
}

/// The counters that every queue has.
fn base_counters() -> Vec<String> {
    let depths = MessageState::ALL.map(|state| format!("depth.{state}"));
    let mut names = Vec::from(depths);
    names.push("bytes".to_owned());
    names.extend(Flow::ALL.map(|flow| flow.name().to_owned()));
    for of in ["leased_at", "completed_at", "errored_at"] {
        names.extend(ATTEMPT_STEPS.map(|step| format!("{of}.{step}")));
    }
    for of in ["wait", "run"] {
        names.extend(TIME_STEPS.map(|step| format!("{of}.{step}")));
    }
    names
}
