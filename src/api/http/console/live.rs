//! The changes of a page as one stream of events: once a second the age, and the rows and parts that changed.
//!
//! A part is a section as the page has it, rendered and escaped here too. An event of a stream says all that it
//! follows, or what is new since the event before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::{Code, Status};

use super::in_process_client::InProcessClient;
use super::pages::{operations, overview, queue};
use super::query::PageQuery;
use super::view::Section;
use super::{format, render, text};
use crate::errors::ApiError;
use crate::http::json;
use crate::http::response_body::with_type;
use tallystone_engine::access::AccountPermit;
use tallystone_proto::queue::v1 as pb;

/// The pause between two events.
const PAUSE: Duration = Duration::from_secs(1);

/// The name under which a row or page lists its bad numbers, with spaces between.
const BAD: &str = "bad";

/// The numbers of a row or page, by the names of their cells.
type LiveNumbers = BTreeMap<&'static str, String>;

struct LiveStream {
    calls: InProcessClient,
    query: PageQuery,
    read_only: bool,
    /// The reading that was sent last; none before the first event.
    sent: Option<LiveReading>,
    has_begun: bool,
    _permit: OwnedSemaphorePermit,
    _place: Option<AccountPermit>,
}

/// The content of an event.
#[derive(Default)]
struct LiveReading {
    as_of: Option<prost_types::Timestamp>,
    server_time: Option<prost_types::Timestamp>,
    page: LiveNumbers,
    rows: BTreeMap<String, LiveNumbers>,
    /// The markup of each part, by its name.
    parts: BTreeMap<&'static str, String>,
}

/// Answers the stream of a page, or 503 when there are too many streams, or 429 when the caller has as many as its
/// quota allows.
pub fn answer(calls: InProcessClient, query: PageQuery, read_only: bool, streams: &Arc<Semaphore>) -> Response<Body> {
    let Ok(permit) = Arc::clone(streams).try_acquire_owned() else {
        let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many pages are live; try again\n".to_owned());
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return response;
    };
    let place = match calls.take_stream() {
        Ok(place) => place,
        Err(refusal) => return json::refused(&ApiError::from(refusal).into()),
    };
    let (has_begun, sent) = (false, None);
    let live = LiveStream { calls, query, read_only, sent, has_begun, _permit: permit, _place: place };
    let events = stream::unfold(live, |mut live| async move {
        let event = live.next().await?;
        Some((Ok::<_, Status>(Frame::data(Bytes::from(event))), live))
    });
    with_type(StatusCode::OK, "text/event-stream", Bytes::new()).map(|_| Body::new(StreamBody::new(events)))
}

impl LiveStream {
    /// The next event; none when the server stops.
    async fn next(&mut self) -> Option<String> {
        let context = Arc::clone(&self.calls.context.calls);
        if self.has_begun {
            tokio::select! {
                () = context.drain.cancelled() => return None,
                () = context.clock.sleep(PAUSE) => {}
            }
        }
        self.has_begun = true;
        self.calls = self.calls.anew();
        let is_away = self.calls.queues_away().is_some();
        let reading = match self.read().await {
            Ok(reading) => reading,
            // The key of the caller has ended.
            Err(refusal) if refusal.code() == Code::Unauthenticated => return None,
            Err(_) => {
                // The page keeps its numbers, and their age grows.
                return Some(": no answer\n\n".to_owned());
            }
        };
        let event = reading.event(self.sent.as_ref(), is_away);
        self.sent = Some(reading);
        Some(event)
    }

    async fn read(&self) -> Result<LiveReading, Status> {
        let name = self.query.text("name");
        if name.is_empty() {
            let read = overview::read(&self.calls, &self.query).await?;
            let parts = marked(overview::parts(&read, self.calls.queues_away().as_deref()));
            let as_of = read.as_of();
            let totals = read.listed.totals.unwrap_or_default();
            let sums = overview::sums(&totals).into_iter();
            let page = live_numbers(sums.map(|fact| (fact.live, fact.value, !fact.class.is_empty())));
            let rows = read.listed.queues.iter().map(|row| (row.queue.clone(), numbers(row))).collect();
            return Ok(LiveReading { as_of, server_time: read.listed.server_time, page, rows, parts });
        }
        let (read, running) = tokio::join!(queue::activity(&self.calls, name), operations::read(&self.calls, name));
        let read = read?;
        let activity = read.activity.unwrap_or_default();
        let mut page = numbers(&activity);
        page.insert("lead", queue::verdict(&activity));
        let of_page = queue::parts(&self.calls, &activity, self.read_only);
        // A page keeps the operations that it knows while they are not answered.
        let running = running.ok().map(|running| operations::section(name, Ok(running)));
        let parts = marked(of_page.into_iter().chain(running));
        let rows = BTreeMap::new();
        Ok(LiveReading { as_of: activity.as_of, server_time: read.server_time, page, rows, parts })
    }
}

impl LiveReading {
    /// The event that tells it to a page that knows another reading, or none.
    fn event(&self, known: Option<&Self>, is_away: bool) -> String {
        let Self { as_of, server_time, page, rows, parts } = self;
        let is_new_row = |name: &String, row: &LiveNumbers| known.is_none_or(|known| known.rows.get(name) != Some(row));
        let changed: BTreeMap<_, _> = rows.iter().filter(|(name, row)| is_new_row(name, row)).collect();
        let is_new_part = |name: &str, part: &String| known.is_none_or(|known| known.parts.get(name) != Some(part));
        let parts: BTreeMap<_, _> = parts.iter().filter(|(name, part)| is_new_part(name, part)).collect();
        let known_rows = known.iter().flat_map(|known| known.rows.keys());
        let gone: Vec<&String> = known_rows.filter(|name| !rows.contains_key(*name)).collect();
        let news: Value = serde_json::json!({
            "serverTime": server_time.as_ref().map(format::millis),
            "asOf": as_of.as_ref().map(format::millis),
            "isAway": is_away,
            "page": page,
            // The first event has all rows. Others of the page have left it.
            "isWhole": known.is_none(),
            "rows": changed,
            "gone": gone,
            "parts": parts,
        });
        format!("event: numbers\ndata: {news}\n\n")
    }
}

fn numbers(row: &pb::QueueActivity) -> LiveNumbers {
    live_numbers(overview::numbers(row).into_iter().map(|number| (number.live, number.text, number.is_bad)))
}

/// Numbers by their names: name, text, and whether it is bad.
fn live_numbers(numbers: impl Iterator<Item = (&'static str, String, bool)>) -> LiveNumbers {
    let mut bad = Vec::new();
    let mut by_name = LiveNumbers::new();
    for (name, text, is_bad) in numbers {
        by_name.insert(name, text);
        bad.extend(is_bad.then_some(name));
    }
    by_name.insert(BAD, bad.join(" "));
    by_name
}

/// The markup of some parts, by their names.
fn marked(parts: impl IntoIterator<Item = Section>) -> BTreeMap<&'static str, String> {
    parts.into_iter().map(|part| (part.part, render::part(&part))).collect()
}
