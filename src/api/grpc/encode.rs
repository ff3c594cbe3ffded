//! Encodes domain values into answers.

use crate::errors::ApiError;
use crate::grpc::saturating_i64;
use crate::time;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Event, IdempotencyToken};
use tallystone_domain::rollup::checkpoint::clamp_count;
use tallystone_domain::rollup::series::SeriesRow;
use tallystone_domain::rollup::{CountReading, Exactness};
use tallystone_engine::counting::{
    BucketDifference, CounterSummary, CountingError, Recount, SeriesResult, TokenVerdict, TopCountersResult,
    WriteOutcome, Written,
};
use tallystone_proto::counter::v1 as wire;

fn token(token: &IdempotencyToken) -> wire::IdempotencyToken {
    wire::IdempotencyToken { token: token.key.id.to_string(), generation_time: Some(time::write(token.key.time)) }
}

fn outcome(outcome: WriteOutcome) -> i32 {
    match outcome {
        WriteOutcome::Applied => wire::Outcome::Applied.into(),
        WriteOutcome::AlreadyApplied => wire::Outcome::AlreadyApplied.into(),
    }
}

fn exactness(exactness: Exactness) -> i32 {
    match exactness {
        Exactness::ExactAsOf => wire::Exactness::ExactAsOf.into(),
        Exactness::UpToDate => wire::Exactness::UpToDate.into(),
        Exactness::Estimate => wire::Exactness::Estimate.into(),
        Exactness::Partial => wire::Exactness::Partial.into(),
    }
}

fn kind(change: Change) -> i32 {
    match change {
        Change::Add(_) => wire::EventKind::Add.into(),
        Change::Clear => wire::EventKind::Clear.into(),
        Change::Void => wire::EventKind::Void.into(),
        Change::Total(_) => wire::EventKind::Total.into(),
    }
}

pub fn added(written: &Written) -> wire::AddCountResponse {
    wire::AddCountResponse {
        outcome: outcome(written.outcome),
        idempotency_token: Some(token(&written.token)),
        event_time: Some(time::write(written.token.key.time)),
        server_time: Some(time::write(written.server_time)),
        idempotent: written.token.idempotent,
    }
}

pub fn added_and_read(written: &Written, reading: &CountReading) -> wire::AddAndGetCountResponse {
    wire::AddAndGetCountResponse {
        outcome: outcome(written.outcome),
        idempotency_token: Some(token(&written.token)),
        event_time: Some(time::write(written.token.key.time)),
        server_time: Some(time::write(written.server_time)),
        idempotent: written.token.idempotent,
        count: reading.count,
        as_of: time::write_reached(reading.as_of),
        checked_at: Some(time::write(reading.checked_at)),
        last_write_time: reading.last_write_time.map(time::write),
        behind: reading.behind,
        exactness: exactness(reading.exactness),
        saturated: reading.saturated,
    }
}

pub fn cleared(written: &Written) -> wire::ClearCountResponse {
    wire::ClearCountResponse {
        outcome: outcome(written.outcome),
        idempotency_token: Some(token(&written.token)),
        event_time: Some(time::write(written.token.key.time)),
        server_time: Some(time::write(written.server_time)),
        idempotent: written.token.idempotent,
        visible_at: written.visible_at.map(time::write),
    }
}

pub fn reading(reading: &CountReading) -> wire::GetCountResponse {
    wire::GetCountResponse {
        count: reading.count,
        as_of: time::write_reached(reading.as_of),
        checked_at: Some(time::write(reading.checked_at)),
        last_write_time: reading.last_write_time.map(time::write),
        behind: reading.behind,
        exactness: exactness(reading.exactness),
        saturated: reading.saturated,
        never_written: reading.never_written(),
        reported_to: reading.reported_to.map(time::write),
    }
}

