//! The metrics page, in the two text formats that scrapers read.
//!
//! A scraper that reads nothing but plain text (`text/plain` or `text/*`), as older collectors and
//! `promtool check metrics` do, gets the text format 0.0.4. Everyone else gets OpenMetrics 1.0, as Prometheus does.
//! Samples are the same in both. They differ in what describes a family: 0.0.4 names the family of a counter by its
//! samples (`..._total`), and has no units and no end mark. A scraper that asks for gzip gets it: a page of many queues
//! is a tenth as long by it.
//! Source: the exposition formats of Prometheus, and OpenMetrics 1.0.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use parking_lot::RwLock;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tonic::body::Body;

use crate::http::buffers::Caller;
use crate::http::json;
use crate::http::response_body::{ResponseBody, plain, with_type};
use tallystone_domain::limits::ANSWER_LIST_BYTES;

const TEXT: &str = "text/plain";
/// The media range of every kind of text. Source: RFC 9110, section 12.5.1.
const ANY_TEXT: &str = "text/*";
const GZIP: &str = "gzip";
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers with the page. It is large with many datasets and queues, so it is built off the runtime and counts as a
/// large answer.
pub async fn answer(request: &Request<()>, registry: Arc<RwLock<Registry>>, caller: &Caller) -> Response<Body> {
    let is_plain = accepts_only_text(request.headers());
    let is_compressed = accepts_gzip(request.headers());
    let place = caller.reserve_response(ANSWER_LIST_BYTES as usize).await;
    let written = json::off_the_runtime(usize::MAX, move || {
        let mut page = String::new();
        text::encode(&mut page, &registry.read())?;
        let page = if is_plain { without_open_metrics(&page) } else { page };
        if is_compressed { compressed(&page) } else { Ok(page.into()) }
    });
    match written.await {
        Err(refusal) => json::refused(&refusal.into()),
        Ok(Ok(page)) => {
            let body = ResponseBody::complete(page, Some(place), caller, Body::empty());
            let content_type = if is_plain { TEXT_TYPE } else { OPEN_METRICS_TYPE };
            let mut answer = with_type(StatusCode::OK, content_type, Bytes::new()).map(|_| Body::new(body));
            answer.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
            if is_compressed {
                answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static(GZIP));
            }
            answer
        }
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot write the metrics");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "cannot write the metrics; see the log\n")
        }
    }
}

/// Whether a scraper says that it reads plain text, as `text/*` does too, and does not say that it reads OpenMetrics.
fn accepts_only_text(headers: &HeaderMap) -> bool {
    let is_refused = refuses(headers, TEXT);
    let is_named = names(headers, &header::ACCEPT, TEXT) || (names(headers, &header::ACCEPT, ANY_TEXT) && !is_refused);
    is_named && !names(headers, &header::ACCEPT, OPEN_METRICS)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    names(headers, &header::ACCEPT_ENCODING, GZIP)
}

/// Whether one of the things that a header accepts is this one.
fn names(headers: &HeaderMap, header: &HeaderName, wanted: &str) -> bool {
    said_of(headers, header, wanted).any(|is_wanted| is_wanted)
}

/// Whether a scraper says that it does not read a format.
fn refuses(headers: &HeaderMap, format: &str) -> bool {
    said_of(headers, &header::ACCEPT, format).any(|is_wanted| !is_wanted)
}

/// The statements of a header about a thing, one for each time that it names it: whether it is accepted.
fn said_of(headers: &HeaderMap, header: &HeaderName, thing: &str) -> impl Iterator<Item = bool> {
    let named = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).filter_map(move |range| {
        let mut parts = range.split(';').map(str::trim);
        parts.next().filter(|kind| kind.eq_ignore_ascii_case(thing))?;
        // A quality of 0 says "not this".
        Some(!parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0))))
    })
}

/// The page by gzip. It is read once and thrown away, so it is compressed fast rather than well.
fn compressed(page: &str) -> Result<Bytes, fmt::Error> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    // Memory takes every byte.
    let written = writer.write_all(page.as_bytes()).and_then(|()| writer.finish());
    written.map(Bytes::from).map_err(|_| fmt::Error)
}

/// The text format 0.0.4 of an OpenMetrics page.
fn without_open_metrics(page: &str) -> String {
    let typed = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let renamed: HashSet<&str> = typed.filter(|(_, kind)| *kind == "counter").map(|(family, _)| family).collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let Some(described) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let mut words = described.splitn(3, ' ');
        if let (Some(what @ ("HELP" | "TYPE")), Some(family), Some(rest)) = (words.next(), words.next(), words.next()) {
            let suffix = if renamed.contains(family) { "_total" } else { "" };
            let _ = writeln!(text, "# {what} {family}{suffix} {rest}"); // writing to a String does not fail
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_format_goes_to_those_who_read_nothing_else() {
        let is_plain = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(value))]);
            accepts_only_text(&headers)
        };
        for older in ["text/plain", "text/plain;version=0.0.4", "Text/Plain; version=0.0.4;q=0.5, */*;q=0.1"] {
            assert!(is_plain(older), "{older}");
        }
        assert!(is_plain("application/openmetrics-text;q=0, text/plain"));
        assert!(is_plain("text/*") && is_plain("TEXT/*;q=0.5, */*;q=0.1"), "a range of all texts has this one");
        for open in [
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1",
            "text/plain;version=0.0.4, Application/OpenMetrics-Text; version=0.0.1",
            "*/*",
            "text/html",
            "text/*, application/openmetrics-text",
            "text/*, text/plain;q=0",
            "text/*;q=0",
            "",
        ] {
            assert!(!is_plain(open), "{open}");
        }
        assert!(!accepts_only_text(&HeaderMap::new()));
    }

    #[test]
    fn who_names_gzip_gets_it_unless_its_quality_is_0() {
        let accepts = |value: &'static str| {
            accepts_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(accepts("gzip") && accepts("deflate, GZIP;q=0.5") && !accepts("gzip;q=0") && !accepts("br, identity"));
        let page = "a_total 1\n".repeat(1_000);
        let packed = compressed(&page).expect("it fits into memory");
        assert!(packed.len() < page.len() / 10, "{}", packed.len());
    }

    #[test]
    fn the_older_format_names_a_counter_by_its_samples() {
        let page = "# HELP writes Adds of all kinds.\n# TYPE writes counter\nwrites_total{a=\"# b\"} 2\n\
                    # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n# UNIT wait_seconds seconds\n\
                    wait_seconds_count 1\n# EOF\n";
        let expected = "# HELP writes_total Adds of all kinds.\n# TYPE writes_total counter\nwrites_total{a=\"# b\"} 2\n\
                        # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\nwait_seconds_count 1\n";
        assert_eq!(without_open_metrics(page), expected);
    }
}
