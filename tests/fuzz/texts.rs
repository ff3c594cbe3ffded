//! What people write: documents, settings, names, page tokens.

use tallystone::api::documents;
use tallystone::api::paging::PagedRequest;
use tallystone::app::config::{ConfigSources, load};
use tallystone::domain::counter::token::{ReportSource, uuid_v7};
use tallystone::domain::counter::{CounterName, NamespaceName, Provenance};
use tallystone::domain::queue::QueueName;
use tallystone::domain::queue::messages::message::{Metadata, RoutingValue};
use tallystone::domain::queue::messages::message_id::MessageId;

use super::allocated::bounded;
use super::driver::{Run, joined, split};
use super::mutate;

const DOCUMENT_WORDS: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    "\"\"\"",
    "'''",
    "//",
    "/*",
    "#",
    "\\u0000",
    "1e999",
    "-0",
    "0x",
    "null",
    "NaN",
    "99999999999999999999",
    "9999d",
    "-1s",
    "1h30m",
    "persistence_configuration",
    "namespaces",
    "\"id\": \"COUNTER_ROLLUP\"",
    "[[namespaces]]",
    "etag",
    "counter_type = \"BEST_EFFORT\"",
    "\u{feff}",
    "\u{202e}",
];

#[test]
fn any_document_is_read_or_refused_with_a_text() {
    let name = NamespaceName::new("views").expect("a valid name");
    Run::of("documents", 2_000).judge(
        |rng, pool| mutate::changed(rng, pool, DOCUMENT_WORDS),
        |input| {
            let text = String::from_utf8_lossy(input);
            match bounded(input, 400, || documents::parse(&text, Some(&name))) {
                Ok(read) => format!("read {} {}", read.len().min(3), read.iter().any(|one| !one.unmapped.is_empty())),
                Err(reject) => {
                    assert!(!reject.message.is_empty(), "a refusal has a text");
                    assert!(
                        reject.message.len() < 4_096,
                        "a refusal does not echo its input: {}",
                        reject.message.len()
                    );
                    format!("refused {}", outline(&reject.message))
                }
            }
        },
    );
}

#[test]
fn any_settings_are_loaded_or_refused_with_a_text() {
    const WORDS: &[&str] = &[
        "[clusters.a]",
        "kind = \"memcached\"",
        "[server]",
        "listen = \"",
        "= -1",
        "= 9223372036854775807",
        "[[",
        "\"",
        "queues.engine",
    ];
    Run::of("config", 1_000).judge(
        |rng, pool| mutate::changed(rng, pool, WORDS),
        |input| {
            let text = String::from_utf8_lossy(input).into_owned();
            let (key, value) = split(input);
            let flags = vec![(key.to_owned(), "--set", String::from_utf8_lossy(value).into_owned())];
            let as_file = ConfigSources { file: Some(("file.toml".into(), text)), ..ConfigSources::default() };
            let outcomes = [as_file, ConfigSources { flags, ..ConfigSources::default() }].map(|sources| {
                // Each value is tried on a copy of all defaults.
                bounded(input, 2_000, || load(&sources))
                    .map_or_else(|error| outline(&error.to_string()), |_| "ok".into())
            });
            outcomes.join(" ")
        },
    );
}

#[test]
fn any_name_is_kept_as_it_came_or_refused() {
    const WORDS: &[&str] = &["/", ":", "%", "~", "=", "\u{e9}", "key:", "0192f5a0-1c2b-7def-8abc-0123456789ab", ".."];
    Run::of("names", 20_000).judge(
        |rng, pool| mutate::changed(rng, pool, WORDS),
        |input| {
            let text = &*String::from_utf8_lossy(input);
            let plain =
                |allowed: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || allowed.contains(byte as char));
            let namespace = NamespaceName::new(text).map(|name| assert_eq!(name.as_str(), text)).is_ok();
            let counter = CounterName::new(text).map(|name| assert_eq!(name.as_str(), text)).is_ok();
            let queue = QueueName::new(text).map(|name| assert_eq!(name.as_str(), text)).is_ok();
            assert!(!(namespace || counter) || plain("._:/=~%@+-"), "{text:?} is a name");
            assert!(!queue || plain("._:/-"), "{text:?} is the name of a queue");
            let id = MessageId::new(text).map(|id| assert_eq!(&*id.text(), text)).is_ok();
            let routing = RoutingValue::new(text).map(|value| assert_eq!(value.as_str(), text)).is_ok();
            let provenance = Provenance::new(text).map(|kept| assert_eq!(kept.as_str(), text)).is_ok();
            let source = ReportSource::new(text).is_ok();
            let (key, value) = split(input);
            let value = String::from_utf8_lossy(value);
            let pairs = Metadata::new([(key, &*value)]).map(|kept| assert_eq!(kept.get(key), Some(&*value))).is_ok();
            let time = uuid_v7(text).is_some();
            format!("{:?}", [namespace, counter, queue, id, routing, provenance, source, pairs, time])
        },
    );
}

#[test]
fn a_page_token_that_is_taken_is_the_one_that_was_given() {
    Run::of("page_tokens", 20_000).judge(
        |rng, pool| {
            // Half of the inputs are real tokens of a changed request or cursor, so that checksums do not end it all.
            let input = mutate::changed(rng, pool, &["AQ", "=", "-", "_"]);
            let (method, cursor) = split(&input);
            match rng.one_in(2) {
                true => joined(method, PagedRequest::new(method, &[]).token(cursor).as_bytes()),
                false => input,
            }
        },
        |input| {
            let (method, token) = split(input);
            let request = PagedRequest::new(method, &[]);
            let token = &*String::from_utf8_lossy(token);
            match bounded(input, 16, || request.cursor(token)) {
                Ok(Some(cursor)) => {
                    assert_eq!(request.token(&cursor), token, "one cursor has one token");
                    format!("cursor {}", cursor.len().min(3))
                }
                Ok(None) => "first page".to_owned(),
                Err(reject) => format!("{:?} {}", reject.reason, token.len().ilog2()),
            }
        },
    );
}

/// A message without what it quotes, so that messages of one kind are one outcome.
fn outline(message: &str) -> String {
    let letters = message.split(|c: char| !(c.is_ascii_alphabetic() || c == ' ')).next_back().unwrap_or_default();
    let words: Vec<&str> = letters.split_whitespace().take(6).collect();
    words.join(" ")
}
