//! A password of Cassandra that is rotated while a server works: the next connection reads its file again.

use std::fs;
use std::time::Duration;

use tallystone::adapters::cassandra::Credentials;

use super::cassandra::{patient_settings, query, run, tallystone};
use crate::servers::cassandra::Cassandra;
use crate::support::harness::{Launch, eventually};

/// How long Cassandra may take to start, and to make its first user.
const WITHIN: Duration = Duration::from_secs(120);

#[test]
fn a_server_goes_on_after_the_password_of_cassandra_was_rotated_and_its_connections_ended() {
    let started = Cassandra::start(|settings| settings.with_passwords = true);
    let node = started.unwrap_or_else(|why| panic!("{why}"));
    let address = node.address().to_string();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("password");
    fs::write(&file, "cassandra\n").expect("it can be written");
    let own = ["clusters.main.user=cassandra".to_owned(), format!("clusters.main.password_file={}", file.display())];
    let mut all = patient_settings(&address, "rotated");
    all.extend(own.into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
    let made = || run(&["migrate", "apply"], &all).0 == 0;
    assert!(eventually(WITHIN, made), "{}", run(&["migrate", "apply"], &all).1);
    let server = Launch::of(tallystone(&["server", "start"], &all)).start();
    let create = r#"{"namespace": {"name": "default"}}"#;
    assert_eq!(server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", create).status, 200);
    let add = || {
        let add = r#"{"namespace": "default", "counter_name": "views", "delta": 5}"#;
        server.post("/tallystone.counter.v1.CounterService/AddCount", add)
    };
    assert_eq!(add().status, 200);

    let credentials = Credentials { user: "cassandra".to_owned(), password: "cassandra".into() };
    query(&address, Some(credentials), "ALTER ROLE cassandra WITH PASSWORD = 'hunter2'");
    fs::write(&file, "hunter2").expect("it can be written");
    let node = Cassandra::start_again(node.kill()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(node.address().to_string(), address);
    let is_back = || server.get("/readyz").status == 200 && add().status == 200;
    assert!(eventually(WITHIN, is_back), "{:?} {}", server.get("/readyz"), server.printed());
    assert!(!server.printed().contains("hunter2"), "a password is shown to nobody");
    assert!(server.stop().success());
}
