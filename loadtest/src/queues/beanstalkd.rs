//! beanstalkd, a work queue in one process, beside: with an fsync for each write, and in memory.
//!
//! Of its protocol, lines of text, three commands are spoken here: put, reserve-with-timeout and delete. A connection has
//! one command under way, so there is a connection for each call in flight.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::messages::PAYLOAD;
use crate::load::{Call, Span, closed};
use crate::report::Report;

const IN_FLIGHT: usize = 64;
const UP_WITHIN: Duration = Duration::from_secs(60);
/// The program, where one is installed.
const PROGRAM: &str = "beanstalkd";

/// A beanstalkd of its own; it is killed at the end.
pub struct Beanstalkd {
    child: Option<Child>,
    address: SocketAddr,
}

/// Puts, and reserves with deletes, as many as came to an end.
pub struct Outcome {
    /// Jobs taken in.
    pub puts: Report,
    /// Jobs given out and deleted.
    pub pairs: Report,
}

impl Beanstalkd {
    /// One that runs already.
    pub fn at(address: SocketAddr) -> Self {
        Self { child: None, address }
    }

    /// Starts one, if it is installed: with a log in a folder that is synced after each write, or in memory.
    pub async fn start(folder: Option<&Path>) -> Result<Option<Self>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(PROGRAM);
        command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder)?;
            command.args(["-f", "0", "-b"]).arg(folder);
        }
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(PROGRAM),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Self { child: Some(child), address };
        let begun = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            anyhow::ensure!(begun.elapsed() < UP_WITHIN, "{PROGRAM} does not listen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Some(server))
    }

    /// Puts as fast as they are answered, then takes out and deletes as fast.
    pub async fn run(&self, span: Span) -> Result<Outcome> {
        let mut puts = Vec::new();
        for _ in 0..IN_FLIGHT {
            puts.push(Put(Connection::open(self.address).await?));
        }
        let puts = closed(puts, span).await;
        let mut pairs = Vec::new();
        for _ in 0..IN_FLIGHT {
            pairs.push(Pair(Connection::open(self.address).await?));
        }
        Ok(Outcome { puts, pairs: closed(pairs, span).await })
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only when it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One connection, with one command under way.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command; answers the words of the line that comes back.
    async fn ask(&mut self, command: &[u8]) -> Result<Vec<String>> {
        self.0.get_mut().write_all(command).await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }

    async fn put(&mut self, body: &[u8]) -> Result<()> {
        let head = format!("put 0 0 60 {}\r\n", body.len());
        let answer = self.ask(&[head.as_bytes(), body, b"\r\n"].concat()).await?;
        anyhow::ensure!(answer.first().is_some_and(|word| word == "INSERTED"), "put: {answer:?}");
        Ok(())
    }

    /// The number of the next job.
    async fn reserve(&mut self) -> Result<String> {
        let answer = self.ask(b"reserve-with-timeout 1\r\n").await?;
        let [word, id, bytes] = &answer[..] else { anyhow::bail!("reserve: {answer:?}") };
        anyhow::ensure!(word == "RESERVED", "reserve: {answer:?}");
        let mut body = vec![0; bytes.parse::<usize>()? + 2];
        self.0.read_exact(&mut body).await?;
        Ok(id.clone())
    }

    async fn delete(&mut self, id: &str) -> Result<()> {
        let answer = self.ask(format!("delete {id}\r\n").as_bytes()).await?;
        anyhow::ensure!(answer == ["DELETED"], "delete: {answer:?}");
        Ok(())
    }
}

/// One put at a time.
struct Put(Connection);

impl Call for Put {
    async fn call(&mut self) -> Result<u64, String> {
        self.0.put(&[b'x'; PAYLOAD]).await.map(|()| 1).map_err(|error| error.to_string())
    }
}

/// One job at a time, reserved and deleted.
struct Pair(Connection);

impl Pair {
    async fn next(&mut self) -> Result<()> {
        let id = self.0.reserve().await?;
        self.0.delete(&id).await
    }
}

impl Call for Pair {
    async fn call(&mut self) -> Result<u64, String> {
        self.next().await.map(|()| 1).map_err(|error| error.to_string())
    }
}
