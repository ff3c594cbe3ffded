//! A history of many rows: how long traces and searches take, and the bytes of a row.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tallystone_client::Connection;
use tallystone_client::proto::history::v1::history_service_client::HistoryServiceClient;
use tallystone_client::proto::history::v1::{
    FoundMessage, GetMessageTraceRequest, SearchMessagesRequest, get_message_trace_request, search_messages_response,
};
use tallystone_client::proto::queue::v1::Queue;
use tempfile::TempDir;

use super::{Scale, bounded};
use crate::figures::{Figure, figure};
use crate::load::Span;
use crate::queues::begin;
use crate::queues::cycles;
use crate::queues::messages::{Kind, Queues, create, team};
use crate::report::Report;
use crate::target::{self, Target};

const QUEUE: &str = "history";
const READS: u64 = 300;
/// Producers number the messages of a batch of 100 from 0.
const TEAMS_USED: u64 = 100;
const ROWS_WRITTEN: &str = "tallystone_history_rows_written_total";
const QUIET_WITHIN: Duration = Duration::from_secs(300);

/// Fills, then reads.
pub async fn run(binary: &Path, folder: &TempDir, scale: &Scale) -> Result<Vec<Figure>> {
    let (server, connections) = begin(binary, folder.path()).await?;
    create(&connections, Queue { count_by: vec!["team".to_owned()], ..Queues::simple(QUEUE) }).await?;
    let begun = Instant::now();
    while target::metric(&server.metrics()?, ROWS_WRITTEN) < scale.rows as f64 {
        let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(5) };
        let report = cycles::run(&connections, QUEUE, Kind::Filtered, span).await?;
        quiet(&server).await?;
        let rows = target::metric(&server.metrics()?, ROWS_WRITTEN);
        eprintln!("{}, {rows} rows after {:.0?}", report.line("cycles"), begun.elapsed());
    }
    let metrics = server.metrics()?;
    let rows = target::metric(&metrics, ROWS_WRITTEN);
    let gaps = target::metric(&metrics, "tallystone_history_gaps_total");
    let encoded = target::metric(&metrics, "tallystone_history_row_bytes_total") / rows;
    let on_disk = target::metric(&metrics, "tallystone_history_bytes") / rows;
    let rate = rows / begun.elapsed().as_secs_f64();
    let mut reader = Reader { client: HistoryServiceClient::new(connections.channel(0)) };
    let (searches, found) = reader.searches("team", &|number| team(number % TEAMS_USED)).await?;
    let traces = reader.traces(&found).await?;
    let partial = reader.partial().await?;
    let size = format!("{encoded:.0} bytes as written, {on_disk:.0} on disk; {rate:.0} rows/s, {gaps} gaps");
    let what = format!("{rows} rows of history");
    Ok(vec![
        bounded(&format!("{what}: a trace"), &traces, "< 50 ms", 50.0),
        bounded(&format!("{what}: a page of 100 by a declared key"), &searches, "< 100 ms", 100.0),
        bounded(&format!("{what}: a PARTIAL page"), &partial, "< 300 ms", 300.0),
        figure(&format!("{what}: size"), size, "(reported)", true),
    ])
}

/// Waits until the history has what happened.
async fn quiet(server: &Target) -> Result<()> {
    let begun = Instant::now();
    let (mut before, mut since) = (-1.0, Instant::now());
    while since.elapsed() < Duration::from_secs(1) {
        ensure!(begun.elapsed() < QUIET_WITHIN, "the history still grows after {QUIET_WITHIN:?}");
        let rows = target::metric(&server.metrics()?, ROWS_WRITTEN);
        if rows > before {
            (before, since) = (rows, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

struct Reader {
    client: HistoryServiceClient<Connection>,
}

impl Reader {
    /// Pages of 100 of messages with a value, completed or not; answers one message of each page too.
    async fn searches(&mut self, key: &str, value: &impl Fn(u64) -> String) -> Result<(Report, Vec<FoundMessage>)> {
        let (mut report, mut found) = (Report::new(), Vec::new());
        for number in 0..READS {
            let filter = HashMap::from([(key.to_owned(), value(number))]);
            let request = SearchMessagesRequest { page_size: 100, ..searched(filter) };
            let begun = Instant::now();
            let page = self.client.search_messages(request).await?.into_inner();
            report.note(begun.elapsed(), &Ok(1));
            ensure!(page.messages.len() == 100, "a page of {}", page.messages.len());
            found.extend(page.messages.into_iter().nth(number as usize % 100));
        }
        Ok((report, found))
    }

    async fn traces(&mut self, messages: &[FoundMessage]) -> Result<Report> {
        let mut report = Report::new();
        for message in messages {
            let id = get_message_trace_request::Message::MessageId(message.message_id.clone());
            let request = GetMessageTraceRequest { queue: QUEUE.to_owned(), message: Some(id), ..Default::default() };
            let begun = Instant::now();
            let trace = self.client.get_message_trace(request).await?.into_inner();
            report.note(begun.elapsed(), &Ok(1));
            let life = trace.lives.first().context("the message is in the history")?;
            ensure!(!life.transitions.is_empty(), "a trace without a row");
        }
        Ok(report)
    }

    /// Pages of a search whose key is not declared, so that it looks at rows one by one.
    async fn partial(&mut self) -> Result<Report> {
        let mut report = Report::new();
        let mut request = searched(HashMap::from([("nowhere".to_owned(), "1".to_owned())]));
        for _ in 0..READS {
            let begun = Instant::now();
            let page = self.client.search_messages(request.clone()).await?.into_inner();
            report.note(begun.elapsed(), &Ok(1));
            ensure!(page.completeness() == search_messages_response::Completeness::Partial, "a page that is complete");
            request.page_token = page.next_page_token;
        }
        Ok(report)
    }
}

fn searched(filter: HashMap<String, String>) -> SearchMessagesRequest {
    SearchMessagesRequest { queue: QUEUE.to_owned(), filter, ..Default::default() }
}
