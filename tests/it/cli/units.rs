//! Units in what is printed and taken: for people with units, for programs as the protocol has them.

use serde_json::Value;

use super::Desk;

/// The lines of a table.
fn table(desk: &Desk, line: &str) -> String {
    desk.shell(&format!("tallystone {line}")).ok()
}

fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&table(desk, &format!("{line} -o json"))).expect("JSON")
}

/// The value of a setting in a table of settings.
fn setting<'a>(table: &'a str, name: &str) -> &'a str {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.map_or("", |line| line[name.len()..].trim())
}

#[test]
fn settings_are_printed_and_taken_in_units_and_json_stays_raw() {
    let desk = Desk::set();
    let create = "queue create orders --default-lease 1m30s --max-run-time 12h --default-ttl 1h30m --quota-bytes 256MiB \
                  --dedupe-max-bytes 1.5GiB --payload-max-bytes 16KiB --metadata-max-bytes 1280";
    let made = json(&desk, create)["queue"].clone();
    assert_eq!((&made["defaultLease"], &made["maxRunTime"]), (&"90s".into(), &"43200s".into()), "{made}");
    assert_eq!(
        (&made["quotaBytes"], &made["dedupeMaxBytes"], &made["payloadMaxBytes"], &made["metadataMaxBytes"]),
        (&"268435456".into(), &"1610612736".into(), &16_384.into(), &1_280.into())
    );
    let shown = table(&desk, "queue describe orders");
    for (name, value) in [
        ("default_lease", "1m30s"),
        ("max_run_time", "12h"),
        ("default_ttl", "1h30m"),
        ("retention.errored", "14d"),
        ("quota_bytes", "256MiB"),
        ("dedupe_max_bytes", "1.5GiB"),
        ("payload_max_bytes", "16KiB"),
        ("metadata_max_bytes", "1.25KiB"),
    ] {
        assert_eq!(setting(&shown, name), value, "{shown}");
    }
    let csv = table(&desk, "queue describe orders -o csv");
    assert!(csv.contains("default_lease,90s") && csv.contains("quota_bytes,268435456"), "{csv}");
    let shown = table(&desk, "ns describe views");
    assert_eq!(setting(&shown, "dataset.slice_width"), "1d", "{shown}");
    assert_eq!(setting(&shown, "rollup.capacity_bytes"), "16MiB", "{shown}");
    assert_eq!(setting(&shown, "series"), "10s kept 1d", "{shown}");
    for (line, words) in [
        ("queue update orders --quota-bytes 5MB", "write it as 512KiB, 256MiB"),
        ("queue update orders --payload-max-bytes 9GiB", "9GiB is too large"),
        ("queue update orders --default-lease 90", "write it as 500ms, 5s, 1m30s"),
    ] {
        let ran = desk.shell(&format!("tallystone {line}"));
        assert!(ran.code == 2 && ran.err.contains(words), "{line}: {}", ran.err);
    }
}

#[test]
fn what_an_update_changed_is_printed_first() {
    let desk = Desk::set();
    table(&desk, "queue create orders --default-lease 1m");
    let changed =
        table(&desk, "queue update orders --quota-bytes 1GiB --default-lease 12h --description 'of the shop'");
    let first: Vec<&str> = changed.lines().skip(1).take(3).collect();
    let says = |name: &str, value: &str| first.iter().any(|line| setting(line, name) == value);
    assert!(says("default_lease", "1m -> 12h"), "{changed}");
    assert!(says("quota_bytes", "64GiB -> 1GiB"), "{changed}");
    assert!(says("description", "none -> of the shop"), "{changed}");
    assert_eq!(changed.matches(" -> ").count(), 3, "nothing else has changed: {changed}");
    assert_eq!(setting(&changed, "version"), "2", "{changed}");
    let blocked = table(&desk, "queue block orders --reason night");
    assert_eq!(
        blocked.lines().nth(1).map(|line| setting(line, "enqueue_blocked")),
        Some("no -> yes: night"),
        "{blocked}"
    );
    let again = desk.shell("tallystone queue update orders --quota-bytes 1GiB");
    assert!(again.err.contains("nothing was changed") && !again.out.contains(" -> "), "{}{}", again.out, again.err);
    let csv = table(&desk, "queue update orders --quota-bytes 2GiB -o csv");
    assert!(csv.contains("quota_bytes,2147483648") && !csv.contains(" -> "), "{csv}");
    desk.write("views.toml", "name = \"views\"\nttl = \"36h\"\n\n[rollup]\nnum_queues = 16\ncapacity_bytes = 1048576\n\n[[series]]\nstep = \"10s\"\nkeep = \"1d\"\n");
    let applied = table(&desk, "apply -f views.toml");
    for line in ["ttl: none -> 1d12h", "rollup.num_queues: 8 -> 16", "rollup.capacity_bytes: 16MiB -> 1MiB"] {
        assert!(applied.lines().any(|shown| shown.ends_with(line)), "{line}: {applied}");
    }
}

