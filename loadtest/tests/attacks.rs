//! Attacks of each kind for a second against a real server: it does what it says, and the server answers afterwards. No figures.

mod server;

use std::process::Command;

use serde_json::Value;

use server::server;

/// Runs attacks of some seconds, each on a server of its own, and answers their table.
fn attacked_for(seconds: u32, attacks: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(["attacks", "--seconds", &seconds.to_string(), "--settle-seconds", "0", "--events", "5000", "--json"])
        .args(["--only", &attacks.join(",")])
        .arg("--binary")
        .arg(server())
        .output()
        .expect("the binary of this build starts");
    let heard = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{heard}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("a table as JSON");
    assert_eq!(rows.len(), attacks.len(), "{heard}");
    for row in &rows {
        assert_eq!((&row["server_ended"], &row["answers_after"]), (&Value::from(false), &Value::from(true)), "{row}");
        assert!(row["resident_bytes"]["before"].as_u64() > Some(0), "{row}");
    }
    rows
}

/// Whether an outcome came.
fn has(row: &Value, outcome: &str) -> bool {
    row["outcomes"][outcome].as_u64() > Some(0)
}

/// Runs attacks of a second; each has to have its outcome, if it has one. On a busy machine a second may end before the first
/// answer: an attack without its outcome is made once more, and longer.
fn attacked(attacks: &[(&str, &str)]) {
    let mut left = attacks.to_vec();
    for seconds in [1, 8, 60] {
        let rows = attacked_for(seconds, &left.iter().map(|(attack, _)| *attack).collect::<Vec<_>>());
        left.retain(|(attack, outcome)| {
            let row = rows.iter().find(|row| row["attack"] == *attack).expect("the attack is in the table");
            !outcome.is_empty() && !has(row, outcome)
        });
        if left.is_empty() {
            return;
        }
        assert!(seconds < 60, "{left:?} are not among the outcomes of {rows:?}");
    }
}

#[test]
fn a_caller_alone_is_answered() {
    let rows = attacked_for(1, &["calm"]);
    assert!(rows[0]["probe"]["answered"].as_u64() > Some(0), "{}", rows[0]);
    assert!(rows[0]["healthz"]["answered"].as_u64() > Some(0), "{}", rows[0]);
}

#[test]
fn attacks_by_connections_and_bodies_leave_a_server_that_answers() {
    attacked(&[("unfinished", ""), ("slow-bodies", "held"), ("idle", "connected"), ("unknown-field", "ok")]);
}

#[test]
fn attacks_by_calls_leave_a_server_that_answers() {
    attacked(&[
        ("sessions", "ok"),
        ("purges", "ok"),
        ("templates", "ok"),
        ("watch-queue", "watched"),
        ("recount", "ok"),
        ("streams", ""),
        ("top-counters", ""),
    ]);
}

#[test]
fn attacks_by_work_and_memory_leave_a_server_that_answers() {
    attacked(&[
        ("unread", ""),
        ("empty-messages", ""),
        ("late-adds", ""),
        ("watch-shards", "watched"),
        ("watch-counts", "watched"),
        ("refused-batches", ""),
    ]);
}
