//! Certificates of clients: whether one is asked for, and whom it names.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tallystone::client::{Client, ClientTls, TlsFailure};
use tallystone::proto::admin::v1::{DeleteKeyRequest, ListKeysRequest};
use tallystone::proto::counter::v1::{WatchCountsRequest, WatchCountsResponse};
use tonic::{Code, Streaming};

use super::{client, curl, handshake, in_memory, metric, run, trusting, url, with_settings};
use crate::support::beside;
use crate::support::certificates::{Authority, Pair, dns, uri};
use crate::support::harness::{PATIENCE, Server, eventually};

/// Within this time after the end of what a call showed, it has ended.
const ENDED_WITHIN: Duration = Duration::from_secs(2);

/// The most calls until one is told why there is no session.
const CALLS_UNTIL_TOLD: usize = 100;

fn showing(authority: &Authority, pair: &Pair) -> ClientTls {
    let read = |file: &Path| fs::read(file).expect("it is there");
    trusting(&authority.file).showing(read(&pair.cert), read(&pair.key)).expect("a pair")
}

/// What a call of the keys is refused with; none: it is answered.
async fn refusal(client: &Client) -> Option<Code> {
    client.keys().list_keys(ListKeysRequest::default()).await.err().map(|status| status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_valid_certificate_gets_no_connection_where_one_is_required() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (authority, stranger) = (Authority::new(folder.path(), "one"), Authority::new(folder.path(), "two"));
    let required = format!("tls.client_ca_file={}", authority.file.display());
    let launch = in_memory(&authority.local("server"));
    let server = launch.arg("--set").arg("tls.client_auth=required").arg("--set").arg(&required).start();
    let (good, bad) =
        (authority.issue("good", vec![dns("orders")], None), stranger.issue("bad", vec![dns("orders")], None));
    let expired = authority.issue("expired", vec![dns("orders")], Some(Duration::ZERO));
    let ask = async |tls: &ClientTls| {
        let asked = client(&server, tls);
        let call = |request| {
            let mut keys = asked.keys();
            async move { keys.list_keys(request).await }
        };
        asked.asked(&ListKeysRequest::default(), call).await
    };
    // In TLS 1.3 the server refuses a client that has finished its part. A call that is on its way by then may learn no more than
    // that the connection is closed.
    let refusal_of = async |tls: &ClientTls| {
        for _ in 0..CALLS_UNTIL_TOLD {
            let refused = ask(tls).await.expect_err("there is no valid certificate");
            assert!(!refused.may_be_applied, "{refused:?}");
            if let Some(failure) = refused.tls_failure() {
                return failure;
            }
        }
        panic!("nothing tells why");
    };
    assert_eq!(refusal_of(&trusting(&authority.file)).await, TlsFailure::CertificateRequired);
    // The server knows who signed the authority in between, and is not shown that one.
    let alone = authority.between("between").issue("alone", vec![dns("orders")], None);
    for pair in [&bad, &expired, &alone] {
        let refused = refusal_of(&showing(&authority, pair)).await;
        assert!(matches!(refused, TlsFailure::CertificateRefused(_)), "{refused:?}");
    }
    let file = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (ca, cert, key) = (file(&authority.file), file(&good.cert), file(&good.key));
    let shown = ["--ca-file", &ca, "--client-cert", &cert, "--client-key", &key];
    let (code, _, told) = run(&[&["ns", "ls", "--server", &url(&server)][..], &shown].concat());
    assert_eq!(code, 0, "{told}");
    let is_told = || {
        let (code, _, told) = run(&["ns", "ls", "--server", &url(&server), "--ca-file", &ca]);
        assert_ne!(code, 0, "{told}");
        code == 4 && told.contains("--client-cert FILE and --client-key FILE")
    };
    assert!(eventually(PATIENCE, is_told));
    let health = format!("{}/healthz", url(&server));
    assert_ne!(curl(&["--cacert", &ca, &health]).0, 0, "a page of health is no exception");
    assert_eq!(curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, &health]), (0, "ok\n".to_owned()));
}

