//! The forms of a page: filters, selections of rows, and actions.

use std::fmt::Write as _;

use super::{Html, escaped};
use crate::http::console::view::{ActionForm, FilterForm, FormField, RowPick, SelectionForm};

/// A field that is sent without being shown, with its value even if it is empty.
fn hidden(html: &mut Html, field: &FormField) {
    let _ = write!(html.written, "<input type=\"hidden\" name=\"{}\" value=\"{}\">", field.name, escaped(&field.value));
}

/// A form that asks for another selection of what is shown.
pub fn filter(html: &mut Html, form: &FilterForm) {
    html.open("form", &[("class", "filter"), ("method", "get"), ("action", form.action)]);
    for field in &form.fields {
        if field.hidden {
            hidden(html, field);
            continue;
        }
        html.raw("<label>");
        html.text(&field.label);
        if field.options.is_empty() {
            html.open(
                "input",
                &[("type", "search"), ("name", field.name), ("value", &field.value), ("autocomplete", "off")],
            );
        } else {
            html.open("select", &[("name", field.name)]);
            for option in &field.options {
                let selected = if option.selected { "selected" } else { "" };
                html.element("option", &[("value", option.value), ("selected", selected)], option.text);
            }
            html.raw("</select>");
        }
        html.raw("</label>");
    }
    html.element("button", &[("type", "submit")], form.submit);
    html.raw("</form>");
}

/// The form around a table. Where scripts run, a box takes the place of the link.
pub fn open_selection(html: &mut Html, form: &SelectionForm) {
    html.raw("<form class=\"select\" method=\"get\" action=\"act\">");
    form.fields.iter().for_each(|field| hidden(html, field));
    html.raw("<p class=\"select-row\">");
    html.element("a", &[("id", "select-link"), ("href", &form.other.href)], &form.other.text);
    html.raw(
        "<label id=\"select-all\" hidden><input type=\"checkbox\" class=\"pick\" autocomplete=\"off\">Select all on this page\
         </label> <span class=\"selected\" data-testid=\"selected-count\" role=\"status\"></span></p>",
    );
}

/// The buttons for what is selected.
pub fn close_selection(html: &mut Html, form: &SelectionForm) {
    html.raw("<p class=\"links\">");
    for (value, text, class) in &form.buttons {
        let class = format!("button {class}");
        let attributes = [("type", "submit"), ("name", "do"), ("value", value), ("class", class.trim_end())];
        html.element("button", &attributes, text);
    }
    html.raw("</p></form>");
}

/// The box that selects a row.
pub fn pick(html: &mut Html, pick: &RowPick) {
    let checked = if pick.checked { "checked" } else { "" };
    html.open(
        "input",
        &[
            ("type", "checkbox"),
            ("class", "pick"),
            ("name", "m"),
            ("value", &pick.value),
            ("aria-label", &pick.label),
            ("autocomplete", "off"),
            ("checked", checked),
        ],
    );
}

/// A form that acts.
pub fn action(html: &mut Html, form: &ActionForm) {
    html.open("form", &[("class", "act"), ("method", "post"), ("action", form.action)]);
    for field in &form.fields {
        if field.hidden {
            hidden(html, field);
            continue;
        }
        html.raw("<label>");
        html.element("span", &[], &field.label);
        let required = if field.required { "required" } else { "" };
        let kind = if field.secret { "password" } else { "" };
        html.open(
            "input",
            &[
                ("type", kind),
                ("name", field.name),
                ("value", &field.value),
                ("autocomplete", "off"),
                ("required", required),
            ],
        );
        html.raw("</label>");
    }
    html.raw("<div class=\"act-row\">");
    html.element("button", &[("type", "submit"), ("class", form.class), ("data-testid", form.testid)], &form.submit);
    if !form.back.is_empty() {
        html.element("a", &[("href", &form.back)], "Cancel");
    }
    html.raw("</div></form>");
}
