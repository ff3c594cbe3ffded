//! Decodes requests into domain values, and validates each argument once.

use std::time::Duration;

use crate::errors::ApiError;
use crate::time;
use tallystone_domain::access::{Asked, CallRights, CounterScope};
use tallystone_domain::counter::{ClientToken, CounterName, IdempotencyToken, NamespaceName, Provenance, ReportSource};
use tallystone_domain::limits::{
    BATCH_ITEMS_MAX, EXPLAIN_ROWS_DEFAULT, EXPLAIN_ROWS_MAX, SERIES_COUNTERS_MAX, TOP_COUNTERS_DEFAULT,
    TOP_COUNTERS_MAX, WATCH_COUNTERS_MAX,
};
use tallystone_domain::rollup::series_step::SeriesStep;
use tallystone_domain::rollup::{Freshness, ReadOptions};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_engine::counting::{Add, Clear, Report, SeriesQuery};
use tallystone_proto::counter::v1 as wire;

/// Decodes the namespace of a call about counters, of which the caller may touch at least some.
pub fn namespace(rights: &CallRights, name: &str) -> Result<CounterScope, Reject> {
    Ok(rights.counters(Asked::new(NamespaceName::new(name)?))?)
}

/// Decodes the name of a counter that the caller may touch.
pub fn counter(scope: &CounterScope, name: &str) -> Result<CounterName, Reject> {
    Ok(scope.counter(Asked::new(CounterName::new(name)?))?)
}

/// Decodes the token of a change; without one, the server creates it.
pub fn token(sent: Option<wire::IdempotencyToken>) -> Result<Option<IdempotencyToken>, Reject> {
    let Some(sent) = sent else { return Ok(None) };
    let generation_time = sent
        .generation_time
        .map(|wire| time::read("generation_time", Reason::InvalidGenerationTime, &wire))
        .transpose()?;
    IdempotencyToken::parse(&ClientToken { token: sent.token, generation_time }).map(Some)
}

/// Decodes the token of a query about a token.
pub fn required_token(sent: Option<wire::IdempotencyToken>) -> Result<IdempotencyToken, Reject> {
    token(sent)?
        .ok_or_else(|| Reject::new(Reason::InvalidToken, "idempotency_token is missing; send the token to check"))
}

pub fn add(
    scope: &CounterScope,
    name: &str,
    delta: Option<i64>,
    sent: Option<wire::IdempotencyToken>,
    provenance: &str,
) -> Result<Add, Reject> {
    let name = counter(scope, name)?;
    let delta = required("delta", "the amount to add", delta)?;
    let claimed = Provenance::new(provenance)?;
    // An add that says nothing about its origin stays as short as it is: there are millions of them.
    let provenance = if claimed.is_none() { claimed } else { claimed.by(scope.caller()) };
    Ok(Add { name, delta, token: token(sent)?, provenance })
}

/// A number without which a change changes nothing.
pub fn required(field: &str, meaning: &str, sent: Option<i64>) -> Result<i64, Reject> {
    let what = format!("{field} is missing; send {meaning}");
    sent.ok_or_else(|| Reject::new(Reason::InvalidArgument, what.as_str()).at(field, what.as_str()))
}

pub fn add_item(scope: &CounterScope, item: wire::AddItem) -> Result<Add, Reject> {
    add(scope, &item.counter_name, item.delta, item.idempotency_token, &item.provenance)
}

pub fn clear(scope: &CounterScope, request: wire::ClearCountRequest) -> Result<Clear, Reject> {
    Ok(Clear {
        name: counter(scope, &request.counter_name)?,
        token: token(request.idempotency_token)?,
        provenance: Provenance::new(&request.provenance)?.by(scope.caller()),
    })
}

pub fn freshness(number: i32) -> Result<Freshness, ApiError> {
    match wire::Freshness::try_from(number) {
        Ok(wire::Freshness::Unspecified) => Ok(Freshness::ByType),
        Ok(wire::Freshness::RolledUp) => Ok(Freshness::RolledUp),
        Ok(wire::Freshness::UpToDate) => Ok(Freshness::UpToDate),
        Err(_unknown) => Err(ApiError::new(
            Reason::InvalidArgument,
            format!("freshness {number} does not exist; send ROLLED_UP (1) or UP_TO_DATE (2), or omit freshness"),
        )
        .at("freshness")),
    }
}

