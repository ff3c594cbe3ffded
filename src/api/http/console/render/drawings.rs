//! The drawings of a page: lines over time, intervals, and the lines of cells.

use std::fmt::Write as _;

use super::{Html, moment};
use crate::http::console::view::{ChartView, IntervalMark, Sparkline};

/// Lines over time, with their axes. The number at each point is there for the script, which shows it.
pub fn chart(html: &mut Html, view: &ChartView) {
    let times: Vec<String> = view.times.iter().map(i64::to_string).collect();
    html.open("figure", &[("class", "chart"), ("data-times", &times.join(" ")), ("data-unit", view.unit)]);
    html.raw("<div class=\"plot-row\"><div class=\"scale\" aria-hidden=\"true\">");
    view.scale.iter().for_each(|mark| html.element("span", &[], mark));
    html.raw("</div>");
    html.open("div", &[("class", "plot"), ("data-testid", "plot"), ("data-label", &view.label)]);
    html.open(
        "svg",
        &[("viewBox", "0 0 1000 160"), ("preserveAspectRatio", "none"), ("role", "img"), ("aria-label", &view.label)],
    );
    html.raw("<path class=\"grid\" d=\"M0 0H1000M0 80H1000\"/><path class=\"axis\" d=\"M0 0V160H1000\"/>");
    for line in &view.lines {
        let values = line.values.join("|");
        let attributes = [
            ("class", &*format!("line {}", line.class)),
            ("d", &line.path),
            ("data-label", line.label),
            ("data-values", &values),
        ];
        html.open("path", &attributes);
        html.raw("</path>");
    }
    html.raw("<path class=\"cursor\" d=\"\"/></svg></div></div>");
    if let [Some(from), Some(to)] = &view.ends {
        html.raw("<p class=\"ends\">");
        moment(html, Some(from));
        html.raw(" ");
        moment(html, Some(to));
        html.raw("</p>");
    }
    html.raw("<figcaption>");
    for line in &view.lines {
        html.element("span", &[("class", &format!("key {}", line.class))], line.label);
    }
    html.element("span", &[], &view.most);
    html.raw("<span class=\"reading\" data-testid=\"reading\"></span></figcaption></figure>");
}

/// An interval as a line, with its middle, and 0 where that is on the scale. The text beside it says the same.
pub fn interval(html: &mut Html, mark: &IntervalMark) {
    let IntervalMark { lower, upper, middle, zero } = mark;
    html.raw("<svg class=\"interval\" viewBox=\"0 0 1000 16\" preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    html.raw("<path class=\"axis\" d=\"M0 8H1000\"/>");
    if let Some(zero) = zero {
        let _ = write!(html.written, "<path class=\"zero\" d=\"M{zero} 0V16\"/>");
    }
    let _ = write!(
        html.written,
        "<path class=\"range\" d=\"M{lower} 8H{upper}\"/><path class=\"middle\" d=\"M{middle} 2V14\"/></svg>"
    );
}

pub fn sparkline(html: &mut Html, line: &Sparkline) {
    let attributes = [
        ("class", "sparkline"),
        ("viewBox", "0 0 100 20"),
        ("preserveAspectRatio", "none"),
        ("role", "img"),
        ("aria-label", &line.text),
    ];
    html.open("svg", &attributes);
    html.open("path", &[("d", &line.path)]);
    html.raw("</path></svg>");
}
