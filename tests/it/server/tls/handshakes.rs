//! What is spoken on a port with TLS, and what becomes of those who do not speak it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tallystone::proto::counter::v1::AddCountRequest;

use super::{client, curl, handshake, in_memory, metric, run, trusting, url};
use crate::support::beside;
use crate::support::certificates::Authority;
use crate::support::harness::{IN_MEMORY, Launch, PATIENCE, eventually, http};

/// The tries of what a machine that stands still for seconds keeps from being judged.
const TRIES: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_http_and_grpc_are_spoken_over_tls() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let server = in_memory(&authority.local("server")).start();
    let speaks = |offered: &[&str]| {
        handshake(server.address, &authority.pem, offered, None).map(|session| session.protocol.unwrap_or_default())
    };
    assert_eq!(speaks(&["h2", "http/1.1"]).as_deref(), Ok("h2"));
    assert_eq!(speaks(&["http/1.1"]).as_deref(), Ok("http/1.1"));
    assert_eq!(speaks(&[]).as_deref(), Ok(""));
    assert!(speaks(&["spdy/3"]).is_err_and(|error| error.contains("NoApplicationProtocol")));
    let ca = authority.file.to_str().expect("UTF-8");
    for (version, wanted) in [("--http1.1", "1.1 200"), ("--http2", "2 200"), ("--no-alpn", "1.1 200")] {
        let page = format!("{}/healthz", url(&server));
        let answer =
            curl(&["--cacert", ca, version, "-o", "/dev/null", "-w", "%{http_version} %{response_code}", &page]);
        assert_eq!(answer, (0, wanted.to_owned()), "{version}");
    }
    let add = AddCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        delta: Some(1),
        ..AddCountRequest::default()
    };
    let refused = client(&server, &trusting(&authority.file)).counters().add_count(add).await;
    let refused = refused.expect_err("there is no namespace");
    assert_eq!(refused.code(), tonic::Code::NotFound, "the service answers: {refused:?}");
}

#[test]
fn http_without_tls_is_told_what_the_port_speaks() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let server = in_memory(&authority.local("server")).start();
    let name = "tallystone_tls_handshakes_total{outcome=\"plain_text\"}";
    let before = metric(&server, &authority.file, name);
    let answer = http(server.address, "POST", "/healthz", &[], "body").expect("an answer");
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("https://"), "{answer:?}");
    assert_eq!(metric(&server, &authority.file, name), before + 1.0);
    assert!(!server.printed().contains("WARN"), "a stranger fills no log: {}", server.printed());
}

#[test]
fn a_handshake_that_does_not_end_is_cut_off_after_ten_seconds() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let server = in_memory(&authority.local("server")).start();
    // Nothing at all, and the beginning of a first message.
    let began: [&[u8]; 2] = [b"", &[22, 3, 1, 2, 0, 1]];
    let yardstick = beside(&server);
    thread::scope(|scope| {
        for bytes in began {
            scope.spawn(|| {
                let since = Instant::now();
                let mut stream = TcpStream::connect(server.address).expect("it takes connections");
                stream.set_read_timeout(Some(PATIENCE)).expect("a time");
                stream.write_all(bytes).expect("it reads");
                let ended = stream.read_to_end(&mut Vec::new());
                let took = since.elapsed();
                assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
                assert!(took >= Duration::from_secs(9), "{took:?}");
                yardstick.holds(since, Duration::from_secs(25), "the handshake is cut off");
            });
        }
    });
    drop(yardstick);
    assert_eq!(metric(&server, &authority.file, "tallystone_tls_handshakes_total{outcome=\"timed_out\"}"), 2.0);
}

