//! How answers are printed: as a table for people, as JSON, JSON lines or CSV for programs.
//!
//! JSON is the canonical protobuf JSON that the HTTP API answers, made of the same descriptors. Columns are named as the
//! fields they show; times are RFC 3339, enum words come without their prefix in tables and CSV. How tables fit is in `fit`.

mod fit;

pub use fit::TABLE_WIDTH;

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use crate::app::cli::Failure;
use crate::app::notices::print_notice;
use crate::app::units;
use crate::proto;

/// A format of answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// One JSON document, the answer of the HTTP API.
    Json,
    /// A JSON document a line, one for each row.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Rows of an answer for people and spreadsheets.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// The fields that the columns show.
    pub columns: &'static [&'static str],
    /// The cells, as many in each row as there are columns.
    pub cells: Vec<Vec<String>>,
}

/// An answer in the words of the protocol.
pub struct CliResponse {
    message: DynamicMessage,
    /// The repeated field whose items are the rows, if it has one.
    items: Option<&'static str>,
    /// The counters that the rows are about, where the rows of the protocol do not say it.
    counters: Vec<String>,
}

/// Prints answers in one format.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
}

/// The protocol.
pub static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(proto::DESCRIPTORS).expect("the descriptors were encoded by this crate's build")
});

const JSON: SerializeOptions = SerializeOptions::new().skip_default_fields(false);

impl CliResponse {
    /// An answer that is one message of the given full name.
    pub fn one(name: &str, message: &impl Message) -> Self {
        let descriptor = DESCRIPTORS.get_message_by_name(name).expect("the caller names a message of ours");
        let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice());
        Self { message: message.expect("what was encoded can be decoded"), items: None, counters: Vec::new() }
    }

    /// An answer whose rows are the items of a repeated field.
    pub fn many(name: &str, message: &impl Message, items: &'static str) -> Self {
        Self { items: Some(items), ..Self::one(name, message) }
    }

    /// Names the counters of the rows: each row stands alone as a line.
    #[must_use]
    pub fn about(mut self, counters: impl IntoIterator<Item = String>) -> Self {
        self.counters = counters.into_iter().collect();
        self
    }

    /// The whole answer as JSON.
    pub fn json(&self) -> serde_json::Value {
        json_of(&self.message)
    }

    /// The rows as JSON.
    fn lines(&self) -> Vec<serde_json::Value> {
        let whole = self.json();
        match self.items.and_then(|items| whole.get(items)) {
            Some(serde_json::Value::Array(items)) => {
                let named = |(at, row): (usize, &serde_json::Value)| self.named(at, row.clone());
                items.iter().enumerate().map(named).collect()
            }
            Some(_) | None => vec![whole],
        }
    }

    /// A row with the name of its counter, if that is given beside the rows.
    fn named(&self, at: usize, row: serde_json::Value) -> serde_json::Value {
        match (self.counters.get(at), row) {
            (Some(counter), serde_json::Value::Object(fields)) => {
                let name = ("counterName".to_owned(), serde_json::Value::from(counter.as_str()));
                serde_json::Value::Object(std::iter::once(name).chain(fields).collect())
            }
            (_, row) => row, // nothing to add, or nothing to add it to
        }
    }
}

impl Output {
    /// Prints in a format.
    pub fn new(format: Format) -> Self {
        Self { format }
    }

    /// Prints text as it is.
    pub fn plain() -> Self {
        Self::new(Format::Table)
    }

    /// The format.
    pub fn format(self) -> Format {
        self.format
    }

    /// Whether it prints for people.
    pub fn is_for_people(self) -> bool {
        self.format == Format::Table
    }

    /// Prints an answer.
    pub fn answer(self, answer: &CliResponse, rows: &TableRows) -> Result<(), Failure> {
        self.answer_in(&Layout::Natural, answer, rows)
    }

    /// Prints an answer whose rows end with sentences: these are neither cut nor broken, because commands in them are copied.
    pub fn sentences(self, answer: &CliResponse, rows: &TableRows) -> Result<(), Failure> {
        self.answer_in(&Layout::Whole, answer, rows)
    }

    fn answer_in(self, layout: &Layout, answer: &CliResponse, rows: &TableRows) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match self.format {
            Format::Table => writeln!(out, "{}", table(rows, PrintHeader::Yes, layout))?,
            Format::Json => {
                serde_json::to_writer_pretty(&mut out, &answer.json()).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            Format::Jsonl => json_lines(&mut out, &answer.lines())?,
            Format::Csv => csv(&mut out, rows, PrintHeader::Yes)?,
        }
        Ok(out.flush()?)
    }

