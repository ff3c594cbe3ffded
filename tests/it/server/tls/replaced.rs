//! A certificate is replaced while the server runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tallystone::client::{Client, ClientTls};
use tallystone::proto::admin::v1::{CreateNamespaceRequest, Namespace};
use tallystone::proto::counter::v1::AddCountRequest;
use tokio::time::{MissedTickBehavior, interval};
use tonic::Request;

use super::{client, der, handshake, in_memory, metric, trusting};
use crate::support::certificates::{Authority, replace};
use crate::support::harness::{EndsWith, PATIENCE, Server, eventually};
use crate::support::yardstick::Yardstick;

/// New handshakes show a new certificate within this time.
const SEEN_WITHIN: Duration = Duration::from_secs(15);
/// After a signal it takes less than until the next look.
const HEARD_WITHIN: Duration = Duration::from_secs(6);
const CALLERS: u64 = 20;
/// Of each caller: together 1,000 in a second.
const CALL_EVERY: Duration = Duration::from_millis(CALLERS);
/// After so many calls a caller connects anew.
const CALLS_OF_A_CONNECTION: u64 = 20;

fn add() -> AddCountRequest {
    AddCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        delta: Some(1),
        ..AddCountRequest::default()
    }
}

/// A call whose time is no law.
fn patient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE);
    request
}

/// A yardstick of handshakes beside a server, which takes no others.
fn beside(server: &Server, authority: &Authority) -> Yardstick {
    let (address, authority) = (server.address, authority.pem.clone());
    // Whatever comes, it took its time.
    Yardstick::of_process(server.pid(), move || drop(handshake(address, &authority, &["h2"], None)))
}

async fn calls(server: Arc<Server>, tls: ClientTls, number: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let mut pace = interval(CALL_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut connected: Client = client(&server, &tls);
    let mut made = number;
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        made += 1;
        if made.is_multiple_of(CALLS_OF_A_CONNECTION) {
            connected = client(&server, &tls);
        }
        connected.counters().add_count(patient(add())).await.expect("no call fails");
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_replaced_under_load_is_shown_within_15_s_and_no_call_fails() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let pair = authority.local("server");
    let server = Arc::new(in_memory(&pair).start());
    let tls = trusting(&authority.file);
    let namespace = Namespace { name: "default".to_owned(), ..Namespace::default() };
    let create = CreateNamespaceRequest { namespace: Some(namespace), ..CreateNamespaceRequest::default() };
    client(&server, &tls).namespaces().create_namespace(patient(create)).await.expect("a namespace");
    let (stop, done): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
    let ends = EndsWith(&stop);
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            tokio::spawn(calls(Arc::clone(&server), tls.clone(), number, Arc::clone(&stop), Arc::clone(&done)))
        })
        .collect();
    let is_loaded = || done.load(Ordering::Relaxed) > 100 * CALLERS;
    assert!(tokio::task::block_in_place(|| eventually(Duration::from_secs(60), is_loaded)), "{}", server.printed());
    let (next, since) = (authority.local("next"), Instant::now());
    next.replaces(&pair);
    let shown = || handshake(server.address, &authority.pem, &["h2"], None).expect("a session").certificate;
    let is_new = || shown() == der(&next);
    let yardstick = beside(&server, &authority);
    tokio::task::block_in_place(|| yardstick.comes(since, SEEN_WITHIN, "the new certificate is shown", is_new));
    println!("seen after {:?}, {} calls", since.elapsed(), done.load(Ordering::Relaxed));
    let made = done.load(Ordering::Relaxed);
    let goes_on = || done.load(Ordering::Relaxed) > made + 20 * CALLERS;
    assert!(tokio::task::block_in_place(|| eventually(Duration::from_secs(60), goes_on)), "{}", server.printed());
    drop(ends);
    for caller in callers {
        caller.await.expect("no call failed");
    }
    assert_eq!(metric(&server, &authority.file, "tallystone_tls_reloads_total"), 1.0);
    assert_eq!(metric(&server, &authority.file, "tallystone_tls_handshakes_total{outcome=\"failed\"}"), 0.0);
}

#[test]
fn a_broken_pair_changes_nothing_and_shows_until_a_signal_brings_a_good_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let pair = authority.local("server");
    let first = der(&pair);
    let server = in_memory(&pair).start();
    let shown = || handshake(server.address, &authority.pem, &["h2"], None).expect("a session").certificate;
    let number = |name: &str| metric(&server, &authority.file, name);
    let expiry = number("tallystone_tls_certificate_expiry_timestamp_seconds");
    assert!(expiry > 0.0 && number("tallystone_tls_files_usable") == 1.0);
    let next = authority.local("next");
    let new_certificate = std::fs::read_to_string(&next.cert).expect("it is there");
    // A file that is none, the certificate of another key, and one that has expired.
    let expired = authority.issue("expired", Vec::new(), Some(Duration::ZERO));
    let breakers: [&dyn Fn(); 3] =
        [&|| replace(&pair.cert, "no PEM"), &|| replace(&pair.cert, &new_certificate), &|| expired.replaces(&pair)];
    for (breaks, failures) in breakers.into_iter().zip(1..) {
        breaks();
        server.signal(libc::SIGHUP);
        let is_counted = || number("tallystone_tls_reload_failures_total") == f64::from(failures);
        assert!(eventually(PATIENCE, is_counted), "{failures}: {}", server.printed());
        assert_eq!((number("tallystone_tls_files_usable"), shown()), (0.0, first.clone()));
    }
    // Looked at again, the same files are no news.
    server.signal(libc::SIGHUP);
    let told = |line: &str| server.printed().matches(line).count();
    assert!(eventually(PATIENCE, || told("SIGHUP") >= 4), "{}", server.printed());
    assert_eq!(told("cannot be used; the certificate of before is served"), 3, "{}", server.printed());
    assert_eq!(number("tallystone_tls_reloads_total"), 0.0);
    next.replaces(&pair);
    let (since, yardstick) = (Instant::now(), beside(&server, &authority));
    server.signal(libc::SIGHUP);
    yardstick.comes(since, HEARD_WITHIN, "the new certificate is shown", || shown() == der(&next));
    println!("seen after {:?}", since.elapsed());
    assert_eq!(number("tallystone_tls_files_usable"), 1.0);
    assert_eq!(number("tallystone_tls_reload_failures_total"), 3.0);
}
