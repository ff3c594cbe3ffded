//! Fits a table for people into 100 characters per line, with numbers aligned to the right.
//!
//! A table that is too wide first loses its least important column, then empty columns and fractions of seconds. Then
//! it loses whole columns if texts would become too short, and then the ends of long texts. Tokens, which are copied
//! into commands, are never cut; identifiers and names are cut last. The other formats print everything.

use crate::output::{Layout, TableRows};
use tallystone_app::notices::single_line;

/// The greatest width of a table in characters, if cutting can reach it.
pub const TABLE_WIDTH: usize = 100;
/// The blanks between two columns.
const BETWEEN: usize = 2;
/// The least width to which a text is cut, so that it stays distinguishable.
const CUT_TO_LEAST: usize = 12;
/// The characters of a UUID; identifiers up to this length are never cut.
const ID_LEAST: usize = 36;
/// The least width of a name, as long as leaving out columns helps.
const NAME_LEAST: usize = 36;
/// The least width of an error, next to an identifier and the time of the last error.
const ERROR_LEAST: usize = 30;

/// Columns of numbers.
const NUMBERS: [&str; 35] = [
    "attempt",
    "attempt_number",
    "attempts",
    "attempts_left",
    "buckets_per_id",
    "bytes",
    "canceled",
    "commit",
    "completed",
    "count",
    "delta",
    "done",
    "errored",
    "failures",
    "fence",
    "http",
    "invisible",
    "keyspaces",
    "limit",
    "messages",
    "payload_bytes",
    "pending",
    "priority",
    "released",
    "rows",
    "running",
    "sequence",
    "shard",
    "shards",
    "size",
    "sum",
    "took",
    "total",
    "version",
    "waiting",
];
/// Columns of texts that are copied into commands, and of words that decide.
const NEVER_CUT: [&str; 8] =
    ["lease", "lease_token", "operation", "operation_id", "session_id", "setting", "token", "verdict"];
/// Columns of names that are copied into commands.
const NAMES: [&str; 2] = ["counter_name", "name"];
/// The column that a table that does not fit loses first.
const LEAST: &str = "checked_at";
/// The column that a table in parts loses if nothing else helps.
const LEAST_OF_PARTS: &str = "last_write_time";
/// Columns that a table loses if it does not fit with its texts cut, least important first.
const LEFT_OUT: [&str; 19] = [
    "dry_run",
    "version",
    "payload_bytes",
    "attempts_left",
    "attempt_number",
    "priority",
    "attempts",
    "first_time",
    "open_time",
    "update_time",
    "start_time",
    "metadata",
    "enqueue_time",
    "last_write_time",
    "end_time",
    "queue",
    "kind",
    "state",
    "last_time",
];

/// A column as it is printed.
pub struct TableColumn {
    /// The name of the column.
    pub header: String,
    /// The cells of the column.
    pub cells: Vec<String>,
    /// Whether the cells are numbers, which are aligned to the right.
    pub is_number: bool,
    name: &'static str,
    width: usize,
}

/// Lays out the columns of a table.
pub fn table_columns(rows: &TableRows, layout: &Layout) -> Vec<TableColumn> {
    let mut columns: Vec<TableColumn> =
        rows.columns.iter().enumerate().map(|(place, name)| TableColumn::new(name, place, rows)).collect();
    match layout {
        Layout::Natural => fit(&mut columns),
        // `Within` wraps long texts, and `Whole` prints them in full.
        Layout::Within(_) | Layout::Whole => {}
        Layout::AtLeast(widths) => at_least(&mut columns, widths),
    }
    columns
}

impl TableColumn {
    fn new(name: &'static str, place: usize, rows: &TableRows) -> Self {
        let header = name.to_uppercase().replace('_', " ");
        let cell = |row: &Vec<String>| row.get(place).map(|cell| single_line(cell).into_owned()).unwrap_or_default();
        let cells: Vec<String> = rows.cells.iter().map(cell).collect();
        let is_number = NUMBERS.contains(&name) && cells.iter().all(|cell| is_number(cell));
        let mut column = Self { header, cells, is_number, name, width: 0 };
        column.measure();
        column
    }

    fn measure(&mut self) {
        let texts = self.cells.iter().chain([&self.header]);
        self.width = texts.map(|text| text.chars().count()).max().unwrap_or_default();
    }

    /// Removes fractions of seconds.
    fn in_seconds(&mut self) {
        for cell in &mut self.cells {
            if let Some(time) = without_fraction(cell) {
                *cell = time;
            }
        }
        self.measure();
    }

