//! `dlq` by error signatures, those without one too.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

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
    assert!(asked.err.contains("permanently discard 3 messages of queue orders; confirm with --yes"), "{}", asked.err);
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
    let redriven = json(&desk, "dlq redrive -q orders --error-signature smtp --rate 1000");
    assert_eq!((&redriven["done"], &redriven["kind"]), (&"2".into(), &"redrive".into()), "{redriven}");
    assert_ne!(redriven["operationId"], "", "it is one operation: {redriven}");
    let depth = json(&desk, "queue depth orders");
    assert_eq!((&depth["errored"], &depth["pending"]), (&"1".into(), &"2".into()), "{depth}");
    assert_eq!(json(&desk, "dlq redrive -q orders --error-signature smtp")["done"], "0");
    let both = desk.shell("tallystone dlq redrive -q orders a --error-signature smtp");
    assert_eq!(both.code, 2, "{}", both.err);
}

#[test]
fn the_operations_of_a_queue_are_listed_with_what_selected_their_messages() {
    let desk = with_dead_letters(&[("a", "smtp"), ("b", "io")]);
    json(&desk, "dlq redrive -q orders --error-signature smtp --meta name=a");
    json(&desk, "queue purge orders --yes");
    let listed = json(&desk, "queue operations orders");
    let of = |at: usize, part: &str| listed["operations"][at][part].clone();
    assert_eq!((of(0, "kind"), of(0, "done"), of(0, "author")), ("purge".into(), "1".into(), "ada".into()));
    assert_eq!((of(1, "kind"), of(1, "errorSignature")), ("redrive".into(), "smtp".into()), "{listed}");
    let table = desk.run(&["queue", "operations", "orders", "-o", "csv"]).ok();
    let line = |kind: &str| table.lines().find(|line| line.contains(kind)).map(str::to_owned);
    assert!(line("redrive").is_some_and(|line| line.contains("name=a error-signature=smtp")), "{table}");
    let one = desk.run(&["queue", "operations", "orders", "--limit", "1"]);
    assert!(one.out.contains("purge") && !one.out.contains("redrive"), "{}", one.out);
    assert_eq!(desk.run(&["queue", "operations", "absent"]).code, 3);
}

/// Fails the only message that is ready, without a signature.
fn fail_one(desk: &Desk) {
    let lease = desk.run(&["msg", "pull", "-q", "orders", "--tokens"]).ok().trim().to_owned();
    desk.run(&["msg", "fail", "-q", "orders", &lease, "--error", "again"]).ok();
}

#[test]
fn a_message_that_failed_again_while_somebody_was_asked_is_not_thrown_away() {
    let desk = with_dead_letters(&[("a", ""), ("b", ""), ("c", "io")]);
    let binary = Path::new(env!("CARGO_BIN_EXE_tallystone"));
    // A terminal of its own, as only a person is asked.
    let mut asked = Command::new("script")
        .args(["-qec", &format!("{} dlq rm -q orders --error-signature '' -o json", binary.display()), "/dev/null"])
        .env("TALLYSTONE_SERVER", desk.server.address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script, of util-linux, starts");
    let (mut input, mut output) = (asked.stdin.take().expect("a pipe"), asked.stdout.take().expect("a pipe"));
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).contains("[y/N]") {
        let mut some = [0; 256];
        let count = output.read(&mut some).expect("it prints");
        assert!(count > 0, "it ended without a question: {}", String::from_utf8_lossy(&told));
        told.extend(&some[..count]);
    }
    assert!(String::from_utf8_lossy(&told).contains("discard 2 messages"), "{}", String::from_utf8_lossy(&told));
    desk.run(&["dlq", "redrive", "-q", "orders", "b"]).ok();
    fail_one(&desk);
    input.write_all(b"y\n").expect("it reads");
    output.read_to_end(&mut told).expect("it ends");
    let told = String::from_utf8_lossy(&told);
    assert!(asked.wait().expect("it ends").success(), "{told}");
    assert!(told.contains("1 message changed in the meantime"), "{told}");
    let left = json(&desk, "dlq ls -q orders --messages");
    let ids: Vec<_> = left["messages"].as_array().expect("a list").iter().map(|one| &one["messageId"]).collect();
    assert_eq!(ids.len(), 2, "{left}");
    assert!(ids.contains(&&"b".into()) && ids.contains(&&"c".into()), "{left}");
}

#[test]
fn what_reads_first_does_not_go_on_without_its_command() {
    let desk = with_dead_letters(&[("a", "")]);
    for (verb, option) in [("rm --yes", "--no-wait"), ("redrive", "--no-wait"), ("redrive", "--rate 5")] {
        let ran = desk.shell(&format!("tallystone dlq {verb} -q orders --error-signature '' {option}"));
        assert_eq!(ran.code, 2, "{verb}: {}", ran.err);
        let flag = option.split(' ').next().expect("a first word");
        assert!(ran.err.contains(flag), "{verb}: {}", ran.err);
    }
    assert_eq!(json(&desk, "queue depth orders")["errored"], "1");
}

#[test]
fn the_audit_has_the_reasons_of_commands_whose_calls_have_none() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["queue", "create", "tenants", "--type", "exclusive", "--exclusivity-key", "tenant"]).ok();
    desk.run(&["queue", "purge", "orders", "--yes", "--reason", "wrong price 1 €"]).ok();
    desk.run(&["dlq", "redrive", "-q", "orders", "--reason", "mended"]).ok();
    desk.run(&["dlq", "rm", "-q", "orders", "--all", "--yes", "--reason", "too old"]).ok();
    desk.run(&["queue", "limit", "tenants", "acme", "1", "--reason", "too loud"]).ok();
    let audited = desk.server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let acts = audited["actions"].as_array().expect("a list");
    let why = |action: &str| acts.iter().find(|act| act["action"] == action).map(|act| act["reason"].clone());
    for (action, reason) in [
        ("PurgeQueue", "wrong price 1 €"),
        ("RedriveMessages", "mended"),
        ("DiscardMessages", "too old"),
        ("SetValueLimit", "too loud"),
    ] {
        assert_eq!(why(action), Some(reason.into()), "{action}: {audited}");
    }
}
