//! What commands print, kept as one session. Times and tokens are masked, for they differ each time.

use serde_json::Value;

use super::Desk;
use crate::support::golden;

const PUBLISHED: &str = include_str!("../../golden/documents/published_fragment.json");
const OURS: &str = include_str!("../../golden/documents/ours.toml");

/// Commands whose answers depend on nothing but the commands before.
const SESSION: &[&str] = &[
    "ns ls -o csv",
    "apply -f published.json --namespace counters --dry-run",
    "apply -f published.json --namespace counters --reason 'moved here'",
    "apply -f published.json --namespace counters",
    "apply -f more.json --namespace counters --reason 'more queues'",
    "apply -f strange.json --namespace strange",
    "apply -f ours.toml -o csv",
    "apply -f broken.toml",
    "ns describe counters -o json",
    "ns describe views",
    "ns history counters -o csv",
    "counter add views 5 --provenance 'the first' -o csv",
    "counter add views -2 --get -o csv",
    "counter add views 0 -o jsonl",
    "counter events views -o csv",
    "counter events views -o jsonl",
    "counter events --all -o jsonl",
    "counter events views --limit 1 -o csv",
    "counter check-token views order-17 --generation-time 2024-10-05T14:48:00Z -o csv",
    "counter check-token views order-17 --generation-time 2024-10-05T14:48:00Z -o json",
    "counter clear views --dry-run",
    "counter clear views --yes -o json",
    "counter report requests=120 errors=-3 -n totals --source web-1 --epoch 1 --serial 7 -o csv",
    "counter report requests=120 -n totals --source web-1 --epoch 1 --serial 7 -o jsonl",
    "counter report requests=110 -n totals --source web-1 --epoch 1 --serial 6 -o csv",
    "ns rm strange --dry-run",
    "ns rm strange --yes --reason 'a mistake'",
    "ns history strange -o csv",
    "ns describe strange",
    "explain-error TOO_OLD",
    "explain-error too_old -o json",
];

#[test]
fn a_session_prints_what_it_always_printed() {
    let desk = Desk::set();
    desk.write("published.json", PUBLISHED);
    desk.write("more.json", &PUBLISHED.replace("\"num_queues\" : 8", "\"num_queues\" : 16"));
    desk.write("strange.json", "persistence_configuration: [{ id: 'CACHE', ttl: '5s' }, { id: 'SEARCH' }]");
    desk.write("ours.toml", &OURS.replace("views", "titles").replace("totals", "sums"));
    desk.write("broken.toml", "name = \"x\"\n[rollup]\nnum_queus = 8\n");
    let mut session = String::new();
    for line in SESSION {
        let ran = desk.shell(&format!("tallystone {line}"));
        session.push_str(&format!("$ tallystone {line}\n{}", masked(&ran.out)));
        session.extend(masked(&ran.err).lines().map(|line| format!("! {line}\n")));
        if ran.code != 0 {
            session.push_str(&format!("exit {}\n", ran.code));
        }
        session.push('\n');
    }
    golden::check("tests/golden/cli/session.txt", &session);
}

