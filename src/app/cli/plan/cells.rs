//! The cells of a plan: sizes and durations for people or for programs.

use std::time::Duration;

use crate::output::Output;
use tallystone_api::grpc::saturating_i64;
use tallystone_app::units;
use tallystone_engine::catalog::duration_text;

/// A row of a plan: item, value and note.
pub type PlanRow = [String; 3];

/// Makes a row of a plan.
pub fn row(item: &str, value: String, note: &str) -> PlanRow {
    [item.to_owned(), value, note.to_owned()]
}

/// Formats an estimated size: with a unit for people, in bytes for programs.
pub fn estimated(bytes: u64, output: Output) -> String {
    if output.is_for_people() { units::size(bytes) } else { bytes.to_string() }
}

/// Formats the size that a setting should have: exactly.
pub fn setting(bytes: u64, output: Output) -> String {
    output.size_cell(saturating_i64(bytes))
}

/// Formats a duration: with units for people, as settings are written for programs.
pub fn lasting(time: Duration, output: Output) -> String {
    if output.is_for_people() { units::span(time) } else { duration_text(time) }
}
