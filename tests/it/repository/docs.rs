//! The documents that must not drift: pages made from the code, and links that lead somewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tallystone::domain::Reason;
use tallystone::domain::call_limit::CallClass;
use tallystone::domain::reason::{Code, Effect, Retry};

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
    for (call, unit) in [("from_secs", "s"), ("from_millis", "ms"), ("from_micros", "µs"), ("from_mins", "min")] {
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
fn links_between_documents_lead_somewhere() {
    let at_root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut pages: Vec<PathBuf> = at_root.map(|name| root().join(name)).into();
    collect(&root().join("docs"), "md", &mut pages);
    assert!(pages.len() > 8, "the documents are where this test looks for them");
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page is text");
        for target in links(&text).filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let known = file.exists() && (heading.is_empty() || headings(&file).contains(heading));
            if !known {
                found.push(format!("{}: {target}", page.strip_prefix(root()).expect("in the repository").display()));
            }
        }
    }
    assert!(found.is_empty(), "mend the link or write the page\n{}", found.join("\n"));
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
fn the_code_map_names_every_module() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("the page is there");
    let map = page.split("```").nth(1).expect("the page has a map");
    let words: BTreeSet<&str> = map.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let mut modules = Vec::new();
    for layer in fs::read_dir(root().join("src")).expect("the sources are there") {
        let layer = layer.expect("the folder can be read").path();
        if layer.is_dir() {
            modules.extend(
                fs::read_dir(&layer).expect("a layer is a folder").map(|entry| entry.expect("readable").path()),
            );
        }
    }
    assert!(modules.len() > 50, "the modules are where this test looks for them: {}", modules.len());
    modules.retain(|path| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a module has a name");
        let is_client = path.parent().is_some_and(|layer| layer.ends_with("client"));
        stem != "mod" && !is_client && !words.contains(stem) // the client is one idea
    });
    assert!(modules.is_empty(), "say what lives in them, in docs/architecture.md: {modules:?}");
}

#[test]
fn the_guarantees_name_tests_that_exist() {
    let named = tests_of(&table("docs/guarantees.md", "| promise | tests |"));
    assert!(!named.is_empty(), "the page names tests in its last column");
    expect_tests(&named);
}

#[test]
fn what_stands_for_verbs_of_other_queues_is_tried() {
    for heading in ["| verb | call | what differs | test |", "| there | here | what differs | test |"] {
        let rows = table("docs/queues-mapping.md", heading);
        let untried: Vec<&String> = rows.iter().filter(|row| tests_of(std::slice::from_ref(row)).is_empty()).collect();
        assert!(rows.len() > 7 && untried.is_empty(), "no test tries {untried:?}");
        expect_tests(&tests_of(&rows));
    }
}

#[test]
fn the_conformance_list_has_every_item_and_every_law_of_it() {
    let rows = table("docs/queues-conformance.md", "| item | behaviour | here | tests |");
    let numbers: Vec<usize> = rows
        .iter()
        .map(|row| {
            row.split('|').nth(1).and_then(|cell| cell.trim().parse().ok()).expect("a row begins with its number")
        })
        .collect();
    assert_eq!(numbers, (1..=75).collect::<Vec<usize>>());
    for row in &rows {
        let later = row.contains("**later**");
        assert_eq!(tests_of(std::slice::from_ref(row)).is_empty(), later, "a test, or what brings the item: {row}");
    }
    let named = tests_of(&rows);
    expect_tests(&named);
    let code = tests_sources();
    let laws =
        code.split("fn item").skip(1).filter_map(|rest| rest.split('(').next()).map(|rest| format!("item{rest}"));
    let is_law = |law: &String| {
        let number = law.trim_start_matches("items").trim_start_matches("item").strip_prefix('_');
        number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
    };
    let laws: Vec<String> = laws.filter(is_law).collect();
    assert!(laws.len() > 70, "the laws are found: {}", laws.len());
    let unnamed: Vec<&String> = laws.iter().filter(|law| !named.contains(law)).collect();
    assert!(unnamed.is_empty(), "name them in docs/queues-conformance.md: {unnamed:?}");
}

/// The rows of all tables of a page that have this heading.
fn table(page: &str, heading: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join(page)).expect("the page is there");
    let tables = page.split(heading).skip(1);
    let rows = tables.flat_map(|rest| rest.lines().skip(2).take_while(|line| line.starts_with('|')));
    rows.map(str::to_owned).collect()
}

/// The tests that rows name in their last column.
fn tests_of(rows: &[String]) -> Vec<String> {
    let cells = rows.iter().filter_map(|row| row.rsplit('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn tests_sources() -> String {
    let mut sources = Vec::new();
    for folder in ["src", "tests", "loadtest"] {
        collect(&root().join(folder), "rs", &mut sources);
    }
    sources.iter().map(|path| fs::read_to_string(path).expect("a source is text")).collect()
}

fn expect_tests(named: &[String]) {
    let code = tests_sources();
    let missing: Vec<&String> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

#[test]
fn the_metrics_that_documents_name_exist_and_those_that_exist_are_named() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    server.post("/tallystone.counter.v1.CounterService/GetCount", "{}"); // a call, so that calls are measured
    // A call is measured after its answer.
    let is_measured = || server.get("/metrics").body.contains("\ntallystone_call_duration_seconds_count");
    assert!(eventually(Duration::from_secs(30), is_measured), "the call is measured");
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

/// The targets of `[text](target)`, code apart.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines()
        .filter(move |line| {
            in_code ^= line.trim_start().starts_with("```");
            !in_code
        })
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split(')').next())
}

fn headings(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).expect("a page is text");
    text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// As code hosts make anchors: lower case, spaces to hyphens, punctuation gone.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
}

fn line(page: &mut String, text: &str) {
    let _ = writeln!(page, "{text}"); // writing to a string does not fail
}