#[test]
fn json_is_what_the_http_api_answers() {
    let desk = Desk::set();
    for (arguments, path, body) in [
        (&["ns", "describe", "views"][..], "tallystone.admin.v1.NamespaceService/GetNamespace", r#"{"name": "views"}"#),
        (&["ns", "ls"], "tallystone.admin.v1.NamespaceService/ListNamespaces", "{}"),
        (
            &["counter", "events", "views"],
            "tallystone.counter.v1.CounterService/ListCountEvents",
            r#"{"namespace": "default", "counter_name": "views"}"#,
        ),
    ] {
        desk.run(&["counter", "add", "views"]).ok();
        let cli: Value = serde_json::from_str(&desk.run(&[arguments, &["-o", "json"]].concat()).ok()).expect("JSON");
        let http = desk.server.post(&format!("/{path}"), body);
        assert_eq!(http.status, 200, "{}", http.body);
        let http: Value = serde_json::from_str(&http.body).expect("JSON");
        assert_eq!(cli, http, "{arguments:?}");
    }
}

#[test]
fn what_describe_prints_can_be_changed_and_applied_once() {
    let desk = Desk::set();
    let described = desk.run(&["ns", "describe", "views", "-o", "json"]).ok();
    desk.write("changed.json", &described.replace("\"numQueues\": 8", "\"numQueues\": 16"));
    let applied = desk.run(&["apply", "-f", "changed.json"]).ok();
    assert!(applied.contains("rollup.num_queues: 8 -> 16"), "{applied}");
    let again = desk.run(&["apply", "-f", "changed.json"]);
    assert_eq!(again.code, 4, "the etag is old by now: {}{}", again.out, again.err);
}

#[test]
fn an_export_holds_every_event_of_every_counter_over_many_pages() {
    let desk = Desk::set();
    let items = |from: usize| {
        let items = (from..from + 1_000).map(|i| format!(r#"{{"counter_name": "c{}", "delta": 1}}"#, i % 3));
        format!(r#"{{"namespace": "default", "items": [{}]}}"#, items.collect::<Vec<_>>().join(","))
    };
    for from in [0, 1_000, 2_000, 3_000] {
        let answer = desk.server.post("/tallystone.counter.v1.CounterService/BatchAddCounts", &items(from));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let exported = desk.run(&["counter", "events", "--all", "-o", "jsonl"]).ok();
    let mut per_counter = [0; 3];
    for line in exported.lines() {
        let event: Value = serde_json::from_str(line).expect("a line is JSON");
        let name = event["counterName"].as_str().expect("each line names its counter");
        per_counter[usize::from(name.as_bytes()[1] - b'0')] += 1;
    }
    assert_eq!(per_counter, [1_334, 1_333, 1_333]);
    let whole = desk.run(&["counter", "events", "--all", "-o", "json"]).ok();
    let whole: Vec<Value> = serde_json::from_str(&whole).expect("the whole export is one JSON document");
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!(whole, lines);
    let one = desk.run(&["counter", "events", "c1", "--all", "-o", "csv"]).ok();
    assert_eq!(one.lines().count(), 1_334, "a header and 1,333 events");
    let listed = desk.run(&["counter", "events", "c1", "-o", "csv"]);
    assert_eq!((listed.out.lines().count(), listed.code), (101, 5));
    assert!(listed.err.contains("there are more; show them with --limit N or --all\n"), "{}", listed.err);
}

#[test]
fn json_is_one_document() {
    let desk = Desk::set();
    for line in ["explain-error -o json", "counter events --all -o json", "counter events none --all -o json"] {
        let whole = desk.shell(&format!("tallystone {line}")).ok();
        assert!(serde_json::from_str::<Vec<Value>>(&whole).is_ok(), "{line}: {whole}");
    }
    let table = desk.run(&["explain-error"]).ok();
    assert!(table.lines().all(|line| line.chars().count() <= 110), "{table}");
}

#[test]
fn readings_of_a_watch_stand_below_each_other() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "a", "123456"]).ok();
    let watched = desk.run(&["counter", "watch", "a", "a_longer_name", "--readings", "2"]).ok();
    let words = ["EXACTNESS", "BEHIND", "SATURATED"].map(|word| watched.find(word).expect("a column"));
    for line in watched.lines() {
        for &at in &words {
            let cell = line.as_bytes();
            assert!(cell[at - 1] == b' ' && cell[at] != b' ', "{at}:\n{watched}");
        }
        // Numbers stand below each other by their ends.
        let (cell, end) = (line.as_bytes(), watched.find("COUNT ").expect("a column") + "COUNT".len());
        assert!(cell[end - 1] != b' ' && cell[end] == b' ', "{end}:\n{watched}");
        assert!(line.chars().count() <= 100, "{watched}");
    }
}

#[test]
fn text_of_others_does_not_reach_the_terminal_as_it_is() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "views", "--provenance", "\u{1b}[31mred"]).ok();
    let table = desk.run(&["counter", "events", "views"]).ok();
    assert!(table.contains("\\u{1b}[31mred"), "{table}");
}

