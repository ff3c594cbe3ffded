//! A page as HTML. Everything that is shown passes through `escaped`, here and nowhere else.

mod drawings;
mod forms;

use std::borrow::Cow;
use std::fmt::Write as _;

use prost_types::Timestamp as WireTimestamp;

use super::format::{self, next_link};
use super::view::{
    ActionLink, AgeChip, AttentionRow, Fact, NoteTime, Page, PageNotice, RowPick, Section, TableCell, TableRow,
    TableView,
};
use crate::unseen::is_unseen;

const BRAND: &str = "<svg viewBox=\"0 0 24 24\" width=\"22\" height=\"22\" aria-hidden=\"true\">\
                     <path d=\"M5 4v16M10 4v16M15 4v16M20 4v16M2 17 22 7\" fill=\"none\" stroke=\"currentColor\" \
                     stroke-width=\"2\" stroke-linecap=\"round\"/></svg><span>Tallystone</span></a>";

/// The help on keys, which `?` shows where scripts run.
const KEYS: &str = "<p id=\"keys\" hidden>Keys: <kbd>/</kbd> filter, <kbd>j</kbd> <kbd>k</kbd> rows, <kbd>x</kbd> selects a row, <kbd>p</kbd> pause, \
                    <kbd>t</kbd> theme, <kbd>g</kbd> and <kbd>o</kbd> queues, <kbd>c</kbd> counters, <kbd>e</kbd> experiments, \
                    <kbd>h</kbd> health, <kbd>a</kbd> audit</p>";

/// A text in which no character has a meaning in HTML, also inside an attribute.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    Cow::Owned(safe)
}

/// Whether a page shows a character by its number. Line breaks and tabs have their place in a page.
fn is_hidden(letter: char) -> bool {
    is_unseen(letter) && !matches!(letter, '\n' | '\t')
}

/// Text of a page as it grows.
#[derive(Default)]
struct Html {
    written: String,
    /// The time of the page in milliseconds since 1970, from which ages count; none where it has no ages.
    now: Option<i64>,
    /// The beginning of its links.
    up: String,
    /// Whether it is a part for a page that scripts keep up to date. They write its ages.
    is_live: bool,
}

impl Html {
    /// Markup of this file.
    fn raw(&mut self, markup: &str) {
        self.written.push_str(markup);
    }

    /// Characters that are not seen are shown by their numbers: a name with them could look like another one.
    fn text(&mut self, text: &str) {
        for part in text.split_inclusive(is_hidden) {
            let seen = part.trim_end_matches(is_hidden);
            self.written.push_str(&escaped(seen));
            if let Some(unseen) = part[seen.len()..].chars().next() {
                // Writing to a string does not fail.
                let _ = write!(self.written, "\\u{{{:x}}}", u32::from(unseen));
            }
        }
    }

    /// An attribute, unless its value is empty. One that people read or hear is a text.
    fn attribute(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        // Writing to a string does not fail.
        let _ = write!(self.written, " {name}=\"");
        match name {
            "href" | "src" | "action" if !value.starts_with(['#', '/']) => {
                let link = format!("{}{value}", self.up);
                self.raw(&escaped(&link));
            }
            "aria-label" | "title" | "alt" => self.text(value),
            _ => self.raw(&escaped(value)),
        }
        self.raw("\"");
    }

    /// An element with attributes and a text.
    fn element(&mut self, tag: &str, attributes: &[(&str, &str)], text: &str) {
        self.open(tag, attributes);
        self.text(text);
        let _ = write!(self.written, "</{tag}>");
    }

    fn open(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        let _ = write!(self.written, "<{tag}");
        attributes.iter().for_each(|(name, value)| self.attribute(name, value));
        self.raw(">");
    }
}

