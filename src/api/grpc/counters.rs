//! CounterService: each method decodes, calls its use case, encodes.

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::errors::ApiError;
use crate::grpc::{caller_of, decode, encode, explain_convert, places_of, rights_of, stream_adds};
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{CounterScope, Sealed};
use tallystone_domain::counter::{CounterName, EventId, EventKey};
use tallystone_domain::rollup::ReadOptions;
use tallystone_domain::{Reason, Timestamp};
use tallystone_engine::counting::{CounterSummary, Counting, EventsQuery, Repair};
use tallystone_proto::counter::v1 as wire;
use tallystone_proto::counter::v1::counter_service_server::CounterService;

type CounterRpcResult<T> = Result<Response<T>, Status>;

/// The counter service.
pub struct CountersApi {
    counting: Sealed<Counting>,
    drain: CancellationToken,
}

impl CountersApi {
    /// Serves these use cases; streams end when `drain` is cancelled.
    pub fn new(counting: Counting, drain: CancellationToken) -> Self {
        Self { counting: Sealed::new(counting), drain }
    }

    /// A page of the counters that the caller may see. Reads on until the page is full or the namespace ends.
    async fn shown_counters(
        &self,
        scope: &CounterScope,
        prefix: &str,
        mut above: Option<CounterName>,
        rows: usize,
    ) -> Result<Vec<CounterSummary>, ApiError> {
        let (prefix, mut shown) = (scope.narrowed(prefix), Vec::new());
        loop {
            let found = self.counting.with(scope).list(scope, prefix, above, rows).await?;
            let is_end = found.len() < rows;
            above = found.last().map(|last| last.name.clone());
            shown.extend(found.into_iter().filter(|counter| scope.shows(&counter.name)));
            if is_end || shown.len() >= rows {
                shown.truncate(rows);
                return Ok(shown);
            }
        }
    }
}

#[tonic::async_trait]
impl CounterService for CountersApi {
    type StreamAddCountsStream = BoxStream<'static, Result<wire::StreamAddCountsResponse, Status>>;
    type WatchCountsStream = BoxStream<'static, Result<wire::WatchCountsResponse, Status>>;

