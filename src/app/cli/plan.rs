//! `plan`: estimates the resources for a load of counters, of queues, or of both, before deployment.

mod cells;
mod counters;
mod queues;

use clap::Args;
use serde_json::{Value, json};

use crate::output::{IncrementalPrinter, Layout, Output, TABLE_WIDTH, TableRows};
use crate::plan::cells::PlanRow;
use crate::plan::counters::CounterLoadArgs;
use crate::plan::queues::QueueLoadArgs;
use crate::{Failure, GlobalFormat, OutputArgs};

/// Calculate settings, partition sizes, disk and memory for a load of counters or queues. Needs no server.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tallystone plan --adds-per-second 2000 --counters 50000 --retention 7d\n  tallystone plan --lives-per-second 1000 --queue-retention 1h --payload 1KiB"
)]
pub struct PlanArgs {
    #[command(flatten)]
    counters: CounterLoadArgs,
    #[command(flatten)]
    queues: QueueLoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl PlanArgs {
    pub fn run(&self, given: &GlobalFormat) -> Result<(), Failure> {
        let output = self.output.or(given);
        let lines = self.lines(output)?;
        let items = items_of(&lines);
        let rows = TableRows { columns: &["item", "value", "note"], cells: lines.into_iter().map(Vec::from).collect() };
        let mut parts = IncrementalPrinter::list(output).with_layout(Layout::Within(TABLE_WIDTH));
        parts.print(&items, &rows)?;
        parts.end(rows.columns)
    }

    /// The rows in reading order: counters, then queues.
    fn lines(&self, output: Output) -> Result<Vec<PlanRow>, Failure> {
        let parts = [self.counters.rows(output), self.queues.rows(output)?];
        let lines: Vec<_> = parts.into_iter().flatten().flatten().collect();
        if lines.is_empty() {
            let text = "nothing to plan: no load is given";
            return Err(Failure::usage(text).hint(
                "give --adds-per-second and --counters for counters, --lives-per-second for queues, or all of them",
            ));
        }
        Ok(lines)
    }
}

/// The same rows as JSON.
fn items_of(lines: &[PlanRow]) -> Vec<Value> {
    lines.iter().map(|[item, value, note]| json!({ "item": item, "value": value, "note": note })).collect()
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::failure::Exit;
    use crate::output::Format;

    const COUNTERS: [&str; 4] = ["--adds-per-second", "2000", "--counters", "50000"];
    const QUEUES: [&str; 2] = ["--lives-per-second", "1000"];

    fn parsed(arguments: &[&str]) -> Result<PlanArgs, clap::Error> {
        let command = PlanArgs::augment_args(Command::new("plan"));
        let matches = command.try_get_matches_from([&["plan"], arguments].concat())?;
        PlanArgs::from_arg_matches(&matches)
    }

    fn lines(arguments: &[&str], format: Format) -> Vec<PlanRow> {
        parsed(arguments).expect("a valid line").lines(Output::new(format)).expect("something to plan")
    }

    fn value<'l>(lines: &'l [PlanRow], item: &str) -> &'l str {
        let line = lines.iter().find(|[name, ..]| name == item);
        line.map_or_else(|| panic!("no {item} in {lines:?}"), |[_, value, _]| value)
    }

    #[test]
    fn a_plan_of_both_is_the_plan_of_counters_and_the_plan_of_queues() {
        let both = lines(&[&COUNTERS[..], &QUEUES].concat(), Format::Table);
        assert_eq!(both, [lines(&COUNTERS, Format::Table), lines(&QUEUES, Format::Table)].concat());
        assert!(lines(&COUNTERS, Format::Table).iter().all(|[item, ..]| !item.contains("messages")));
    }

    #[test]
    fn a_plan_of_queues_has_units_for_people_and_bytes_for_programs() {
        let (people, programs) = (lines(&QUEUES, Format::Table), lines(&QUEUES, Format::Json));
        for (item, shown, bytes) in [
            ("finished messages", "3600000", "3600000"),
            ("queues, embedded", "366.2MiB", "384000000"),
            ("queues.memory_bytes", "512MiB", "536870912"),
            ("used_memory, Redis", "467.8MiB", "490560000"),
            ("maxmemory, Redis", "576MiB", "603979776"),
            ("disk, history", "16GiB", "17179869184"),
        ] {
            assert_eq!((value(&people, item), value(&programs, item)), (shown, bytes), "{item}");
        }
        let items = items_of(&programs);
        assert_eq!(items.len(), people.len(), "JSON has the same facts");
        assert_eq!(items[0], json!({"item": "finished messages", "value": "3600000", "note": programs[0][2]}));
    }

    #[test]
    fn kept_answers_are_left_out_where_every_message_outlives_its_own() {
        let long = lines(&[&QUEUES[..], &["--queue-retention", "24h"]].concat(), Format::Table);
        assert_eq!(value(&long, "kept answers"), "0");
        assert!(long.iter().all(|[item, ..]| !item.starts_with("kept answers,")), "{long:?}");
    }

    #[test]
    fn a_window_is_as_short_as_a_short_retention_unless_it_is_given() {
        let short = [&QUEUES[..], &["--queue-retention", "1m"]].concat();
        assert_eq!(value(&lines(&short, Format::Table), "kept answers"), "600000");
        let longer = parsed(&[&short[..], &["--dedupe-window", "1h"]].concat()).expect("a valid line");
        let failure = longer.lines(Output::plain()).expect_err("no queue allows it");
        assert_eq!(failure.exit(), Exit::Usage);
    }

    #[test]
    fn a_plan_of_nothing_is_refused() {
        let failure = parsed(&[]).expect("a valid line").lines(Output::plain()).expect_err("nothing");
        assert_eq!(failure.exit(), Exit::Usage);
    }

    #[test]
    fn options_of_a_load_that_is_not_given_are_refused() {
        let cases: [&[&str]; 6] = [
            &["--adds-per-second", "5"],
            &["--counters", "5"],
            &["--lives-per-second", "5", "--retention", "1h"],
            &["--lives-per-second", "5", "--hottest", "1"],
            &["--pending", "5"],
            &["--adds-per-second", "5", "--counters", "5", "--payload", "1KiB"],
        ];
        for arguments in cases {
            let refused = parsed(arguments).expect_err("half a load");
            assert_eq!((refused.kind(), refused.exit_code()), (ErrorKind::MissingRequiredArgument, 2), "{arguments:?}");
        }
    }

    #[test]
    fn values_that_no_queue_has_are_refused() {
        for (option, bad) in [
            ("--queue-retention", "0s"),
            ("--dedupe-window", "2d"),
            ("--payload", "1MiB"),
            ("--metadata", "2KiB"),
            ("--pending", "0"),
            ("--pending", "1000000000001"),
            ("--lives-per-second", "0"),
        ] {
            let line = ["--lives-per-second", "5", option, bad];
            let line = if option == QUEUES[0] { &line[2..] } else { &line[..] };
            let refused = parsed(line).expect_err(bad);
            assert_eq!((refused.kind(), refused.exit_code()), (ErrorKind::ValueValidation, 2), "{option} {bad}");
        }
    }
}
