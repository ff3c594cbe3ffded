//! The documents that must not drift from the code: pages that are made from it, and names that they take from it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tallystone::domain::Reason;
use tallystone::domain::call_limit::CallClass;
use tallystone::domain::reason::{Code, Effect, Retry};

use super::pages::{anchor, collect, root, table};
use crate::server::granted_requests;
use crate::support::golden;
use crate::support::harness::{Launch, eventually};

#[test]
fn the_page_of_reasons_is_the_table() {
    let meanings = meanings();
    let mut page = String::from(
        "# Reasons\n\n\
         Every refusal carries one of these reasons, spelled as here: in gRPC as `google.rpc.ErrorInfo.reason` with the \
         domain `tallystone`, in JSON as `details[].reason`, in batches as `error.reason` of the item. \
         `tallystone explain-error REASON` prints the same.\n\n\
         The list is closed and never loses an entry. \"May have been applied\" is said only where it is true: everything \
         else changed nothing.\n\n\
         This page is made from the code; `TALLYSTONE_BLESS=1 cargo test --test it docs` writes it anew.\n\n\
         | reason | gRPC | HTTP | repeat? | effect |\n|---|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        let info = reason.info();
        line(
            &mut page,
            &format!(
                "| [{name}](#{anchor}) | {code} | {http} | {retry} | {effect} |",
                name = info.name,
                anchor = anchor(info.name),
                code = code(info.code),
                http = info.http,
                retry = match info.retry {
                    Retry::Never => "no",
                    Retry::SameToken => "same token",
                },
                effect = match info.effect {
                    Effect::Nothing => "nothing",
                    Effect::Unknown => "unknown",
                },
            ),
        );
    }
    for (reason, meaning) in Reason::ALL.iter().zip(meanings) {
        line(&mut page, &format!("\n## {}\n\n{meaning}\n\n{}", reason.info().name, reason.info().help));
    }
    golden::check("docs/errors.md", &page);
}