pub fn read_options(request: &wire::GetCountRequest) -> Result<ReadOptions, ApiError> {
    Ok(ReadOptions {
        max_staleness: duration("max_staleness", request.max_staleness.as_ref())?,
        at_least_as_of: moment("at_least_as_of", request.at_least_as_of.as_ref())?,
        freshness: freshness(request.freshness)?,
    })
}

/// Decodes an optional time of a query.
pub fn moment(field: &str, wire: Option<&prost_types::Timestamp>) -> Result<Option<Timestamp>, ApiError> {
    let read = |wire| time::read(field, Reason::InvalidRange, wire);
    wire.map(read).transpose().map_err(|reject| ApiError::from(reject).at(field))
}

/// Decodes an optional duration of a query.
pub fn duration(field: &str, wire: Option<&prost_types::Duration>) -> Result<Option<Duration>, ApiError> {
    let read = |wire| time::read_duration(field, wire);
    wire.map(read).transpose().map_err(|reject| ApiError::from(reject).at(field))
}

/// Checks the number of items of a batch.
pub fn batch_size(field: &str, items: usize) -> Result<(), ApiError> {
    sized(field, items, BATCH_ITEMS_MAX)
}

/// Checks the number of counters of a watch.
pub fn watch_size(field: &str, counters: usize) -> Result<(), ApiError> {
    sized(field, counters, WATCH_COUNTERS_MAX)
}

/// Checks the number of counters of a batch of series.
pub fn series_size(field: &str, counters: usize) -> Result<(), ApiError> {
    sized(field, counters, SERIES_COUNTERS_MAX)
}

/// Decodes the range and the step, with its time zone, of a question about series; `now` is the end if none was sent.
pub fn series_query(
    (from, to): (Option<&prost_types::Timestamp>, Option<&prost_types::Timestamp>),
    (step, time_zone): (&str, &str),
    now: Timestamp,
) -> Result<SeriesQuery, ApiError> {
    let from = moment("from", from)?.ok_or_else(|| {
        ApiError::new(Reason::InvalidRange, "from is missing; send the beginning of the range").at("from")
    })?;
    let to = moment("to", to)?.unwrap_or(now);
    Ok(SeriesQuery { from, to, step: SeriesStep::read(step, time_zone)? })
}

fn sized(field: &str, items: usize, most: usize) -> Result<(), ApiError> {
    if (1..=most).contains(&items) {
        return Ok(());
    }
    Err(ApiError::new(
        Reason::InvalidBatchSize,
        format!("{field} has {items} items; nothing was applied: send 1 to {most} in one call"),
    )
    .at(field))
}

pub fn report(request: &wire::ReportTotalsRequest) -> Result<Report, ApiError> {
    let source = ReportSource::new(&request.source).map_err(|reject| ApiError::from(reject).at("source"))?;
    Ok(Report { source, epoch: request.epoch, serial: request.serial })
}

pub fn total(scope: &CounterScope, item: &wire::TotalItem) -> Result<(CounterName, i64), Reject> {
    Ok((counter(scope, &item.counter_name)?, required("total", "the source's total", item.total)?))
}

/// Decodes the number of log rows to show, capped at the maximum.
pub fn explained_rows(rows: i32) -> Result<usize, ApiError> {
    match usize::try_from(rows) {
        Ok(0) => Ok(EXPLAIN_ROWS_DEFAULT),
        Ok(rows) => Ok(rows.min(EXPLAIN_ROWS_MAX)),
        Err(_) => {
            let what = format!("rows is {rows}; send 1 to {EXPLAIN_ROWS_MAX}, or 0 for {EXPLAIN_ROWS_DEFAULT}");
            Err(ApiError::new(Reason::InvalidRange, what).at("rows"))
        }
    }
}

/// Decodes the number of counters to rank.
pub fn top_count(n: i32) -> Result<usize, ApiError> {
    match usize::try_from(n) {
        Ok(0) => Ok(TOP_COUNTERS_DEFAULT),
        Ok(n) if n <= TOP_COUNTERS_MAX => Ok(n),
        Ok(_) | Err(_) => Err(ApiError::new(
            Reason::InvalidRange,
            format!("n is {n}; send 1 to {TOP_COUNTERS_MAX}, or 0 for {TOP_COUNTERS_DEFAULT}"),
        )
        .at("n")),
    }
}
