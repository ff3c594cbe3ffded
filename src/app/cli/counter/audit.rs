//! Commands that audit counts: single events, tokens, recounts.

use clap::Args;

use crate::arguments::{TimeArg, time, when};
use crate::counter::{CounterContext, full_name};
use crate::output::{CliResponse, Format, IncrementalPrinter, Output, TableRows, progress, time_cell, word};
use crate::pages::RowLimit;
use crate::{Exit, Failure, pages};
use tallystone_adapters::system::SystemClock;
use tallystone_api::grpc::saturating_i64;
use tallystone_app::units::counted;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_ports::Clock;
use tallystone_proto::counter::v1 as pb;

#[derive(Debug, Args)]
#[command(mut_arg("all", |all| all.help("Export all events, each with its counter")))]
pub struct EventsArgs {
    /// The counter; optional with --all, which then exports all counters of the namespace.
    #[arg(required_unless_present = "all")]
    name: Option<String>,
    /// Only events at or after this time: a time, or a duration before now.
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    from: Option<TimeArg>,
    /// Only events before this time: a time, or a duration before now.
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    to: Option<TimeArg>,
    #[command(flatten)]
    limit: RowLimit,
}

#[derive(Debug, Args)]
pub struct CheckTokenArgs {
    /// The counter.
    name: String,
    /// The token.
    token: String,
    /// The time of the change; required for a token that is not a UUIDv7.
    #[arg(long, value_name = "TIME", value_parser = time)]
    generation_time: Option<Timestamp>,
}

#[derive(Debug, Args)]
pub struct RecountArgs {
    /// The counter.
    name: String,
    /// The start of the range: a time, or a duration before now [default: the start of the log].
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    from: Option<TimeArg>,
    /// The end of the range: a time, or a duration before now [default: the end of the rolled-up part].
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    to: Option<TimeArg>,
    /// Correct the counter if it differs from the log; only on a store that servers share, where events can arrive
    /// late.
    #[arg(long)]
    repair: bool,
}

const EVENTS: &[&str] = &["counter_name", "event_time", "kind", "delta", "token", "provenance"];
const DIFFERENCES: &[&str] = &["bucket_start", "rows_recorded", "rows_found", "sum_recorded", "sum_found", "saturated"];

impl CounterContext {
    pub(super) async fn events(&self, args: EventsArgs) -> Result<(), Failure> {
        let now = SystemClock.now();
        let request = pb::ListCountEventsRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name.clone().unwrap_or_default(),
            from: args.from.map(|from| from.to_proto(now)),
            to: args.to.map(|to| to.to_proto(now)),
            ..Default::default()
        };
        match (args.limit.is_all(), args.name) {
            (false, _) => self.some_events(request, args.limit).await,
            (true, Some(_)) => {
                let mut export = EventExport::begin(self.session.output);
                self.export_counter(request, &mut export).await?;
                export.end()
            }
            (true, None) => self.export_namespace(request).await,
        }
    }

    async fn some_events(&self, request: pb::ListCountEventsRequest, limit: RowLimit) -> Result<(), Failure> {
        let (events, next_page_token) = pages::rows(limit.rows(), async |page_size, page_token| {
            let request = pb::ListCountEventsRequest { page_size, page_token, ..request.clone() };
            let page = self.events_page(&request).await?;
            Ok((page.events, page.next_page_token))
        })
        .await?;
        let response = pb::ListCountEventsResponse { events, next_page_token };
        let answer = CliResponse::many(&full_name("ListCountEventsResponse"), &response, "events");
        self.session.output.answer(&answer, &rows_of(&request.counter_name, &response.events))?;
        limit.end(&response.next_page_token, self.session.output)
    }

    /// Exports every counter of the namespace, a page of names at a time.
    async fn export_namespace(&self, request: pb::ListCountEventsRequest) -> Result<(), Failure> {
        let mut export = EventExport::begin(self.session.output);
        let mut names = self.list_request(String::new());
        loop {
            let page = self.list_page(&names).await?;
            for counter in page.counters {
                let request = pb::ListCountEventsRequest { counter_name: counter.counter_name, ..request.clone() };
                self.export_counter(request, &mut export).await?;
            }
            if page.next_page_token.is_empty() {
                return export.end();
            }
            names.page_token = page.next_page_token;
        }
    }

    async fn export_counter(
        &self,
        mut request: pb::ListCountEventsRequest,
        export: &mut EventExport,
    ) -> Result<(), Failure> {
        request.page_size = i32::try_from(PAGE_ROWS_MAX).unwrap_or(i32::MAX);
        loop {
            let page = self.events_page(&request).await?;
            export.print(&request.counter_name, &page.events)?;
            if page.next_page_token.is_empty() {
                return Ok(());
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn events_page(&self, request: &pb::ListCountEventsRequest) -> Result<pb::ListCountEventsResponse, Failure> {
        call!(ask self.session, counters.list_count_events, request)
    }

    pub(super) async fn check_token(&self, args: CheckTokenArgs) -> Result<(), Failure> {
        let generation_time = args.generation_time.map(tallystone_api::time::write);
        let request = pb::CheckTokenRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name,
            idempotency_token: Some(pb::IdempotencyToken { token: args.token.clone(), generation_time }),
        };
        let checked = call!(self.session, counters.check_token, &request)?;
        let is_applied = checked.verdict() == pb::Verdict::Applied;
        let cells = vec![
            args.token,
            word::<pb::Verdict>(checked.verdict, "VERDICT_", pb::Verdict::as_str_name),
            if is_applied { kind(checked.kind) } else { String::new() },
            if is_applied { checked.delta.to_string() } else { String::new() },
            time_cell(checked.event_time.as_ref()),
            self.session.output.span_cell(checked.retry_after.as_ref()),
        ];
        let columns = &["token", "verdict", "kind", "delta", "event_time", "retry_after"];
        let rows = TableRows { columns, cells: vec![cells] };
        self.session.output.answer(&CliResponse::one(&full_name("CheckTokenResponse"), &checked), &rows)
    }

    pub(super) async fn recount(&self, args: RecountArgs) -> Result<(), Failure> {
        let now = SystemClock.now();
        let request = pb::RecountCounterRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name,
            from: args.from.map(|from| from.to_proto(now)),
            to: args.to.map(|to| to.to_proto(now)),
            repair: args.repair,
        };
        let recount = call!(self.session, counters.recount_counter, &request)?;
        let answer = CliResponse::many(&full_name("RecountCounterResponse"), &recount, "differences");
        match self.session.output.format() {
            Format::Table => self.session.output.bytes(recount_text(&recount).as_bytes())?,
            Format::Json => self.session.output.answer(&answer, &TableRows::default())?,
            Format::Jsonl | Format::Csv => self.session.output.answer(&answer, &difference_rows(&recount))?,
        }
        let agrees = recount.count_before == recount.count_after && recount.differences.is_empty();
        match agrees || recount.repaired {
            true => Ok(()),
            false => Err(Failure::new(Exit::Failure, "the counter differs from its log")),
        }
    }
}

