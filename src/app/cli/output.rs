//! Prints answers: as a table for people, or as JSON, JSON lines or CSV for programs.
//!
//! JSON is the canonical protobuf JSON of the HTTP API, built from the same descriptors. Columns have the names of
//! their fields. Times are RFC 3339; enum words lack their prefix in tables and CSV. `fit` lays out tables.

mod fit;

pub use fit::TABLE_WIDTH;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use crate::Failure;
use tallystone_api::grpc::saturating_i64;
use tallystone_app::notices::print_notice;
use tallystone_app::units;

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

/// Rows of an answer for tables and CSV.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// The fields in the columns.
    pub columns: &'static [&'static str],
    /// The cells; each row has as many as there are columns.
    pub cells: Vec<Vec<String>>,
}

/// An answer as a protocol message.
pub struct CliResponse {
    message: DynamicMessage,
    /// The repeated field whose items are the rows, if there is one.
    items: Option<&'static str>,
    /// The counters of the rows, if the rows of the protocol do not contain them.
    counters: Vec<String>,
}

/// Prints answers in one format.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    cells: CsvCells,
}

/// How cells of CSV are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CsvCells {
    /// None is a formula to a spreadsheet: such a text begins with an apostrophe.
    WithoutFormulas,
    /// As they are.
    Raw,
}

/// The descriptors of the protocol.
pub static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("the descriptors are those that tests/generated keeps")
});

const JSON: SerializeOptions = SerializeOptions::new().skip_default_fields(false);

