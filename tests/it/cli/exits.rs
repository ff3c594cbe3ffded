//! Exit codes and texts of what goes wrong.

use super::{Desk, Ran};

/// The code, and words of the text.
fn check(ran: &Ran, code: i32, words: &str) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains(words), "{words:?} is missing of {:?}", ran.err);
}

#[test]
fn each_kind_of_failure_has_its_exit_code() {
    let desk = Desk::set();
    let long = "x".repeat(65);
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, "Usage"),
        (&["counter", "add"], 2, "<NAME>"),
        (&["counter", "add", "views", "many"], 2, "not a whole number"),
        (&["counter", "add", "views", "9223372036854775808"], 2, "too large"),
        (&["counter", "get", "views", "--max-staleness", "5"], 2, "not a duration"),
        (&["counter", "get", "views", "--freshness", "new"], 2, "ROLLED_UP or UP_TO_DATE"),
        (&["counter", "events"], 2, "<NAME>"),
        (&["counter", "top", "0"], 2, "0 is not in 1..=1000"),
        (&["counter", "add", "a b"], 2, "INVALID_COUNTER_NAME"),
        (&["counter", "add", "views", "--token", ""], 2, "INVALID_TOKEN"),
        (&["counter", "add", "views", "--token", &long], 2, "INVALID_TOKEN"),
        (&["counter", "add", "views", "--token", "mine"], 2, "INVALID_GENERATION_TIME"),
        (&["counter", "add", "views", "--generation-time", "now"], 2, "not a time"),
        (
            &["counter", "add", "views", "--token", "a", "--generation-time", "2999-01-01T00:00:00Z"],
            2,
            "INVALID_FUTURE_TIME",
        ),
        (&["counter", "add", "views", "--token", "a", "--generation-time", "2024-10-05T14:48:00Z"], 4, "TOO_OLD"),
        (&["counter", "add", "views", "-n", "absent"], 3, "NAMESPACE_NOT_FOUND"),
        (&["counter", "add", "views", "-n", "totals"], 4, "WRONG_TEMPORALITY"),
        (&["counter", "series", "views"], 4, "SERIES_NOT_KEPT"),
        (&["counter", "clear", "views"], 2, "confirm with --yes"),
        (&["counter", "recount", "views", "--repair"], 2, "does not support repair"),
        (&["ns", "describe", "absent"], 3, "NAMESPACE_NOT_FOUND"),
        (&["ns", "history", "absent"], 3, "NAMESPACE_NOT_FOUND"),
        (&["ns", "rm", "absent", "--yes"], 3, "NAMESPACE_NOT_FOUND"),
        (&["ns", "rm", "views"], 2, "confirm with --yes"),
        (&["ns", "rm", "views", "--yes", "--etag", "1-9"], 4, "ETAG_MISMATCH"),
        (&["apply", "-f", "absent.toml"], 2, "cannot read absent.toml"),
        (&["apply", "-f", "views.toml", "--namespace", "other"], 2, "INVALID_DOCUMENT"),
        (&["server", "wait-ready", "--server", "127.0.0.1:1", "--timeout", "200ms"], 5, "was not ready within"),
        (&["server", "wait-ready", "--server", "a b"], 2, "is not a server address"),
        (&["server", "wait-ready", "--server", "localhost"], 2, "the port is missing"),
        (&["server", "wait-ready", "--server", "localhost:99999"], 2, "the port must be a number from 1 to 65535"),
        (&["server", "wait-ready", "--server", "ftp://localhost:1"], 2, "scheme ftp is not supported"),
        (
            &["counter", "series", "views", "--to", "9999-12-31T23:59:59Z"],
            2,
            "not a time from 0001-01-01T00:00:00Z to 9999-12-30T22:00:00Z; write it as",
        ),
        (&["explain-error", "WORK_LOSS"], 2, "did you mean WORK_LOST?"),
        (&["explain-error", "NOTHING"], 2, "no such reason; `tallystone explain-error` lists them all"),
        (&["counter", "get", "views", "--server", "ftp://127.0.0.1:1"], 2, "scheme ftp is not supported"),
        (&["counter", "get", "views", "--server", "127.0.0.1:1"], 5, "no server answers at 127.0.0.1:1"),
    ];
    for (arguments, code, words) in cases {
        let ran = desk.run(arguments);
        assert_eq!(ran.code, *code, "{arguments:?}\n{}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {words:?} is missing of {:?}", ran.err);
        assert!(ran.out.is_empty(), "{arguments:?} printed data: {}", ran.out);
    }
}

#[test]
fn some_done_and_some_not_is_partial_and_none_done_is_the_refusal() {
    let desk = Desk::set();
    let ran = desk.run(&["counter", "get", "views", "a b", "-o", "csv"]);
    check(&ran, 6, "1 of 2 counters could not be read");
    assert_eq!(ran.out.lines().count(), 2, "the header and the counter that could be read: {}", ran.out);
    check(&desk.run(&["counter", "get", "a b", "c d"]), 2, "2 of 2 counters could not be read");
    let report = |serial, requests: &str| {
        desk.run(&["counter", "report", requests, "-n", "totals", "--source", "web-1", "--serial", serial])
    };
    report("2", "requests=120").ok();
    check(&report("1", "requests=110"), 4, "1 of 1 totals were refused");
}

#[test]
fn a_write_that_reaches_nobody_shows_its_token() {
    let desk = Desk::set();
    let ran = desk.run(&["counter", "add", "views", "--server", "127.0.0.1:1"]);
    check(&ran, 5, "nothing was applied with the token");
    let token = "0192f5a0-1c2b-7def-8abc-0123456789ab";
    let ran = desk.run(&["counter", "add", "views", "--token", token, "--server", "127.0.0.1:1"]);
    check(&ran, 5, token);
}

#[test]
fn a_token_that_names_another_change_is_a_broken_precondition() {
    let desk = Desk::set();
    let added = desk.run(&["counter", "add", "views", "5", "-o", "csv"]).ok();
    let token = added.lines().nth(1).and_then(|row| row.split(',').nth(2)).expect("the row has a token").to_owned();
    let again = desk.run(&["counter", "add", "views", "5", "--token", &token, "-o", "csv"]).ok();
    assert!(again.contains("views,ALREADY_APPLIED,"), "{again}");
    check(&desk.run(&["counter", "add", "views", "6", "--token", &token]), 4, "ALREADY_EXISTS");
    let count = desk.run(&["counter", "get", "views", "--fresh", "-o", "csv"]).ok();
    assert!(count.contains("\nviews,5,UP_TO_DATE,"), "{count}");
}

#[test]
fn a_name_that_nobody_wrote_is_told_apart_from_a_count() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "views", "5"]).ok();
    let shown = desk.run(&["counter", "get", "views", "viewz"]).ok();
    let row = |name: &str| shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{shown}"));
    assert!(row("viewz").contains("never written") && !row("views").contains("never written"), "{shown}");
    assert!(desk.run(&["counter", "get", "viewz"]).ok().contains("never written"));
}

#[test]
fn a_reader_that_stops_reading_is_no_failure() {
    let desk = Desk::set();
    let ran = desk.shell("tallystone explain-error | true; tallystone explain-error -o jsonl | head -n 1");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    assert!(ran.out.starts_with("{\"reason\":\"INVALID_NAMESPACE\","), "{}", ran.out);
}
