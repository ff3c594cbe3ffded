//! Counters on a Cassandra that speaks TLS only, and asks for a certificate.

use std::fs;

use super::cassandra::{patient_settings, run, tallystone};
use crate::servers::cassandra::Cassandra;
use crate::support::certificates::Authority;
use crate::support::harness::Launch;

#[test]
fn a_server_keeps_counters_on_a_cassandra_with_tls_and_trusts_its_authority_only() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let (pair, shown) = (authority.local("cassandra"), authority.local("client"));
    // Key and certificate in one file.
    let both = folder.path().join("both.pem");
    let read = |file| fs::read_to_string(file).expect("it is there");
    fs::write(&both, read(&pair.key) + read(&pair.cert).as_str()).expect("it can be written");
    let started = Cassandra::start(|settings| {
        settings.survives_kills = false;
        settings.lines = format!(
            "client_encryption_options:\n  enabled: true\n  optional: false\n  require_client_auth: true\n  \
             keystore: {}\n  truststore: {}\n  ssl_context_factory:\n    \
             class_name: org.apache.cassandra.security.PEMBasedSslContextFactory\n",
            both.display(),
            authority.file.display()
        );
    });
    let node = started.unwrap_or_else(|why| panic!("{why}"));
    let of = |authority: &Authority, more: &[String]| {
        let mut all = patient_settings(&node.address().to_string(), "over_tls");
        let tls =
            ["clusters.main.tls=true".to_owned(), format!("clusters.main.tls_ca_file={}", authority.file.display())];
        all.extend(tls.iter().chain(more).flat_map(|setting| ["--set".to_owned(), setting.clone()]));
        all
    };
    let identity = [
        format!("clusters.main.tls_cert_file={}", shown.cert.display()),
        format!("clusters.main.tls_key_file={}", shown.key.display()),
    ];
    let good = of(&authority, &identity);
    let (code, printed) = run(&["migrate", "apply"], &good);
    assert_eq!(code, 0, "{printed}");
    let server = Launch::of(tallystone(&["server", "start"], &good)).start();
    let create = r#"{"namespace": {"name": "default"}}"#;
    let answer = server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", create);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let add = r#"{"namespace": "default", "counter_name": "views", "delta": 5}"#;
    let answer = server.post("/tallystone.counter.v1.CounterService/AddCount", add);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(server.stop().success());
    let (code, printed) = run(&["server", "start"], &of(&stranger, &identity));
    assert!(code == 5 && printed.contains("UnknownIssuer"), "{code} {printed}");
    let words = ["no TLS session with a Cassandra node", "no authority in tls_ca_file has signed its certificate"];
    assert!(words.iter().all(|word| printed.contains(word)), "{printed}");
    let (code, printed) = run(&["server", "start"], &of(&authority, &[]));
    assert_eq!(code, 5, "{printed}");
    let (code, printed) = run(&["server", "start"], &of(&authority, &identity[..1]));
    assert!(code == 2 && printed.contains("tls_key_file must be set together with tls_cert_file"), "{code} {printed}");
}
