//! `dlq` by error signatures, those without one too.

use serde_json::Value;

use super::Desk;

fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&desk.shell(&format!("tallystone {line} -o json")).ok()).expect("JSON")
}

/// A queue of messages that have failed, each with its signature, or without one.
fn with_dead_letters(letters: &[(&str, &str)]) -> Desk {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    for (id, signature) in letters {
        desk.run(&["msg", "push", "-q", "orders", "x", "--id", id, "--meta", &format!("name={id}")]).ok();
        let lease = desk.run(&["msg", "pull", "-q", "orders", "--tokens"]).ok().trim().to_owned();
        desk.run(&["msg", "fail", "-q", "orders", &lease, "--error", "no route", "--signature", signature]).ok();
    }
    desk
}

#[test]
fn dead_letters_without_a_signature_are_listed_redriven_and_thrown_away_by_that() {
    let desk = with_dead_letters(&[("a", ""), ("b", "io"), ("c", ""), ("d", "")]);
    let left = || json(&desk, "queue depth orders")["errored"].clone();
    let told = desk.run(&["dlq", "ls", "-q", "orders"]);
    assert!(told.out.contains("(none)") && told.err.contains("--error-signature ''"), "{}{}", told.out, told.err);
    let listed = json(&desk, "dlq ls -q orders --error-signature ''");
    assert_eq!(listed["messages"].as_array().map(Vec::len), Some(3), "{listed}");
    let asked = desk.shell("tallystone dlq rm -q orders --error-signature ''");
    assert_eq!(asked.code, 2, "{}", asked.err);
    assert!(asked.err.contains("discard 3 messages of queue orders for ever; add --yes"), "{}", asked.err);
    let dry = desk.shell("tallystone dlq rm -q orders --error-signature '' --dry-run");
    assert!(dry.err.contains("dry run: would discard 3 messages of queue orders"), "{}", dry.err);
    assert_eq!(left(), "4");
    let one = json(&desk, "dlq redrive -q orders --error-signature '' --meta name=a");
    assert_eq!((&one["done"], &one["kind"]), (&"1".into(), &"redrive".into()), "{one}");
    let two = json(&desk, "dlq rm -q orders --error-signature '' --yes");
    assert_eq!((&two["done"], &two["total"], &two["kind"]), (&"2".into(), &"2".into(), &"discard".into()), "{two}");
    assert_eq!((left(), json(&desk, "queue depth orders")["pending"].clone()), ("1".into(), "1".into()));
    assert_eq!(json(&desk, "dlq rm -q orders --error-signature '' --yes")["done"], "0");
}

#[test]
fn a_redrive_by_signature_leaves_the_others() {
    let desk = with_dead_letters(&[("a", "smtp"), ("b", "io"), ("c", "smtp")]);
    let dry = desk.shell("tallystone dlq redrive -q orders --error-signature smtp --dry-run");
    assert!(dry.err.contains("dry run: would redrive 2 messages of queue orders"), "{}", dry.err);
    assert_eq!(json(&desk, "dlq redrive -q orders --error-signature smtp")["done"], "2");
    let depth = json(&desk, "queue depth orders");
    assert_eq!((&depth["errored"], &depth["pending"]), (&"1".into(), &"2".into()), "{depth}");
    assert_eq!(json(&desk, "dlq redrive -q orders --error-signature smtp")["done"], "0");
    let both = desk.shell("tallystone dlq redrive -q orders a --error-signature smtp");
    assert_eq!(both.code, 2, "{}", both.err);
}
