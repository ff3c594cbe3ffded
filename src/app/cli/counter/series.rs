//! `counter series`: sums per time step of one counter, of several, or of all with a prefix.

use std::time::Duration;

use clap::Args;
use prost_types::Timestamp as ProtoTime;

use crate::arguments::{TimeArg, duration, when};
use crate::counter::write::all_or_partial;
use crate::counter::{CounterContext, full_name};
use crate::output::{CliResponse, TableRows, time_cell};
use crate::{Failure, pages};
use tallystone_adapters::system::SystemClock;
use tallystone_api::time;
use tallystone_app::notices::print_notice;
use tallystone_domain::Reason;
use tallystone_domain::limits::{SERIES_COUNTERS_MAX, SERIES_ROWS_MAX, SERIES_SHOWN_MAX};
use tallystone_domain::rollup::series_step::SeriesStep;
use tallystone_ports::Clock;
use tallystone_proto::counter::v1 as pb;

#[derive(Debug, Args)]
pub struct SeriesArgs {
    /// The counters.
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix", value_name = "NAME")]
    names: Vec<String>,
    /// All counters with this prefix, instead of NAME.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// The start: a time, or a duration before now.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    from: TimeArg,
    /// The end: a time, or a duration before now.
    #[arg(long, default_value = "now", value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    to: TimeArg,
    /// The step, such as 10m; or 1d, 1w (from Monday) or 1mo [default: the shortest one kept for the whole range].
    #[arg(long, value_name = "TIME", value_parser = step)]
    step: Option<String>,
    /// The zone whose days, weeks or months are shown, such as Europe/Berlin [default: UTC].
    #[arg(long, value_name = "ZONE", requires = "step")]
    time_zone: Option<String>,
    /// Also show the count at the end of each step.
    #[arg(long)]
    cumulative: bool,
    /// Show one row for each counter: the sum over all steps that the range touches.
    #[arg(long)]
    totals: bool,
    /// Leave out rows whose sum is 0, and counters without other rows.
    #[arg(long)]
    no_zero: bool,
}

/// Which rows of the series are shown.
#[derive(Clone, Copy)]
struct Shown {
    totals: bool,
    no_zero: bool,
}

const ROW: &[&str] = &["step_start", "sum", "value", "open", "saturated"];
const ROW_OF_COUNTER: &[&str] = &["counter_name", "step_start", "sum", "value", "open", "saturated"];

impl CounterContext {
    pub(super) async fn series(&self, args: SeriesArgs) -> Result<(), Failure> {
        let now = SystemClock.now();
        let shown = Shown { totals: args.totals, no_zero: args.no_zero };
        let request = pb::BatchGetCountSeriesRequest {
            namespace: self.namespace.clone(),
            counter_names: Vec::new(),
            from: Some(args.from.to_proto(now)),
            to: Some(args.to.to_proto(now)),
            step: args.step.unwrap_or_default(),
            cumulative: args.cumulative,
            time_zone: args.time_zone.unwrap_or_default(),
        };
        match (args.names.as_slice(), args.prefix) {
            ([name], None) => self.series_of_one(name.clone(), request, shown).await,
            (_, None) => self.series_of_many(args.names, request, shown).await,
            (_, Some(prefix)) => {
                let names = self.names_with(&prefix).await?;
                self.series_of_many(names, request, shown).await
            }
        }
    }

    /// The names with a prefix, in their order, at most those that are shown.
    async fn names_with(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let (counters, more) = pages::rows(SERIES_SHOWN_MAX, async |page_size, page_token| {
            let request = self.list_request(prefix.to_owned());
            let page = self.list_page(&pb::ListCountersRequest { page_size, page_token, ..request }).await?;
            Ok((page.counters, page.next_page_token))
        })
        .await?;
        if !more.is_empty() {
            let what = format!("there are more counters than {SERIES_SHOWN_MAX}; use a longer prefix");
            pages::cut(self.session.output, &what)?;
        }
        Ok(counters.into_iter().map(|counter| counter.counter_name).collect())
    }

