//! A ChromeDriver of the test's own. It starts the browsers that a test asks it for.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;

use super::free_port;

/// A ChromeDriver; dropping it kills it. Browsers end with their sessions, so end these first.
pub struct Chromedriver {
    child: Child,
    address: SocketAddr,
    reader: Option<thread::JoinHandle<()>>,
}

impl Chromedriver {
    /// Starts one on a free port.
    pub fn start() -> Result<Self, String> {
        let free = free_port().and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| error.to_string())?;
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port())).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| {
            format!("chromedriver does not start: {error}; install it (Debian packages chromium and chromium-driver)")
        })?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut server = Self { child, address, reader: None };
        let mut said = String::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("started successfully") => break,
                Some(Ok(line)) => said.push_str(&(line + "\n")),
                Some(Err(_)) | None => return Err(format!("chromedriver ended before it was ready:\n{said}")),
            }
        }
        // Reads on, so that the server is never held up by a full pipe.
        server.reader = Some(thread::spawn(move || lines.for_each(drop)));
        Ok(server)
    }

    /// Its base address for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Chromedriver {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
