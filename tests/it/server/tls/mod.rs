//! TLS of the port: what is spoken, whom clients trust, how the certificate is replaced, and what client certificates open.

mod client_certificates;
mod development;
mod handshakes;
mod replaced;
mod trust;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tallystone::client::{Client, ClientTls, RetryPolicy};

use crate::support::certificates::Pair;
use crate::support::harness::{Launch, PATIENCE, Server};

/// How long a handshake of a test may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(60);

/// What a handshake showed.
struct Session {
    /// The certificate of the server.
    certificate: Vec<u8>,
    /// The protocol that both speak.
    protocol: Option<String>,
}

/// A server without files of data, which asks for no keys.
pub fn in_memory(pair: &Pair) -> Launch {
    with_settings(pair, &["auth.mode=off", "counters.engine=memory", "queues.engine=memory"])
}

/// A server with a certificate and other settings.
fn with_settings(pair: &Pair, settings: &[&str]) -> Launch {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command.args(["--set", &format!("tls.cert_file={}", pair.cert.display())]);
    command.args(["--set", &format!("tls.key_file={}", pair.key.display())]);
    Launch::of(command)
}

/// Makes a handshake with a server, and sends nothing.
fn handshake(
    address: SocketAddr,
    authority: &str,
    protocols: &[&str],
    shown: Option<&Pair>,
) -> Result<Session, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the default versions").with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_file(&pair.cert).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
            config.with_client_auth_cert(chain, key).expect("a pair")
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::from(address.ip());
    let mut session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(HANDSHAKE_WITHIN)).expect("a time");
    while session.is_handshaking() {
        session.complete_io(&mut stream).map_err(|error| error.to_string())?;
    }
    let certificate = session.peer_certificates().and_then(|chain| chain.first()).expect("a certificate").to_vec();
    let protocol = session.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned());
    Ok(Session { certificate, protocol })
}

/// The certificate in a file, as a handshake shows it.
fn der(pair: &Pair) -> Vec<u8> {
    CertificateDer::from_pem_file(&pair.cert).expect("a certificate").to_vec()
}

fn trusting(authority: &Path) -> ClientTls {
    ClientTls::default().trusting(fs::read(authority).expect("it is there")).expect("an authority")
}

/// A client that tries each call once.
fn client(server: &Server, tls: &ClientTls) -> Client {
    let policy = RetryPolicy { attempts_max: 1, total: PATIENCE, attempt_max: PATIENCE, ..RetryPolicy::default() };
    Client::of_tls(&[&url(server)], tls, policy).expect("an address")
}

fn url(server: &Server) -> String {
    format!("https://{}", server.address)
}

/// Runs curl; answers its exit code and what it printed.
fn curl(arguments: &[&str]) -> (i32, String) {
    let ran = Command::new("curl").args(["-sS", "-m", "30"]).args(arguments).output().expect("curl is installed");
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.code().expect("nobody kills it"), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a command of ours; answers its exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let ran = Command::new(env!("CARGO_BIN_EXE_tallystone")).args(arguments).output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (ran.status.code().expect("nobody kills it"), text(ran.stdout), text(ran.stderr))
}

/// A metric of a server, read by TLS.
fn metric(server: &Server, authority: &Path, name: &str) -> f64 {
    let authority = authority.to_str().expect("UTF-8");
    let (code, page) = curl(&["--cacert", authority, &format!("{}/metrics", url(server))]);
    assert_eq!(code, 0, "{page}");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no metric {name} in:\n{page}"))
}