    /// A duration in a cell, with units for people, as the protocol writes it for programs; empty if there is none.
    pub fn span_cell(self, duration: Option<&prost_types::Duration>) -> String {
        match (self.is_for_people(), duration) {
            (true, Some(duration)) => units::span(duration_of(duration)),
            (_, duration) => duration.map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// The time that is left in a cell: rounded for people, as the protocol writes it for programs; empty if there is none.
    pub fn left_cell(self, left: Option<&prost_types::Duration>) -> String {
        match (self.is_for_people(), left) {
            (true, Some(left)) => units::left(duration_of(left)),
            (_, left) => left.map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// A size that was set in a cell, with its unit for people, in bytes for programs.
    pub fn size_cell(self, bytes: i64) -> String {
        match (self.is_for_people(), u64::try_from(bytes)) {
            (true, Ok(bytes)) => units::exact_size(bytes),
            (true, Err(_)) | (false, _) => bytes.to_string(),
        }
    }

    /// What a change made different in a cell, with units for people.
    pub fn changes_cell(self, differences: &[String]) -> String {
        match self.is_for_people() {
            true => list_cell(&differences.iter().map(|line| units::change(line)).collect::<Vec<_>>()),
            false => list_cell(differences),
        }
    }

    /// Prints bytes as they are.
    pub fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }
}

/// An answer that is printed part by part as it comes, under one header. As JSON it is one list, which is complete only
/// when it was ended; an answer without an end is a document a line.
pub struct IncrementalPrinter {
    output: Output,
    layout: Layout,
    /// Whether anything was printed.
    has_printed: bool,
    /// The items of the list so far.
    items: usize,
}

/// How wide the columns of a table are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// As wide as their cells.
    Natural,
    /// At least so wide each, so that rows of later parts stand below those of earlier ones.
    AtLeast(Vec<usize>),
    /// As wide as their cells, however wide the table becomes.
    Whole,
    /// As narrow as the whole table fits into so many characters.
    Within(usize),
}

/// Whether rows are printed with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PrintHeader {
    Yes,
    No,
}

impl IncrementalPrinter {
    /// An answer with an end.
    pub fn list(output: Output) -> Self {
        Self { output, layout: Layout::Natural, has_printed: false, items: 0 }
    }

    /// An answer without an end.
    pub fn endless(output: Output) -> Self {
        let format = match output.format {
            Format::Json => Format::Jsonl,
            format => format, // has no brackets to close
        };
        Self::list(Output::new(format))
    }

    /// Lays tables out so.
    #[must_use]
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Prints the next part.
    pub fn print(&mut self, items: &[serde_json::Value], rows: &TableRows) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let header = if self.has_printed { PrintHeader::No } else { PrintHeader::Yes };
        match self.output.format {
            Format::Table if rows.cells.is_empty() && self.has_printed => {}
            Format::Table => writeln!(out, "{}", table(rows, header, &self.layout))?,
            Format::Json => {
                for item in items {
                    write!(out, "{}", if self.items == 0 { "[\n" } else { ",\n" })?;
                    serde_json::to_writer(&mut out, item).map_err(io::Error::from)?;
                    self.items += 1;
                }
            }
            Format::Jsonl => json_lines(&mut out, items)?,
            Format::Csv => csv(&mut out, rows, header)?,
        }
        self.has_printed = true;
        Ok(out.flush()?)
    }

    /// Ends the answer; one without any part shows its columns.
    pub fn end(mut self, columns: &'static [&'static str]) -> Result<(), Failure> {
        if !self.has_printed {
            self.print(&[], &TableRows { columns, cells: Vec::new() })?;
        }
        if self.output.format == Format::Json {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", if self.items == 0 { "[]" } else { "\n]" })?;
            out.flush()?;
        }
        Ok(())
    }
}

/// The word of an enum without its prefix; a number that is no word stays a number.
pub fn word<E: TryFrom<i32>>(number: i32, prefix: &str, name: impl Fn(&E) -> &'static str) -> String {
    match E::try_from(number) {
        Ok(value) => name(&value).trim_start_matches(prefix).to_owned(),
        Err(_) => number.to_string(),
    }
}

/// A time in a cell; empty if there is none.
pub fn time_cell(time: Option<&prost_types::Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}

/// A duration of the protocol; a negative one, which no answer holds, is none at all.
pub fn duration_of(duration: &prost_types::Duration) -> std::time::Duration {
    std::time::Duration::try_from(*duration).unwrap_or_default()
}

/// Several things in a cell, which is one line.
pub fn list_cell(things: &[String]) -> String {
    things.join("; ")
}

