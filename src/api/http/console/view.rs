//! The parts of a page. `render` writes every page, so all look and work alike.

use http::StatusCode;
use prost_types::Timestamp as WireTimestamp;
use tonic::{Code, Status};

use super::assets::{AssetLinks, LINKS};
use super::format;
use super::query::{PageQuery, link};
use tallystone_proto::queue::v1 as queue;

/// Numbers up to this age are fresh, in seconds; the script of the console has the same bounds.
pub const FRESH_SECONDS: i64 = 5;
const LAGGING_SECONDS: i64 = 60;

/// A page.
pub struct Page {
    pub status: StatusCode,
    pub title: String,
    pub heading: String,
    /// One sentence below the heading.
    pub lead: String,
    pub nav: Vec<NavLink>,
    pub crumbs: Vec<TextLink>,
    pub age: Option<AgeChip>,
    pub notices: Vec<PageNotice>,
    pub sections: Vec<Section>,
    /// The address from which its numbers are streamed, if they are.
    pub live: Option<String>,
    pub footer: String,
    /// When it was made, in milliseconds since 1970; none where it has no ages.
    pub now: Option<i64>,
    /// The path from its folder to that of the console, before each of its links; empty for pages that lie there.
    pub up: String,
    /// The name of the signed-in caller; empty where callers need not say who they are.
    pub user: String,
    pub assets: &'static AssetLinks,
}

pub struct NavLink {
    pub href: &'static str,
    pub text: &'static str,
    pub current: bool,
}

pub struct TextLink {
    pub href: String,
    pub text: String,
}

/// The age of the numbers of a page, with their source.
pub struct AgeChip {
    pub source: &'static str,
    /// Milliseconds since 1970; empty while unknown.
    pub as_of: String,
    pub server_time: i64,
    /// `fresh`, `lagging`, `stale` or `away`.
    pub state: &'static str,
    pub text: String,
}

pub struct PageNotice {
    /// `bad`, `warn` or nothing.
    pub class: &'static str,
    pub testid: &'static str,
    pub text: String,
}

/// A part of a page. What is empty is not shown.
#[derive(Default)]
pub struct Section {
    /// Its name in links; empty for none.
    pub id: &'static str,
    /// Its name in live updates, which replace all of it; empty for none. A part is there also while it is empty.
    pub part: &'static str,
    pub notices: Vec<PageNotice>,
    pub title: String,
    pub note: String,
    /// The age of its counters, which the note ends with.
    pub note_time: Option<NoteTime>,
    pub class: &'static str,
    pub attention: Vec<AttentionRow>,
    pub facts: Vec<Fact>,
    pub chart: Option<ChartView>,
    pub filter: Option<FilterForm>,
    /// The actions on selected rows of the table.
    pub selection: Option<SelectionForm>,
    pub table: Option<TableView>,
    pub empty: String,
    /// Paragraphs, in which backticks mark code.
    pub prose: Vec<String>,
    pub code: String,
    pub action: Option<ActionForm>,
    pub links: Vec<ActionLink>,
}

/// Up to when counters have all events; none while that is not known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NoteTime(pub Option<WireTimestamp>);

pub struct AttentionRow {
    pub reason: &'static str,
    pub queue: String,
    pub href: String,
    pub text: String,
    pub steps: Vec<TextLink>,
}

#[derive(Default)]
pub struct Fact {
    pub label: &'static str,
    pub value: String,
    /// The time that its value is, if it is one.
    pub time: Option<WireTimestamp>,
    pub hint: String,
    pub testid: &'static str,
    /// The name of its number in live updates.
    pub live: &'static str,
    /// The verdict of an experiment, as calls name it.
    pub verdict: &'static str,
    pub class: &'static str,
}

pub struct FilterForm {
    pub action: &'static str,
    pub fields: Vec<FormField>,
    pub submit: &'static str,
}

#[derive(Default)]
pub struct FormField {
    pub label: String,
    pub name: &'static str,
    pub value: String,
    pub hidden: bool,
    pub required: bool,
    /// Whether it is not readable while it is typed.
    pub secret: bool,
    pub options: Vec<FieldOption>,
}

pub struct FieldOption {
    pub value: &'static str,
    pub text: &'static str,
    pub selected: bool,
}

#[derive(Default)]
pub struct ActionForm {
    pub action: &'static str,
    pub fields: Vec<FormField>,
    pub submit: String,
    pub testid: &'static str,
    /// `danger` for what destroys.
    pub class: &'static str,
    /// The address to which giving up the form leads; empty without such a place.
    pub back: String,
}

#[derive(Default)]
pub struct ActionLink {
    pub href: String,
    pub text: &'static str,
    pub class: &'static str,
    pub enabled: bool,
    /// Whether it leads to what is shown.
    pub current: bool,
}

#[derive(Default)]
pub struct TableView {
    pub columns: Vec<ColumnHead>,
    pub rows: Vec<TableRow>,
}

#[derive(Default)]
pub struct ColumnHead {
    pub text: &'static str,
    pub number: bool,
    pub href: String,
    /// `ascending` or `descending` if the rows are in the order of this column.
    pub sorted: &'static str,
}

