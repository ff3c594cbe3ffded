//! Commands that read counts.

use std::time::Duration;

use clap::Args;
use tonic::Request;

use crate::arguments::{TimeArg, duration, freshness, when};
use crate::counter::write::all_or_partial;
use crate::counter::{CounterContext, full_name};
use crate::output::{CliResponse, IncrementalPrinter, Layout, TableRows, time_cell, word};
use crate::pages::RowLimit;
use crate::{Exit, Failure, pages};
use tallystone_adapters::system::SystemClock;
use tallystone_api::time::write_duration;
use tallystone_app::notices::print_notice;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_ports::Clock;
use tallystone_proto::counter::v1 as pb;

#[derive(Debug, Args)]
pub struct CounterGetArgs {
    /// The counters.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Include events that are not rolled up yet; the same as --freshness UP_TO_DATE.
    #[arg(long, conflicts_with = "freshness")]
    fresh: bool,
    /// The required freshness of the count: ROLLED_UP or UP_TO_DATE.
    #[arg(long, value_parser = freshness)]
    freshness: Option<pb::Freshness>,
    /// Roll up first if the count is older than this.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    max_staleness: Option<Duration>,
    /// Roll up first if the count is from before this time: a time, or a duration before now.
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    at_least_as_of: Option<TimeArg>,
}

#[derive(Debug, Args)]
pub struct CounterLsArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    limit: RowLimit,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// The number of counters.
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(i32).range(1..=1000))]
    n: i32,
}

#[derive(Debug, Args)]
pub struct CounterWatchArgs {
    /// The counters.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Stop after this number of readings [default: run until interrupted].
    #[arg(long, value_name = "N")]
    readings: Option<usize>,
}

const READING: &[&str] =
    &["counter_name", "count", "exactness", "as_of", "behind", "last_write_time", "checked_at", "saturated"];
/// The same with the time up to which queues are reported.
const READING_OF_QUEUES: &[&str] = &[
    "counter_name",
    "count",
    "exactness",
    "as_of",
    "behind",
    "last_write_time",
    "checked_at",
    "saturated",
    "reported_to",
];
/// The greatest widths of a reading's columns, without the name.
const READING_WIDTHS: &[usize] = &[20, 11, 27, 6, 27, 27, 9];
const SUMMARY: &[&str] = &["counter_name", "count", "as_of", "saturated"];

impl CounterContext {
    pub(super) async fn get(&self, args: CounterGetArgs) -> Result<(), Failure> {
        let freshness = match args.fresh {
            true => pb::Freshness::UpToDate,
            false => args.freshness.unwrap_or_default(),
        };
        let max_staleness = args.max_staleness.map(write_duration);
        let at_least_as_of = args.at_least_as_of.map(|when| when.to_proto(SystemClock.now()));
        if let [name] = args.names.as_slice() {
            let request = pb::GetCountRequest {
                namespace: self.namespace.clone(),
                counter_name: name.clone(),
                max_staleness,
                at_least_as_of,
                freshness: freshness.into(),
            };
            let reading = self.get_one(&request).await?;
            let rows = reading_rows([(name.as_str(), &reading)].into_iter());
            return self.session.output.answer(&CliResponse::one(&full_name("GetCountResponse"), &reading), &rows);
        }
        let request = pb::BatchGetCountsRequest {
            namespace: self.namespace.clone(),
            counter_names: args.names,
            max_staleness,
            at_least_as_of,
            freshness: freshness.into(),
        };
        self.get_many(&request).await
    }

    /// Reads one counter.
    pub(super) async fn reading(&self, name: &str, freshness: pb::Freshness) -> Result<pb::GetCountResponse, Failure> {
        let request = pb::GetCountRequest {
            namespace: self.namespace.clone(),
            counter_name: name.to_owned(),
            freshness: freshness.into(),
            ..Default::default()
        };
        self.get_one(&request).await
    }

    async fn get_one(&self, request: &pb::GetCountRequest) -> Result<pb::GetCountResponse, Failure> {
        let reading = self.session.client.get_count(request.clone()).await;
        reading.map_err(|error| self.session.failed(&error))
    }

    async fn get_many(&self, request: &pb::BatchGetCountsRequest) -> Result<(), Failure> {
        let read = self.session.client.batch_get_counts(request.clone()).await;
        let read = read.map_err(|error| self.session.failed(&error))?;
        let mut readings = Vec::with_capacity(read.results.len());
        let mut refused = Vec::new();
        for result in &read.results {
            match (&result.error, &result.reading) {
                (Some(error), _) => {
                    print_notice(&format!("{}: {} ({})", result.counter_name, error.message, error.reason));
                    refused.push(error);
                }
                (None, Some(reading)) => readings.push((result.counter_name.as_str(), reading)),
                (None, None) => return Err(Failure::other("the server returned neither a reading nor an error")),
            }
        }
        let rows = reading_rows(readings.into_iter());
        let answer = CliResponse::many(&full_name("BatchGetCountsResponse"), &read, "results");
        self.session.output.answer(&answer, &rows)?;
        all_or_partial(&refused, read.results.len(), "counters could not be read")
    }

