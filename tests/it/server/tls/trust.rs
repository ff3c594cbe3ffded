//! Whom clients trust, and what they are told if they do not.

use super::{handshake, in_memory, run, url};
use crate::support::certificates::{Authority, dns};
use crate::support::harness::{Launch, eventually};

/// Runs a command against a server; answers its exit code and what it said.
fn ask(server: &str, more: &[&str]) -> (i32, String) {
    let (code, out, told) = run(&[&["ns", "ls", "--server", server], more].concat());
    (code, format!("{out}{told}"))
}

#[test]
fn the_command_line_trusts_the_authority_that_it_is_told_and_says_what_is_wrong_otherwise() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let server = in_memory(&authority.local("server")).start();
    let at = url(&server);
    let file = |authority: &Authority| authority.file.to_str().expect("UTF-8").to_owned();
    assert_eq!(ask(&at, &["--ca-file", &file(&authority)]).0, 0);
    let (code, _, told) = run(&["--ca-file", &file(&authority), "ns", "ls", "--server", &at]);
    assert_eq!(code, 0, "before the noun: {told}");
    let ready = ["server", "wait-ready", "--server", &at, "--timeout", "30s"];
    assert_eq!(run(&[&ready[..], &["--ca-file", &file(&authority)]].concat()).0, 0);
    let (code, _, told) = run(&ready);
    assert!(code == 4 && told.contains("--ca-file FILE"), "it does not wait for a certificate: {told}");
    for more in [vec![], vec!["--ca-file".to_owned(), file(&stranger)]] {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let (code, told) = ask(&at, &more);
        assert_eq!(code, 4, "{told}");
        let words = ["its certificate is not trusted", "--ca-file FILE or TALLYSTONE_CA_FILE"];
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
    // Without a word about TLS, a command speaks none.
    let plain = server.address.to_string();
    let (code, told) = ask(&plain, &[]);
    assert!([1, 5].contains(&code) && told.contains("write https:// before its address"), "{code} {told}");
    let (code, told) = ask(&plain, &["--ca-file", &file(&authority)]);
    assert!(code == 2 && told.contains("write https:// before the address"), "{code} {told}");
    let (code, told) = ask(&at, &["--ca-file", folder.path().join("missing").to_str().expect("UTF-8")]);
    assert!(code == 2 && told.contains("cannot read"), "{code} {told}");
    let (code, told) = ask(&at, &["--client-cert", &file(&authority)]);
    assert!(code == 2 && told.contains("--client-key FILE"), "{code} {told}");
}

#[test]
fn a_certificate_for_another_name_and_a_server_without_tls_are_told_apart() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let server = in_memory(&authority.issue("server", vec![dns("counts.example")], None)).start();
    let ca = authority.file.to_str().expect("UTF-8");
    let (code, told) = ask(&url(&server), &["--ca-file", ca]);
    assert!(code == 4 && told.contains("its certificate is for another name"), "{code} {told}");
    let plain = Launch::dev(&folder.path().join("data")).start();
    let (code, told) = ask(&format!("https://{}", plain.address), &["--ca-file", ca]);
    assert!(code == 4 && told.contains("it does not speak TLS") && told.contains("http://"), "{code} {told}");
}

#[test]
fn the_environment_names_the_authority_for_servers_with_tls_and_says_nothing_to_others() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let server = in_memory(&authority.local("server")).start();
    let plain = Launch::dev(&folder.path().join("data")).start();
    for address in [url(&server), plain.address.to_string()] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
        let ran = command.args(["ns", "ls", "--server", &address]).env("TALLYSTONE_CA_FILE", &authority.file).output();
        let ran = ran.expect("the binary starts");
        assert!(ran.status.success(), "{address}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    assert!(eventually(super::HANDSHAKE_WITHIN, || handshake(server.address, &authority.pem, &["h2"], None).is_ok()));
}

#[test]
fn a_certificate_in_between_that_the_server_does_not_send_is_named_as_a_cause() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let root = Authority::new(folder.path(), "root");
    let between = root.between("between");
    let (alone, ca) = (between.local("server"), root.file.to_str().expect("UTF-8"));
    let server = in_memory(&alone).start();
    let (code, told) = ask(&url(&server), &["--ca-file", ca]);
    let words = ["does not send the certificates between", "must hold those in between too"];
    assert!(code == 4 && words.iter().all(|word| told.contains(word)), "{code} {told}");
    let server = in_memory(&alone.among("", &between.pem)).start();
    let (code, told) = ask(&url(&server), &["--ca-file", ca]);
    assert_eq!(code, 0, "{told}");
    let server = in_memory(&between.local("gap").among("", &root.pem)).start();
    server.wait_for_line("number 1 in it was not signed by number 2");
}

#[test]
fn the_key_of_another_certificate_is_refused_before_any_call() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let file = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (own, other) = (authority.local("own"), authority.local("other"));
    let shown = ["--client-cert", &file(&own.cert), "--client-key", &file(&other.key)];
    let (code, told) = ask("https://127.0.0.1:1", &shown);
    assert!(code == 2 && told.contains("the private key is not the key of the certificate"), "{code} {told}");
}
