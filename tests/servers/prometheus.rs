//! A Prometheus of the test's own, and promtool, which comes with it.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use super::free_port;

/// A Prometheus; dropping it kills it.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    reader: Option<thread::JoinHandle<()>>,
}

const MISSING: &str = "install it (Debian package prometheus)";

impl Prometheus {
    /// Starts one on a free port, with the settings `prometheus.yml` of a folder, where it keeps its data too.
    pub fn start(folder: &Path) -> Result<Self, String> {
        let free = free_port().and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| error.to_string())?;
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("prometheus does not start: {error}; {MISSING}"))?;
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut server = Self { child, address, reader: None };
        let mut said = String::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("Server is ready to receive web requests") => break,
                Some(Ok(line)) => said.push_str(&(line + "\n")),
                Some(Err(_)) | None => return Err(format!("prometheus ended before it was ready:\n{said}")),
            }
        }
        // Reads on, so that the server is never held up by a full pipe.
        server.reader = Some(thread::spawn(move || lines.for_each(drop)));
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Runs promtool on what it reads; answers what it printed, as an error if it found something.
pub fn promtool(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("promtool does not start: {error}; {MISSING}"))?;
    let mut pipe = child.stdin.take().expect("stdin is piped");
    // What ends before it has read everything says why on its output.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(printed) } else { Err(printed) }
}