/// Tells of progress, where somebody looks.
pub fn progress(text: &str) {
    if io::stderr().is_terminal() {
        print_notice(text);
    }
}

fn json_of(message: &DynamicMessage) -> serde_json::Value {
    let json = message.serialize_with_options(serde_json::value::Serializer, &JSON);
    json.expect("every message of ours has a JSON form")
}

fn json_lines(out: &mut impl Write, lines: &[serde_json::Value]) -> Result<(), Failure> {
    for line in lines {
        serde_json::to_writer(&mut *out, line).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

fn table(rows: &TableRows, header: PrintHeader, layout: &Layout) -> String {
    let fitted = fit::table_columns(rows, layout);
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Layout::Within(width) = layout {
        let width = u16::try_from(*width).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    if header == PrintHeader::Yes {
        table.set_header(fitted.iter().map(|column| column.header.as_str()));
    }
    for row in 0..rows.cells.len() {
        table.add_row(fitted.iter().map(|column| column.cells[row].as_str()));
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if fitted.get(place).is_some_and(|fitted| fitted.is_number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn csv(out: &mut impl Write, rows: &TableRows, header: PrintHeader) -> io::Result<()> {
    if header == PrintHeader::Yes {
        writeln!(out, "{}", rows.columns.join(","))?;
    }
    for row in &rows.cells {
        let cells: Vec<_> = row.iter().map(|cell| quoted(cell)).collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

/// A cell of CSV (RFC 4180).
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::counter::v1::{CounterSummary, ListCountersResponse};

    fn response() -> ListCountersResponse {
        let counter = |name: &str| CounterSummary { counter_name: name.to_owned(), ..CounterSummary::default() };
        let counters = ["a", "b"].map(counter);
        ListCountersResponse { counters: counters.into(), next_page_token: String::new() }
    }

    #[test]
    fn json_is_canonical_and_shows_defaults() {
        let answer = CliResponse::many("tallystone.counter.v1.ListCountersResponse", &response(), "counters");
        let json = answer.json().to_string();
        assert_eq!(
            json,
            concat!(
                r#"{"counters":[{"counterName":"a","count":"0","saturated":false},"#,
                r#"{"counterName":"b","count":"0","saturated":false}],"nextPageToken":""}"#
            )
        );
        assert_eq!(answer.lines().len(), 2);
    }

    #[test]
    fn cells_of_csv_are_quoted_where_they_must_be() {
        for (cell, text) in [("a b", "a b"), ("a,b", "\"a,b\""), ("a\"b", "\"a\"\"b\""), ("a\nb", "\"a\nb\"")] {
            assert_eq!(quoted(cell), text);
        }
    }

    #[test]
    fn a_table_has_headers_for_people_and_no_blanks_at_its_ends() {
        let rows = TableRows {
            columns: &["counter_name", "count"],
            cells: vec![vec!["views".to_owned(), "5".to_owned()], vec!["x".to_owned(), String::new()]],
        };
        assert_eq!(table(&rows, PrintHeader::Yes, &Layout::Natural), "COUNTER NAME  COUNT\nviews             5\nx");
    }

    #[test]
    fn rows_of_later_parts_stand_below_those_of_earlier_ones() {
        let part = |name: &str, count: &str| TableRows {
            columns: &["counter_name", "count", "open"],
            cells: vec![vec![name.to_owned(), count.to_owned(), "true".to_owned()]],
        };
        let layout = Layout::AtLeast(vec![14, 6, 5]);
        let first = table(&part("a", "5"), PrintHeader::Yes, &layout);
        let second = table(&part("much_longer", "12345"), PrintHeader::No, &layout);
        assert_eq!(first, "COUNTER NAME     COUNT  OPEN\na                    5  true");
        assert_eq!(second, "much_longer      12345  true");
    }

    #[test]
    fn a_long_text_is_wrapped_and_what_hides_in_it_is_shown() {
        let rows = TableRows {
            columns: &["reason", "help"],
            cells: vec![vec!["PENDING".to_owned(), "one two three four five six".to_owned()]],
        };
        let text = table(&rows, PrintHeader::Yes, &Layout::Within(26));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= 26), "{text}");
        let rows = TableRows { columns: &["text"], cells: vec![vec!["\u{1b}[31mred".to_owned()]] };
        assert_eq!(table(&rows, PrintHeader::No, &Layout::Natural), "\\u{1b}[31mred");
        let rows =
            TableRows { columns: &["id", "state"], cells: vec![vec!["a\nb  DONE".to_owned(), "PENDING".to_owned()]] };
        assert_eq!(table(&rows, PrintHeader::No, &Layout::Natural), "a\\nb  DONE  PENDING", "no id looks like a row");
    }
}