    pub(super) async fn list(&self, args: CounterLsArgs) -> Result<(), Failure> {
        let (counters, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let request = self.list_request(args.prefix.clone());
            let page = self.list_page(&pb::ListCountersRequest { page_size, page_token, ..request }).await?;
            Ok((page.counters, page.next_page_token))
        })
        .await?;
        let whole = pb::ListCountersResponse { counters, next_page_token };
        let rows = TableRows { columns: SUMMARY, cells: whole.counters.iter().map(summary_cells).collect() };
        let answer = CliResponse::many(&full_name("ListCountersResponse"), &whole, "counters");
        self.session.output.answer(&answer, &rows)?;
        args.limit.end(&whole.next_page_token, self.session.output)
    }

    /// The request for the first page of a list of counters.
    pub(super) fn list_request(&self, prefix: String) -> pb::ListCountersRequest {
        let page_size = i32::try_from(PAGE_ROWS_MAX).unwrap_or(i32::MAX);
        pb::ListCountersRequest { namespace: self.namespace.clone(), prefix, page_size, page_token: String::new() }
    }

    /// Reads one page of a list of counters.
    pub(super) async fn list_page(
        &self,
        request: &pb::ListCountersRequest,
    ) -> Result<pb::ListCountersResponse, Failure> {
        call!(ask self.session, counters.list_counters, request)
    }

    pub(super) async fn top(&self, args: TopArgs) -> Result<(), Failure> {
        let request = pb::TopCountersRequest { namespace: self.namespace.clone(), n: args.n };
        let top = call!(ask self.session, counters.top_counters, &request)?;
        let rows = TableRows { columns: SUMMARY, cells: top.counters.iter().map(summary_cells).collect() };
        self.session.output.answer(&CliResponse::many(&full_name("TopCountersResponse"), &top, "counters"), &rows)
    }

    /// Watches without a deadline, except for the first reading. A broken stream is a failure: changes may have been
    /// missed.
    pub(super) async fn watch(&self, args: CounterWatchArgs) -> Result<(), Failure> {
        let name_width = args.names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let request = pb::WatchCountsRequest { namespace: self.namespace.clone(), counter_names: args.names };
        let mut client = self.session.client.counters();
        let beginning = async {
            let mut readings = client.watch_counts(Request::new(request)).await?.into_inner();
            let first = readings.message().await?;
            Ok((readings, first))
        };
        let beginning = tokio::time::timeout(self.session.timeout, beginning).await;
        let beginning = beginning.unwrap_or_else(|_elapsed| Err(tallystone_client::late()));
        let (mut readings, mut next) = beginning.map_err(|status| self.session.not_begun(status))?;
        let widths = [&[name_width], READING_WIDTHS].concat();
        let mut parts = IncrementalPrinter::endless(self.session.output).with_layout(Layout::AtLeast(widths));
        let mut shown = 0;
        while args.readings.is_none_or(|readings| shown < readings) {
            let Some(answer) = next.take() else {
                return Err(Failure::new(Exit::Unavailable, "the server ended the stream; start the command again"));
            };
            let reading = answer.reading.unwrap_or_default();
            let rows = TableRows { columns: READING, cells: vec![reading_cells(&answer.counter_name, &reading)] };
            parts.print(&[CliResponse::one(&full_name("WatchCountsResponse"), &answer).json()], &rows)?;
            shown += 1;
            if args.readings.is_none_or(|readings| shown < readings) {
                next = readings.message().await.map_err(|status| self.session.cut_off(status))?;
            }
        }
        Ok(())
    }
}

/// The rows of readings; with the time up to which queues are reported, if a reading has one.
fn reading_rows<'a>(readings: impl Iterator<Item = (&'a str, &'a pb::GetCountResponse)> + Clone) -> TableRows {
    if readings.clone().all(|(_, reading)| reading.reported_to.is_none()) {
        return TableRows {
            columns: READING,
            cells: readings.map(|(name, reading)| reading_cells(name, reading)).collect(),
        };
    }
    let cells = |(name, reading): (&str, &pb::GetCountResponse)| {
        let mut cells = reading_cells(name, reading);
        cells.push(time_cell(reading.reported_to.as_ref()));
        cells
    };
    TableRows { columns: READING_OF_QUEUES, cells: readings.map(cells).collect() }
}

fn reading_cells(name: &str, reading: &pb::GetCountResponse) -> Vec<String> {
    vec![
        name.to_owned(),
        reading.count.to_string(),
        word::<pb::Exactness>(reading.exactness, "EXACTNESS_", pb::Exactness::as_str_name),
        time_cell(reading.as_of.as_ref()),
        reading.behind.to_string(),
        match reading.never_written {
            true => "never written".to_owned(),
            false => time_cell(reading.last_write_time.as_ref()),
        },
        time_cell(reading.checked_at.as_ref()),
        reading.saturated.to_string(),
    ]
}

fn summary_cells(counter: &pb::CounterSummary) -> Vec<String> {
    vec![
        counter.counter_name.clone(),
        counter.count.to_string(),
        time_cell(counter.as_of.as_ref()),
        counter.saturated.to_string(),
    ]
}
