//! Redis by TLS: a server is trusted by its authority and its name, and shown a certificate where it asks for one. Files that
//! are replaced count for new connections.

use tallystone::adapters::store_tls::{StoreTls, StoreTlsFiles};

use super::*;
use crate::servers::free_port;
use crate::servers::redis::LoneSentinel;
use crate::support::certificates::{Authority, Pair, dns, replace};
use crate::support::harness::Launch;

/// The settings of a port for TLS. Clients have to show a certificate.
fn secured_port(authority: &Authority, pair: &Pair) -> (u16, [String; 5]) {
    let port = free_port().and_then(|free| free.local_addr()).expect("a free port").port();
    let lines = [
        format!("tls-port {port}"),
        format!("tls-cert-file {}", pair.cert.display()),
        format!("tls-key-file {}", pair.key.display()),
        format!("tls-ca-cert-file {}", authority.file.display()),
        "tls-auth-clients yes".to_owned(),
    ];
    (port, lines)
}

/// A Redis 7.0 with such a port and this certificate, and the address of that port.
fn secured_by(authority: &Authority, pair: &Pair) -> Option<(RedisServer, String)> {
    let (port, lines) = secured_port(authority, pair);
    let settings = RedisSettings { lines: lines.into(), ..RedisSettings::default() };
    Some((or_skip(RedisServer::start_with(Build::Redis7, settings))?, format!("127.0.0.1:{port}")))
}

fn secured(authority: &Authority) -> Option<(RedisServer, String)> {
    secured_by(authority, &authority.local("redis"))
}

fn files(authority: &Authority, shown: Option<&Pair>) -> StoreTlsFiles {
    let identity = shown.map(|pair| (pair.cert.clone(), pair.key.clone()));
    StoreTlsFiles { authorities: Some(authority.file.clone()), identity }
}

fn tls(authority: &Authority, shown: Option<&Pair>) -> StoreTls {
    StoreTls::new(files(authority, shown)).expect("certificates")
}

fn with(address: &str, tls: &StoreTls) -> ClientOptions {
    ClientOptions { tls: Some(tls.clone()), ..options(Deployment::Single { address: address.to_owned() }) }
}

/// Why no connection is made.
async fn refusal(options: ClientOptions) -> String {
    RedisClient::open(options, Arc::new(SystemClock)).await.err().expect("it is refused").text
}

#[tokio::test]
async fn a_redis_with_tls_is_reached_with_its_authority_and_a_certificate_and_not_otherwise() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let Some((server, address)) = secured(&authority) else { return };
    let shown = authority.local("client");
    let client = open_with(with(&address, &tls(&authority, Some(&shown)))).await;
    let counted = client.call_one(slot(), add(KEY, 5)).await.expect("it counts");
    assert_eq!(counted, RedisReply::Int(5));
    assert_eq!(server.cli(&["GET", KEY]), "5");
    let text = refusal(with(&address, &tls(&stranger, Some(&shown)))).await;
    assert!(text.contains("UnknownIssuer") && text.contains(&address), "{text}");
    assert!(text.contains("no authority in tls_ca_file has signed its certificate"), "{text}");
    let text = refusal(with(&address, &tls(&authority, None))).await;
    assert!(text.to_ascii_lowercase().contains("certificate"), "{text}");
    refusal(options(Deployment::Single { address })).await;
}

#[tokio::test]
async fn a_redis_that_shows_a_certificate_for_another_host_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let elsewhere = authority.issue("redis", vec![dns("elsewhere.example")], None);
    let Some((_server, address)) = secured_by(&authority, &elsewhere) else { return };
    let text = refusal(with(&address, &tls(&authority, Some(&authority.local("client"))))).await;
    assert!(text.contains("not valid for name"), "{text}");
}

#[tokio::test]
async fn new_connections_go_by_the_files_as_they_are_and_open_ones_go_on() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let Some((_server, address)) = secured(&authority) else { return };
    let shown = authority.local("client");
    let tls = tls(&authority, Some(&shown));
    let first = open_with(with(&address, &tls)).await;
    let opens = async || open_with(with(&address, &tls)).await.close().await;
    let own = authority.pem.clone();
    replace(&authority.file, "no certificate");
    opens().await;
    replace(&authority.file, &stranger.pem);
    let text = refusal(with(&address, &tls)).await;
    assert!(text.contains("UnknownIssuer"), "{text}");
    replace(&authority.file, &own);
    opens().await;
    stranger.local("other").replaces(&shown);
    refusal(with(&address, &tls)).await;
    authority.local("again").replaces(&shown);
    opens().await;
    assert_eq!(add_one(&first).await.expect("it was never cut"), 1);
}

#[tokio::test]
async fn sentinels_are_reached_by_tls_too() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let pair = authority.local("redis");
    let Some((_server, address)) = secured_by(&authority, &pair) else { return };
    let (port, lines) = secured_port(&authority, &pair);
    let primary = address.parse().expect("an address");
    let Some(_sentinel) = or_skip(LoneSentinel::start_over_tls(primary, &lines)) else { return };
    let found = |tls: StoreTls| {
        let (sentinels, primary) = (vec![format!("127.0.0.1:{port}")], LoneSentinel::NAME.to_owned());
        ClientOptions { tls: Some(tls), ..options(Deployment::Sentinel { sentinels, primary, login: None }) }
    };
    let shown = authority.local("client");
    let client = open_with(found(tls(&authority, Some(&shown)))).await;
    assert_eq!(add_one(&client).await.expect("it counts"), 1);
    assert_eq!(client.primaries()[0].0, address);
    let text = refusal(found(tls(&stranger, Some(&shown)))).await;
    assert!(text.contains("UnknownIssuer"), "{text}");
}

#[test]
fn a_server_keeps_queues_on_a_redis_with_tls() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let Some((redis, address)) = secured(&authority) else { return };
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
    let launch = |more: &[String]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start", "--listen", "127.0.0.1:0"]);
        for setting in settings.iter().chain(more) {
            command.args(["--set", setting]);
        }
        Launch::of(command)
    };
    let server = launch(&[]).start();
    let message = r#"{"queue": "timed/hello", "message": {"payload": "aGVsbG8="}}"#;
    let answer = server.post("/tallystone.queue.v1.QueueService/Enqueue", message);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "it is there");
    assert!(server.stop().success());
    let stranger = Authority::new(folder.path(), "two");
    let trusted = format!("clusters.main.tls_ca_file={}", stranger.file.display());
    let (status, printed) = launch(&[trusted]).try_start().err().expect("it is refused");
    let words = ["no TLS session with Redis", "no authority in tls_ca_file has signed its certificate"];
    assert!(status.code() == Some(5) && words.iter().all(|word| printed.contains(word)), "{printed}");
    assert!(!printed.contains("start Redis there"), "it runs: {printed}");
}
