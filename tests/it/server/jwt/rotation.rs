//! Keys that change, at a server that publishes them: behind a URL, with and without TLS, and one that is broken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::{LIST_QUEUES, claims, is_taken, start};
use crate::server::keys::{first_key, post};
use crate::servers::issuer::{KeyServer, Served, TokenKey, key_set};
use crate::support::harness::{EndsWith, Server, eventually, http};

const WITHIN: Duration = Duration::from_secs(60);

fn metric(server: &Server, key: &str, name: &str) -> f64 {
    let bearer = format!("Bearer {key}");
    let page = http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").body;
    let row = page.lines().find(|line| line.starts_with(&format!("{name}{{issuer=\"sso\"}}")));
    row.and_then(|row| row.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in:\n{page}"))
}

#[test]
fn an_issuer_changes_its_keys_and_no_call_fails() {
    let (old, new) = (TokenKey::es256("old"), TokenKey::rs256("new"));
    let keys = KeyServer::start(Served::Document(key_set(&[&old])));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = start(folder.path(), &[("jwks_url", &keys.url())]);
    let token = |key: &TokenKey, subject: &str| key.sign(&claims(&json!({"sub": subject})));
    let fails = |token: &str| {
        let answer = post(&server, LIST_QUEUES, token, &json!({}));
        (answer.status != 200).then_some(answer.body)
    };
    let done = AtomicBool::new(false);
    let failures = std::thread::scope(|scope| {
        let _ended = EndsWith(&done);
        let caller = scope.spawn(|| {
            let mut failures = Vec::new();
            for number in 0_u64.. {
                // Each call shows another token, so each is verified.
                failures.extend(fails(&token(&old, &format!("ann-{number}"))));
                if done.load(Ordering::SeqCst) {
                    break;
                }
            }
            failures
        });
        keys.serves(Served::Document(key_set(&[&old, &new])));
        let failed = fails(&token(&new, "bob"));
        done.store(true, Ordering::SeqCst);
        failed.into_iter().chain(caller.join().expect("the caller does not panic")).collect::<Vec<_>>()
    });
    assert_eq!(failures, [""; 0], "the first token of the new key is taken as well");
    assert_eq!(metric(&server, &token(&new, "ann"), "tallystone_issuer_keys"), 2.0);
}

#[test]
fn a_key_that_is_published_just_after_a_reading_fails_no_call_for_good() {
    let (old, new) = (TokenKey::es256("old"), TokenKey::es256("new"));
    let keys = KeyServer::start(Served::Document(key_set(&[&old])));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = start(folder.path(), &[("jwks_url", &keys.url())]);
    let token = |key: &TokenKey| key.sign(&claims(&json!({})));
    // A stranger has just had the keys read.
    assert_eq!(post(&server, LIST_QUEUES, &token(&TokenKey::es256("stranger")), &json!({})).status, 401);
    keys.serves(Served::Document(key_set(&[&old, &new])));
    let bearer = format!("Bearer {}", token(&new));
    let head = [("content-type", "application/json"), ("authorization", &*bearer), ("grpc-timeout", "200m")];
    let told = http(server.address, "POST", LIST_QUEUES, &head, "{}").expect("an answer");
    // On a slow machine the keys may be read again by now.
    assert!(told.status == 200 || told.status == 429 && told.body.contains("RETRY_LATER"), "{}", told.body);
    assert_eq!(post(&server, LIST_QUEUES, &token(&new), &json!({})).status, 200, "a call with time waits for it");
}

#[test]
fn unknown_keys_do_not_have_the_issuer_asked_again_and_again() {
    let (key, stranger) = (TokenKey::es256("one"), TokenKey::es256("two"));
    let keys = KeyServer::start(Served::Document(key_set(&[&key])));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = start(folder.path(), &[("jwks_url", &keys.url())]);
    let taken = key.sign(&claims(&json!({})));
    assert_eq!(post(&server, LIST_QUEUES, &taken, &json!({})).status, 200);
    let before = keys.requests();
    let began = std::time::Instant::now();
    for number in 0..50 {
        let token = stranger.sign(&claims(&json!({"sub": number.to_string()})));
        assert_eq!(post(&server, LIST_QUEUES, &token, &json!({})).status, 401);
    }
    let allowed = 1 + usize::try_from(began.elapsed().as_secs() / 10).expect("a short time");
    assert!(keys.requests() - before <= allowed, "{} readings in {:?}", keys.requests() - before, began.elapsed());
    assert_eq!(post(&server, LIST_QUEUES, &taken, &json!({})).status, 200);
}

#[test]
fn an_issuer_that_breaks_changes_nothing_for_its_tokens() {
    let key = TokenKey::es256("one");
    let keys = KeyServer::start(Served::Document(key_set(&[&key])));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let admin = first_key(folder.path(), "ann");
    let server = start(folder.path(), &[("jwks_url", &keys.url())]);
    let call = |subject: &str, key: &TokenKey| {
        let token = key.sign(&claims(&json!({"sub": subject})));
        post(&server, LIST_QUEUES, &token, &json!({})).status
    };
    assert_eq!(call("ann", &key), 200);
    keys.serves(Served::Status(500, "no".to_owned()));
    // A token with an unknown key has the keys read.
    assert_eq!(call("eve", &TokenKey::es256("two")), 401);
    assert!(eventually(WITHIN, || metric(&server, &admin, "tallystone_issuer_keys_failures_total") >= 1.0));
    assert_eq!(call("bob", &key), 200);
    assert_eq!(metric(&server, &admin, "tallystone_issuer_keys"), 1.0);
    let new = TokenKey::es256("new");
    keys.serves(Served::Document(key_set(&[&new])));
    assert!(eventually(WITHIN, || call("bob", &new) == 200), "it is well again\n{}", server.printed());
    assert_eq!(call("ann", &key), 401, "and has withdrawn its key");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_come_over_tls_from_an_authority_that_the_settings_name() {
    let key = TokenKey::es256("one");
    let keys = KeyServer::start_tls(Served::Document(key_set(&[&key])));
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = folder.path().join("ca.pem");
    std::fs::write(&authority, &keys.authority).expect("the folder takes files");
    let data = folder.path().join("data");
    let settings = [("jwks_url", keys.url()), ("jwks_ca_file", authority.to_str().expect("UTF-8").to_owned())];
    let server = start(&data, &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
    is_taken(&server, &key.sign(&claims(&json!({})))).await;
    assert!(server.stop().success());
    // Another authority vouches for another server.
    let other = KeyServer::start_tls(Served::Document(key_set(&[&key])));
    std::fs::write(&authority, &other.authority).expect("the folder takes files");
    let server = start(&data, &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
    let answer = post(&server, LIST_QUEUES, &key.sign(&claims(&json!({}))), &json!({}));
    assert_eq!(answer.status, 401, "{}", answer.body);
    assert!(answer.body.contains("cannot read the signing keys of its issuer"), "{}", answer.body);
    server.wait_for_line("cannot read the signing keys of an issuer");
}
