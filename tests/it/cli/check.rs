//! `check`: what it says of sound queues, and how it exits.

use serde_json::Value;

use super::Desk;

#[test]
fn sound_queues_have_no_findings_and_a_check_tells_so() {
    let desk = Desk::set();
    desk.shell("tallystone queue create orders --count-by tenant").ok();
    for number in 0..5 {
        let send = format!("tallystone msg push -q orders --id o-{number} --meta tenant=acme '{{}}'");
        desk.shell(&send).ok();
    }
    for line in ["check", "check -q orders", "check --full", "check -q orders --full"] {
        let ran = desk.shell(&format!("tallystone {line}"));
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("nothing differs"), "{line}: {}", ran.err);
    }
    let json: Value = serde_json::from_str(&desk.shell("tallystone check --full -o json").ok()).expect("JSON");
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
}

#[test]
fn a_check_of_an_unknown_queue_is_refused() {
    let desk = Desk::set();
    let ran = desk.shell("tallystone check -q nobody");
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
}