pub fn add_result(answer: Result<Written, CountingError>) -> wire::AddResult {
    match answer {
        Ok(written) => wire::AddResult {
            outcome: outcome(written.outcome),
            idempotency_token: Some(token(&written.token)),
            event_time: Some(time::write(written.token.key.time)),
            idempotent: written.token.idempotent,
            error: None,
        },
        Err(error) => wire::AddResult { error: Some(ApiError::from(error).into()), ..wire::AddResult::default() },
    }
}

pub fn get_result(counter_name: String, answer: Result<CountReading, CountingError>) -> wire::GetResult {
    match answer {
        Ok(found) => wire::GetResult { counter_name, reading: Some(reading(&found)), error: None },
        Err(error) => wire::GetResult { counter_name, reading: None, error: Some(ApiError::from(error).into()) },
    }
}

pub fn total_result(answer: Result<Written, CountingError>) -> wire::TotalResult {
    match answer {
        Ok(written) => wire::TotalResult {
            outcome: outcome(written.outcome),
            event_time: Some(time::write(written.token.key.time)),
            error: None,
        },
        Err(error) => wire::TotalResult { error: Some(ApiError::from(error).into()), ..wire::TotalResult::default() },
    }
}

pub fn verdict(verdict: TokenVerdict, server_time: Timestamp) -> wire::CheckTokenResponse {
    let mut answer =
        wire::CheckTokenResponse { server_time: Some(time::write(server_time)), ..wire::CheckTokenResponse::default() };
    let verdict = match verdict {
        TokenVerdict::Applied { change, event_time } => {
            answer.kind = kind(change);
            answer.delta = change.delta();
            answer.event_time = Some(time::write(event_time));
            wire::Verdict::Applied
        }
        TokenVerdict::NotApplied => wire::Verdict::NotApplied,
        TokenVerdict::Pending { retry_after } => {
            answer.retry_after = Some(time::write_duration(retry_after));
            wire::Verdict::Pending
        }
        TokenVerdict::TooOld => wire::Verdict::TooOld,
    };
    answer.set_verdict(verdict);
    answer
}

pub fn series(answer: &SeriesResult, cumulative: bool) -> wire::GetCountSeriesResponse {
    let row = |row: &SeriesRow| {
        let (sum, sum_saturated) = clamp_count(row.sum);
        let (value, value_saturated) = clamp_count(row.value);
        wire::SeriesRow {
            step_start: Some(time::write(row.start)),
            sum,
            value: cumulative.then_some(value),
            open: row.open,
            saturated: sum_saturated || (cumulative && value_saturated),
        }
    };
    wire::GetCountSeriesResponse {
        rows: answer.rows.iter().map(row).collect(),
        step: answer.step.to_string(),
        as_of: time::write_reached(answer.as_of),
        reported_to: answer.reported_to.map(time::write),
    }
}

pub fn series_result(
    counter_name: String,
    answer: Result<SeriesResult, CountingError>,
    cumulative: bool,
) -> wire::GetSeriesResult {
    match answer {
        Ok(found) => wire::GetSeriesResult { counter_name, series: Some(series(&found, cumulative)), error: None },
        Err(error) => wire::GetSeriesResult { counter_name, series: None, error: Some(ApiError::from(error).into()) },
    }
}

pub fn summary(summary: &CounterSummary) -> wire::CounterSummary {
    wire::CounterSummary {
        counter_name: summary.name.as_str().to_owned(),
        count: summary.count,
        as_of: time::write_reached(summary.as_of),
        saturated: summary.saturated,
    }
}

pub fn top(answer: &TopCountersResult) -> wire::TopCountersResponse {
    wire::TopCountersResponse {
        counters: answer.counters.iter().map(summary).collect(),
        as_of: time::write_reached(answer.as_of),
    }
}

pub fn event(event: &Event) -> wire::CountEvent {
    wire::CountEvent {
        event_time: Some(time::write(event.key.time)),
        token: event.key.id.to_string(),
        kind: kind(event.change),
        delta: event.change.delta(),
        provenance: event.provenance.as_str().to_owned(),
    }
}

