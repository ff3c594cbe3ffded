//! TLS of the listening port: the handshake, inside the task of its connection, and its numbers.
//!
//! The certificate can be replaced at any time. A connection keeps what it began with; new ones begin with the new one.
//! Invariant: a failed handshake costs its connection only. It is counted, and logged at the level debug.

mod certificate;
mod client_certificate;
mod metrics;
mod plain_request;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use tallystone_domain::limits::TLS_HANDSHAKE_WITHIN;

pub use certificate::CertificateFields;
pub use client_certificate::ClientCertificate;
pub use metrics::{HandshakeOutcome, TlsMetrics};

/// HTTP/2 and HTTP/1.1, as ALPN names them.
pub const ALPN_HTTP_2: &[u8] = b"h2";
pub const ALPN_HTTP_1: &[u8] = b"http/1.1";

/// How long a client that is refused may take to close its side.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// The certificate that a port with TLS shows to its clients.
pub struct TlsPort {
    current: ArcSwap<OfferedTls>,
    metrics: TlsMetrics,
}

/// The same certificate with each list of protocols.
struct OfferedTls {
    any_http: Arc<ServerConfig>,
    http_1: Arc<ServerConfig>,
}

/// The protocols that a connection may speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferedHttp {
    /// HTTP/2 and HTTP/1.1.
    Any,
    /// HTTP/1.1 only.
    Http1,
}

impl TlsPort {
    /// A port that shows the certificate of a configuration. The port decides on the protocols itself.
    pub fn new(config: ServerConfig, metrics: TlsMetrics) -> Self {
        Self { current: ArcSwap::from_pointee(OfferedTls::new(config)), metrics }
    }

    /// Shows another certificate to all connections that begin from here on.
    pub fn replace(&self, config: ServerConfig) {
        self.current.store(Arc::new(OfferedTls::new(config)));
    }

    /// Makes the handshake of a connection, within its time. None if there is no session; then the connection is over.
    pub async fn accept(&self, stream: TcpStream, offered: OfferedHttp) -> Option<Box<TlsStream<TcpStream>>> {
        // Boxed, because the state of a handshake is large and soon gone.
        let handshake = Box::pin(self.handshake(stream, offered));
        let (outcome, session) = match tokio::time::timeout(TLS_HANDSHAKE_WITHIN, handshake).await {
            Ok(Ok(Some(session))) => (HandshakeOutcome::Done, Some(Box::new(session))),
            Ok(Ok(None)) => (HandshakeOutcome::PlainText, None),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                (HandshakeOutcome::Failed, None)
            }
            Err(_elapsed) => (HandshakeOutcome::TimedOut, None),
        };
        self.metrics.handshake(outcome);
        session
    }

    /// None: the client spoke HTTP without TLS, and was told so.
    async fn handshake(&self, stream: TcpStream, offered: OfferedHttp) -> io::Result<Option<TlsStream<TcpStream>>> {
        if plain_request::begins(&stream).await? {
            plain_request::refuse(stream).await?;
            return Ok(None);
        }
        let config = {
            let current = self.current.load();
            Arc::clone(match offered {
                OfferedHttp::Any => &current.any_http,
                OfferedHttp::Http1 => &current.http_1,
            })
        };
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(session) => Ok(Some(session)),
            Err((error, stream)) => {
                // It has been told why; that it does not listen to the end changes nothing.
                let _ = tokio::time::timeout(HEARD_WITHIN, plain_request::close(stream)).await;
                Err(error)
            }
        }
    }
}

impl OfferedTls {
    fn new(config: ServerConfig) -> Self {
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        Self { any_http: speaking(&[ALPN_HTTP_2, ALPN_HTTP_1]), http_1: speaking(&[ALPN_HTTP_1]) }
    }
}
