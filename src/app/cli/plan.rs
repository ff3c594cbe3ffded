//! `plan`: estimates the resources for a load before deployment.

mod cells;
mod counters;

use clap::Args;
use serde_json::json;

use crate::output::{IncrementalPrinter, Layout, TABLE_WIDTH, TableRows};
use crate::plan::counters::CounterLoadArgs;
use crate::{Failure, GlobalFormat, OutputArgs};

/// Calculate namespace settings, partition sizes, disk and memory for a load. Needs no server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone plan --adds-per-second 2000 --counters 50000 --retention 7d")]
pub struct PlanArgs {
    #[command(flatten)]
    counters: CounterLoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl PlanArgs {
    pub fn run(&self, given: &GlobalFormat) -> Result<(), Failure> {
        let output = self.output.or(given);
        let lines = self.counters.rows(output);
        let items: Vec<_> =
            lines.iter().map(|[item, value, note]| json!({ "item": item, "value": value, "note": note })).collect();
        let rows = TableRows { columns: &["item", "value", "note"], cells: lines.into_iter().map(Vec::from).collect() };
        let mut parts = IncrementalPrinter::list(output).with_layout(Layout::Within(TABLE_WIDTH));
        parts.print(&items, &rows)?;
        parts.end(rows.columns)
    }
}