#[test]
fn health_is_read_by_tls_when_all_connections_of_an_address_are_taken() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let pair = authority.local("server");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 330 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tallystone"), "server", "start"]);
    command.args(["--listen", "127.0.0.1:0", "--set", "auth.mode=off"]);
    command.args(IN_MEMORY);
    command.arg("--set").arg(format!("tls.cert_file={}", pair.cert.display()));
    command.arg("--set").arg(format!("tls.key_file={}", pair.key.display()));
    let server = Launch::of(command).start();
    let page = format!("{}/healthz", url(&server));
    let ca = authority.file.to_str().expect("UTF-8");
    let is_read = || curl(&["--cacert", ca, &page]) == (0, "ok\n".to_owned());
    let is_read_beside = |_| {
        // Each holds a connection for as long as a handshake may take. Only before that it is known that all are taken.
        let since = Instant::now();
        let _silent: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address).expect("it listens")).collect();
        server.wait_for_line("its address has its maximum of connections");
        eventually(Duration::from_secs(8), is_read) && since.elapsed() < Duration::from_secs(10)
    };
    assert!((0..TRIES).any(is_read_beside), "{}", server.printed());
}

#[test]
fn files_that_do_not_fit_keep_a_server_from_starting_and_say_why() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let (pair, other) = (authority.local("server"), authority.local("other"));
    let text = folder.path().join("text.pem");
    std::fs::write(&text, "no PEM").expect("it can be written");
    let missing = folder.path().join("missing.pem");
    let (encrypted, reversed) = (folder.path().join("encrypted.pem"), pair.among(&authority.pem, "").cert);
    let mut locking = Command::new("openssl");
    locking.args(["pkey", "-aes256", "-passout", "pass:secret", "-in"]).arg(&pair.key).arg("-out").arg(&encrypted);
    assert!(locking.status().expect("openssl is there").success());
    let refused = |launch: Launch| launch.try_start().err().expect("it is refused");
    for (cert, key, words) in [
        (&pair.cert, &other.key, "is not the key of"),
        (&reversed, &pair.key, "wrong order: the one of the private key is number 2 in it; put it first"),
        (&pair.cert, &encrypted, "is encrypted, and a password cannot be given; decrypt it"),
        (&pair.key, &pair.cert, "but a private key; are the two files swapped?"),
        (&text, &pair.key, "has no certificate in PEM form"),
        (&pair.cert, &text, "has no private key in PEM form"),
        (&missing, &pair.key, "tls.cert_file"),
    ] {
        let launch = in_memory(&crate::support::certificates::Pair { cert: cert.clone(), key: key.clone() });
        let (status, printed) = refused(launch);
        assert_eq!(status.code(), Some(2), "{printed}");
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let launch = in_memory(&pair).arg("--set").arg("tls.client_auth=required");
    let (status, printed) = refused(launch);
    assert!(status.code() == Some(2) && printed.contains("tls.client_ca_file must name"), "{printed}");
}

#[test]
fn a_file_of_other_servers_authorities_that_cannot_be_used_keeps_a_server_from_starting() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::new(folder.path(), "one");
    let pair = authority.local("server");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("it can be written");
        file
    };
    let no_certificate = write("none.pem", "no PEM");
    let broken = write("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let missing = folder.path().join("missing.pem");
    let clear_text = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off"]);
        command.args(IN_MEMORY);
        Launch::of(command)
    };
    for (file, words) in [
        (&missing, "cannot be read"),
        (&no_certificate, "has no certificate in PEM form"),
        (&broken, "has a certificate that cannot be used"),
    ] {
        let setting = format!("tls.peer_ca_file={}", file.display());
        let told = format!("tls.peer_ca_file {} {words}", file.display());
        for launch in [clear_text(), in_memory(&pair)] {
            let (status, printed) = launch.arg("--set").arg(&setting).try_start().err().expect("it is refused");
            assert!(status.code() == Some(2) && printed.contains(&told), "{told}: {printed}");
        }
        let check = ["server", "check-config", "--set", &setting, "--set", "auth.mode=off"];
        let (code, _, printed) = run(&[&check[..], &IN_MEMORY].concat());
        assert!(code == 2 && printed.contains(&told), "{told}: {printed}");
    }
    let good = format!("tls.peer_ca_file={}", authority.file.display());
    drop(in_memory(&pair).arg("--set").arg(&good).start());
}
