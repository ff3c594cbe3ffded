//! The byte stream of a connection: plain TCP, or TLS over it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::tls::{ALPN_HTTP_1, ALPN_HTTP_2, ClientCertificate};

/// The byte stream of a connection.
#[derive(Debug)]
pub enum Transport {
    Plain(TcpStream),
    /// Boxed, because the state of a session is large.
    Tls(Box<TlsStream<TcpStream>>),
}

/// The version of HTTP that both sides agreed on before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgreedHttp {
    Http1,
    Http2,
    /// The first bytes say it.
    Open,
}

impl Transport {
    /// Waits until the other end has sent something; fails if it has closed its side.
    pub async fn readable(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.readable().await,
            Self::Tls(stream) => match stream.fill_buf().await?.is_empty() {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(()),
            },
        }
    }

    /// The protocol that ALPN has decided.
    pub fn agreed_http(&self) -> AgreedHttp {
        match self {
            Self::Plain(_) => AgreedHttp::Open,
            Self::Tls(stream) => match stream.get_ref().1.alpn_protocol() {
                Some(protocol) if protocol == ALPN_HTTP_2 => AgreedHttp::Http2,
                Some(protocol) if protocol == ALPN_HTTP_1 => AgreedHttp::Http1,
                Some(_) | None => AgreedHttp::Open,
            },
        }
    }

    /// The certificate that the client has shown, if any.
    pub fn client_certificate(&self) -> Option<ClientCertificate> {
        let Self::Tls(stream) = self else { return None };
        ClientCertificate::read(stream.get_ref().1.peer_certificates()?.first()?)
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
