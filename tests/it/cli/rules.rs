//! Counter rules from the command line.

use serde_json::Value;

use super::Desk;

fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&desk.shell(&format!("tallystone {line} -o json")).ok()).expect("one JSON document")
}

#[test]
fn a_rule_is_made_shown_listed_and_removed() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "alerts"]).ok();
    let create = "rule create sales sold --every 100 -q alerts 'look at this' --meta team=a --type alert --priority -5";
    let made = json(&desk, create);
    assert_eq!((&made["rule"]["every"], &made["rule"]["maxPerMinute"]), (&"100".into(), &60.into()));
    assert_eq!(made["rule"]["message"]["payload"], "bG9vayBhdCB0aGlz");
    assert_eq!(json(&desk, create), made, "a repeat changes nothing");
    let shown = desk.run(&["rule", "show", "sales", "-o", "csv"]).ok();
    for row in ["threshold,every 100", "payload,look at this", "metadata,team=a", "fired_through,0", "problem,"] {
        assert!(shown.lines().any(|line| line == row), "{row} is missing of {shown}");
    }
    desk.run(&["rule", "create", "once", "sold", "--at", "7", "-q", "alerts"]).ok();
    let listed = desk.run(&["rule", "ls", "-o", "csv"]).ok();
    let rows: Vec<&str> = listed.lines().collect();
    assert_eq!(rows.len(), 3, "{listed}");
    assert!(rows[1].starts_with("once,default,sold,at 7,alerts,0,"), "{listed}");
    assert_eq!(desk.run(&["rule", "ls", "sa", "-o", "csv"]).ok().lines().count(), 2);
    let asked = desk.run(&["rule", "rm", "sales"]);
    assert!(asked.code == 2 && asked.err.contains("delete rule sales") && asked.err.contains("--yes"), "{}", asked.err);
    desk.run(&["rule", "rm", "sales", "--yes", "--reason", "no longer sold\nhere, Zoë says"]).ok();
    let acts = desk.server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let act = &acts["actions"][0];
    assert_eq!(
        (&act["action"], &act["target"], &act["reason"]),
        (&"DeleteRule".into(), &"sales".into(), &"no longer sold here, Zoë says".into()),
        "{acts}"
    );
    let gone = desk.run(&["rule", "show", "sales"]);
    assert_eq!(gone.code, 3, "{}{}", gone.out, gone.err);
    assert!(gone.err.contains("RULE_NOT_FOUND"), "{}", gone.err);
}

#[test]
fn a_rule_needs_one_threshold_and_its_queue() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "alerts"]).ok();
    for wrong in [
        "rule create a sold -q alerts",
        "rule create a sold --at 1 --every 2 -q alerts",
        "rule create a sold --at 1 -q alerts --typ=x",
    ] {
        let ran = desk.shell(&format!("tallystone {wrong}"));
        assert_eq!(ran.code, 2, "{wrong}: {}{}", ran.out, ran.err);
    }
    let nowhere = desk.shell("tallystone rule create a sold --at 1 -q nowhere");
    assert_eq!(nowhere.code, 3, "{}{}", nowhere.out, nowhere.err);
    assert!(nowhere.err.contains("QUEUE_NOT_FOUND"), "{}", nowhere.err);
    let other = ["rule create a sold --at 1 -q alerts", "rule create a sold --at 2 -q alerts"];
    desk.shell(&format!("tallystone {}", other[0])).ok();
    let exists = desk.shell(&format!("tallystone {}", other[1]));
    assert!(exists.code != 0 && exists.err.contains("RULE_EXISTS"), "{}", exists.err);
}