#[test]
fn tables_fit_a_line_and_numbers_stand_to_the_right() {
    let desk = Desk::set();
    for (name, delta) in [("a", "5"), ("b", "-12345"), (&"c".repeat(200), "7")] {
        desk.run(&["counter", "add", name, delta, "--provenance", &"p".repeat(200)]).ok();
    }
    let long = "c".repeat(200);
    for line in [
        "counter get a b --fresh",
        "counter top",
        "counter ls",
        "counter events b",
        &format!("counter events {long}"),
        &format!("counter get {long}"),
        "ns ls",
        "explain-error",
        "plan --adds-per-second 2000 --counters 50000",
    ] {
        let shown = table(&desk, line);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{line}:\n{shown}");
    }
    let got = table(&desk, "counter get a b --fresh");
    let end = got.find("COUNT ").map(|at| at + "COUNT".len()).expect("a column");
    for line in got.lines() {
        let cell = line.as_bytes();
        assert!(cell[end - 1] != b' ' && cell[end] == b' ', "{got}");
    }
    let ends: Vec<bool> = got.lines().skip(1).map(|line| line[..end].ends_with(['5'])).collect();
    assert_eq!(ends, [true, true], "{got}");
    assert!(table(&desk, &format!("counter get {long}")).contains('…'));
    for format in ["json", "csv", "jsonl"] {
        let whole = table(&desk, &format!("counter ls -o {format}"));
        assert!(whole.contains(&long) && !whole.contains('…'), "{format}: {whole}");
    }
}

#[test]
fn a_backup_tells_its_size_and_how_long_it_took() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "views", "5"]).ok();
    for line in ["backup nightly", "backup verify nightly", "restore nightly --data restored"] {
        let told = table(&desk, line);
        let (header, cells) = told.split_once('\n').expect("a header and a row");
        assert!(header.contains("SIZE") && header.trim_end().ends_with("TOOK"), "{told}");
        let cells: Vec<&str> = cells.split_whitespace().rev().collect();
        assert!(["s", "ms", "us"].iter().any(|unit| cells[0].ends_with(unit)), "{told}");
        assert!(["B", "KiB", "MiB"].iter().any(|unit| cells[1].ends_with(unit)), "{told}");
    }
    let json = json(&desk, "backup verify nightly");
    let bytes = json[0]["bytes"].as_str().and_then(|bytes| bytes.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| bytes > 0), "{json}");
}

#[test]
fn an_explanation_is_printed_whole_however_long_it_is() {
    let desk = Desk::set();
    table(&desk, "msg push -q timed/mail hello");
    let told = json(&desk, "queue explain timed/mail");
    let shown = table(&desk, "queue explain timed/mail");
    let explanations = told["explanations"].as_array().expect("a list");
    assert!(explanations.iter().any(|one| one["cause"] == "no_worker"), "{told}");
    for explanation in explanations {
        let text = explanation["text"].as_str().expect("text");
        assert!(shown.contains(text), "{text:?} is not whole in\n{shown}");
    }
}