/// The whole page.
pub fn page(page: &Page) -> String {
    let mut html = Html { now: page.now, up: page.up.clone(), ..Html::default() };
    head(&mut html, page);
    bar(&mut html, page);
    html.raw("<main id=\"content\" tabindex=\"-1\"");
    if let Some(url) = &page.live {
        html.attribute("data-stream", url);
    }
    html.raw("><div class=\"head\">");
    if !page.crumbs.is_empty() {
        html.raw("<p class=\"crumbs\">");
        for crumb in &page.crumbs {
            html.element("a", &[("href", &crumb.href)], &crumb.text);
            html.raw(" <span aria-hidden=\"true\">/</span> ");
        }
        html.raw("</p>");
    }
    html.raw("<div class=\"head-row\">");
    html.element("h1", &[], &page.heading);
    if let Some(chip) = &page.age {
        age(&mut html, chip);
    }
    html.raw("</div>");
    if !page.lead.is_empty() {
        html.element("p", &[("class", "lead"), ("data-live", "lead")], &page.lead);
    }
    html.raw("</div>\n");
    page.notices.iter().for_each(|one| notice(&mut html, one));
    page.sections.iter().for_each(|part| section(&mut html, part));
    html.raw("</main>\n<footer>");
    html.element("p", &[], &page.footer);
    html.raw(KEYS);
    html.raw("</footer>\n</body>\n</html>\n");
    html.written
}