#[derive(Default)]
pub struct TableRow {
    pub testid: &'static str,
    /// Its name within its table, by which live updates know it; empty for none.
    pub key: String,
    pub queue: String,
    pub arm: String,
    /// How it is selected; none where rows are not.
    pub pick: Option<RowPick>,
    pub cells: Vec<TableCell>,
}

/// The box that selects a row.
pub struct RowPick {
    /// The value of a selected row in the form.
    pub value: String,
    /// The selected thing, in words.
    pub label: String,
    pub checked: bool,
}

/// A form around a table whose rows can be selected. It leads to a page that asks before anything is done.
pub struct SelectionForm {
    pub fields: Vec<FormField>,
    /// The actions on the selection: the names and the words of the buttons, and their classes.
    pub buttons: Vec<(&'static str, &'static str, &'static str)>,
    /// The same page with all rows selected, or with none if all are.
    pub other: TextLink,
}

#[derive(Default)]
pub struct TableCell {
    pub label: &'static str,
    pub text: String,
    /// The time that its text is, if it is one.
    pub time: Option<WireTimestamp>,
    pub href: String,
    pub number: bool,
    pub testid: &'static str,
    pub live: &'static str,
    pub class: &'static str,
    pub interval: Option<IntervalMark>,
    pub sparkline: Option<Sparkline>,
    /// The amount that is done so far, and the amount in all.
    pub progress: Option<(i64, i64)>,
    /// The actions on the row.
    pub buttons: Vec<ActionLink>,
}

/// A line over the last hour that fits into a cell.
pub struct Sparkline {
    /// Its way in a drawing of 100 by 20.
    pub path: String,
    /// The meaning of its height, in words.
    pub text: String,
}

/// An interval as it is drawn, in thousandths of the width.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IntervalMark {
    pub lower: i64,
    pub upper: i64,
    pub middle: i64,
    /// The place of 0, if it is drawn.
    pub zero: Option<i64>,
}

/// Lines over time.
pub struct ChartView {
    /// The meaning of the chart, in words.
    pub label: String,
    pub lines: Vec<ChartLine>,
    /// The meaning of its height.
    pub most: String,
    /// The numbers at its top, in its middle and at its bottom.
    pub scale: [String; 3],
    /// The unit of the numbers of its lines, such as `per second`.
    pub unit: &'static str,
    /// The time of each point, in milliseconds since 1970.
    pub times: Vec<i64>,
    /// The times at its left and right end.
    pub ends: [Option<WireTimestamp>; 2],
}

pub struct ChartLine {
    pub label: &'static str,
    /// `one` or `two`: its colour.
    pub class: &'static str,
    /// Its way in a drawing of 1,000 by 160.
    pub path: String,
    /// The number at each point as people read it; empty for a line that only marks a height.
    pub values: Vec<String>,
}

/// The reason why a page cannot be shown.
pub struct PageFailure {
    status: StatusCode,
    heading: &'static str,
    text: String,
}

impl Page {
    /// A page of one of the places of the navigation.
    pub fn new(place: &str, heading: impl Into<String>) -> Self {
        let places = [
            ("./", "Queues"),
            ("counters", "Counters"),
            ("experiments", "Experiments"),
            ("health", "Health"),
            ("audit", "Audit"),
        ];
        let nav = places.map(|(href, text)| NavLink { href, text, current: href == place });
        let heading = heading.into();
        Self {
            status: StatusCode::OK,
            title: heading.clone(),
            heading,
            lead: String::new(),
            nav: nav.into(),
            crumbs: Vec::new(),
            age: None,
            notices: Vec::new(),
            sections: Vec::new(),
            live: None,
            footer: format!("Tallystone {}", env!("CARGO_PKG_VERSION")),
            now: None,
            up: String::new(),
            user: String::new(),
            assets: &LINKS,
        }
    }

    /// A page below the queue with this name.
    pub fn of_queue(queue: &str, heading: impl Into<String>) -> Self {
        let mut page = Self::new("./", heading);
        let crumb = |href, text: &str| TextLink { href, text: text.to_owned() };
        page.crumbs = vec![crumb("./".to_owned(), "Queues"), crumb(link("queue", &[("name", queue)]), queue)];
        page
    }

    pub fn notice(&mut self, class: &'static str, text: impl Into<String>) {
        self.notices.push(PageNotice { class, testid: "", text: text.into() });
    }
}

impl AgeChip {
    /// The age of numbers at the time of the server.
    pub fn of(
        source: &'static str,
        as_of: Option<&prost_types::Timestamp>,
        server_time: Option<&prost_types::Timestamp>,
        is_away: bool,
    ) -> Self {
        let now = server_time.map_or(0, format::millis);
        let age = as_of.map(|as_of| ((now - format::millis(as_of)) / 1_000).max(0));
        let state = match age {
            _ if is_away => "away",
            None => "stale",
            Some(..=FRESH_SECONDS) => "fresh",
            Some(..=LAGGING_SECONDS) => "lagging",
            Some(_) => "stale",
        };
        let text = age.map_or_else(|| format::UNKNOWN.to_owned(), |age| format!("as of {} ago", format::seconds(age)));
        let as_of = as_of.map_or_else(String::new, |as_of| format::millis(as_of).to_string());
        Self { source, as_of, server_time: now, state, text }
    }
}

