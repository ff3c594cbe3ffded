//! What commands say to people: what they did, what is left, and how many.

use super::Desk;
use super::settings::alone;

#[test]
fn a_limit_says_what_it_means_and_resting_values_are_not_held_by_others() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "pay", "--type", "exclusive", "--exclusivity-key", "account"]).ok();
    desk.run(&["msg", "push", "-q", "pay", "x", "--meta", "account=acme"]).ok();
    for (arguments, words) in [
        (&["3"][..], "at most 3 messages of exclusivity value \"acme\" can be leased at once"),
        (&["1"], "at most 1 message of exclusivity value \"acme\" can be leased at once"),
        (&["0"], "exclusivity value \"acme\" is paused"),
    ] {
        let ran = desk.run(&[&["queue", "limit", "pay", "acme"], arguments].concat());
        assert!(ran.code == 0 && ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
    let explained = desk.run(&["queue", "explain", "pay"]).ok();
    assert!(explained.contains("held back by the limit of its exclusivity value, which is 0"), "{explained}");
    assert!(!explained.contains("by other"), "{explained}");
    let reset = desk.run(&["queue", "limit", "pay", "acme"]);
    let words = "has no limit of its own now: max_in_flight_per_value of the queue (1) applies";
    assert!(reset.code == 0 && reset.err.contains(words), "{}", reset.err);
    let quiet = desk.run(&["queue", "limit", "pay", "acme", "2", "-o", "json"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "programs get the answer only");
}

#[test]
fn what_is_left_of_a_lease_is_readable_and_exact_for_programs() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let nothing = desk.run(&["msg", "pull", "-q", "orders"]);
    assert!(nothing.err.contains("see why with `tallystone queue explain orders`"), "{}", nothing.err);
    desk.run(&["msg", "push", "-q", "orders", "x"]).ok();
    let is_readable = |table: &str| {
        let is_raw =
            |word: &str| word.ends_with('s') && word.contains('.') && word.trim_end_matches('s').parse::<f64>().is_ok();
        !table.split_whitespace().any(is_raw)
    };
    let pulled = desk.run(&["msg", "pull", "-q", "orders", "--lease", "12h"]).ok();
    assert!(is_readable(&pulled) && (pulled.contains("12h") || pulled.contains("11h59m")), "{pulled}");
    let opened = desk.run(&["session", "open", "--label", "w", "--lease", "12h"]).ok();
    assert!(opened.contains("12h"), "{opened}");
    let listed = desk.run(&["session", "ls"]).ok();
    assert!(is_readable(&listed) && (listed.contains("12h") || listed.contains("11h59m")), "{listed}");
    let csv = desk.run(&["session", "ls", "-o", "csv"]).ok();
    let seconds = csv.split([',', '\n']).filter_map(|cell| cell.strip_suffix('s')?.parse::<f64>().ok());
    let mut left = seconds.filter(|left| (43_140.0..=43_200.0).contains(left));
    assert!(left.next().is_some(), "{csv}");
}

#[test]
fn one_thing_is_told_as_one_and_sessions_that_ended_are_not_counted() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let open = |label: &str| desk.run(&["session", "open", "--label", label, "--lease", "1h", "--id"]).ok();
    let (ended, _open) = (open("a"), open("b"));
    desk.run(&["session", "close", ended.trim()]).ok();
    let status = desk.run(&["status", "-o", "json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["queues"]["sessions"], "1", "{status}");
    let shown = desk.run(&["status"]).ok();
    assert!(shown.contains("1 session") && !shown.contains("1 sessions") && !shown.contains("1 queues"), "{shown}");
}

#[test]
fn a_backup_without_a_server_says_how_to_start_one() {
    let ran = alone(&["backup", "nightly", "--server", "127.0.0.1:1", "--timeout", "2s"], &[]);
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.contains("no server answers at 127.0.0.1:1"), "{}", ran.err);
    assert!(ran.err.contains("start a server with `tallystone dev`"), "{}", ran.err);
}

#[test]
fn a_plan_has_units_for_people_and_bytes_for_programs() {
    let line = ["plan", "--adds-per-second", "2000", "--counters", "50000"];
    let shown = alone(&line, &[]).ok();
    let value = |name: &str| {
        let line = shown.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line[name.len().min(line.len())..].split_whitespace().next().unwrap_or_default().to_owned()
    };
    for name in ["rollup.capacity_bytes", "storage.count_cache_bytes", "disk, embedded", "largest partition"] {
        assert!(value(name).ends_with('B'), "{name} has no unit in\n{shown}");
    }
    assert!(["d", "h"].iter().any(|unit| value("dataset.slice_width").ends_with(unit)), "{shown}");
    let csv = alone(&[&line[..], &["-o", "csv"]].concat(), &[]).ok();
    let embedded = csv.lines().find_map(|line| line.strip_prefix("\"disk, embedded\",")).unwrap_or_default();
    assert!(embedded.split(',').next().is_some_and(|bytes| bytes.parse::<u64>().is_ok()), "{csv}");
}
