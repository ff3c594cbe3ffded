//! The process under load: started on a free port and a directory of its own, looked at from outside, killed by its
//! number.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const READY_WITHIN: Duration = Duration::from_secs(120);
const POLL_EVERY: Duration = Duration::from_millis(1);

/// A started process that listens.
pub struct Target {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    printed_bytes: Arc<AtomicU64>,
    /// Where it listens.
    pub address: SocketAddr,
    /// From the start of the process until it was ready.
    pub ready_after: Duration,
}

impl Target {
    /// Starts `tallystone dev` on a data directory.
    pub fn server(binary: &Path, data: &Path) -> Result<Self> {
        Self::server_with(binary, data, &[])
    }

    /// The same with further arguments.
    pub fn server_with(binary: &Path, data: &Path, arguments: &[&str]) -> Result<Self> {
        let data = data.to_str().context("the path of a data directory is text")?;
        Self::dev(binary, &[&["--data", data], arguments].concat())
    }

    /// Starts `tallystone dev` on a data directory with so many descriptors at most, soft and hard.
    pub fn server_with_descriptors(binary: &Path, data: &Path, arguments: &[&str], descriptors: u32) -> Result<Self> {
        ensure_built(binary)?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]).arg(binary);
        command.args(["dev", "--listen", "127.0.0.1:0"]).args(arguments).arg("--data").arg(data);
        Self::ready(command)
    }

    /// Starts `tallystone dev` with these arguments.
    pub fn dev(binary: &Path, arguments: &[&str]) -> Result<Self> {
        ensure_built(binary)?;
        let mut command = Command::new(binary);
        command.args(["dev", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::ready(command)
    }

    /// Starts `tallystone dev --tls` on a data directory, and waits until it listens. It may not be ready by then.
    pub fn by_tls(binary: &Path, data: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(["dev", "--tls", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Self::start(command)
    }

    /// Starts a server by a command of its own and waits until it is ready.
    pub fn ready(command: Command) -> Result<Self> {
        let mut target = Self::start(command)?;
        let begun = Instant::now();
        while !http_get(target.address, "/readyz").is_ok_and(|(status, _)| status == 200) {
            ensure!(begun.elapsed() < READY_WITHIN, "the server was not ready within {READY_WITHIN:?}");
            if let Some(status) = target.child.try_wait()? {
                bail!("the server ended with {status} before it was ready");
            }
            std::thread::sleep(POLL_EVERY);
        }
        target.ready_after += begun.elapsed();
        Ok(target)
    }

    /// Starts the echo of this program.
    pub fn echo() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("echo-serve");
        Self::start(command)
    }

    /// Starts a process and waits for the address in what it prints.
    fn start(mut command: Command) -> Result<Self> {
        let begun = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (found, lines) = std::sync::mpsc::sync_channel(64);
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let printed_bytes = Arc::new(AtomicU64::new(0));
        let readers = vec![
            follow(stdout, found.clone(), Arc::clone(&printed_bytes)),
            follow(stderr, found, Arc::clone(&printed_bytes)),
        ];
        let mut printed = Vec::new();
        let address = loop {
            let Ok(line) = lines.recv_timeout(READY_WITHIN) else {
                let _ = child.kill(); // it may have ended by itself
                bail!("{command:?} printed no address:\n{}", printed.join("\n"));
            };
            match address_in(&line) {
                Some(address) => break address,
                None => printed.push(line),
            }
        };
        Ok(Self { child, readers, printed_bytes, address, ready_after: begun.elapsed() })
    }

    /// The base address for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The bytes that it has printed.
    pub fn printed_bytes(&self) -> u64 {
        self.printed_bytes.load(Ordering::Relaxed)
    }

    /// Its metrics, in the text form.
    pub fn metrics(&self) -> Result<String> {
        Ok(http_get(self.address, "/metrics")?.1)
    }
}

impl Drop for Target {
    /// kill -9.
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join(); // a reader that panicked has nothing more to say
        }
    }
}

/// Lines of trouble that are shown of one server; the rest is counted only.
const TROUBLE_LINES_MAX: usize = 50;

/// Passes on what is printed, and shows what tells of trouble.
fn follow(
    stream: impl Read + Send + 'static,
    found: std::sync::mpsc::SyncSender<String>,
    printed_bytes: Arc<AtomicU64>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut shown = 0;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            printed_bytes.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
            if shown < TROUBLE_LINES_MAX
                && (["ERROR", "WARN", "panicked"].iter().any(|word| line.contains(word)) || line.starts_with("error"))
            {
                shown += 1;
                eprintln!("server: {line}");
            }
            let _ = found.try_send(line); // nobody listens any more once the address has come
        }
    })
}

/// Fails, and says what to do, where there is no such binary.
pub fn ensure_built(binary: &Path) -> Result<()> {
    ensure!(binary.exists(), "{} is not there: cargo build --release", binary.display());
    Ok(())
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let from = line.find("127.0.0.1:")?;
    let rest = &line[from..];
    let to = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest[..to].parse::<SocketAddr>().ok().filter(|address| address.port() != 0)
}

fn http_get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1).context("an HTTP answer")?.parse()?;
    Ok((status, answer))
}

/// The sum of all series of a metric.
pub fn metric(text: &str, name: &str) -> f64 {
    let of_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(of_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Memory and CPU of a process, from /proc.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The most resident memory it ever had, in bytes.
    pub resident_max: u64,
    /// Its resident memory, in bytes.
    pub resident: u64,
    /// CPU time of all its threads.
    pub cpu: Duration,
}

/// Looks at a process.
pub fn usage(pid: u32) -> Result<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name stands in brackets and may hold anything; what follows is plain: utime and stime are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|&at| fields.get(at)?.parse::<u64>().ok()).sum();
    let cpu = Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND);
    Ok(Usage { resident_max: kib("VmHWM:") * 1_024, resident: kib("VmRSS:") * 1_024, cpu })
}

/// `USER_HZ`, the same on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// The bytes of all files below a folder.
pub fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths
        .iter()
        .map(|path| {
            if path.is_dir() {
                return disk_bytes(path);
            }
            use std::os::unix::fs::MetadataExt as _;
            fs::metadata(path).map_or(0, |about| about.blocks() * 512) // preset journals are mostly holes
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_of_its_series() {
        let text = "# TYPE a counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3.5\na_total_created 9\nab_total 7\n";
        assert!((metric(text, "a_total") - 5.5).abs() < 1e-9);
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = usage(std::process::id()).expect("/proc is there");
        assert!(usage.resident_max > 1_000_000);
    }

    #[test]
    fn an_address_is_found_in_a_line() {
        assert_eq!(address_in("console: http://127.0.0.1:7450/").map(|a| a.port()), Some(7450));
        assert_eq!(address_in("binding 127.0.0.1:0"), None);
    }
}
