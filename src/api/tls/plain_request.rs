//! HTTP without TLS on a port with TLS: a mistake of the caller, which is answered in its own language.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use tallystone_domain::limits::HEADERS_BYTES_MAX;

const ANSWER: &str = "this port speaks TLS; use https://\n";

/// Whether a connection begins with a request in clear text: its method is in capitals. A TLS client begins with
/// byte 22.
pub async fn begins(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let read = stream.peek(&mut first).await?;
    Ok(read == 1 && first[0].is_ascii_uppercase())
}

/// Tells the client what the port speaks.
pub async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{ANSWER}",
        ANSWER.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    close(stream).await
}

/// Closes a connection so that the client receives what was written to it: one that is closed with unread bytes is
/// reset.
pub async fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut left = stream.take(u64::from(HEADERS_BYTES_MAX));
    let mut unread = [0; 1024];
    while left.read(&mut unread).await? > 0 {}
    Ok(())
}
