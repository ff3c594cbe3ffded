//! A Redis of the load: started on a free port with the documented settings, and asked about memory, CPU and latencies.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

/// Under callgrind, on a busy machine, a start takes many seconds.
const READY_WITHIN: Duration = Duration::from_secs(120);
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long one question may take while the server is busy.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A running Redis.
pub struct Redis {
    child: Child,
    pub address: SocketAddr,
    _folder: TempDir,
}

/// What a Redis has used since its start.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// CPU time of the process itself.
    pub cpu: Duration,
    /// Bytes of its data.
    pub memory: u64,
    /// Commands that it has answered.
    pub commands: u64,
}

impl Redis {
    /// Starts a Redis that appends each command to its log, and writes it to the disk every second or before each answer.
    pub fn start(program: &Path, folder: TempDir, appendfsync: &str) -> Result<Self> {
        Self::start_by(Command::new(program), folder, appendfsync)
    }

    /// The same by a command that runs Redis with the arguments that are added to it.
    pub fn start_by(mut command: Command, folder: TempDir, appendfsync: &str) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let port = address.port().to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
        command.args(["--appendfsync", appendfsync, "--auto-aof-rewrite-percentage", "0", "--dir"]).arg(folder.path());
        command.args(["--hash-max-listpack-value", "512"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| format!("{} does not start", command.get_program().display()))?;
        let redis = Self { child, address, _folder: folder };
        let begun = Instant::now();
        while redis.ask("PING").is_err() {
            ensure!(begun.elapsed() < READY_WITHIN, "Redis does not answer within {READY_WITHIN:?}");
            std::thread::sleep(POLL_EVERY);
        }
        Ok(redis)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The words of an answer, without its structure.
    pub fn ask(&self, command: &str) -> Result<Vec<String>> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut words = Vec::new();
        read(&mut BufReader::new(stream), &mut words)?;
        Ok(words)
    }

    fn info(&self, section: &str) -> Result<String> {
        Ok(self.ask(&format!("INFO {section}"))?.concat())
    }

    /// Its version.
    pub fn version(&self) -> Result<String> {
        let info = self.info("server")?;
        let valkey = line(&info, "valkey_version").map(|version| format!("Valkey {version}"));
        valkey.or_else(|_| line(&info, "redis_version").map(|version| format!("Redis {version}")))
    }

    pub fn used(&self) -> Result<Used> {
        let (cpu, memory, stats) = (self.info("cpu")?, self.info("memory")?, self.info("stats")?);
        let seconds: f64 = line(&cpu, "used_cpu_user")?.parse::<f64>()? + line(&cpu, "used_cpu_sys")?.parse::<f64>()?;
        Ok(Used {
            cpu: Duration::from_secs_f64(seconds),
            memory: line(&memory, "used_memory")?.parse()?,
            commands: line(&stats, "total_commands_processed")?.parse()?,
        })
    }

    /// The keys of the store.
    pub fn keys(&self) -> Result<u64> {
        let answer = self.ask("DBSIZE")?;
        Ok(answer.first().map(String::as_str).unwrap_or_default().parse()?)
    }

    /// Forgets the latencies that it has measured.
    pub fn forget_latencies(&self) -> Result<()> {
        self.ask("CONFIG RESETSTAT").map(drop)
    }

    /// The upper bound of a quantile of the time that calls of functions took inside Redis, in milliseconds.
    pub fn fcall_ms(&self, quantile: f64) -> Result<f64> {
        let words = self.ask("LATENCY HISTOGRAM fcall")?;
        quantile_of(&words, quantile).map(|micros| micros / 1_000.0)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a line `name:value`.
fn line(info: &str, name: &str) -> Result<String> {
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(found.with_context(|| format!("INFO has no {name}"))?.trim().to_owned())
}

/// Reads an answer and adds its words.
fn read(stream: &mut impl BufRead, words: &mut Vec<String>) -> Result<()> {
    let mut head = String::new();
    ensure!(stream.read_line(&mut head)? > 0, "Redis closed the connection");
    let (kind, text) = head.trim_end().split_at_checked(1).context("an answer")?;
    match kind {
        "+" | ":" => words.push(text.to_owned()),
        "-" => bail!("Redis: {text}"),
        "$" => {
            let mut bytes = vec![0; text.parse::<usize>().unwrap_or(0) + 2];
            stream.read_exact(&mut bytes)?;
            words.push(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned());
        }
        "*" => {
            for _ in 0..text.parse::<usize>().unwrap_or(0) {
                read(stream, words)?;
            }
        }
        other => bail!("Redis answered with {other}"),
    }
    Ok(())
}

/// The bucket in which a quantile lies: the words of LATENCY HISTOGRAM end with bounds in microseconds, each with the number of
/// calls up to it.
fn quantile_of(words: &[String], quantile: f64) -> Result<f64> {
    let from = words.iter().position(|word| word == "histogram_usec").context("there were calls")?;
    let numbers: Vec<f64> = words[from + 1..].iter().map_while(|word| word.parse().ok()).collect();
    let buckets: Vec<(f64, f64)> = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    let all = buckets.last().context("there were calls")?.1;
    let bucket = buckets.iter().find(|(_, calls)| *calls >= all * quantile).context("a bucket")?;
    Ok(bucket.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let words = ["fcall", "calls", "100", "histogram_usec", "16", "90", "33", "99", "264", "100"];
        let words = words.map(str::to_owned);
        assert!((quantile_of(&words, 0.5).expect("calls") - 16.0).abs() < 1e-9);
        assert!((quantile_of(&words, 0.99).expect("calls") - 33.0).abs() < 1e-9);
        assert!((quantile_of(&words, 0.999).expect("calls") - 264.0).abs() < 1e-9);
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let mut words = Vec::new();
        read(&mut &b"*2\r\n$5\r\nfcall\r\n*2\r\n:3\r\n+OK\r\n"[..], &mut words).expect("well-formed");
        assert_eq!(words, ["fcall", "3", "OK"]);
        read(&mut &b"-ERR no\r\n"[..], &mut words).expect_err("an error");
    }
}
