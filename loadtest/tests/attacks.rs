//! Attacks of each kind for a second against a real server: it does what it says, and the server answers afterwards. No figures.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The server's binary beside that of this package; built if this package alone is tested.
fn server() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_loadtest")).with_file_name("tallystone");
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "tallystone", "--bin", "tallystone"])
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the server is built");
    }
    path
}

/// Runs attacks, each on a server of its own, and answers their table.
fn attacked(attacks: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(["attacks", "--seconds", "1", "--settle-seconds", "0", "--events", "5000", "--json", "--only"])
        .arg(attacks.join(","))
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

/// How often an outcome came.
fn count(rows: &[Value], attack: &str, outcome: &str) -> u64 {
    let row = rows.iter().find(|row| row["attack"] == attack).expect("the attack is in the table");
    row["outcomes"][outcome].as_u64().unwrap_or_else(|| panic!("{outcome} is not among the outcomes of {row}"))
}

#[test]
fn a_caller_alone_is_answered() {
    let rows = attacked(&["calm"]);
    assert!(rows[0]["probe"]["answered"].as_u64() > Some(0), "{}", rows[0]);
    assert!(rows[0]["healthz"]["answered"].as_u64() > Some(0), "{}", rows[0]);
}

#[test]
fn attacks_by_connections_and_bodies_leave_a_server_that_answers() {
    let rows = attacked(&["unfinished", "slow-bodies", "idle", "unknown-field"]);
    assert!(count(&rows, "slow-bodies", "held") > 0);
    assert!(count(&rows, "idle", "connected") > 0);
    assert!(count(&rows, "unknown-field", "ok") > 0);
}

#[test]
fn attacks_by_calls_leave_a_server_that_answers() {
    let rows = attacked(&["sessions", "purges", "templates", "watch-queue", "recount", "streams", "top-counters"]);
    assert!(count(&rows, "sessions", "ok") > 0);
    assert!(count(&rows, "purges", "ok") > 0);
    assert!(count(&rows, "templates", "ok") > 0);
    assert!(count(&rows, "watch-queue", "watched") > 0);
    assert!(count(&rows, "recount", "ok") > 0);
}

#[test]
fn attacks_by_work_and_memory_leave_a_server_that_answers() {
    let rows = attacked(&["unread", "empty-messages", "late-adds", "watch-shards", "watch-counts", "refused-batches"]);
    assert!(count(&rows, "watch-shards", "watched") > 0);
    assert!(count(&rows, "watch-counts", "watched") > 0);
}