    /// The least width of the column at a stage.
    fn min_width(&self, squeeze: ShrinkStage) -> usize {
        // Times fill a column of their own: a list of settings mixes them with texts.
        let mut told = self.cells.iter().filter(|cell| !cell.is_empty()).peekable();
        let is_time = told.peek().is_some() && told.all(|cell| without_fraction(cell).is_some() || is_time(cell));
        let is_id = self.name.ends_with("_id") || self.name == "id";
        let least = match (self.name, squeeze) {
            (name, _) if self.is_number || is_time || NEVER_CUT.contains(&name) => return self.width,
            (_, ShrinkStage::Texts | ShrinkStage::Names) if is_id => return self.width,
            (_, ShrinkStage::All) if is_id => ID_LEAST,
            (name, ShrinkStage::Texts) if NAMES.contains(&name) => NAME_LEAST,
            (name, ShrinkStage::Texts) if name.contains("error") => ERROR_LEAST,
            (_, ShrinkStage::Texts | ShrinkStage::Names | ShrinkStage::All) => CUT_TO_LEAST, // any text
        };
        least.max(self.header.chars().count()).min(self.width)
    }

    /// Whether all cells are empty.
    fn is_empty(&self) -> bool {
        !self.cells.is_empty() && self.cells.iter().all(String::is_empty)
    }

    fn cut_to(&mut self, width: usize) {
        for cell in &mut self.cells {
            if cell.chars().count() > width {
                *cell = cell.chars().take(width.saturating_sub(1)).chain(['…']).collect();
            }
        }
        self.measure();
    }
}

/// The stages of cutting texts until a table fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShrinkStage {
    /// Texts; names and errors stay distinguishable.
    Texts,
    /// Names and errors too, but no identifiers.
    Names,
    /// Everything that may be cut.
    All,
}

fn width_of(columns: &[TableColumn]) -> usize {
    let between = BETWEEN * columns.len().saturating_sub(1);
    columns.iter().map(|column| column.width).sum::<usize>() + between
}

fn fit(columns: &mut Vec<TableColumn>) {
    if width_of(columns) > TABLE_WIDTH {
        columns.retain(|column| column.name != LEAST);
    }
    if width_of(columns) > TABLE_WIDTH {
        columns.retain(|column| !column.is_empty());
    }
    if width_of(columns) > TABLE_WIDTH {
        columns.iter_mut().for_each(TableColumn::in_seconds);
    }
    let can_fit = {
        let kept = columns.iter().filter(|column| !LEFT_OUT.contains(&column.name));
        kept.map(|column| column.min_width(ShrinkStage::All) + BETWEEN).sum::<usize>() <= TABLE_WIDTH + BETWEEN
    };
    for name in LEFT_OUT.into_iter().filter(|_| can_fit) {
        let least = columns.iter().map(|column| column.min_width(ShrinkStage::Texts) + BETWEEN).sum::<usize>();
        if least > TABLE_WIDTH + BETWEEN {
            columns.retain(|column| column.name != name);
        }
    }
    for squeeze in [ShrinkStage::Texts, ShrinkStage::Names, ShrinkStage::All] {
        cut(columns, squeeze);
    }
}

/// Cuts the widest text first, so that short ones stay whole.
fn cut(columns: &mut [TableColumn], squeeze: ShrinkStage) {
    loop {
        let too_much = width_of(columns).saturating_sub(TABLE_WIDTH);
        let widest = columns
            .iter_mut()
            .filter(|column| column.width > column.min_width(squeeze))
            .max_by_key(|column| column.width);
        let (true, Some(widest)) = (too_much > 0, widest) else { return };
        let to = widest.width.saturating_sub(too_much).max(widest.min_width(squeeze));
        widest.cut_to(to);
    }
}

/// Lays the columns out alike for all parts: the content of later parts is unknown.
fn at_least(columns: &mut Vec<TableColumn>, widths: &[usize]) {
    let mut planned: Vec<usize> = (0..columns.len()).map(|at| widths.get(at).copied().unwrap_or(0)).collect();
    let is_too_wide =
        |planned: &[usize]| planned.iter().sum::<usize>() + BETWEEN * planned.len().saturating_sub(1) > TABLE_WIDTH;
    if is_too_wide(&planned) {
        leave_out(columns, &mut planned, LEAST);
        columns.iter_mut().for_each(TableColumn::in_seconds);
        // The planned widths include fractions of seconds.
        planned.iter_mut().filter(|width| **width == TIME_WIDTH).for_each(|width| *width = SECONDS_WIDTH);
    }
    if is_too_wide(&planned) {
        leave_out(columns, &mut planned, LEAST_OF_PARTS);
    }
    for (column, width) in columns.iter_mut().zip(planned) {
        let is_number = column.is_number;
        let texts = column.cells.iter_mut().chain([&mut column.header]);
        texts.for_each(|text| *text = if is_number { format!("{text:>width$}") } else { format!("{text:width$}") });
        column.measure();
    }
}

fn leave_out(columns: &mut Vec<TableColumn>, planned: &mut Vec<usize>, name: &str) {
    if let Some(at) = columns.iter().position(|column| column.name == name) {
        columns.remove(at);
        planned.remove(at);
    }
}

/// The characters of a time with microseconds.
const TIME_WIDTH: usize = 27;
/// The characters of a time without microseconds.
const SECONDS_WIDTH: usize = 20;