impl PageFailure {
    /// There is no page of this name.
    pub fn no_page(place: &str) -> Self {
        let shown: String = place.chars().take(100).collect();
        Self {
            status: StatusCode::NOT_FOUND,
            heading: "No such page",
            text: format!("The console has no page {shown:?}."),
        }
    }

    /// The page of an action that was not done. It leads to its form, which has a new token.
    pub fn of_action(self, form: &PageQuery) -> Page {
        let known = |name| (name, form.text(name));
        let named = ["do", "queue", "id", "signature", "state"].map(known);
        let selected = form.all("m").map(|message| ("m", message));
        let href = link("act", &named.into_iter().chain(selected).collect::<Vec<_>>());
        let heading = if self.status == StatusCode::BAD_REQUEST { "Nothing was done" } else { self.heading };
        let mut page = Self { heading, ..self }.page();
        let again = ActionLink { href, text: "Open the form again", enabled: true, ..ActionLink::default() };
        page.sections.push(Section { links: vec![again], ..Section::default() });
        page
    }

    /// The page that says so.
    pub fn page(self) -> Page {
        let mut page = Page::new("", self.heading);
        page.status = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            page.age = Some(AgeChip::of("live", None, None, true));
        }
        page.notice("bad", self.text);
        page
    }
}

impl From<Status> for PageFailure {
    fn from(status: Status) -> Self {
        let (code, heading) = match status.code() {
            Code::NotFound => (StatusCode::NOT_FOUND, "Not found"),
            Code::InvalidArgument | Code::FailedPrecondition => (StatusCode::BAD_REQUEST, "Cannot be shown"),
            Code::Aborted => (StatusCode::CONFLICT, "Changed meanwhile"),
            Code::Cancelled => (StatusCode::CONFLICT, "Stopped before its end"),
            Code::PermissionDenied => (StatusCode::FORBIDDEN, "Not allowed"),
            Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "Sign in first"),
            Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "Too much at once"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "No answer"), // the store or the server is away
        };
        Self { status: code, heading, text: status.message().to_owned() }
    }
}

/// A cell with a text.
pub fn cell(label: &'static str, text: impl Into<String>) -> TableCell {
    TableCell { label, text: text.into(), ..TableCell::default() }
}

/// A cell with a time and its age.
pub fn time_cell(label: &'static str, at: Option<&WireTimestamp>) -> TableCell {
    TableCell { time: at.copied(), ..cell(label, format::moment(at)) }
}

/// A fact that is a time, with its age.
pub fn time_fact(label: &'static str, at: Option<&WireTimestamp>) -> Fact {
    Fact { label, value: format::moment(at), time: at.copied(), ..Fact::default() }
}

/// A cell with a priority, which is read as a time where it is one.
pub fn priority_cell(label: &'static str, priority: Option<i64>) -> TableCell {
    match format::priority_time(priority) {
        Some(at) => time_cell(label, Some(&at)),
        None => cell(label, format::count(priority)),
    }
}

/// A priority, which is read as a time where it is one, with its number.
pub fn priority_fact(label: &'static str, priority: Option<i64>) -> Fact {
    let value = format::count(priority);
    match format::priority_time(priority) {
        Some(at) => Fact { hint: value, ..time_fact(label, Some(&at)) },
        None => Fact { label, value, ..Fact::default() },
    }
}

/// A cell with a number.
pub fn number(label: &'static str, text: impl Into<String>) -> TableCell {
    TableCell { number: true, ..cell(label, text) }
}

/// Heads of columns; names that begin with `#` are those of numbers.
pub fn heads(names: &[&'static str]) -> Vec<ColumnHead> {
    let head = |name: &&'static str| match name.strip_prefix('#') {
        Some(text) => ColumnHead { text, number: true, ..ColumnHead::default() },
        None => ColumnHead { text: name, ..ColumnHead::default() },
    };
    names.iter().map(head).collect()
}

/// The reason of an attention without its prefix, as calls name it.
pub fn reason_name(reason: i32) -> &'static str {
    let reason = queue::AttentionReason::try_from(reason).unwrap_or_default().as_str_name();
    reason.strip_prefix("ATTENTION_REASON_").unwrap_or(reason)
}

/// The state of a message as people read it.
pub fn state_name(state: i32) -> &'static str {
    match queue::MessageState::try_from(state).unwrap_or_default() {
        queue::MessageState::Unspecified => format::UNKNOWN,
        queue::MessageState::Invisible => "invisible",
        queue::MessageState::Pending => "pending",
        queue::MessageState::Running => "running",
        queue::MessageState::Completed => "completed",
        queue::MessageState::Canceled => "canceled",
        queue::MessageState::Errored => "errored",
    }
}
