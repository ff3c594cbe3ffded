//! How often messages were tried, how long they waited and how long they ran, from the counters of a queue.

use super::queue_counts::{DatedCounts, queue_counts};
use crate::http::console::format::{UNKNOWN, count};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::view::{
    IntervalMark, NoteTime, Section, TableCell, TableRow, TableView, cell, heads, number,
};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::counter_names::counter_name;
use tallystone_domain::queue::tally::steps::{ATTEMPT_STEPS, TIME_STEPS};

const BY_ATTEMPT: [&str; 3] = ["leased_at", "completed_at", "errored_at"];
const BY_TIME: [&str; 2] = ["wait", "run"];
const TITLE: &str = "Attempts and times";
const SINCE: &str = "since the queue was created";

/// The count of a step; none if it cannot be read.
type StepCount = Option<i64>;

/// Both sections. They are left out of the page of a queue from which nothing was ever leased.
pub async fn sections(calls: &InProcessClient, queue: &str) -> Vec<Section> {
    let Ok(name) = QueueName::new(queue) else { return Vec::new() };
    let names = counters().map(|counter| counter_name(&name, &counter)).collect();
    match queue_counts(calls, names).await {
        Ok(read) => sections_of(&read),
        Err(status) => {
            let empty = format!("Not known: {}", status.message());
            vec![Section { title: TITLE.to_owned(), empty, ..Section::default() }]
        }
    }
}

/// The counters of all steps.
fn counters() -> impl Iterator<Item = String> {
    let by_attempt = BY_ATTEMPT.iter().flat_map(|counter| ATTEMPT_STEPS.map(|step| format!("{counter}.{step}")));
    let by_time = BY_TIME.iter().flat_map(|counter| TIME_STEPS.map(|step| format!("{counter}.{step}")));
    by_attempt.chain(by_time)
}

/// The sections of the counts of all steps, in the order of their counters.
fn sections_of(read: &DatedCounts) -> Vec<Section> {
    let counts = &read.counts;
    if counts.iter().all(Option::is_none) {
        let empty = "Not known: the counters of the queue cannot be read.".to_owned();
        return vec![Section { title: TITLE.to_owned(), empty, ..Section::default() }];
    }
    let mut counts = counts.iter().copied().chain(std::iter::repeat(None));
    let tried = BY_ATTEMPT.map(|_| std::array::from_fn(|_| counts.next().flatten()));
    let timed = BY_TIME.map(|_| std::array::from_fn(|_| counts.next().flatten()));
    let sections = [attempts(&tried), times(&timed)].into_iter().flatten();
    sections
        .map(|section| Section { note: SINCE.to_owned(), note_time: Some(NoteTime(read.as_of)), ..section })
        .collect()
}

fn attempts([leased, completed, errored]: &[[StepCount; ATTEMPT_STEPS.len()]; 3]) -> Option<Section> {
    let last = leased.iter().rposition(|count| *count != Some(0))?;
    let all = sum(leased);
    let row = |at: usize| TableRow {
        cells: vec![
            cell("Attempt", ATTEMPT_STEPS[at]),
            number("Leased", count(leased[at])),
            number("Completed", count(completed[at])),
            number("Out of attempts", count(errored[at])),
            bar("Share of all leases", leased[at], all),
        ],
        ..TableRow::default()
    };
    let columns = heads(&["Attempt", "#Leased", "#Completed", "#Out of attempts", "Share of all leases"]);
    let table = Some(TableView { columns, rows: (0..=last).map(row).collect() });
    Some(Section { title: "Attempts".to_owned(), table, ..Section::default() })
}

fn times([waits, runs]: &[[StepCount; TIME_STEPS.len()]; 2]) -> Option<Section> {
    let is_shown = |at: &usize| waits[*at] != Some(0) || runs[*at] != Some(0);
    let first = (0..TIME_STEPS.len()).find(is_shown)?;
    let last = (0..TIME_STEPS.len()).rfind(is_shown)?;
    let (all_waits, all_runs) = (sum(waits), sum(runs));
    let row = |at: usize| TableRow {
        cells: vec![
            cell("Up to", step_text(at)),
            number("Waited", count(waits[at])),
            bar("Share of waits", waits[at], all_waits),
            number("Ran", count(runs[at])),
            bar("Share of runs", runs[at], all_runs),
        ],
        ..TableRow::default()
    };
    let columns = heads(&["Up to", "#Waited", "Share of waits", "#Ran", "Share of runs"]);
    let table = Some(TableView { columns, rows: (first..=last).map(row).collect() });
    let prose = [("waited", waits), ("ran", runs)].into_iter().filter_map(|(verb, counts)| sentence(verb, counts));
    Some(Section { title: "Waits and runs".to_owned(), prose: prose.collect(), table, ..Section::default() })
}

/// The sum of some counts; none if one of them is not known.
fn sum(counts: &[StepCount]) -> StepCount {
    counts.iter().copied().sum()
}

/// How long half and nearly all of them took; none without counts, and where one is not known.
fn sentence(verb: &str, counts: &[StepCount]) -> Option<String> {
    let counts = counts.iter().copied().collect::<Option<Vec<i64>>>()?;
    let (half, most) = (step_of_share(&counts, 50)?, step_of_share(&counts, 99)?);
    Some(format!("Half of them {verb} up to {}, 99 of 100 up to {}.", step_text(half), step_text(most)))
}

