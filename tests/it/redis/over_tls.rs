//! Redis by TLS: a server is trusted by its authority, and shown a certificate where it asks for one.

use std::path::Path;

use tallystone::adapters::store_tls::{StorePem, StoreTls};

use super::*;
use crate::servers::free_port;
use crate::support::certificates::{Authority, Pair};
use crate::support::harness::Launch;

/// A Redis 7.0 with a port for TLS, and the address of that port. Clients have to show a certificate.
fn secured(authority: &Authority, folder: &Path) -> Option<(RedisServer, String)> {
    let pair = authority.local("redis");
    let port = free_port().and_then(|free| free.local_addr()).expect("a free port").port();
    let lines = [
        format!("tls-port {port}"),
        format!("tls-cert-file {}", pair.cert.display()),
        format!("tls-key-file {}", pair.key.display()),
        format!("tls-ca-cert-file {}", authority.file.display()),
        "tls-auth-clients yes".to_owned(),
    ];
    assert!(folder.exists(), "the files of the server last as long as it");
    let settings = RedisSettings { lines: lines.into(), ..RedisSettings::default() };
    Some((or_skip(RedisServer::start_with(Build::Redis7, settings))?, format!("127.0.0.1:{port}")))
}

fn tls(authority: &Authority, shown: Option<&Pair>) -> StoreTls {
    let read = |file: &Path| std::fs::read(file).expect("it is there");
    let identity = shown.map(|pair| (read(&pair.cert), read(&pair.key)));
    StoreTls::new(StorePem { authorities: Some(read(&authority.file)), identity }).expect("certificates")
}

#[tokio::test]
async fn a_redis_with_tls_is_reached_with_its_authority_and_a_certificate_and_not_otherwise() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let Some((server, address)) = secured(&authority, folder.path()) else { return };
    let shown = authority.local("client");
    let with =
        |tls: Option<StoreTls>| ClientOptions { tls, ..options(Deployment::Single { address: address.clone() }) };
    let client = open_with(with(Some(tls(&authority, Some(&shown))))).await;
    let counted = client.call_one(slot(), add(KEY, 5)).await.expect("it counts");
    assert_eq!(counted, RedisReply::Int(5));
    assert_eq!(server.cli(&["GET", KEY]), "5");
    let refused = async |tls: Option<StoreTls>| {
        let opened = RedisClient::open(with(tls), Arc::new(SystemClock)).await;
        opened.err().expect("it is refused").text
    };
    let text = refused(Some(tls(&stranger, Some(&shown)))).await;
    assert!(text.contains("UnknownIssuer"), "{text}");
    let text = refused(Some(tls(&authority, None))).await;
    assert!(text.to_ascii_lowercase().contains("certificate"), "{text}");
    refused(None).await;
}

#[test]
fn a_server_keeps_queues_on_a_redis_with_tls() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let Some((redis, address)) = secured(&authority, folder.path()) else { return };
    let shown = authority.local("client");
    let settings = [
        "auth.mode=off".to_owned(),
        "counters.engine=memory".to_owned(),
        "queues.engine=redis".to_owned(),
        "queues.cluster=main".to_owned(),
        "clusters.main.kind=redis".to_owned(),
        format!("clusters.main.servers={address}"),
        "clusters.main.tls=true".to_owned(),
        format!("clusters.main.tls_ca_file={}", authority.file.display()),
        format!("clusters.main.tls_cert_file={}", shown.cert.display()),
        format!("clusters.main.tls_key_file={}", shown.key.display()),
    ];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    for setting in &settings {
        command.args(["--set", setting]);
    }
    let server = Launch::of(command).start();
    let message = r#"{"queue": "timed/hello", "message": {"payload": "aGVsbG8="}}"#;
    let answer = server.post("/tallystone.queue.v1.QueueService/Enqueue", message);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "it is there");
    assert!(server.stop().success());
}
