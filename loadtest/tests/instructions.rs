//! What a life of a message costs Redis, beside the figures that the repository keeps. Instructions, so other work does not matter.

mod server;

use std::path::Path;
use std::process::Command;

use server::server;

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn a_life_of_a_message_costs_redis_no_more_than_the_figures_of_the_repository() {
    if !(is_there("valgrind") && is_there("redis-server")) && std::env::var("CI").is_err() {
        println!("NOT RUN: install valgrind and redis-server");
        return;
    }
    let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("redis-instructions.json");
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args(["redis", "--only", "instructions", "--gate"])
        .arg(figures)
        .arg("--binary")
        .arg(server())
        .output()
        .expect("the binary of this build starts");
    let heard = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{heard}");
    assert!(heard.matches(" in a call: ").count() >= 6, "a line for each life: {heard}");
}
