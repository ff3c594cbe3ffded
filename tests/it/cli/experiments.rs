//! Experiments from the command line.

use serde_json::Value;

use super::Desk;

#[test]
fn a_plan_shows_what_each_mode_needs() {
    let desk = Desk::set();
    let plan = ["exp", "plan", "--baseline", "0.2", "--effect", "0.05"];
    let rows = desk.run(&[&plan[..], &["-o", "csv"]].concat()).ok();
    let expected = "mode,exposures_per_arm,exposures,width_ratio\nALWAYS_VALID,1959,3918,1.55\nFIXED,1030,2060,1.00\n";
    assert_eq!(rows, expected);
    let whole: Value = serde_json::from_str(&desk.run(&[&plan[..], &["-o", "json"]].concat()).ok()).expect("JSON");
    assert_eq!(whole["fixedExposuresPerArm"], "1030");
    let fewer = desk.run(&["exp", "plan", "--baseline", "0.2", "--effect", "-0.05", "-o", "jsonl"]).ok();
    assert!(fewer.contains("fixedExposuresPerArm"), "{fewer}");
    let wrong = desk.run(&["exp", "plan", "--baseline", "1.2", "--effect", "0.05"]);
    assert_ne!(wrong.code, 0);
    assert!(wrong.err.contains("INVALID_ARGUMENT") && wrong.err.contains("baseline is 1.2"), "{}", wrong.err);
}

#[test]
fn arms_are_compared_by_their_counters() {
    let desk = Desk::set();
    for (counter, count) in [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)] {
        desk.run(&["counter", "add", &format!("exp/checkout/{counter}"), &count.to_string()]).ok();
    }
    let compare =
        ["exp", "compare", "checkout", "--arm", "A", "--arm", "B", "--metric", "bought", "--planned", "20000"];
    let rows = desk.run(&[&compare[..], &["-o", "csv"]].concat()).ok();
    let rows: Vec<&str> = rows.lines().collect();
    assert_eq!(rows[0], "arm,metric,exposures,conversions,rate,rate_lower,rate_upper,difference,lower,upper,verdict");
    assert!(rows[1].starts_with("A,bought,10000,500,0.05,") && rows[1].ends_with(",,,,"), "{}", rows[1]);
    assert!(rows[2].starts_with("B,bought,10000,700,0.07,") && rows[2].ends_with(",HIGHER"), "{}", rows[2]);
    let people = desk.run(&compare);
    for word in ["HIGHER", "7.00 %", "+2.00 points"] {
        assert!(people.out.contains(word), "{word}: {}{}", people.out, people.err);
    }
    assert!(people.err.contains("sample ratio: p 1.0000"), "{}", people.err);
    let lopsided = desk.run(&[&compare[..], &["--arm", "C=2"]].concat());
    assert!(
        lopsided.err.contains("not trusted: split 50.0 : 50.0 : 0.0, declared 25.0 : 25.0 : 50.0"),
        "{}",
        lopsided.err
    );
    let refused = desk.run(&[&compare[..], &["--arm", "D=0"]].concat());
    assert_eq!(refused.code, 2, "{}", refused.err);
    let nowhere = desk.run(&[&compare[..], &["-n", "nowhere"]].concat());
    assert_eq!(nowhere.code, 3, "{}", nowhere.err);
}
