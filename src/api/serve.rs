//! Connections: accepts them, serves HTTP/1.1 and HTTP/2 on them, and ends them when the server stops.
//!
//! Each connection has one task. The numbers of connections, calls, windows and headers are bounded. At the stop no new
//! connection or call is accepted, calls in flight are finished, and connections open at the deadline are cut off.

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

use crate::api::connection_limits::ConnectionLimits;
use crate::api::http::{Buffers, CallExecutor, Caller, ConnectionRefusal, Gateway, StallGuard};
use crate::api::yield_before_write::YieldBeforeWrite;
use crate::domain::limits::{
    ANSWER_UNTAKEN_MAX, BUFFER_BYTES_DEFAULT, CONNECTION_CALLS_MAX, CONNECTION_WINDOW_BYTES, CONNECTIONS_MAX,
    HEADERS_BYTES_MAX, HEADERS_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, SPARE_CONNECTION_TIME,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionDrainSummary {
    /// Connections that were open at the stop.
    pub open: usize,
    /// Connections that were cut off at the deadline.
    pub cut_off: usize,
}

/// Serves connections until the stop, then ends them within the deadline.
pub async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    stop: CancellationToken,
    deadline: Duration,
    bounds: ServeLimits,
) -> ConnectionDrainSummary {
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
                let caller = Arc::new(Caller::new(peer, Arc::clone(&buffers), bounds.stall_max));
                let (gateway, untaken_max, resets) = (Arc::clone(&gateway), bounds.stall_max, resets.clone());
                let connection =
                    serve_connection(stream, ConnectionContext { gateway, caller, untaken_max, resets }, stop.clone());
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
                    let gateway = Arc::clone(&gateway);
                    connections.spawn(async move {
                        if !serve_page(stream, &gateway, Arc::new(caller)).await {
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
    drain_connections(connections, deadline).await
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

/// Answers one request for a page within a short time; returns whether it was one.
async fn serve_page(stream: TcpStream, gateway: &Arc<Gateway>, caller: Arc<Caller>) -> bool {
    let served = AtomicBool::new(false);
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
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let ended = tokio::time::timeout(SPARE_CONNECTION_TIME, connection).await;
    ended.is_ok_and(|ended| ended.is_ok()) && served.load(Ordering::Relaxed)
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
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(CONNECTION_CALLS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    builder
}

/// The settings and state that serve a connection.
struct ConnectionContext {
    gateway: Arc<Gateway>,
    caller: Arc<Caller>,
    untaken_max: Duration,
    resets: Counter,
}

async fn serve_connection(stream: TcpStream, served: ConnectionContext, stop: CancellationToken) {
    let first_byte = tokio::time::timeout(HEADERS_TIMEOUT, stream.readable());
    tokio::select! {
        readable = first_byte => if !matches!(readable, Ok(Ok(()))) {
            return;
        },
        () = stop.cancelled() => return,
    }
    let ConnectionContext { gateway, caller, untaken_max, resets } = served;
    let (peer, no_place) = (caller.peer, caller.no_place.clone());
    let service = service_fn(move |request| {
        let (gateway, caller) = (Arc::clone(&gateway), Arc::clone(&caller));
        // Boxed, because the libraries move the tasks of calls, and moving a large task is slow.
        Box::pin(async move { Ok::<_, Infallible>(gateway.answer(request, caller).await) })
    });
    let builder = builder(CallExecutor::new(untaken_max, resets.clone()));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // The task of an HTTP/1.1 connection is that of its only answer; calls of HTTP/2 have tasks of their own.
    let connection = StallGuard::new(connection, untaken_max, resets);
    let mut connection = YieldBeforeWrite::new(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = async { tokio::select! { () = stop.cancelled() => {} () = no_place.cancelled() => {} } } => {
            connection.inner().inner().graceful_shutdown();
            connection.await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%peer, error, "a connection ended early");
    }
}