/// The first step up to which a share of all lies, in percent; none without counts.
fn step_of_share(counts: &[i64], percent: i128) -> Option<usize> {
    let all: i128 = counts.iter().map(|count| i128::from(*count)).sum();
    let mut below = 0;
    let step = counts.iter().position(|count| {
        below += i128::from(*count);
        below * 100 >= all * percent
    });
    step.filter(|_| all > 0)
}

/// The end of a step of times as people read it.
fn step_text(step: usize) -> String {
    let name = TIME_STEPS[step];
    let unit = name.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(name.len());
    match name.split_at(unit) {
        ("", _) => "more than 7 d".to_owned(),
        (number, unit) => format!("{number} {unit}"),
    }
}

/// A share as a line; a dash where it is not known.
fn bar(label: &'static str, part: StepCount, all: StepCount) -> TableCell {
    let Some((part, all)) = part.zip(all) else { return cell(label, UNKNOWN) };
    let thousandths = i128::from(part.max(0)) * 1_000 / i128::from(all.max(1));
    let upper = i64::try_from(thousandths.min(1_000)).unwrap_or(1_000);
    let percent = format!("{:.1} %", upper as f64 / 10.0);
    TableCell { interval: Some(IntervalMark { lower: 0, upper, middle: upper, zero: None }), ..cell(label, percent) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::console::pages::queue_counts::counts_of;
    use tallystone_proto::counter::v1 as pb;

    #[test]
    fn steps_are_read_as_times() {
        let texts: Vec<String> = (0..TIME_STEPS.len()).map(step_text).collect();
        assert_eq!(texts[..3], ["10 ms", "30 ms", "100 ms"]);
        assert_eq!(texts[4], "1 s");
        assert_eq!(texts[14..], ["7 d", "more than 7 d"]);
    }

    #[test]
    fn a_queue_without_leases_has_no_sections() {
        assert!(attempts(&[[Some(0); ATTEMPT_STEPS.len()]; 3]).is_none());
        assert!(times(&[[Some(0); TIME_STEPS.len()]; 2]).is_none());
        assert_eq!(sentence("ran", &[Some(0); 3]), None);
    }

    /// The texts of the cells of each row.
    fn texts(section: &Section) -> Vec<Vec<&str>> {
        let table = section.table.as_ref().expect("a table");
        table.rows.iter().map(|row| row.cells.iter().map(|cell| &*cell.text).collect()).collect()
    }

    #[test]
    fn what_a_counter_that_cannot_be_read_is_part_of_is_a_dash() {
        let failed = ["leased_at.2", "wait.10ms"];
        let answered = |counter: String| {
            let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
            let (as_of, reported_to) = (at(if counter == "run.1s" { 70 } else { 90 }), at(80));
            let reading = Some(pb::GetCountResponse { count: 8, as_of, reported_to, ..Default::default() });
            let error = failed.contains(&&*counter).then(Default::default);
            pb::GetResult { counter_name: counter, reading, error }
        };
        let read = counts_of(counters().map(answered).collect());
        assert_eq!(
            read.counts.iter().filter(|count| count.is_none()).count(),
            failed.len(),
            "both are counters of a queue"
        );
        let [attempts, times] = &sections_of(&read)[..] else { panic!("two sections") };
        let as_of = prost_types::Timestamp { seconds: 70, nanos: 0 };
        assert_eq!((&*attempts.note, attempts.note_time), (SINCE, Some(NoteTime(Some(as_of)))));
        let attempts = texts(attempts);
        assert_eq!(attempts[0][1..], ["8", "8", "8", UNKNOWN], "a share of an unknown sum");
        assert_eq!(attempts[1][1..], [UNKNOWN, "8", "8", UNKNOWN]);
        let rows = texts(times);
        assert_eq!((rows[0][1], rows[0][2], rows[1][2]), (UNKNOWN, UNKNOWN, UNKNOWN));
        assert_eq!((rows[0][3], rows[0][4]), ("8", "6.2 %"), "runs are known");
        assert_eq!(times.prose.len(), 1, "no sentence about waits: {:?}", times.prose);
        assert!(times.prose[0].contains("ran"), "{:?}", times.prose);
        let unread = DatedCounts { counts: vec![None; read.counts.len()], as_of: None };
        let [none] = &sections_of(&unread)[..] else { panic!("one section") };
        assert!(none.table.is_none() && none.empty.starts_with("Not known"), "{}", none.empty);
    }

    proptest! {
        /// Beside all single times, sorted.
        #[test]
        fn a_share_of_all_lies_up_to_its_step(counts in prop::collection::vec(0_i64..20, 1..16), percent in 1_i128..=100) {
            let single: Vec<usize> =
                counts.iter().enumerate().flat_map(|(step, count)| std::iter::repeat_n(step, *count as usize)).collect();
            let rank = (single.len() as i128 * percent + 99) / 100;
            let wanted = usize::try_from(rank - 1).ok().and_then(|at| single.get(at).copied());
            prop_assert_eq!(step_of_share(&counts, percent), wanted);
        }

        #[test]
        fn a_bar_stays_within_its_scale(part in any::<i64>(), all in any::<i64>()) {
            let mark = bar("Share", Some(part), Some(all)).interval.expect("a bar has a mark");
            prop_assert!((0..=1_000).contains(&mark.upper));
        }
    }
}
