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
    for no_share in ["5%", "0"] {
        let refused = desk.run(&["exp", "plan", "--baseline", "0.2", "--effect", "0.05", "--alpha", no_share]);
        assert!(refused.code == 2 && refused.err.contains("write it as 0.05 for 5 %"), "{}", refused.err);
    }
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

#[test]
fn an_experiment_is_created_watched_stopped_and_removed() {
    let desk = Desk::set();
    let declared = ["--arm", "A", "--arm", "B=2", "--metric", "bought", "--planned", "20000"];
    let create = [&["exp", "create", "checkout", "--description", "the new button"][..], &declared[..]].concat();
    desk.run(&create).ok();
    desk.run(&create).ok();
    let names = desk.run(&["exp", "names", "checkout", "-o", "csv"]).ok();
    let counters: Vec<&str> = names.lines().skip(1).filter_map(|line| line.rsplit(',').next()).collect();
    let expected =
        ["exp/checkout/A/exposures", "exp/checkout/A/bought", "exp/checkout/B/exposures", "exp/checkout/B/bought"];
    assert_eq!(counters, expected);
    for (counter, count) in counters.iter().zip(["5000", "300", "10000", "700"]) {
        desk.run(&["counter", "add", counter, count]).ok();
    }
    let watched = desk.run(&["exp", "watch", "checkout", "--every", "1ms", "--looks", "2", "-o", "jsonl"]).ok();
    let rows = desk.run(&["exp", "watch", "checkout", "--every", "1ms", "--looks", "2", "-o", "csv"]).ok();
    assert!(rows.starts_with("arm,metric,exposures") && rows.contains(",verdict,look_time\n"), "{rows}");
    assert_eq!(rows.lines().filter(|row| row.ends_with('Z')).count(), rows.lines().count() - 1, "{rows}");
    let looks: Vec<Value> = watched.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(looks.len(), 2, "{watched}");
    assert_eq!(looks[1]["arms"][1]["exposures"], "10000", "{watched}");
    let described = desk.run(&["exp", "describe", "checkout"]).ok();
    for word in ["RUNNING", "A=1, B=2", "the new button"] {
        assert!(described.contains(word), "{word}: {described}");
    }
    desk.run(&["exp", "stop", "checkout", "--reason", "enough"]).ok();
    let listed = desk.run(&["exp", "ls", "check", "-o", "csv"]).ok();
    assert!(listed.lines().nth(1).is_some_and(|line| line.starts_with("checkout,STOPPED,")), "{listed}");
    let refused = desk.run(&["exp", "rm", "checkout"]);
    assert_eq!(refused.code, 2, "nobody confirmed: {}", refused.err);
    desk.run(&["exp", "rm", "checkout", "--yes"]).ok();
    let history = desk.run(&["exp", "history", "checkout", "-o", "csv"]).ok();
    let versions: Vec<&str> = history.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(versions, ["3", "2", "1"], "{history}");
    assert!(history.contains("enough"), "{history}");
    let gone = desk.run(&["exp", "compare", "checkout"]);
    assert_eq!(gone.code, 3, "{}", gone.err);
    let half = desk.run(&["exp", "create", "checkout"]);
    assert_eq!(half.code, 2, "without arms: {}", half.err);
}
