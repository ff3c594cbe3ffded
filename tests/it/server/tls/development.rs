//! `tallystone dev --tls`: an authority and a certificate that are there at once, and how to use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::harness::{Launch, Server};

/// The file that a server tells its clients to trust.
fn told_authority(server: &Server) -> PathBuf {
    let line = server.wait_for_line("clients trust this server by the authority in ");
    PathBuf::from(line.rsplit(' ').next().expect("a path"))
}

/// Runs the printed lines that begin with a word, with our binary for the program.
fn run_printed(server: &Server, word: &str, lines: usize) -> String {
    let printed = server.printed();
    let from = printed.find(&format!("\n{word}")).expect("it is printed") + 1;
    let text: Vec<&str> = printed[from..].lines().take(lines).collect();
    let text = text.join("\n");
    let command = text.strip_prefix(word).expect("it begins with it").trim();
    let ran = Command::new("sh").args(["-c", command]).output().expect("there is a shell");
    assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

fn assert_private(folder: &Path) {
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(folder), 0o700);
    let files: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_development_server_makes_its_certificate_and_the_printed_commands_work() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let server = Launch::dev(&data).arg("--tls").start();
    let authority = told_authority(&server);
    assert_eq!(authority, fs::canonicalize(&data).expect("it is there").join("tls/ca.pem"));
    assert_private(authority.parent().expect("a folder"));
    run_printed(&server, "try:", 3);
    assert!(run_printed(&server, "then:", 1).contains("views"), "{}", server.printed());
    run_printed(&server, "queue:", 1);
    server.wait_for_line("console: https://");
    let trusted = fs::read(&authority).expect("it is there");
    assert!(server.stop().success());

    let server = Launch::dev(&data).arg("--tls").start();
    assert_eq!(fs::read(&authority).expect("it is there"), trusted, "clients go on trusting it");
    run_printed(&server, "then:", 1);
    assert!(server.stop().success());
}

#[test]
fn the_certificate_of_a_server_in_memory_goes_with_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["dev", "--listen", "127.0.0.1:0", "--memory", "--tls"]);
    let server = Launch::of(command).start();
    let authority = told_authority(&server);
    assert_private(authority.parent().expect("a folder"));
    run_printed(&server, "try:", 3);
    assert!(server.stop().success());
    assert!(!authority.parent().expect("a folder").exists());
}

#[test]
fn a_certificate_of_the_settings_and_one_that_is_made_exclude_each_other() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::dev(&folder.path().join("data")).arg("--tls");
    let launch = launch.arg("--set").arg("tls.cert_file=a.pem").arg("--set").arg("tls.key_file=b.pem");
    let (status, printed) = launch.try_start().err().expect("it is refused");
    assert!(status.code() == Some(2) && printed.contains("remove one of the two"), "{printed}");
}
