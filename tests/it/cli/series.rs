//! `counter series` of one counter, of several and of all with a prefix.

use std::time::Duration;

use serde_json::Value;

use super::Desk;
use crate::support::harness::eventually;

/// Longer than a roll takes on a busy machine.
const ROLLED_WITHIN: Duration = Duration::from_secs(60);

fn lines(desk: &Desk, line: &str) -> Vec<Vec<String>> {
    let printed = desk.shell(&format!("tallystone {line} -o csv")).ok();
    printed.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

/// The sum of each counter that a line shows as a total.
fn totals(desk: &Desk, line: &str) -> Vec<(String, String)> {
    let rows = lines(desk, &format!("{line} --totals"));
    rows[1..].iter().map(|row| (row[0].clone(), row[2].clone())).collect()
}

#[test]
fn several_counters_or_a_prefix_are_shown_with_totals_and_without_zeros() {
    let desk = Desk::set();
    for (name, delta) in [("shop/a", 3), ("shop/b", 5), ("other", 7)] {
        desk.shell(&format!("tallystone counter add {name} {delta} -n views")).ok();
    }
    desk.shell("tallystone counter add shop/quiet 1 -n views && tallystone counter add shop/quiet -n views -- -1").ok();
    let pair = |name: &str, sum: &str| (name.to_owned(), sum.to_owned());
    let all = "counter series -n views --prefix shop/ --from 10m";
    let expected = [pair("shop/a", "3"), pair("shop/b", "5"), pair("shop/quiet", "0")];
    assert!(eventually(ROLLED_WITHIN, || totals(&desk, all) == expected), "{:?}", totals(&desk, all));
    // Of the two adds to the quiet one, one may be rolled up before the other, and none was when it was 0 above.
    let without_zeros = || totals(&desk, &format!("{all} --no-zero"));
    assert!(eventually(ROLLED_WITHIN, || without_zeros() == expected[..2]), "{:?}", without_zeros());
    let named = "counter series other shop/a -n views --from 10m";
    assert!(eventually(ROLLED_WITHIN, || totals(&desk, named) == [pair("other", "7"), pair("shop/a", "3")]));
    let rows = lines(&desk, &format!("{named} --no-zero --cumulative"));
    assert_eq!(rows[0], ["counter_name", "step_start", "sum", "value", "open", "saturated"]);
    let shown: Vec<_> = rows[1..].iter().map(|row| (&*row[0], &*row[2], &*row[3])).collect();
    assert_eq!(shown, [("other", "7", "7"), ("shop/a", "3", "3")], "one step of each has a sum");
    let json: Value = serde_json::from_str(&desk.shell(&format!("tallystone {named} -o json")).ok()).expect("JSON");
    assert_eq!(json["results"][0]["counterName"], "other");
    assert!(json["results"][0]["series"]["rows"].as_array().is_some_and(|rows| rows.len() >= 60), "{json}");
    let one = lines(&desk, "counter series other -n views --from 10m --no-zero");
    assert_eq!((one.len(), &*one[1][1]), (2, "7"), "{one:?}");
    let json = desk.shell("tallystone counter series other -n views --from 10m --totals -o json").ok();
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((json["rows"].as_array().map(Vec::len), &json["rows"][0]["sum"]), (Some(1), &"7".into()), "{json}");
    // Kathmandu is 5:45 ahead of UTC all year.
    let days = lines(&desk, "counter series other -n views --from 1h --step 1d --time-zone Asia/Kathmandu");
    assert!(days[1..].iter().all(|row| row[0].ends_with("T00:00:00+05:45")), "{days:?}");
}

#[test]
fn a_series_that_cannot_be_read_is_named_and_the_others_are_shown() {
    let desk = Desk::set();
    desk.shell("tallystone counter add seen 1 -n views").ok();
    let ran = desk.shell("tallystone counter series 'not a name' seen -n views -o csv");
    assert_eq!(ran.code, 6, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("not a name: ") && ran.err.contains("1 of 2 series could not be read"), "{}", ran.err);
    assert!(ran.out.contains("seen,"), "{}", ran.out);
    let both = desk.shell("tallystone counter series seen --prefix s -n views");
    assert_eq!(both.code, 2, "{}", both.err);
    let empty = desk.shell("tallystone counter series --prefix nobody -n views");
    assert_eq!(empty.code, 0, "{}", empty.err);
}