pub fn recount(recount: &Recount) -> wire::RecountCounterResponse {
    let (count_before, saturated_before) = clamp_count(recount.before);
    let (count_after, saturated_after) = clamp_count(recount.after);
    wire::RecountCounterResponse {
        count_before,
        count_after,
        as_of: time::write_reached(recount.as_of),
        complete: recount.complete,
        differences: recount.differences.iter().map(difference).collect(),
        buckets_compared: saturating_i64(recount.buckets_compared),
        events_read: saturating_i64(recount.events_read),
        repaired: recount.repaired,
        saturated_before,
        saturated_after,
    }
}

fn difference(difference: &BucketDifference) -> wire::BucketDifference {
    let (recorded, found) = (difference.recorded.as_ref(), difference.found.as_ref());
    let (sum_recorded, recorded_saturated) = clamp_count(recorded.map_or(0, |record| record.sum));
    let (sum_found, found_saturated) = clamp_count(found.map_or(0, |record| record.sum));
    wire::BucketDifference {
        bucket_start: Some(time::write(difference.start)),
        rows_recorded: recorded.map_or(0, |record| saturating_i64(record.rows)),
        rows_found: found.map_or(0, |record| saturating_i64(record.rows)),
        sum_recorded,
        sum_found,
        saturated: recorded_saturated || found_saturated,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tallystone_domain::rollup::BucketRecord;
    use tallystone_domain::rollup::series_step::SeriesStep;

    const BEYOND: i128 = i64::MAX as i128 + 1;
    const START: Timestamp = Timestamp::from_secs(1_795_132_800);

    #[test]
    fn a_series_says_where_a_number_it_shows_was_clamped() {
        let row = |sum, value| SeriesRow { start: START, sum, value, open: false };
        let rows = vec![row(1, 1), row(BEYOND, 1), row(1, BEYOND), row(-BEYOND - 1, -BEYOND - 1)];
        let answer =
            SeriesResult { rows, step: SeriesStep::Fixed(Duration::from_secs(10)), as_of: START, reported_to: None };
        let shown = |cumulative| -> Vec<(i64, Option<i64>, bool)> {
            let rows = series(&answer, cumulative).rows;
            rows.iter().map(|row| (row.sum, row.value, row.saturated)).collect()
        };
        let (most, least) = (i64::MAX, i64::MIN);
        assert_eq!(shown(false), [(1, None, false), (most, None, true), (1, None, false), (least, None, true)]);
        assert_eq!(
            shown(true),
            [(1, Some(1), false), (most, Some(1), true), (1, Some(most), true), (least, Some(least), true)]
        );
    }

    #[test]
    fn a_recount_says_which_of_its_numbers_were_clamped() {
        let record = |sum| Some(BucketRecord { start: START, rows: 2, sum, clear: None, digest: 0 });
        let recounted = |before, after| {
            recount(&Recount {
                before,
                after,
                as_of: START,
                complete: true,
                differences: vec![BucketDifference { start: START, recorded: record(before), found: record(after) }],
                buckets_compared: 1,
                events_read: 2,
                repaired: false,
            })
        };
        let shown = recounted(7, BEYOND);
        assert_eq!((shown.count_before, shown.saturated_before), (7, false));
        assert_eq!((shown.count_after, shown.saturated_after), (i64::MAX, true));
        assert_eq!((shown.differences[0].sum_found, shown.differences[0].saturated), (i64::MAX, true));
        let shown = recounted(-BEYOND - 1, 7);
        assert_eq!((shown.count_before, shown.saturated_before), (i64::MIN, true));
        assert_eq!((shown.count_after, shown.saturated_after), (7, false));
        assert!(shown.differences[0].saturated && !recounted(7, 7).differences[0].saturated);
    }

    #[test]
    fn a_summary_says_that_it_was_clamped() {
        let name = tallystone_domain::counter::CounterName::new("views").expect("a valid name");
        let clamped = CounterSummary { name, count: i64::MAX, saturated: true, as_of: START };
        assert!(summary(&clamped).saturated);
        assert!(!summary(&CounterSummary { saturated: false, ..clamped }).saturated);
    }
}