    async fn series_of_one(
        &self,
        counter_name: String,
        range: pb::BatchGetCountSeriesRequest,
        shown: Shown,
    ) -> Result<(), Failure> {
        let pb::BatchGetCountSeriesRequest { namespace, from, to, step, cumulative, time_zone, .. } = range;
        let request = pb::GetCountSeriesRequest { namespace, counter_name, from, to, step, cumulative, time_zone };
        let mut series = call!(ask self.session, counters.get_count_series, &request)?;
        let step = step_of(&series, &request.time_zone);
        shown.reduce(&mut series);
        print_reported(series.reported_to.as_ref());
        let cells = series.rows.iter().map(|row| row_cells(row, step.as_ref())).collect();
        let rows = TableRows { columns: ROW, cells };
        self.session.output.answer(&CliResponse::many(&full_name("GetCountSeriesResponse"), &series, "rows"), &rows)
    }

    async fn series_of_many(
        &self,
        names: Vec<String>,
        range: pb::BatchGetCountSeriesRequest,
        shown: Shown,
    ) -> Result<(), Failure> {
        let (asked, zone) = (names.len(), range.time_zone.clone());
        let mut whole = self.all_series(names, range).await?;
        let mut refused = Vec::new();
        let mut cells = Vec::new();
        let mut reported_to = None;
        for result in &mut whole.results {
            match (&result.error, &mut result.series) {
                (Some(error), _) => {
                    print_notice(&format!("{}: {} ({})", result.counter_name, error.message, error.reason));
                    refused.push(error.clone());
                }
                (None, Some(series)) => {
                    let step = step_of(series, &zone);
                    shown.reduce(series);
                    reported_to = reported_to.or(series.reported_to);
                    let row = |row| [vec![result.counter_name.clone()], row_cells(row, step.as_ref())].concat();
                    cells.extend(series.rows.iter().map(row));
                }
                (None, None) => return Err(Failure::other("the server returned neither a series nor an error")),
            }
        }
        if shown.no_zero {
            whole.results.retain(|result| result.series.as_ref().is_none_or(|series| !series.rows.is_empty()));
        }
        print_reported(reported_to.as_ref());
        let rows = TableRows { columns: ROW_OF_COUNTER, cells };
        let answer = CliResponse::many(&full_name("BatchGetCountSeriesResponse"), &whole, "results");
        self.session.output.answer(&answer, &rows)?;
        all_or_partial(&refused.iter().collect::<Vec<_>>(), asked, "series could not be read")
    }

    /// Reads series in as few calls as their rows allow. The step is that of the first series.
    async fn all_series(
        &self,
        names: Vec<String>,
        mut request: pb::BatchGetCountSeriesRequest,
    ) -> Result<pb::BatchGetCountSeriesResponse, Failure> {
        let mut whole = pb::BatchGetCountSeriesResponse::default();
        let mut rest = names.as_slice();
        let mut at_once = 1;
        while !rest.is_empty() {
            let (some, later) = rest.split_at(at_once.min(rest.len()));
            request.counter_names = some.to_vec();
            let read = self.session.client.batch_get_count_series(request.clone()).await;
            let read = read.map_err(|error| self.session.failed(&error))?;
            if let Some(series) = read.results.iter().find_map(|result| result.series.as_ref()) {
                request.step.clone_from(&series.step);
                let step = step_of(series, &request.time_zone);
                let shortest = step.map_or(Duration::ZERO, |step| step.shortest());
                at_once = counters_at_once(request.from.as_ref(), request.to.as_ref(), shortest);
            }
            whole.results.extend(read.results);
            rest = later;
        }
        Ok(whole)
    }
}

impl Shown {
    fn reduce(self, series: &mut pb::GetCountSeriesResponse) {
        if self.totals {
            series.rows = total_of(&series.rows).into_iter().collect();
        }
        if self.no_zero {
            series.rows.retain(|row| row.sum != 0);
        }
    }
}