impl CliResponse {
    /// Creates an answer of one message with the given full name.
    pub fn one(name: &str, message: &impl Message) -> Self {
        let descriptor = DESCRIPTORS.get_message_by_name(name).expect("the caller names a message of ours");
        let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice());
        Self { message: message.expect("what was encoded can be decoded"), items: None, counters: Vec::new() }
    }

    /// Creates an answer whose rows are the items of a repeated field.
    pub fn many(name: &str, message: &impl Message, items: &'static str) -> Self {
        Self { items: Some(items), ..Self::one(name, message) }
    }

    /// Adds the counters of the rows, so that each row is complete as a line of its own.
    #[must_use]
    pub fn about(mut self, counters: impl IntoIterator<Item = String>) -> Self {
        self.counters = counters.into_iter().collect();
        self
    }

    /// Converts the whole answer to JSON.
    pub fn json(&self) -> serde_json::Value {
        json_of(&self.message)
    }

    /// Converts the rows to JSON.
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

    /// Adds the name of its counter to a row, if the name is not part of the row.
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
        Self { format, cells: CsvCells::WithoutFormulas }
    }

    /// Prints cells of CSV so.
    #[must_use]
    pub fn with_cells(self, cells: CsvCells) -> Self {
        Self { cells, ..self }
    }

    /// Prints text unchanged.
    pub fn plain() -> Self {
        Self::new(Format::Table)
    }

    /// Returns the format.
    pub fn format(self) -> Format {
        self.format
    }

    /// Whether the output is for people.
    pub fn is_for_people(self) -> bool {
        self.format == Format::Table
    }

    /// Prints an answer.
    pub fn answer(self, answer: &CliResponse, rows: &TableRows) -> Result<(), Failure> {
        self.answer_in(&Layout::Natural, answer, rows)
    }

    /// Prints an answer whose rows end with sentences, which are neither cut nor wrapped, so that commands in them can
    /// be copied.
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
            Format::Csv => csv(&mut out, rows, PrintHeader::Yes, self.cells)?,
        }
        Ok(out.flush()?)
    }

    /// Formats an optional duration for a cell: with units for people, as in the protocol for programs.
    pub fn span_cell(self, duration: Option<&prost_types::Duration>) -> String {
        match (self.is_for_people(), duration) {
            (true, Some(duration)) => units::span(duration_of(duration)),
            (_, duration) => duration.map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Formats an optional measured duration for a cell: to the second from one second on for people, as in the
    /// protocol for programs.
    pub fn measured_cell(self, duration: Option<&prost_types::Duration>) -> String {
        match (self.is_for_people(), duration) {
            (true, Some(duration)) => units::about(duration_of(duration)),
            (_, duration) => duration.map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Formats an optional remaining time for a cell: rounded for people, as in the protocol for programs.
    pub fn left_cell(self, left: Option<&prost_types::Duration>) -> String {
        match (self.is_for_people(), left) {
            (true, Some(left)) => units::left(duration_of(left)),
            (_, left) => left.map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Formats a configured size for a cell: with its unit for people, in bytes for programs.
    pub fn size_cell(self, bytes: i64) -> String {
        match (self.is_for_people(), u64::try_from(bytes)) {
            (true, Ok(bytes)) => units::exact_size(bytes),
            (true, Err(_)) | (false, _) => bytes.to_string(),
        }
    }

    /// Formats a plain setting for a cell. A number whose name ends in `_bytes` is a size.
    pub fn setting_cell(self, name: &str, value: impl SettingCell) -> String {
        value.cell(self, name.ends_with("_bytes"))
    }

    /// Formats the differences of a change for a cell, with units for people.
    pub fn changes_cell(self, differences: &[String]) -> String {
        match self.is_for_people() {
            true => list_cell(&differences.iter().map(|line| units::change(line)).collect::<Vec<_>>()),
            false => list_cell(differences),
        }
    }

    /// Prints bytes unchanged.
    pub fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }
}

/// An answer that is printed in parts as they arrive, under one header. As JSON it is one list, complete only after
/// `end`; an endless answer is printed as one document per line.
pub struct IncrementalPrinter {
    output: Output,
    layout: Layout,
    /// Whether any part was printed.
    has_printed: bool,
    /// The number of list items so far.
    items: usize,
}

/// The widths of a table's columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// As wide as their cells, fitted to `fit::TABLE_WIDTH`.
    Natural,
    /// At least these widths, so that the columns of all parts align.
    AtLeast(Vec<usize>),
    /// As wide as their cells, without a limit on the table.
    Whole,
    /// So narrow that the whole table fits into this many characters.
    Within(usize),
}

/// Whether rows are printed with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PrintHeader {
    Yes,
    No,
}

impl IncrementalPrinter {
    /// Creates an answer that ends.
    pub fn list(output: Output) -> Self {
        Self { output, layout: Layout::Natural, has_printed: false, items: 0 }
    }

    /// Creates an endless answer.
    pub fn endless(output: Output) -> Self {
        let format = match output.format {
            Format::Json => Format::Jsonl,
            format => format, // has no brackets to close
        };
        Self::list(Output { format, ..output })
    }

    /// Sets the layout of tables.
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
            Format::Csv => csv(&mut out, rows, header, self.output.cells)?,
        }
        self.has_printed = true;
        Ok(out.flush()?)
    }

    /// Ends the answer; an answer without parts prints its column names.
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

/// Formats rows as a table for people, to be a part of a longer text.
pub fn table_text(rows: &TableRows) -> String {
    table(rows, PrintHeader::Yes, &Layout::Natural)
}

/// Returns the full name of a message of the queue service.
pub fn full_name(message: &str) -> String {
    format!("tallystone.queue.v1.{message}")
}

/// The word of an enum without its prefix; an unknown number stays a number.
pub fn word<E: TryFrom<i32>>(number: i32, prefix: &str, name: impl Fn(&E) -> &'static str) -> String {
    match E::try_from(number) {
        Ok(value) => name(&value).trim_start_matches(prefix).to_owned(),
        Err(_) => number.to_string(),
    }
}

/// A plain setting in an answer.
pub trait SettingCell {
    fn cell(self, output: Output, is_size: bool) -> String;
}

impl SettingCell for prost_types::Duration {
    fn cell(self, output: Output, _is_size: bool) -> String {
        output.span_cell(Some(&self))
    }
}

impl<T: SettingCell> SettingCell for Option<T> {
    fn cell(self, output: Output, is_size: bool) -> String {
        self.map(|value| value.cell(output, is_size)).unwrap_or_default()
    }
}

macro_rules! number_cells {
    ($($type:ty)*) => {
        $(impl SettingCell for $type {
            fn cell(self, output: Output, is_size: bool) -> String {
                if is_size { output.size_cell(saturating_i64(self)) } else { self.to_string() }
            }
        })*
    };
}
number_cells!(i32 i64 u32 u64);

/// Formats an optional time for a cell.
pub fn time_cell(time: Option<&prost_types::Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}

/// Converts a duration of the protocol; a negative one, which no answer contains, becomes zero.
pub fn duration_of(duration: &prost_types::Duration) -> std::time::Duration {
    std::time::Duration::try_from(*duration).unwrap_or_default()
}

/// Joins several items in a cell, on one line.
pub fn list_cell(things: &[String]) -> String {
    things.join("; ")
}

/// Prints progress on a terminal.
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

fn csv(out: &mut impl Write, rows: &TableRows, header: PrintHeader, form: CsvCells) -> io::Result<()> {
    if header == PrintHeader::Yes {
        writeln!(out, "{}", rows.columns.join(","))?;
    }
    for row in &rows.cells {
        let cells: Vec<_> = row.iter().map(|cell| quoted(&cell_text(cell, form))).collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

/// The text of a cell. A spreadsheet takes what begins with one of some characters for a formula, and would carry it
/// out; with an apostrophe before it, it is a text. Numbers stay numbers.
fn cell_text(cell: &str, form: CsvCells) -> Cow<'_, str> {
    let may_be_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let is_number = || cell.parse::<f64>().is_ok_and(f64::is_finite);
    match form {
        CsvCells::WithoutFormulas if may_be_formula && !is_number() => Cow::Owned(format!("'{cell}")),
        CsvCells::WithoutFormulas | CsvCells::Raw => Cow::Borrowed(cell),
    }
}

/// Quotes a cell of CSV (RFC 4180).
fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_proto::counter::v1::{CounterSummary, ListCountersResponse};

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
    fn a_cell_of_csv_is_no_formula_unless_it_is_asked_for_raw() {
        for (cell, text) in [
            ("=1+2", "'=1+2"),
            ("+cmd", "'+cmd"),
            ("-a", "'-a"),
            ("@sum", "'@sum"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
            ("\n=1", "'\n=1"),
            ("-5", "-5"),
            ("+1.5e3", "+1.5e3"),
            ("-inf", "'-inf"),
            ("a=b", "a=b"),
            ("", ""),
        ] {
            assert_eq!(cell_text(cell, CsvCells::WithoutFormulas), text);
            assert_eq!(cell_text(cell, CsvCells::Raw), cell);
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
