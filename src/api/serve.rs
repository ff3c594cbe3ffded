//! Connections: accepts them, serves HTTP/1.1 and HTTP/2 on them, and ends them when the server stops.
//!
//! Each connection has one task, in which it also makes its TLS handshake. The numbers of connections, calls, windows
//! and headers are bounded. At the stop no new connection or call is accepted, calls in flight are finished, and
//! connections open at the deadline are cut off.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prometheus_client::metrics::counter::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection_limits::ConnectionLimits;
use crate::http::{Buffers, CallExecutor, Caller, ConnectionRefusal, Gateway, HEADERS_THAT_FIT, StallGuard};
use crate::tls::{ClientCertificate, OfferedHttp, TlsPort};
use crate::transport::{AgreedHttp, Transport};
use crate::yield_before_write::YieldBeforeWrite;
use tallystone_domain::limits::{
    ANSWER_UNTAKEN_MAX, BUFFER_BYTES_DEFAULT, CONNECTION_CALLS_MAX, CONNECTION_WINDOW_BYTES, CONNECTIONS_MAX,
    HEADERS_TIMEOUT, HEADERS_WIRE_BYTES_MAX, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, SPARE_CONNECTION_TIME,
    SPARE_CONNECTIONS_MAX, STREAM_WINDOW_BYTES,
};

/// The pause after a failed accept (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The limits of the connections of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServeLimits {
    pub connections: usize,
    /// The bytes of requests and responses in flight, half each.
    pub buffer_bytes: usize,
    /// The timeout of an unread large response, and of an unfinished message.
    pub stall_max: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self { connections: CONNECTIONS_MAX, buffer_bytes: BUFFER_BYTES_DEFAULT, stall_max: ANSWER_UNTAKEN_MAX }
    }
}