    async fn add_count(&self, request: Request<wire::AddCountRequest>) -> CounterRpcResult<wire::AddCountResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let wire::AddCountRequest { counter_name, delta, idempotency_token, provenance, .. } = request;
        let add =
            decode::add(&namespace, &counter_name, delta, idempotency_token, &provenance).map_err(ApiError::from)?;
        let written = self.counting.with(&namespace).add(&namespace, add).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::added(&written)))
    }

    async fn add_and_get_count(
        &self,
        request: Request<wire::AddAndGetCountRequest>,
    ) -> CounterRpcResult<wire::AddAndGetCountResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let freshness = decode::freshness(request.freshness)?;
        let wire::AddAndGetCountRequest { counter_name, delta, idempotency_token, provenance, .. } = request;
        let add =
            decode::add(&namespace, &counter_name, delta, idempotency_token, &provenance).map_err(ApiError::from)?;
        let (written, reading) =
            self.counting.with(&namespace).add_and_get(&namespace, add, freshness).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::added_and_read(&written, &reading)))
    }

    async fn get_count(&self, request: Request<wire::GetCountRequest>) -> CounterRpcResult<wire::GetCountResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let options = decode::read_options(&request)?;
        let reading = self.counting.with(&namespace).get(&namespace, name, options).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::reading(&reading)))
    }

    async fn clear_count(
        &self,
        request: Request<wire::ClearCountRequest>,
    ) -> CounterRpcResult<wire::ClearCountResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let clear = decode::clear(&namespace, request).map_err(ApiError::from)?;
        let written = self.counting.with(&namespace).clear(&namespace, clear).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::cleared(&written)))
    }

    async fn batch_add_counts(
        &self,
        request: Request<wire::BatchAddCountsRequest>,
    ) -> CounterRpcResult<wire::BatchAddCountsResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        decode::batch_size("items", request.items.len())?;
        let items = request.items.into_iter().map(|item| decode::add_item(&namespace, item)).collect();
        let answers = self.counting.with(&namespace).batch_add(&namespace, items).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::BatchAddCountsResponse {
            results: answers.into_iter().map(encode::add_result).collect(),
            server_time: Some(time::write(self.counting.with(&namespace).server_time())),
        }))
    }

    async fn batch_get_counts(
        &self,
        request: Request<wire::BatchGetCountsRequest>,
    ) -> CounterRpcResult<wire::BatchGetCountsResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        decode::batch_size("counter_names", request.counter_names.len())?;
        let options = ReadOptions {
            max_staleness: decode::duration("max_staleness", request.max_staleness.as_ref())?,
            at_least_as_of: decode::moment("at_least_as_of", request.at_least_as_of.as_ref())?,
            freshness: decode::freshness(request.freshness)?,
        };
        let names = request.counter_names.iter().map(|name| decode::counter(&namespace, name)).collect();
        let answers =
            self.counting.with(&namespace).batch_get(&namespace, names, options).await.map_err(ApiError::from)?;
        let results = request.counter_names.into_iter().zip(answers);
        Ok(Response::new(wire::BatchGetCountsResponse {
            results: results.map(|(name, answer)| encode::get_result(name, answer)).collect(),
        }))
    }

    async fn stream_add_counts(
        &self,
        request: Request<Streaming<wire::StreamAddCountsRequest>>,
    ) -> CounterRpcResult<Self::StreamAddCountsStream> {
        let rights = rights_of(&request)?;
        let counting = self.counting.with(&rights.listing()).clone();
        let places = places_of(&request)?;
        let answers = stream_adds::answers(counting, (rights, places), request.into_inner(), self.drain.clone());
        Ok(Response::new(answers))
    }

    async fn report_totals(
        &self,
        request: Request<wire::ReportTotalsRequest>,
    ) -> CounterRpcResult<wire::ReportTotalsResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let report = decode::report(&request)?;
        decode::batch_size("items", request.items.len())?;
        let items = request.items.iter().map(|item| decode::total(&namespace, item)).collect();
        let answers =
            self.counting.with(&namespace).report_totals(&namespace, report, items).await.map_err(ApiError::from)?;
        Ok(Response::new(wire::ReportTotalsResponse {
            results: answers.into_iter().map(encode::total_result).collect(),
            server_time: Some(time::write(self.counting.with(&namespace).server_time())),
        }))
    }

    async fn check_token(
        &self,
        request: Request<wire::CheckTokenRequest>,
    ) -> CounterRpcResult<wire::CheckTokenResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let token = decode::required_token(request.idempotency_token).map_err(ApiError::from)?;
        let verdict =
            self.counting.with(&namespace).check_token(&namespace, name, token).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::verdict(verdict, self.counting.with(&namespace).server_time())))
    }

    async fn get_count_series(
        &self,
        request: Request<wire::GetCountSeriesRequest>,
    ) -> CounterRpcResult<wire::GetCountSeriesResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let range = (request.from.as_ref(), request.to.as_ref());
        let question = decode::series_query(
            range,
            (&request.step, &request.time_zone),
            self.counting.with(&namespace).server_time(),
        )?;
        let answer = self.counting.with(&namespace).series(&namespace, name, question).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::series(&answer, request.cumulative)))
    }

    async fn batch_get_count_series(
        &self,
        request: Request<wire::BatchGetCountSeriesRequest>,
    ) -> CounterRpcResult<wire::BatchGetCountSeriesResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        decode::series_size("counter_names", request.counter_names.len())?;
        let range = (request.from.as_ref(), request.to.as_ref());
        let question = decode::series_query(
            range,
            (&request.step, &request.time_zone),
            self.counting.with(&namespace).server_time(),
        )?;
        let names = request.counter_names.iter().map(|name| decode::counter(&namespace, name)).collect();
        let answers =
            self.counting.with(&namespace).batch_series(&namespace, names, question).await.map_err(ApiError::from)?;
        let results = request.counter_names.into_iter().zip(answers);
        Ok(Response::new(wire::BatchGetCountSeriesResponse {
            results: results.map(|(name, answer)| encode::series_result(name, answer, request.cumulative)).collect(),
        }))
    }

    async fn list_counters(
        &self,
        request: Request<wire::ListCountersRequest>,
    ) -> CounterRpcResult<wire::ListCountersResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let paged = PagedRequest::new("ListCounters", &[namespace.as_str().as_bytes(), request.prefix.as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(ApiError::from)?;
        let above = cursor.map(|cursor| counter_cursor(&cursor)).transpose()?;
        let found = self.shown_counters(&namespace, &request.prefix, above, rows).await?;
        let next_page_token = match found.last() {
            Some(last) if found.len() == rows => paged.token(last.name.as_str().as_bytes()),
            Some(_) | None => String::new(),
        };
        let counters = found.iter().map(encode::summary).collect();
        Ok(Response::new(wire::ListCountersResponse { counters, next_page_token }))
    }

    async fn top_counters(
        &self,
        request: Request<wire::TopCountersRequest>,
    ) -> CounterRpcResult<wire::TopCountersResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let n = decode::top_count(request.n)?;
        let mut answer = self.counting.with(&namespace).top(&namespace, n).await.map_err(ApiError::from)?;
        answer.counters.retain(|counter| namespace.shows(&counter.name));
        Ok(Response::new(encode::top(&answer)))
    }

    async fn watch_counts(
        &self,
        request: Request<wire::WatchCountsRequest>,
    ) -> CounterRpcResult<Self::WatchCountsStream> {
        let caller = caller_of(&request);
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        decode::watch_size("counter_names", request.counter_names.len())?;
        let names: Result<Vec<CounterName>, _> =
            request.counter_names.iter().map(|name| decode::counter(&namespace, name)).collect();
        let names = names.map_err(|reject| ApiError::from(reject).at("counter_names"))?;
        let readings = self.counting.with(&namespace).watch(&namespace, names, caller).await.map_err(ApiError::from)?;
        let readings = readings.map(|reading| {
            let (name, reading) = reading.map_err(ApiError::from)?;
            let counter_name = name.as_str().to_owned();
            Ok(wire::WatchCountsResponse { counter_name, reading: Some(encode::reading(&reading)) })
        });
        let stopping = ApiError::new(Reason::ShuttingDown, "the server is stopping");
        let end = stream::once(async move { Err(stopping.into()) });
        Ok(Response::new(readings.take_until(self.drain.clone().cancelled_owned()).chain(end).boxed()))
    }

    async fn list_count_events(
        &self,
        request: Request<wire::ListCountEventsRequest>,
    ) -> CounterRpcResult<wire::ListCountEventsResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let from = decode::moment("from", request.from.as_ref())?.unwrap_or(Timestamp::MIN);
        let to = decode::moment("to", request.to.as_ref())?.unwrap_or(Timestamp::MAX);
        if from >= to {
            return Err(ApiError::new(Reason::InvalidRange, "from must be before to").at("from").into());
        }
        let rows = paging::rows(request.page_size).map_err(ApiError::from)?;
        let range = [from.micros().to_be_bytes(), to.micros().to_be_bytes()].concat();
        let arguments = [namespace.as_str().as_bytes(), name.as_str().as_bytes(), &range];
        let paged = PagedRequest::new("ListCountEvents", &arguments);
        let cursor = paged.cursor(&request.page_token).map_err(ApiError::from)?;
        let older_than = cursor.map(|cursor| event_cursor(&cursor)).transpose()?;
        let question = EventsQuery { from, to, older_than, limit: rows };
        let found = self.counting.with(&namespace).events(&namespace, name, question).await.map_err(ApiError::from)?;
        let next_page_token = match found.last() {
            Some(last) if found.len() == rows => paged.token(&event_cursor_bytes(&last.key)),
            Some(_) | None => String::new(),
        };
        let events = found.iter().map(encode::event).collect();
        Ok(Response::new(wire::ListCountEventsResponse { events, next_page_token }))
    }

    async fn recount_counter(
        &self,
        request: Request<wire::RecountCounterRequest>,
    ) -> CounterRpcResult<wire::RecountCounterResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let from = decode::moment("from", request.from.as_ref())?;
        let to = decode::moment("to", request.to.as_ref())?;
        if request.repair && !self.counting.with(&namespace).can_repair() {
            let what =
                "this store does not support repair, because events never arrive late; omit repair to compare only";
            return Err(ApiError::new(Reason::InvalidArgument, what).at("repair").into());
        }
        let repair = if request.repair { Repair::Yes } else { Repair::No };
        let recount =
            self.counting.with(&namespace).recount(&namespace, name, from, to, repair).await.map_err(ApiError::from)?;
        Ok(Response::new(encode::recount(&recount)))
    }

    async fn explain_counter(
        &self,
        request: Request<wire::ExplainCounterRequest>,
    ) -> CounterRpcResult<wire::ExplainCounterResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let namespace = decode::namespace(&rights, &request.namespace).map_err(ApiError::from)?;
        let name = decode::counter(&namespace, &request.counter_name).map_err(ApiError::from)?;
        let rows = decode::explained_rows(request.rows)?;
        let explanation =
            self.counting.with(&namespace).explain(&namespace, name, rows).await.map_err(ApiError::from)?;
        Ok(Response::new(explain_convert::explanation(explanation, self.counting.with(&namespace).server_time())))
    }
}

fn counter_cursor(cursor: &[u8]) -> Result<CounterName, ApiError> {
    let name = std::str::from_utf8(cursor).ok().and_then(|name| CounterName::new(name).ok());
    name.ok_or_else(|| paging::refuse().into())
}

/// The cursor of events: 8 bytes time in µs (big endian), then the id.
fn event_cursor_bytes(key: &EventKey) -> Vec<u8> {
    let mut bytes = key.time.micros().to_be_bytes().to_vec();
    key.id.write_to(&mut bytes);
    bytes
}

fn event_cursor(cursor: &[u8]) -> Result<EventKey, ApiError> {
    let key = cursor.split_first_chunk::<8>().and_then(|(time, id)| {
        Some(EventKey { time: Timestamp::from_micros(i64::from_be_bytes(*time)), id: EventId::from_bytes(id)? })
    });
    key.ok_or_else(|| paging::refuse().into())
}