fn head(html: &mut Html, page: &Page) {
    html.raw(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    html.element("title", &[], &format!("{} · Tallystone", page.title));
    html.open("link", &[("rel", "icon"), ("href", &page.assets.icon), ("type", "image/svg+xml")]);
    html.open("link", &[("rel", "stylesheet"), ("href", &page.assets.style)]);
    html.raw("<script defer");
    html.attribute("src", &page.assets.script);
    html.raw("></script>\n</head>\n<body>\n<a class=\"skip\" href=\"#content\">Skip to content</a>\n");
}

fn bar(html: &mut Html, page: &Page) {
    html.raw("<header class=\"bar\"><div class=\"bar-inner\">");
    html.open("a", &[("class", "brand"), ("href", "./")]);
    html.raw(BRAND);
    if !page.nav.is_empty() {
        html.raw("<nav aria-label=\"Main\">");
        for link in &page.nav {
            let current = if link.current { "page" } else { "" };
            html.element("a", &[("href", link.href), ("aria-current", current)], link.text);
        }
        html.raw("</nav>");
    }
    html.raw("<div class=\"tools\">");
    if page.live.is_some() {
        html.raw(
            "<span class=\"live\" data-testid=\"live-state\" data-state=\"off\" role=\"status\">not live</span>\
             <button type=\"button\" class=\"tool\" id=\"pause\" hidden>Pause</button>",
        );
    }
    html.raw("<button type=\"button\" class=\"tool\" id=\"theme\" hidden>Theme</button>");
    if !page.user.is_empty() {
        html.open("form", &[("class", "user"), ("method", "post"), ("action", "sign-out")]);
        html.element("span", &[], &page.user);
        html.raw("<button type=\"submit\" class=\"tool\">Sign out</button></form>");
    }
    html.raw("</div></div></header>\n");
}

fn age(html: &mut Html, chip: &AgeChip) {
    html.open(
        "span",
        &[
            ("class", "age"),
            ("data-testid", "age"),
            ("data-server-time", &chip.server_time.to_string()),
            ("data-age-state", chip.state),
        ],
    );
    // The attribute is there also while the time is unknown.
    html.written.pop();
    let _ = write!(html.written, " data-as-of=\"{}\">", escaped(&chip.as_of));
    html.element("span", &[("class", "source")], chip.source);
    html.raw(" ");
    html.element("span", &[("class", "age-text")], &chip.text);
    html.raw("</span>");
}

/// The markup inside a section, for live updates.
pub fn part(section: &Section) -> String {
    let mut html = Html { is_live: true, ..Html::default() };
    content(&mut html, section);
    html.written
}

fn notice(html: &mut Html, notice: &PageNotice) {
    let class = format!("notice {}", notice.class);
    let attributes = [("class", class.trim_end()), ("role", "status"), ("data-testid", notice.testid)];
    html.element("p", &attributes, &notice.text);
}

fn section(html: &mut Html, section: &Section) {
    html.open("section", &[("id", section.id), ("data-part", section.part)]);
    content(html, section);
    html.raw("</section>\n");
}

fn content(html: &mut Html, section: &Section) {
    section.notices.iter().for_each(|one| notice(html, one));
    if !section.title.is_empty() {
        html.raw("<div class=\"section-head\">");
        html.element("h2", &[], &section.title);
        if !section.note.is_empty() {
            note(html, section);
        }
        html.raw("</div>");
    }
    if !section.attention.is_empty() {
        html.raw("<ul class=\"attention\">");
        section.attention.iter().for_each(|row| attention(html, row));
        html.raw("</ul>");
    }
    if !section.facts.is_empty() {
        html.open("dl", &[("class", format!("facts {}", section.class).trim_end())]);
        section.facts.iter().for_each(|one| fact(html, one));
        html.raw("</dl>");
    }
    if let Some(view) = &section.chart {
        drawings::chart(html, view);
    }
    if let Some(form) = &section.filter {
        forms::filter(html, form);
    }
    if let Some(form) = &section.selection {
        forms::open_selection(html, form);
    }
    if let Some(view) = &section.table {
        table(html, view);
    }
    if let Some(form) = &section.selection {
        forms::close_selection(html, form);
    }
    if !section.empty.is_empty() {
        html.open("p", &[("class", "empty"), ("data-testid", "empty")]);
        with_code(html, &section.empty);
        html.raw("</p>");
    }
    for paragraph in &section.prose {
        html.raw("<p class=\"prose\">");
        with_code(html, paragraph);
        html.raw("</p>");
    }
    if !section.code.is_empty() {
        html.raw("<pre tabindex=\"0\">");
        html.element("code", &[], &section.code);
        html.raw("</pre>");
    }
    if let Some(form) = &section.action {
        forms::action(html, form);
    }
    if !section.links.is_empty() {
        html.raw("<p class=\"links\">");
        section.links.iter().for_each(|link| button(html, link));
        html.raw("</p>");
    }
}

/// The note of a section, with the age of its counters.
fn note(html: &mut Html, section: &Section) {
    html.raw("<p class=\"note\">");
    html.text(&section.note);
    if let Some(NoteTime(as_of)) = &section.note_time {
        html.raw(" · counters, as of ");
        dated(html, as_of.as_ref());
    }
    html.raw("</p>");
}

/// A time with its age beside it, or a dash.
fn dated(html: &mut Html, at: Option<&WireTimestamp>) {
    moment(html, at);
    if let (Some(at), Some(now)) = (at, html.now) {
        html.raw(" ");
        html.element("span", &[("class", "ago")], &format::ago(format::millis(at), now));
    } else if at.is_some() && html.is_live {
        html.raw(" <span class=\"ago\"></span>");
    }
}

/// A time, in UTC where no script writes it in the zone of the reader; or a dash.
fn moment(html: &mut Html, at: Option<&WireTimestamp>) {
    let text = format::moment(at);
    match text.strip_suffix(" UTC") {
        Some(second) => {
            html.element("time", &[("datetime", &format!("{}Z", second.replace(' ', "T")))], &text);
        }
        None => html.text(&text),
    }
}

/// A text in which backticks mark code, and brackets links to the runbook. A text of others can have no other links.
fn with_code(html: &mut Html, text: &str) {
    for (place, part) in text.split('`').enumerate() {
        if place % 2 == 0 {
            with_links(html, part);
        } else {
            html.element("code", &[], part);
        }
    }
}

fn with_links(html: &mut Html, text: &str) {
    let mut rest = text;
    while let Some((before, name, target, after)) =
        next_link(rest).filter(|(_, _, target, _)| target.starts_with("runbook?page="))
    {
        html.text(before);
        html.element("a", &[("href", target)], name);
        rest = after;
    }
    html.text(rest);
}

fn attention(html: &mut Html, row: &AttentionRow) {
    // Live updates know a row by its key, so that it stays in its place.
    let key = format!("{} {}", row.reason, row.queue);
    html.open("li", &[("data-testid", "attention-row"), ("data-reason", row.reason), ("data-key", &key)]);
    html.raw("<span class=\"mark\" aria-hidden=\"true\">!</span><span class=\"what\">");
    html.element("a", &[("href", &row.href)], &row.queue);
    html.raw(" ");
    html.element("span", &[], &row.text);
    html.raw("</span><span class=\"steps\">");
    for step in &row.steps {
        html.element("a", &[("href", &step.href)], &step.text);
    }
    html.raw("</span></li>");
}

fn fact(html: &mut Html, fact: &Fact) {
    html.open("div", &[("class", fact.class)]);
    html.element("dt", &[], fact.label);
    let attributes = [("data-testid", fact.testid), ("data-live", fact.live), ("data-verdict", fact.verdict)];
    html.open("dd", &attributes);
    match &fact.time {
        Some(at) => dated(html, Some(at)),
        None => html.text(&fact.value),
    }
    html.raw("</dd>");
    if !fact.hint.is_empty() {
        html.element("dd", &[("class", "hint")], &fact.hint);
    }
    html.raw("</div>");
}

fn table(html: &mut Html, view: &TableView) {
    html.raw("<div class=\"table\"><table><thead><tr>");
    for column in &view.columns {
        let class = if column.number { "num" } else { "" };
        html.open("th", &[("scope", "col"), ("class", class), ("aria-sort", column.sorted)]);
        if column.href.is_empty() {
            html.text(column.text);
        } else {
            html.element("a", &[("href", &column.href)], column.text);
        }
        html.raw("</th>");
    }
    html.raw("</tr></thead><tbody>\n");
    view.rows.iter().for_each(|one| row(html, one));
    html.raw("</tbody></table></div>");
}

fn row(html: &mut Html, row: &TableRow) {
    let attributes =
        [("data-testid", row.testid), ("data-key", &*row.key), ("data-queue", &row.queue), ("data-arm", &row.arm)];
    html.open("tr", &attributes);
    for (place, one) in row.cells.iter().enumerate() {
        cell(html, one, row.pick.as_ref().filter(|_| place == 0));
    }
    html.raw("</tr>\n");
}

fn cell(html: &mut Html, cell: &TableCell, selects: Option<&RowPick>) {
    html.open("td", &[("data-label", cell.label), ("class", if cell.number { "num" } else { "" })]);
    if let Some(selects) = selects {
        forms::pick(html, selects);
    }
    if cell.href.is_empty() {
        let attributes = [("data-testid", cell.testid), ("data-live", cell.live), ("class", cell.class)];
        html.open("span", &attributes);
        match &cell.time {
            Some(at) => dated(html, Some(at)),
            None => html.text(&cell.text),
        }
        if let Some(mark) = &cell.interval {
            drawings::interval(html, mark);
        }
        if let Some(line) = &cell.sparkline {
            drawings::sparkline(html, line);
        }
        if let Some((done, total)) = cell.progress {
            let (value, max) = (done.to_string(), total.max(done).max(1).to_string());
            html.element("progress", &[("value", &value), ("max", &max), ("aria-label", cell.label)], "");
        }
        cell.buttons.iter().for_each(|link| button(html, link));
        html.raw("</span>");
    } else {
        html.element("a", &[("href", &cell.href)], &cell.text);
    }
    html.raw("</td>");
}

fn button(html: &mut Html, link: &ActionLink) {
    if link.enabled {
        let class = format!("button {}", link.class);
        let current = if link.current { "true" } else { "" };
        html.element("a", &[("class", class.trim_end()), ("href", &link.href), ("aria-current", current)], link.text);
    } else {
        html.element("span", &[("class", "button"), ("aria-disabled", "true")], link.text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn characters_that_are_not_seen_are_shown_by_their_numbers() {
        let mut html = Html::default();
        html.text("pay\u{202e}lia\u{1b}m\u{2069}\u{2069}<");
        assert_eq!(html.written, "pay\\u{202e}lia\\u{1b}m\\u{2069}\\u{2069}&lt;");
        let mut html = Html::default();
        html.attribute("aria-label", "Select \u{feff}\"");
        html.attribute("value", "\u{feff}\"");
        assert_eq!(html.written, " aria-label=\"Select \\u{feff}&quot;\" value=\"\u{feff}&quot;\"");
    }

    proptest! {
        #[test]
        fn no_text_can_end_its_element_or_attribute(text in ".{0,40}") {
            let mut html = Html::default();
            html.element("a", &[("href", &text)], &text);
            let safe = html.written.strip_prefix("<a").and_then(|rest| rest.strip_suffix("</a>")).expect("one element");
            prop_assert_eq!(safe.matches(['<', '\'']).count(), 0);
            prop_assert_eq!(safe.matches('>').count(), 1);
            prop_assert_eq!(safe.matches('"').count(), if text.is_empty() { 0 } else { 2 });
        }
    }
}
