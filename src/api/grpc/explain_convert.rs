//! Encodes the explanation of a counter into its answer.

use crate::grpc::encode::{event, reading};
use crate::grpc::saturating_i64;
use crate::time;
use tallystone_domain::Timestamp;
use tallystone_domain::namespace::{CounterType, Temporality};
use tallystone_domain::rollup::checkpoint::clamp_count;
use tallystone_domain::rollup::{SourceTotal, SourceTotals};
use tallystone_engine::counting::{
    CountParts, CountRestart, CounterExplanation, LogRow, PendingPart, RolledUpPart, RollerLocation, RowStage, TailPart,
};
use tallystone_proto::counter::v1 as wire;

pub fn explanation(explanation: CounterExplanation, server_time: Timestamp) -> wire::ExplainCounterResponse {
    let CounterExplanation { counter_type, temporality, ttl, reading: read, kept_in, parts } = explanation;
    let mut answer = wire::ExplainCounterResponse {
        namespace_type: namespace_type(counter_type).into(),
        cumulative: temporality == Temporality::Cumulative,
        ttl: ttl.map(time::write_duration),
        count: read.count,
        saturated: read.saturated,
        reading: Some(reading(&read)),
        kept_in: kept_in.map(|cluster| cluster.to_string()).unwrap_or_default(),
        server_time: Some(time::write(server_time)),
        ..wire::ExplainCounterResponse::default()
    };
    if let Some(parts) = parts {
        answer.never_written = read.never_written() && parts.tail.rows == parts.tail.voids;
        add_parts(&mut answer, &parts);
    }
    answer
}

fn namespace_type(counter_type: CounterType) -> wire::NamespaceType {
    match counter_type {
        CounterType::BestEffort => wire::NamespaceType::BestEffort,
        CounterType::Eventual => wire::NamespaceType::Eventual,
        CounterType::Accurate => wire::NamespaceType::Accurate,
    }
}

fn add_parts(answer: &mut wire::ExplainCounterResponse, parts: &CountParts) {
    (answer.count, answer.saturated) = clamp_count(parts.count);
    answer.rolled_up = Some(rolled_up(&parts.rolled_up));
    answer.tail = Some(tail(&parts.tail));
    let (restart, at) = match parts.restart {
        CountRestart::None => (wire::Restart::Unspecified, None),
        CountRestart::Clear(at) => (wire::Restart::Clear, Some(at)),
        CountRestart::Silence(at) => (wire::Restart::Silence, Some(at)),
        CountRestart::Silent(since) => (wire::Restart::Silent, Some(since)),
    };
    answer.set_restart(restart);
    answer.restart_time = at.map(time::write);
    answer.limit = time::write_reached(parts.limit);
    answer.watermark = time::write_reached(parts.watermark);
    answer.waiting = Some(waiting(&parts.waiting));
    answer.rows = (1..).zip(&parts.rows).map(|(sequence, row)| log_row(sequence, row)).collect();
    answer.rows_left_out = saturating_i64(parts.rows_left_out);
    answer.rows_left_out_at_least = parts.rows_left_out_at_least;
}

fn rolled_up(part: &RolledUpPart) -> wire::RolledUpPart {
    let mut answer = wire::RolledUpPart {
        counts: clamp_count(part.counts).0,
        to: time::write_reached(part.to),
        ..wire::RolledUpPart::default()
    };
    let Some(checkpoint) = &part.checkpoint else { return answer };
    answer.exists = true;
    answer.count = clamp_count(checkpoint.count).0;
    answer.as_of = time::write_reached(checkpoint.as_of);
    answer.last_event_time = checkpoint.last_event_time.map(time::write);
    answer.clear_time = checkpoint.clear.as_ref().map(|clear| time::write(clear.time));
    answer.clear_token = checkpoint.clear.as_ref().map(|clear| clear.id.to_string()).unwrap_or_default();
    answer.repairs = saturating_i64(checkpoint.repairs);
    answer.sources = checkpoint.sources.iter().map(|(source, total)| source_total(source, total)).collect();
    if let Some(rolled) = &part.rolled {
        answer.rolled_at = Some(time::write(rolled.at));
        answer.rolled_by = rolled.server.as_deref().unwrap_or_default().to_owned();
        answer.rolled_here = rolled.is_this;
    }
    answer
}

fn source_total(source: &str, totals: &SourceTotals) -> wire::SourceTotal {
    let SourceTotal { epoch, serial, total, time } = totals.newest;
    let earlier = clamp_count(totals.sum() - i128::from(total)).0;
    wire::SourceTotal { source: source.to_owned(), epoch, serial, total, event_time: Some(time::write(time)), earlier }
}

fn tail(part: &TailPart) -> wire::TailPart {
    wire::TailPart {
        rows: saturating_i64(part.rows),
        adds: saturating_i64(part.adds),
        sum: clamp_count(part.sum).0,
        clears: saturating_i64(part.clears),
        totals: saturating_i64(part.totals),
        voids: saturating_i64(part.voids),
        first_event_time: part.first.map(time::write),
        last_event_time: part.last.map(time::write),
        counts: clamp_count(part.counts).0,
    }
}

fn waiting(part: &PendingPart) -> wire::WaitingPart {
    let roller = match &part.roller {
        RollerLocation::At(address) => address.to_string(),
        RollerLocation::Here | RollerLocation::Unknown => String::new(),
    };
    wire::WaitingPart {
        signalled: part.signalled.is_some(),
        signalled_oldest: part.signalled.map(|waiting| time::write(waiting.oldest)),
        signalled_newest: part.signalled.map(|waiting| time::write(waiting.newest)),
        rows_ready: saturating_i64(part.rows_ready),
        rows_above_limit: saturating_i64(part.rows_above_limit),
        touched_steps: saturating_i64(part.touched_steps),
        first_touched_step: part.first_touched_step.map(time::write),
        held_writes: saturating_i64(part.held_writes),
        rolled_up_here: part.roller == RollerLocation::Here,
        roller,
    }
}

fn log_row(sequence: i64, row: &LogRow) -> wire::LogRow {
    let stage = match row.stage {
        RowStage::RolledUp => wire::RowStage::RolledUp,
        RowStage::Ready => wire::RowStage::Ready,
        RowStage::AboveLimit => wire::RowStage::AboveLimit,
    };
    wire::LogRow {
        sequence,
        bucket_start: Some(time::write(row.bucket)),
        event: Some(event(&row.event)),
        stage: stage.into(),
    }
}