/// The socket on which connections come in, and the TLS that secures them.
pub struct Listener {
    pub tcp: TcpListener,
    /// None: connections are in clear text.
    pub tls: Option<Arc<TlsPort>>,
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self { tcp, tls: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionDrainSummary {
    /// Connections that were open at the stop.
    pub open: usize,
    /// Connections that were cut off at the deadline.
    pub cut_off: usize,
}

/// Serves connections until the stop, then ends them within the deadline.
pub async fn serve(
    listener: impl Into<Listener>,
    gateway: Arc<Gateway>,
    stop: CancellationToken,
    deadline: Duration,
    bounds: ServeLimits,
) -> ConnectionDrainSummary {
    let Listener { tcp: listener, tls } = listener.into();
    let resets = gateway.metrics().answers_reset.clone();
    let buffers = Arc::new(Buffers::new(bounds.buffer_bytes, gateway.metrics()));
    let shares = Arc::new(ConnectionLimits::new(bounds.connections));
    let spare = Arc::new(Semaphore::new(SPARE_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match shares.acquire(peer.ip()) {
            Ok(seat) => {
                let open = gateway.metrics().connections_open.clone();
                gateway.metrics().connections.inc();
                open.inc();
                let caller = Caller::new(peer, Arc::clone(&buffers), bounds.stall_max);
                let (gateway, untaken_max, resets) = (Arc::clone(&gateway), bounds.stall_max, resets.clone());
                let context = ConnectionContext { gateway, caller, tls: tls.clone(), untaken_max, resets };
                let connection = serve_connection(stream, context, stop.clone());
                connections.spawn(async move {
                    connection.await;
                    open.dec();
                    drop(seat);
                });
            }
            // Health checks often come from the address of the clients.
            Err(full) => match Arc::clone(&spare).try_acquire_owned() {
                Ok(place) => {
                    let caller = Caller::new(peer, Arc::clone(&buffers), bounds.stall_max);
                    let (gateway, tls) = (Arc::clone(&gateway), tls.clone());
                    connections.spawn(async move {
                        if !serve_page(stream, tls.as_deref(), &gateway, caller).await {
                            refuse(&gateway, peer, full);
                        }
                        drop(place);
                    });
                }
                Err(_all_taken) => refuse(&gateway, peer, full),
            },
        }
    }
    drop(listener);
    let stopped = gateway.clock().elapsed();
    let ended = drain_connections(connections, deadline).await;
    let used = gateway.clock().elapsed().saturating_sub(stopped);
    gateway.drain_recorded(deadline.saturating_sub(used)).await;
    ended
}

fn refuse(gateway: &Gateway, peer: SocketAddr, full: ConnectionRefusal) {
    gateway.metrics().refused(full);
    let address = peer.ip();
    match full {
        ConnectionRefusal::Server => {
            tracing::warn!(%address, "a connection was refused: the server has its maximum of connections");
        }
        ConnectionRefusal::Address => {
            tracing::warn!(%address, "a connection was refused: its address has its maximum of connections");
        }
    }
}

/// Answers one request for a page over HTTP/1.1 within a short time; returns whether it was one.
async fn serve_page(stream: TcpStream, tls: Option<&TlsPort>, gateway: &Arc<Gateway>, mut caller: Caller) -> bool {
    let served = AtomicBool::new(false);
    let connection = async {
        let transport = secure(stream, tls, OfferedHttp::Http1).await?;
        identify(&mut caller, &transport);
        let caller = Arc::new(caller);
        let service = service_fn(|request| {
            let (gateway, caller) = (Arc::clone(gateway), Arc::clone(&caller));
            let is_page = Gateway::is_page(&request);
            served.store(is_page, Ordering::Relaxed);
            async move {
                match is_page {
                    true => Ok(gateway.answer(request, caller).await),
                    false => Err(io::Error::other("only pages are available here")),
                }
            }
        });
        http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(transport), service).await.ok()
    };
    let ended = tokio::time::timeout(SPARE_CONNECTION_TIME, connection).await;
    ended.is_ok_and(|ended| ended.is_some()) && served.load(Ordering::Relaxed)
}

/// Notes what the transport of a connection says of its client.
fn identify(caller: &mut Caller, transport: &Transport) {
    caller.is_tls = transport.is_tls();
    caller.certificate = transport.client_certificate();
}

/// Makes the handshake where the port has TLS. None if there is no session.
async fn secure(stream: TcpStream, tls: Option<&TlsPort>, offered: OfferedHttp) -> Option<Transport> {
    match tls {
        None => Some(Transport::Plain(stream)),
        Some(tls) => tls.accept(stream, offered).await.map(Transport::Tls),
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

async fn drain_connections(mut connections: JoinSet<()>, deadline: Duration) -> ConnectionDrainSummary {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    let all = async { while connections.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(deadline, all).await.is_ok();
    let cut_off = if in_time { 0 } else { connections.len() };
    connections.shutdown().await;
    ConnectionDrainSummary { open, cut_off }
}

fn builder(streams: CallExecutor) -> Builder<CallExecutor> {
    let mut builder = Builder::new(streams);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT).max_headers(HEADERS_THAT_FIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(CONNECTION_CALLS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADERS_WIRE_BYTES_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// The settings and state that serve a connection.
struct ConnectionContext {
    gateway: Arc<Gateway>,
    caller: Caller,
    tls: Option<Arc<TlsPort>>,
    untaken_max: Duration,
    resets: Counter,
}

/// Waits until a connection is secured and its client has sent something. None if it will send nothing.
async fn begin(stream: TcpStream, tls: Option<&TlsPort>) -> Option<Transport> {
    let mut transport = secure(stream, tls, OfferedHttp::Any).await?;
    let first_byte = tokio::time::timeout(HEADERS_TIMEOUT, transport.readable()).await;
    matches!(first_byte, Ok(Ok(()))).then_some(transport)
}

/// Waits until the certificate of a client is not valid any more; without one, forever.
fn expiry(certificate: Option<&ClientCertificate>, gateway: &Gateway) -> impl Future<Output = ()> + use<> {
    let left = certificate.map(|certificate| certificate.expires.since(gateway.clock().now()));
    async move {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }
}

async fn serve_connection(stream: TcpStream, served: ConnectionContext, stop: CancellationToken) {
    let ConnectionContext { gateway, mut caller, tls, untaken_max, resets } = served;
    let transport = tokio::select! {
        begun = begin(stream, tls.as_deref()) => match begun {
            Some(transport) => transport,
            None => return,
        },
        () = stop.cancelled() => return,
    };
    let (peer, no_place) = (caller.peer, caller.no_place.clone());
    identify(&mut caller, &transport);
    let expired = expiry(caller.certificate.as_ref(), &gateway);
    let caller = Arc::new(caller);
    let service = service_fn(move |request| {
        let (gateway, caller) = (Arc::clone(&gateway), Arc::clone(&caller));
        // Boxed, because the libraries move the tasks of calls, and moving a large task is slow.
        Box::pin(async move { Ok::<_, Infallible>(gateway.answer(request, caller).await) })
    });
    let builder = builder(CallExecutor::new(untaken_max, resets.clone()));
    let builder = match transport.agreed_http() {
        AgreedHttp::Http1 => builder.http1_only(),
        AgreedHttp::Http2 => builder.http2_only(),
        AgreedHttp::Open => builder,
    };
    let connection = builder.serve_connection(TokioIo::new(transport), service);
    // The task of an HTTP/1.1 connection is that of its only answer; calls of HTTP/2 have tasks of their own.
    let connection = StallGuard::new(connection, untaken_max, resets);
    let mut connection = YieldBeforeWrite::new(connection);
    let serving = async {
        tokio::select! {
            ended = &mut connection => ended,
            () = async { tokio::select! { () = stop.cancelled() => {} () = no_place.cancelled() => {} } } => {
                connection.inner().inner().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! {
        ended = serving => ended,
        // Its calls end with it: they came in under a certificate that is not valid any more.
        () = expired => return,
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%peer, error, "a connection ended early");
    }
}