#[test]
fn a_watch_shows_the_present_value_and_then_the_next() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "views", "5"]).ok();
    let watched = desk.run(&["counter", "watch", "views", "--readings", "2", "-o", "jsonl"]).ok();
    let last: Value = serde_json::from_str(watched.lines().last().expect("two lines")).expect("JSON");
    assert_eq!((last["counterName"].as_str(), last["reading"]["count"].as_str()), (Some("views"), Some("5")));
}

/// Replaces times, tokens and machine-made numbers that differ from run to run.
fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (mask, bytes) = match (uuid_at(rest), time_at(rest)) {
            (Some(bytes), _) => ("TOKEN", bytes),
            (None, Some(bytes)) => ("TIME", bytes),
            (None, None) => ("", first.len_utf8()),
        };
        masked.push_str(if mask.is_empty() { &rest[..bytes] } else { mask });
        rest = &rest[bytes..];
    }
    // A time at the end of a row of a table widens it by as many digits as it happens to have.
    masked.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The length of a UUIDv7 at the beginning of a text.
fn uuid_at(text: &str) -> Option<usize> {
    let bytes = text.as_bytes().get(..36)?;
    let fits = bytes.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        14 => *byte == b'7',
        _ => byte.is_ascii_hexdigit(),
    });
    fits.then_some(36)
}

/// The length of a time at the beginning of a text; years of examples stay.
fn time_at(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let head = bytes.get(..11)?;
    let fits = head[..4].iter().all(u8::is_ascii_digit) && head[4] == b'-' && head[7] == b'-' && head[10] == b'T';
    if !fits || text.starts_with("2024-") {
        return None;
    }
    let end = bytes.iter().position(|byte| *byte == b'Z')?;
    (end < 31).then_some(end + 1)
}

/// What reads rows alone learns only by the exit code that there are more.
#[test]
fn a_list_of_rows_that_is_cut_ends_with_5_unless_its_length_was_asked_for() {
    let desk = Desk::set();
    let enqueue = |number: usize| format!(r#"{{"queue": "jobs", "message": {{"message_id": "m-{number}"}}}}"#);
    desk.run(&["queue", "create", "jobs"]).ok();
    for number in 0..101 {
        let answer = desk.server.post("/tallystone.queue.v1.QueueService/Enqueue", &enqueue(number));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let add = format!(r#"{{"namespace": "views", "counterName": "c-{number:03}", "delta": 1}}"#);
        let answer = desk.server.post("/tallystone.counter.v1.CounterService/AddCount", &add);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    for list in [&["msg", "ls", "-q", "jobs"][..], &["counter", "ls", "-n", "views"], &["dlq", "ls", "-q", "jobs"]] {
        let run = |more: &[&str]| desk.run(&[list, more].concat());
        let rows = if list[0] == "dlq" { 0 } else { 101 };
        let cut = if rows == 0 { 0 } else { 5 };
        for format in ["csv", "jsonl"] {
            let header = usize::from(format == "csv");
            let told = run(&["-o", format]);
            assert_eq!((told.code, told.out.lines().count()), (cut, rows.min(100) + header), "{list:?} {}", told.err);
            assert_eq!(told.err.contains("--limit N or --all"), cut == 5, "{}", told.err);
            let told = run(&["-o", format, "--limit", "7"]);
            assert_eq!((told.code, told.out.lines().count()), (0, rows.min(7) + header), "{list:?} {}", told.err);
            let told = run(&["-o", format, "--all"]);
            assert_eq!((told.code, told.out.lines().count()), (0, rows + header), "{list:?} {}", told.err);
        }
        assert_eq!((run(&[]).code, run(&["-o", "json"]).code), (0, 0), "people and documents are told in the answer");
    }
    let both = desk.run(&["msg", "ls", "-q", "jobs", "--limit", "3", "--all"]);
    assert_eq!(both.code, 2, "{}", both.err);
}