/// A server that asks for keys and takes certificates, with the key of `ann`, who is its admin.
fn keyed(folder: &Path, authority: &Authority, mode: &str) -> (Server, String) {
    let data = folder.join("data");
    let place = data.to_str().expect("UTF-8");
    let (code, key, told) = run(&["key", "create", "ann", "--offline", "--data", place]);
    assert_eq!(code, 0, "{told}");
    let settings = [
        format!("storage.data_dir={place}"),
        format!("tls.client_auth={mode}"),
        format!("tls.client_ca_file={}", authority.file.display()),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    (with_settings(&authority.local("server"), &settings).start(), key.trim().to_owned())
}

/// Makes a key through the server, with its grant.
fn create(server: &Server, authority: &Authority, admin: &str, name: &str, grant: &str) -> String {
    let ca = authority.file.to_str().expect("UTF-8");
    let at = url(server);
    let (code, key, told) =
        run(&["key", "create", name, "--grant", grant, "--server", &at, "--ca-file", ca, "--key", admin]);
    assert_eq!(code, 0, "{told}");
    key.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_in_a_certificate_has_the_grants_of_its_key_until_the_key_goes() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let (server, ann) = keyed(folder.path(), &authority, "optional");
    let worker_key = create(&server, &authority, &ann, "spiffe://eu/orders", "counter-reader");
    create(&server, &authority, &ann, "boss", "admin");
    let of = |file: &str, name| client(&server, &showing(&authority, &authority.issue(file, vec![name], None)));
    let (worker, boss) = (of("worker", uri("spiffe://eu/orders")), of("boss", dns("boss")));
    let nobody = of("nobody", dns("stranger"));
    let admin = client(&server, &trusting(&authority.file)).with_key(&ann).expect("a key");
    assert_eq!(refusal(&admin).await, None, "a key needs no certificate");
    assert_eq!(refusal(&client(&server, &trusting(&authority.file))).await, Some(Code::Unauthenticated));
    assert_eq!(refusal(&boss).await, None);
    assert_eq!(refusal(&worker).await, Some(Code::PermissionDenied), "it may read counters only");
    assert_eq!(refusal(&nobody).await, Some(Code::Unauthenticated));
    // What a call itself shows wins, whichever of the two may do more.
    assert_eq!(refusal(&boss.clone().with_key(&worker_key).expect("a key")).await, Some(Code::PermissionDenied));
    assert_eq!(refusal(&worker.clone().with_key(&ann).expect("a key")).await, None);
    assert_eq!(refusal(&boss.clone().with_key("ts_0_0").expect("a text")).await, Some(Code::Unauthenticated));

    let mut open = boss
        .counters()
        .watch_counts(WatchCountsRequest { namespace: "tallystone.queues".to_owned(), ..watched() })
        .await
        .expect("it may watch")
        .into_inner();
    let delete = DeleteKeyRequest { name: "boss".to_owned(), ..DeleteKeyRequest::default() };
    let yardstick = beside(&server);
    admin.keys().delete_key(delete).await.expect("it is deleted");
    let deleted = Instant::now();
    assert_eq!(end_of(&mut open).await, Some(Code::Unauthenticated));
    yardstick.holds(deleted, ENDED_WITHIN, "the watch ends after the key");
    assert_eq!(refusal(&boss).await, Some(Code::Unauthenticated));
}

#[test]
fn a_certificate_opens_the_console_without_a_sign_in() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let (server, ann) = keyed(folder.path(), &authority, "optional");
    create(&server, &authority, &ann, "boss", "admin");
    let pair = authority.issue("boss", vec![dns("boss")], None);
    let file = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (ca, cert, key) = (file(&authority.file), file(&pair.cert), file(&pair.key));
    let place = |page: &str| format!("{}/console/{page}", url(&server));
    let shown = ["--cert", &cert, "--key", &key];
    // What curl prints: the page, and its status behind it.
    let ask = |arguments: &[&str], page: &str| {
        let (code, told) = curl(&[&["--cacert", &ca, "-w", "%{http_code}"], arguments, &[&place(page)]].concat());
        assert_eq!(code, 0, "{told}");
        told
    };
    let overview = ask(&shown, "");
    assert!(overview.ends_with("200") && overview.contains("boss"), "{overview}");
    assert!(ask(&[], "").ends_with("303"), "without it the sign-in is shown");
    let with_key = |key: &str| format!("cookie: tallystone-key={key}");
    let named = ask(&[&shown[..], &["-H", &with_key(&ann)]].concat(), "");
    assert!(named.ends_with("200") && !named.contains("boss"), "who signs in is meant: {named}");
    let (rest, last) = ann.split_at(ann.len() - 1);
    let unknown = with_key(&format!("{rest}{}", if last == "0" { "1" } else { "0" }));
    let ended = ask(&[&shown[..], &["-i", "-H", &unknown]].concat(), "");
    assert!(ended.ends_with("303"), "who signed in as another never becomes the certificate's: {ended}");
    assert!(ended.contains("Max-Age=0"), "the key is forgotten, so that the certificate counts from then on: {ended}");
    for (site, status) in [("cross-site", "303"), ("same-site", "303"), ("same-origin", "200"), ("none", "200")] {
        let said = format!("sec-fetch-site: {site}");
        let page = ask(&[&shown[..], &["-H", &said]].concat(), "");
        assert!(page.ends_with(status), "{site}: {page}");
    }
    let form = ["-d", "do=block-dequeue", "-H", "sec-fetch-site: cross-site"];
    assert!(ask(&[&shown[..], &form].concat(), "act").ends_with("401"), "a form of another site is nobody's");

    let (code, _, told) =
        run(&["key", "rm", "boss", "--server", &url(&server), "--ca-file", &ca, "--key", &ann, "--yes"]);
    assert_eq!(code, 0, "{told}");
    beside(&server).comes(Instant::now(), ENDED_WITHIN, "its key ended", || ask(&shown, "").ends_with("303"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_expiry_of_a_key_ends_what_its_name_in_a_certificate_opens() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let (server, ann) = keyed(folder.path(), &authority, "optional");
    let ca = authority.file.to_str().expect("UTF-8");
    let command = |arguments: &[&str]| {
        let at = url(&server);
        let (code, key, told) = run(&[arguments, &["--server", &at, "--ca-file", ca, "--key", &ann]].concat());
        assert_eq!(code, 0, "{told}");
        key.trim().to_owned()
    };
    let of = |name| client(&server, &showing(&authority, &authority.issue(name, vec![dns(name)], None)));
    let (short, lasting) = (of("short"), of("lasting"));
    command(&["key", "create", "lasting", "--grant", "admin"]);
    // Long enough for a busy machine to open the watch before.
    let lasts = Duration::from_secs(10);
    command(&["key", "create", "short", "--grant", "admin", "--expires", "10s"]);
    let made = Instant::now();
    assert_eq!(refusal(&short).await, None);
    let request = WatchCountsRequest { namespace: "tallystone.queues".to_owned(), ..watched() };
    let mut open = short.counters().watch_counts(request).await.expect("it may watch").into_inner();
    let yardstick = beside(&server);
    assert_eq!(end_of(&mut open).await, Some(Code::Unauthenticated));
    yardstick.holds(made + lasts, ENDED_WITHIN, "the watch ends after the key");
    assert_eq!(refusal(&short).await, Some(Code::Unauthenticated), "nor does it open another call");
    assert_eq!(refusal(&lasting).await, None, "a key without an expiry stays");
    command(&["key", "rotate", "short"]);
    assert_eq!(refusal(&short).await, None, "a new secret makes the key valid again");
}

/// How a stream ends; none without an error.
async fn end_of(open: &mut Streaming<WatchCountsResponse>) -> Option<Code> {
    let end = async {
        loop {
            match open.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status.code()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, end).await.expect("it ends")
}

fn watched() -> WatchCountsRequest {
    WatchCountsRequest { counter_names: vec!["views".to_owned()], ..WatchCountsRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_with_the_certificate_of_their_connection() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let (server, ann) = keyed(folder.path(), &authority, "required");
    let lasts = Duration::from_secs(10);
    let pair = authority.issue("ann", vec![dns("ann")], Some(lasts));
    let short = client(&server, &showing(&authority, &pair));
    let request = WatchCountsRequest { namespace: "tallystone.queues".to_owned(), ..watched() };
    let mut open = short.counters().watch_counts(request).await.expect("it may watch").into_inner();
    let (ends, yardstick) = (Instant::now() + lasts, beside(&server));
    end_of(&mut open).await;
    yardstick.holds(ends, ENDED_WITHIN, "the watch ends after the certificate");
    assert!(refusal(&short).await.is_some(), "nor is there another connection");
    let lasting = authority.issue("ann", vec![dns("ann")], None);
    assert_eq!(refusal(&client(&server, &showing(&authority, &lasting))).await, None, "{ann} is still there");
}

#[test]
fn a_session_with_a_certificate_is_never_resumed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let launch = in_memory(&authority.local("server")).arg("--set").arg("tls.client_auth=optional");
    let server = launch.arg("--set").arg(&format!("tls.client_ca_file={}", authority.file.display())).start();
    let shown = authority.issue("shown", vec![dns("orders")], None);
    let done = || metric(&server, &authority.file, "tallystone_tls_handshakes_total{outcome=\"done\"}");
    let before = done();
    handshake(server.address, &authority.pem, &["h2"], Some(&shown)).expect("a session");
    assert!(eventually(PATIENCE, || done() >= before + 2.0));
    let openssl = std::process::Command::new("openssl")
        .args(["s_client", "-connect", &server.address.to_string(), "-CAfile"])
        .arg(&authority.file)
        .arg("-reconnect")
        .arg("-tls1_2")
        .stdin(std::process::Stdio::null())
        .output();
    let told = String::from_utf8_lossy(&openssl.expect("openssl is installed").stdout).into_owned();
    assert!(told.contains("New, TLSv1.2") && !told.contains("Reused, TLSv1.2"), "{told}");
}