/// The comments of the reasons in the proto, in its order.
fn meanings() -> Vec<String> {
    let set = FileDescriptorSet::decode(tallystone::proto::DESCRIPTORS).expect("the library's descriptors decode");
    let file =
        set.file.iter().find(|file| file.name().ends_with("error/v1/reason.proto")).expect("reasons have a proto");
    let info = file.source_code_info.as_ref().expect("the descriptors carry comments");
    let comment = |value: i32| {
        let place = info.location.iter().find(|location| location.path == [5, 0, 2, value]);
        place.expect("every reason has a place").leading_comments().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    (1..).take(Reason::ALL.len()).map(comment).collect()
}

fn code(code: Code) -> String {
    let mut out = String::new();
    for (at, character) in format!("{code:?}").char_indices() {
        if at > 0 && character.is_uppercase() {
            out.push('_');
        }
        out.extend(character.to_uppercase());
    }
    out
}

#[test]
fn the_page_of_roles_is_the_table() {
    let mut page = String::from(
        "# Roles\n\n\
         The role that an API key needs for each method, and on what. The role `admin` stands for all but that of \
         `peer`. Health and reflection need a valid key and no role. The page `/metrics` needs `metrics`. \
         [Security](security.md#grants) says what the roles mean, and how a call without the role is answered. The class of \
         a method says how early its calls are refused [when calls take too long](security.md#when-calls-take-too-long).\n\n\
         This page is made from the options `tallystone.access.v1.role` and `class` of the protos; \
         `TALLYSTONE_BLESS=1 cargo test --test it docs` writes it anew.\n\n\
         | method | role | needed on | class |\n|---|---|---|---|\n",
    );
    let classes = tallystone::proto::METHOD_CLASSES.iter().map(|(_, number)| CallClass::from_number(*number));
    for ((method, number), class) in tallystone::proto::METHOD_ROLES.iter().zip(classes) {
        let role = tallystone::domain::access::AccessRole::from_number(*number).expect("a role");
        let touched = granted_requests::request(method, "name").map_or("the server", |(touched, _)| touched.words());
        let (method, class) = (method.trim_start_matches("tallystone."), class.expect("a class"));
        page.push_str(&format!("| `{method}` | `{role}` | {touched} | `{class}` |\n"));
    }
    golden::check("docs/roles.md", &page);
}

#[test]
fn the_page_of_limits_is_the_list() {
    let sources = [
        ("Service", include_str!("../../../src/domain/limits.rs")),
        ("Queues", include_str!("../../../src/domain/limits/queues.rs")),
        ("History of messages", include_str!("../../../src/domain/limits/history.rs")),
        ("Counter rules", include_str!("../../../src/domain/limits/rules.rs")),
        ("API keys", include_str!("../../../src/domain/limits/access.rs")),
        ("Activity, audit and console", include_str!("../../../src/domain/limits/console.rs")),
        ("Embedded store", include_str!("../../../src/adapters/embedded/limits.rs")),
        ("Cassandra", include_str!("../../../src/adapters/cassandra/limits.rs")),
        ("memcached", include_str!("../../../src/adapters/memcached/limits.rs")),
        ("Redis and Valkey", include_str!("../../../src/adapters/redis/limits.rs")),
    ];
    let mut page = String::from(
        "# Limits\n\n\
         Every hard bound of the service. What lies beyond one is refused with a [reason](errors.md), waits, or is cut as its row says; nothing \
         grows without an end.\n\n\
         This page is made from `src/domain/limits.rs` and `limits.rs` of the adapters; \
         `TALLYSTONE_BLESS=1 cargo test --test it docs` writes it anew.\n",
    );
    for (heading, source) in sources {
        let rows = rows_of_limits(source);
        assert!(rows.len() > 5, "the list is read: {heading} has {}", rows.len());
        let rows = rows.join("\n");
        line(&mut page, &format!("\n## {heading}\n\n| bound | value | name |\n|---|---|---|\n{rows}"));
    }
    golden::check("docs/limits.md", &page);
}

/// The constants of a file, with the bound that each comment names.
fn rows_of_limits(source: &str) -> Vec<String> {
    let (mut comment, mut rows) = (String::new(), Vec::new());
    // A declaration may be wrapped: join the lines up to its semicolon.
    let joined = source.replace("=\n    ", "= ");
    for text in joined.lines() {
        if let Some(said) = text.strip_prefix("/// ") {
            comment = format!("{comment} {said}");
        } else if let Some(rest) = text.strip_prefix("pub const ") {
            let (name, rest) = rest.split_once(": ").expect("a constant has a type");
            let (_, value) = rest.split_once(" = ").expect("a constant has a value");
            let value = shown(value.trim_end_matches(';'));
            rows.push(format!("| {} | {value} | `{name}` |", comment.trim().trim_end_matches('.')));
            comment.clear();
        } else if !text.starts_with("//!") && text.trim().is_empty() {
            comment.clear();
        }
    }
    rows
}

/// A constant's expression as people write numbers: products multiplied, durations with their unit.
fn shown(expression: &str) -> String {
    for (call, unit) in
        [("from_secs", "s"), ("from_millis", "ms"), ("from_micros", "µs"), ("from_mins", "min"), ("from_hours", "h")]
    {
        if let Some(inner) = expression.strip_prefix(&format!("Duration::{call}(")) {
            return format!("{} {unit}", shown(inner.trim_end_matches(')')));
        }
    }
    let factors: Option<Vec<u128>> =
        expression.split(" * ").map(|number| number.replace('_', "").parse().ok()).collect();
    let Some(factors) = factors else { return format!("`{expression}`") };
    let product: u128 = factors.iter().product();
    if factors.len() > 1 && product.is_multiple_of(1024 * 1024) {
        return format!("{} MiB", product / (1024 * 1024));
    }
    let digits = product.to_string();
    let mut out = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn the_ranges_of_queue_settings_stand_in_their_table() {
    let rows = table("docs/queues.md", "| setting | values | default | changes |");
    let ranges = tallystone::domain::queue::setup::setting_ranges::all();
    assert!(ranges.len() > 15, "the ranges are where this test looks for them");
    for range in ranges {
        // Settings of one message share a row, and so do a block and its reason.
        let name = range.setting.split('.').next().expect("a name has a beginning").trim_end_matches("_reason");
        let row = rows.iter().find(|row| row.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{name}`"))));
        let row = row.unwrap_or_else(|| panic!("{name} has no row")).replace('`', "");
        assert!(row.contains(&range.allowed), "{}: {:?} is not said in {row:?}", range.setting, range.allowed);
    }
}

#[test]
fn the_metrics_that_documents_name_exist_and_those_that_exist_are_named() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    server.post("/tallystone.counter.v1.CounterService/GetCount", "{}"); // a call, so that calls are measured
    // A call is measured after its answer.
    let is_measured = || server.get("/metrics").body.contains("\ntallystone_call_duration_seconds_count");
    assert!(eventually(Duration::from_secs(60), is_measured), "the call is measured");
    let metrics = server.get("/metrics").body;
    let mut pages = Vec::new();
    collect(&root().join("docs"), "md", &mut pages);
    let text: String = pages.iter().map(|page| fs::read_to_string(page).expect("a page is text")).collect();
    let named: BTreeSet<&str> = text.split('`').filter(|word| is_metric(word)).collect();
    assert!(!named.is_empty(), "documents name metrics");
    let missing: Vec<&&str> = named.iter().filter(|name| !metrics.contains(&format!("\n{name}"))).collect();
    assert!(missing.is_empty(), "no such metrics: {missing:?}\n{metrics}");
    let operating = fs::read_to_string(root().join("docs/operating.md")).expect("the page is there");
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names: Vec<String> = families
        .map(|(family, kind)| if kind == "counter" { format!("{family}_total") } else { family.to_owned() })
        .collect();
    assert!(names.len() > 30, "the page is read: {names:?}");
    let silent: Vec<&String> = names.iter().filter(|name| !operating.contains(&format!("`{name}`"))).collect();
    assert!(silent.is_empty(), "say in docs/operating.md what they tell: {silent:?}");
}

fn is_metric(word: &str) -> bool {
    let plain = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    plain && word.strip_prefix("tallystone_").is_some_and(|rest| !rest.is_empty())
}

fn line(page: &mut String, text: &str) {
    let _ = writeln!(page, "{text}"); // writing to a string does not fail
}