/// Whether a cell is empty or begins with a digit after its sign.
fn is_number(cell: &str) -> bool {
    let digits = cell.strip_prefix(['-', '+']).unwrap_or(cell);
    cell.is_empty() || digits.starts_with(|first: char| first.is_ascii_digit())
}

/// Whether a cell is a time to the second.
fn is_time(cell: &str) -> bool {
    let shape = |at: usize, byte: u8| cell.as_bytes().get(at) == Some(&byte);
    cell.len() == SECONDS_WIDTH && shape(4, b'-') && shape(7, b'-') && shape(10, b'T') && shape(19, b'Z')
}

/// A time without its fraction of a second, if the cell is a time with one.
fn without_fraction(cell: &str) -> Option<String> {
    let (seconds, fraction) = cell.split_once('.')?;
    let digits = fraction.strip_suffix('Z')?;
    let whole = format!("{seconds}Z");
    (is_time(&whole) && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "2026-11-24T14:46:01.123456Z";

    fn lines(rows: &TableRows) -> (Vec<String>, usize) {
        let columns = table_columns(rows, &Layout::Natural);
        let width = width_of(&columns);
        (columns.into_iter().map(|column| column.cells.join("|")).collect(), width)
    }

    fn rows(columns: &'static [&'static str], cells: &[&str]) -> TableRows {
        TableRows { columns, cells: vec![cells.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    #[test]
    fn a_table_that_fits_stays_as_it_is() {
        let (cells, _) = lines(&rows(&["name", "count", "as_of"], &["views", "5", TIME]));
        assert_eq!(cells, ["views", "5", TIME]);
    }

    #[test]
    fn a_table_that_is_too_wide_loses_what_says_least_then_fractions_then_the_ends_of_texts() {
        let long = "x".repeat(70);
        let columns = &["name", "exactness", "as_of", "last_write_time", "checked_at"];
        let (cells, width) = lines(&rows(columns, &["views", "EXACT_AS_OF", TIME, TIME, TIME]));
        assert_eq!((cells.len(), width <= TABLE_WIDTH), (4, true), "{cells:?}");
        assert_eq!(cells[2], TIME, "it fits without the rest");
        let (cells, width) = lines(&rows(columns, &[&long, "EXACT_AS_OF", TIME, TIME, TIME]));
        assert_eq!(width, TABLE_WIDTH, "{cells:?}");
        assert_eq!(cells[2], "2026-11-24T14:46:01Z");
        assert!(cells[0].ends_with("x…") && cells[0].chars().count() >= CUT_TO_LEAST, "{cells:?}");
    }

    #[test]
    fn what_is_copied_into_commands_is_never_cut() {
        let long = "x".repeat(90);
        let (cells, _) = lines(&rows(&["token", "reason"], &[&long, &long]));
        assert_eq!((cells[0].as_str(), cells[1].chars().count()), (long.as_str(), CUT_TO_LEAST));
        let uuid = "01a20e1c-0196-702f-8a25-b4ed067fae1c";
        let (cells, width) = lines(&rows(&["message_id", "message_id", "reason"], &[uuid, uuid, &long]));
        assert_eq!((cells[0].as_str(), cells[1].as_str(), width), (uuid, uuid, TABLE_WIDTH));
    }

    #[test]
    fn an_identifier_stays_whole_where_other_columns_can_give() {
        let (id, key, error) = ("x".repeat(64), "key=value ".repeat(20), "y".repeat(61));
        let columns = &["message_id", "state", "priority", "attempts_left", "enqueue_time", "metadata", "error"];
        let (cells, width) = lines(&rows(columns, &[&id, "ERRORED", "1728139680000", "0", TIME, &key, &error]));
        assert!(width <= TABLE_WIDTH && cells[0] == id, "{cells:?}");
        assert!(cells.last().is_some_and(|error| error.ends_with("y…")), "{cells:?}");
        let (cells, width) = lines(&rows(columns, &[&id[..36], "PENDING", "1728139680000", "3", TIME, "", ""]));
        assert_eq!((cells.len(), width <= TABLE_WIDTH), (5, true), "what is empty goes first: {cells:?}");
        assert_eq!(cells[4], "2026-11-24T14:46:01Z");
        let columns = &["name", "type", "shards", "enqueue_blocked", "dequeue_blocked", "version", "update_time"];
        let (cells, width) = lines(&rows(columns, &[&"q".repeat(128), "SIMPLE", "1", "no", "no", "1", TIME]));
        assert!(width <= TABLE_WIDTH && cells[0].chars().count() >= NAME_LEAST, "{cells:?}");
    }

    #[test]
    fn numbers_are_known_by_their_column_and_their_cells() {
        let of =
            |columns: &'static [&'static str], cell: &str| table_columns(&rows(columns, &[cell]), &Layout::Natural);
        for cell in ["5", "-5", "+5", "1.5KiB", ""] {
            assert!(of(&["count"], cell)[0].is_number, "{cell}");
        }
        assert!(!of(&["message_id"], "5")[0].is_number, "an identifier that looks like one");
        assert!(!of(&["limit"], "as the queue says")[0].is_number);
    }
}
