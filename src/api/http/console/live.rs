//! Live numbers of a page as one stream of events: once a second the age, and the rows that changed.

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

use super::ask::ConsoleCalls;
use super::pages::{overview, queue};
use super::query::PageQuery;
use super::{text, words};
use crate::api::errors::ApiError;
use crate::api::http::json;
use crate::api::http::response_body::with_type;
use crate::engine::access::AccountPermit;
use crate::proto::queue::v1 as pb;

/// The pause between two events.
const PAUSE: Duration = Duration::from_secs(1);

/// The numbers of a row or page, by the names of their cells.
type LiveNumbers = BTreeMap<&'static str, String>;

struct LiveStream {
    calls: ConsoleCalls,
    query: PageQuery,
    /// The rows as they were sent last.
    sent: BTreeMap<String, LiveNumbers>,
    has_begun: bool,
    _permit: OwnedSemaphorePermit,
    _place: Option<AccountPermit>,
}

/// What an event says.
#[derive(Default)]
struct LiveReading {
    as_of: Option<prost_types::Timestamp>,
    server_time: Option<prost_types::Timestamp>,
    page: LiveNumbers,
    rows: BTreeMap<String, LiveNumbers>,
}

/// Answers the stream of a page, or 503 when there are too many streams, or 429 when the caller has as many as its quota allows.
pub fn answer(calls: ConsoleCalls, query: PageQuery, streams: &Arc<Semaphore>) -> Response<Body> {
    let Ok(permit) = Arc::clone(streams).try_acquire_owned() else {
        let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "too many pages are live; try again\n".to_owned());
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        return response;
    };
    let place = match calls.take_stream() {
        Ok(place) => place,
        Err(refusal) => return json::refused(&ApiError::from(refusal).into()),
    };
    let live = LiveStream { calls, query, sent: BTreeMap::new(), has_begun: false, _permit: permit, _place: place };
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
        let LiveReading { as_of, server_time, page, rows } = reading;
        let is_new = |name: &String, row: &LiveNumbers| self.sent.get(name) != Some(row);
        let changed: BTreeMap<&String, &LiveNumbers> = rows.iter().filter(|(name, row)| is_new(name, row)).collect();
        let news: Value = serde_json::json!({
            "serverTime": server_time.as_ref().map(words::millis),
            "asOf": as_of.as_ref().map(words::millis),
            "isAway": is_away,
            "page": page,
            "rows": changed,
        });
        self.sent = rows;
        Some(format!("event: numbers\ndata: {news}\n\n"))
    }

    async fn read(&self) -> Result<LiveReading, Status> {
        let name = self.query.text("name");
        if name.is_empty() {
            let listed = overview::activities(&self.calls, &self.query).await?;
            let totals = listed.totals.unwrap_or_default();
            let page = overview::sums(&totals).into_iter().map(|fact| (fact.live, fact.value)).collect();
            let rows = listed.queues.iter().map(|row| (row.queue.clone(), numbers(row))).collect();
            return Ok(LiveReading { as_of: totals.as_of, server_time: listed.server_time, page, rows });
        }
        let read = queue::activity(&self.calls, name).await?;
        let activity = read.activity.unwrap_or_default();
        let page = numbers(&activity);
        Ok(LiveReading { as_of: activity.as_of, server_time: read.server_time, page, rows: BTreeMap::new() })
    }
}

fn numbers(row: &pb::QueueActivity) -> LiveNumbers {
    overview::numbers(row).into_iter().map(|(_, _, live, text)| (live, text)).collect()
}
