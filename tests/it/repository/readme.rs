//! What the README tells a newcomer to type works as it stands.

use std::process::Command;

use serde_json::Value;

use crate::support::harness::{Launch, Server};

const README: &str = include_str!("../../../README.md");
const ADDRESS: &str = "http://127.0.0.1:7450";

#[test]
fn every_command_of_the_readme_works() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let token = uuid::Uuid::now_v7().to_string();
    let commands = commands();
    let calls: Vec<&String> = commands.iter().filter(|command| command.starts_with("curl ")).collect();
    assert!(calls.len() >= 3, "the README shows calls: {commands:?}");
    let mut answers: Vec<Value> = Vec::new();
    for call in &calls {
        // What a reader copies out of the answer before.
        let lease = answers.last().and_then(|answer| answer["leases"][0]["leaseToken"].as_str()).unwrap_or_default();
        let call = call.replace("YOUR-UUIDV7", &token).replace("YOUR-LEASE-TOKEN", lease);
        answers.push(curl(&server, &call));
    }
    assert_eq!(answers[1]["count"], "2", "the first count: {}", answers[1]);
    assert!(
        answers.iter().any(|answer| answer["state"] == "MESSAGE_STATE_COMPLETED"),
        "a message is completed: {answers:?}"
    );
    let repeated = curl(&server, &calls.last().expect("calls").replace("YOUR-UUIDV7", &token));
    assert_eq!(repeated["outcome"], "OUTCOME_ALREADY_APPLIED", "as the README says: {repeated}");

    let lines: Vec<&String> =
        commands.iter().filter(|command| command.starts_with("target/debug/tallystone ")).collect();
    assert!(lines.len() >= 2, "the README shows the command line: {commands:?}");
    for line in lines {
        let output = Command::new("sh")
            .args(["-c", &line.replacen("target/debug/tallystone", "\"$TALLYSTONE\"", 1)])
            .env("TALLYSTONE", env!("CARGO_BIN_EXE_tallystone"))
            .env("TALLYSTONE_SERVER", server.address.to_string())
            .output()
            .expect("the binary of this build starts");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        if line.contains(" work ") {
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "hello-again\n",
                "the payload stands on a line of its own"
            );
        }
    }
}

/// The commands of the code blocks, continued lines joined.
fn commands() -> Vec<String> {
    let blocks = README.split("```").skip(1).step_by(2);
    let mut commands: Vec<String> = Vec::new();
    for block in blocks {
        let mut whole = true;
        for line in block.lines() {
            let open_quote = commands.last().is_some_and(|last| last.matches('\'').count() % 2 == 1);
            if whole && !open_quote {
                commands.push(String::new());
            }
            whole = !line.ends_with('\\');
            let last = commands.last_mut().expect("one was pushed");
            last.push_str(line.trim_end_matches('\\').trim());
            last.push(' ');
        }
    }
    commands.iter().map(|command| command.trim().to_owned()).filter(|command| !command.is_empty()).collect()
}

/// Makes the call of a `curl` command without curl.
fn curl(server: &Server, command: &str) -> Value {
    let url = command.split_whitespace().find(|word| word.starts_with(ADDRESS)).expect("a call has a URL");
    let body = command.split("-d '").nth(1).and_then(|rest| rest.split('\'').next()).expect("a call has a body");
    let answer = server.post(url.strip_prefix(ADDRESS).expect("it begins so"), body);
    assert_eq!(answer.status, 200, "{command}\n{answer:?}");
    serde_json::from_str(&answer.body).expect("an answer is JSON")
}