/// The progress of an export.
struct EventExport {
    parts: IncrementalPrinter,
    events: usize,
}

impl EventExport {
    fn begin(output: Output) -> Self {
        Self { parts: IncrementalPrinter::list(output), events: 0 }
    }

    fn print(&mut self, name: &str, events: &[pb::CountEvent]) -> Result<(), Failure> {
        let lines = events.iter().map(|event| {
            let mut line = serde_json::Map::from_iter([("counterName".to_owned(), name.into())]);
            if let serde_json::Value::Object(fields) = CliResponse::one(&full_name("CountEvent"), event).json() {
                line.extend(fields);
            }
            serde_json::Value::Object(line)
        });
        self.parts.print(&lines.collect::<Vec<_>>(), &rows_of(name, events))?;
        self.events += events.len();
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        self.parts.end(EVENTS)?;
        progress(&format!("{} events", self.events));
        Ok(())
    }
}

fn rows_of(name: &str, events: &[pb::CountEvent]) -> TableRows {
    let cells = events.iter().map(|event| {
        vec![
            name.to_owned(),
            time_cell(event.event_time.as_ref()),
            kind(event.kind),
            event.delta.to_string(),
            event.token.clone(),
            event.provenance.clone(),
        ]
    });
    TableRows { columns: EVENTS, cells: cells.collect() }
}

fn difference_rows(recount: &pb::RecountCounterResponse) -> TableRows {
    let cells = recount.differences.iter().map(|difference| {
        vec![
            time_cell(difference.bucket_start.as_ref()),
            difference.rows_recorded.to_string(),
            difference.rows_found.to_string(),
            difference.sum_recorded.to_string(),
            difference.sum_found.to_string(),
            difference.saturated.to_string(),
        ]
    });
    TableRows { columns: DIFFERENCES, cells: cells.collect() }
}

fn recount_text(recount: &pb::RecountCounterResponse) -> String {
    let mut text = format!(
        "count served:      {}{}\ncount of the log:  {}{}\nas of:             {}\n{}\n{} compared, {} read, {}\n",
        recount.count_before,
        clamped(recount.saturated_before),
        recount.count_after,
        clamped(recount.saturated_after),
        time_cell(recount.as_of.as_ref()),
        match recount.complete {
            true => "the log contains the whole history of the counter",
            false =>
                "the log does not contain the whole history; the comparison starts from the recorded count before it",
        },
        counted(recount.buckets_compared, "bucket", "buckets"),
        counted(recount.events_read, "event", "events"),
        counted(saturating_i64(recount.differences.len()), "difference", "differences"),
    );
    for difference in &recount.differences {
        text.push_str(&format!(
            "bucket {}: rows {} -> {}, sum {} -> {}{}\n",
            time_cell(difference.bucket_start.as_ref()),
            difference.rows_recorded,
            difference.rows_found,
            difference.sum_recorded,
            difference.sum_found,
            clamped(difference.saturated),
        ));
    }
    text
}

fn clamped(saturated: bool) -> &'static str {
    if saturated { " (saturated)" } else { "" }
}

pub(super) fn kind(number: i32) -> String {
    word::<pb::EventKind>(number, "EVENT_KIND_", pb::EventKind::as_str_name)
}
