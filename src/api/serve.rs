//! Connections: takes them, speaks HTTP/1.1 and HTTP/2 on them, and ends them when the server stops.
//!
//! One task for each connection; the number of connections, their calls, windows and headers are bounded. At the stop no
//! new connection or call is taken, calls under way are finished, and what is left at the deadline is cut off.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::gathered::Gathered;
use crate::api::http::Gateway;
use crate::domain::limits::{
    CONNECTION_CALLS_MAX, CONNECTION_WINDOW_BYTES, CONNECTIONS_MAX, HEADERS_BYTES_MAX, HEADERS_TIMEOUT,
    KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, STREAM_WINDOW_BYTES,
};

/// After an accept that failed (too many open files), the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the connections ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Connections that were open at the stop.
    pub open: usize,
    /// Connections that were cut off at the deadline.
    pub cut_off: usize,
}

/// Serves connections until the stop, then ends them within the deadline.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>, stop: CancellationToken, deadline: Duration) -> Ended {
    let builder = Arc::new(builder());
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let open = gateway.metrics().connections_open.clone();
                gateway.metrics().connections.inc();
                open.inc();
                let connection = connect(stream, peer, Arc::clone(&gateway), Arc::clone(&builder), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    open.dec();
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    end(connections, deadline).await
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer, place))
}

async fn end(mut connections: JoinSet<()>, deadline: Duration) -> Ended {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    let all = async { while connections.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(deadline, all).await.is_ok();
    let cut_off = if in_time { 0 } else { connections.len() };
    connections.shutdown().await;
    Ended { open, cut_off }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
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

async fn connect(
    stream: TcpStream,
    peer: SocketAddr,
    gateway: Arc<Gateway>,
    builder: Arc<Builder<TokioExecutor>>,
    stop: CancellationToken,
) {
    let first_byte = tokio::time::timeout(HEADERS_TIMEOUT, stream.readable());
    tokio::select! {
        readable = first_byte => if !matches!(readable, Ok(Ok(()))) {
            return;
        },
        () = stop.cancelled() => return,
    }
    let service = service_fn(move |request| {
        let gateway = Arc::clone(&gateway);
        // Boxed, because the libraries move the tasks of calls around, and a large task is slow to make.
        Box::pin(async move { Ok::<_, Infallible>(gateway.answer(request, peer).await) })
    });
    let connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut connection = Gathered::new(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.inner().as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, error, "a connection ended early");
    }
}