/// The step of a series that was read.
fn step_of(series: &pb::GetCountSeriesResponse, time_zone: &str) -> Option<SeriesStep> {
    SeriesStep::read(&series.step, time_zone).ok().flatten()
}

/// Reads a step as the service does, or any duration such as 1m30s, into the form that the service takes.
fn step(text: &str) -> Result<String, String> {
    let step = match SeriesStep::read(text, "") {
        Ok(Some(step)) => step,
        Ok(None) | Err(_) => SeriesStep::Fixed(duration(text)?),
    };
    Ok(step.to_string())
}

/// The counters whose series over a range fit into one answer.
fn counters_at_once(from: Option<&ProtoTime>, to: Option<&ProtoTime>, step: Duration) -> usize {
    let seconds = |time: Option<&ProtoTime>| time.map_or(0, |time| time.seconds);
    let range = usize::try_from(seconds(to).saturating_sub(seconds(from))).unwrap_or(0);
    // Both ends are rounded to a step.
    let steps = range / usize::try_from(step.as_secs()).unwrap_or(1).max(1) + 2;
    (SERIES_ROWS_MAX / steps).clamp(1, SERIES_COUNTERS_MAX)
}

/// All rows of a series as one; none if it has no row.
fn total_of(rows: &[pb::SeriesRow]) -> Option<pb::SeriesRow> {
    let (first, last) = (rows.first()?, rows.last()?);
    let sum: i128 = rows.iter().map(|row| i128::from(row.sum)).sum();
    let (sum, clamped) = tallystone_domain::rollup::checkpoint::clamp_count(sum);
    Some(pb::SeriesRow {
        step_start: first.step_start,
        sum,
        value: last.value,
        open: last.open,
        saturated: clamped || rows.iter().any(|row| row.saturated),
    })
}

fn print_reported(reported_to: Option<&ProtoTime>) {
    if reported_to.is_some() {
        print_notice(&format!("all changes of queues up to {} are counted", time_cell(reported_to)));
    }
}

/// The cells of a row. Days, weeks and months of a zone begin by its clock.
fn row_cells(row: &pb::SeriesRow, step: Option<&SeriesStep>) -> Vec<String> {
    let start = row.step_start.and_then(|start| time::read("step_start", Reason::InvalidRange, &start).ok());
    let start = step.zip(start).and_then(|(step, start)| step.start_text(start));
    let start = start.unwrap_or_else(|| time_cell(row.step_start.as_ref()));
    let value = row.value.map(|value| value.to_string()).unwrap_or_default();
    let (sum, open) = (row.sum.to_string(), row.open.to_string());
    vec![start, sum, value, open, row.saturated.to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sum: i64, value: i64) -> pb::SeriesRow {
        pb::SeriesRow { sum, value: Some(value), ..pb::SeriesRow::default() }
    }

    #[test]
    fn a_total_has_the_sum_of_all_rows_and_the_value_of_the_last() {
        assert_eq!(total_of(&[]), None);
        assert_eq!(total_of(&[row(3, 3), row(0, 3), row(-1, 2)]), Some(row(2, 2)));
        let clamped = total_of(&[row(i64::MAX, 1), row(1, 1)]).expect("rows");
        assert_eq!((clamped.sum, clamped.saturated), (i64::MAX, true));
    }

    #[test]
    fn as_many_counters_are_read_at_once_as_fit_into_an_answer() {
        let time = |seconds| Some(ProtoTime { seconds, nanos: 0 });
        let at_once = |range: i64, step| {
            counters_at_once(time(1_000).as_ref(), time(1_000 + range).as_ref(), Duration::from_secs(step))
        };
        assert_eq!(at_once(60, 10), SERIES_COUNTERS_MAX);
        assert_eq!(at_once(3_600, 10), 10_000 / 362);
        assert_eq!(at_once(99_990, 10), 1);
        assert_eq!(at_once(0, 0), SERIES_COUNTERS_MAX);
    }
}
