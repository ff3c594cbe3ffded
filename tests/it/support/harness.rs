//! Runs the real binary as a user would: on a free port, on a directory of the test's own, killed by its own number.
//!
//! A server is ready when `/readyz` says so; every wait has a deadline and fails with what the server printed. Dropping a
//! `Server` kills it, so a failing test leaves nothing behind.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The exit code of a server whose engines do not answer.
const UNAVAILABLE: i32 = 5;
/// How long a debug build on a busy machine may take to get ready.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// How long a stopped server may take to end.
const ENDED_WITHIN: Duration = Duration::from_secs(120);
/// How long a test waits for what is no law about time.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The header that says so to a server.
pub const DEADLINE: (&str, &str) = ("grpc-timeout", "60S");
/// The arguments of a server that keeps everything in memory.
pub const IN_MEMORY: [&str; 4] = ["--set", "counters.engine=memory", "--set", "queues.engine=memory"];
/// How long one plain HTTP call may take. A server that gives it up at its deadline still has its say.
const CALL_WITHIN: Duration = Duration::from_secs(90);
/// How soon what is polled is asked again at first, and at last. Each look costs both sides, and what takes long is seen soon enough.
const POLL_EVERY: Duration = Duration::from_millis(5);
const POLL_EVERY_AT_LAST: Duration = Duration::from_millis(100);
/// The lines of a server's output that are kept for messages.
const LINES_KEPT: usize = 400;

/// What a server prints.
#[derive(Default)]
struct Printed {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// A server that is to be started: `tallystone dev` on a data directory.
pub struct Launch {
    command: Command,
    data: PathBuf,
}

/// A running server.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    printed: Arc<Printed>,
    readers: Vec<thread::JoinHandle<()>>,
}

/// An answer over plain HTTP.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers as they came.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Launch {
    /// The development server on a data directory and a free port.
    pub fn dev(data: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(data);
        Self { command, data: data.to_owned() }.with_patience()
    }

    /// How long a stop may take is a law of few tests, and a busy machine needs more than the default. So is the limit of calls
    /// that a server sets itself when they take long: it would refuse the calls of a test because the machine is slow.
    pub fn with_patience(self) -> Self {
        self.env("TALLYSTONE__SERVER__DRAIN_DEADLINE_MS", "60000").env("TALLYSTONE__LIMITS__CALL_TIME_MS", "0")
    }

    /// The same in a mount namespace of its own, with a small file system of memory on the data directory.
    pub fn dev_on_tmpfs(data: &Path, bytes: u64, wrapper: &[&str]) -> Self {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(["sh", "-c"]);
        command.arg(format!(
            "mount -t tmpfs -o size={bytes} tmpfs \"$1\" && exec \"$0\" dev --listen 127.0.0.1:0 --data \"$1\""
        ));
        command.arg(env!("CARGO_BIN_EXE_tallystone")).arg(data);
        Self { command, data: data.to_owned() }.with_patience()
    }

    /// The development server on Cassandra nodes and a free port.
    pub fn dev_on_cassandra(nodes: impl Display) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["dev", "--listen", "127.0.0.1:0", "--cassandra"]).arg(nodes.to_string());
        Self { command, data: PathBuf::from(format!("cassandra at {nodes}")) }.with_patience()
    }

    /// Any command that runs a server.
    pub fn of(command: Command) -> Self {
        let data = command.get_current_dir().unwrap_or(Path::new(".")).to_owned();
        Self { command, data }
    }

    /// Lets requests of the server to a cluster of this name take as long as a busy machine needs, where no test is about a
    /// cluster that is silent.
    pub fn patient_with(self, cluster: &str) -> Self {
        let setting = if cluster == "memcached" { "timeout_ms=10000" } else { "request_timeout_ms=20000" };
        self.arg("--set").arg(&format!("clusters.{cluster}.{setting}"))
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: &str) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds to the environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it and waits until it is ready. On a machine that stands still for seconds an engine may not answer in time. The
    /// server then ends as unavailable, and is started again, as supervisors do.
    pub fn start(mut self) -> Server {
        let began = Instant::now();
        loop {
            let (status, printed) = match self.attempt() {
                Ok(server) => return server,
                Err(ended) => ended,
            };
            let may_come = status.code() == Some(UNAVAILABLE) && began.elapsed() < READY_WITHIN;
            let data = self.data.display();
            assert!(may_come, "the server on {data} ended with {status} before it was ready:\n{printed}");
        }
    }

    /// Starts it and kills it after a time, ready or not.
    pub fn start_and_kill_after(mut self, time: Duration) {
        let command = self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary of this build starts");
        thread::sleep(time);
        child.kill().expect("a child can be killed");
        child.wait().expect("a killed child ends");
    }

    /// Starts it and waits until it is ready, or has ended: then answers how, and what it printed.
    pub fn try_start(mut self) -> Result<Server, (ExitStatus, String)> {
        self.attempt()
    }

    fn attempt(&mut self) -> Result<Server, (ExitStatus, String)> {
        let command = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary of this build starts");
        let printed = Arc::new(Printed::default());
        let readers = vec![
            printed.follow(child.stdout.take().expect("stdout is piped")),
            printed.follow(child.stderr.take().expect("stderr is piped")),
        ];
        let mut server = Server { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), printed, readers };
        let began = Instant::now();
        loop {
            if let Some(address) = server.printed.address() {
                server.address = address;
                // A server with TLS prints it when it is ready.
                if server.printed().contains("listens on https://") {
                    return Ok(server);
                }
                if http(address, "GET", "/readyz", &[], "").is_ok_and(|answer| answer.status == 200) {
                    return Ok(server);
                }
            }
            if let Some(status) = server.child.try_wait().expect("the child can be asked") {
                server.hear_out();
                return Err((status, server.printed()));
            }
            assert!(began.elapsed() < READY_WITHIN, "not ready within {READY_WITHIN:?}:\n{}", server.printed());
            thread::sleep(next_poll(began));
        }
    }
}

/// Tells those who wait for it to end when it goes, also when the test fails in between.
pub struct EndsWith<'a>(pub &'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Asks again and again until the answer is yes or the time is over; says which. The longer it takes, the less often it asks.
pub fn eventually(within: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if began.elapsed() >= within {
            return false;
        }
        thread::sleep(next_poll(began));
    }
}

/// The pause before the next look of one who has looked since a time.
pub fn next_poll(since: Instant) -> Duration {
    (since.elapsed() / 16).clamp(POLL_EVERY, POLL_EVERY_AT_LAST)
}

impl Server {
    /// Its base address for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as kill -9 does.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// Sends a signal.
    #[expect(unsafe_code, reason = "std sends no signals but SIGKILL")]
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("process numbers are small");
        // SAFETY: kill takes plain numbers, and the child has not been waited for, so its number is its own.
        let answer = unsafe { libc::kill(pid, signal) };
        assert_eq!(answer, 0, "the signal reaches the child");
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + ENDED_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be asked") {
                self.hear_out();
                return status;
            }
            assert!(Instant::now() < deadline, "still running after {ENDED_WITHIN:?}:\n{}", self.printed());
            thread::sleep(POLL_EVERY);
        }
    }

    /// Takes in all that an ended server has printed.
    fn hear_out(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().expect("no reader panics");
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the child can be asked").is_some()
    }

    /// What it printed, the last lines.
    pub fn printed(&self) -> String {
        self.printed.lines.lock().expect("no reader panics").join("\n")
    }

    /// Waits until a line that it prints holds a text.
    pub fn wait_for_line(&self, text: &str) -> String {
        let lines = self.printed.lines.lock().expect("no reader panics");
        let found = |lines: &Vec<String>| lines.iter().find(|line| line.contains(text)).cloned();
        let (lines, _) = self
            .printed
            .more
            .wait_timeout_while(lines, READY_WITHIN, |lines| found(lines).is_none())
            .expect("no reader panics");
        found(&lines).unwrap_or_else(|| panic!("no line with `{text}` in:\n{}", lines.join("\n")))
    }

    /// Calls a path with a JSON body.
    pub fn post(&self, path: &str, body: &str) -> HttpAnswer {
        http(self.address, "POST", path, &[("content-type", "application/json")], body).expect("the server answers")
    }

    /// The same with the deadline of a caller who sets none, for one whose store may be away.
    pub fn post_briefly(&self, path: &str, body: &str) -> HttpAnswer {
        let headers = [("content-type", "application/json"), ("grpc-timeout", "2S")];
        http(self.address, "POST", path, &headers, body).expect("the server answers")
    }

    /// Reads a path.
    pub fn get(&self, path: &str) -> HttpAnswer {
        http(self.address, "GET", path, &[], "").expect("the server answers")
    }
}

impl HttpAnswer {
    /// The body as JSON; null where it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Printed {
    /// Reads lines until the stream ends, which it does with the server.
    fn follow(self: &Arc<Self>, stream: impl Read + Send + 'static) -> thread::JoinHandle<()> {
        let printed = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let mut lines = printed.lines.lock().expect("no reader panics");
                if lines.len() == LINES_KEPT {
                    lines.remove(LINES_KEPT / 2); // the beginning and the end tell the most
                }
                lines.push(line);
                printed.more.notify_all();
            }
        })
    }

    /// The first address of this machine with a port that was printed.
    fn address(&self) -> Option<SocketAddr> {
        let lines = self.lines.lock().expect("no reader panics");
        lines.iter().find_map(|line| {
            let at = ["127.0.0.1:", "0.0.0.0:"].iter().find_map(|host| line.find(host))?;
            let end = line[at..]
                .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'))
                .map_or(line.len(), |end| at + end);
            line[at..end].parse::<SocketAddr>().ok().filter(|address| address.port() != 0)
        })
    }
}

/// One call over plain HTTP/1.1 on a connection of its own. A call of a method is patient unless it says otherwise.
pub fn http(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<HttpAnswer> {
    let is_method = |kind: &str| ["application/json", "application/grpc"].iter().any(|of| kind.starts_with(of));
    let is_of_method = headers.iter().any(|(name, value)| *name == "content-type" && is_method(value));
    let has_deadline = headers.iter().any(|(name, _)| *name == DEADLINE.0);
    let deadline: &[_] = if is_of_method && !has_deadline { &[DEADLINE] } else { &[] };
    http_within(CALL_WITHIN, address, (method, path), &[headers, deadline].concat(), body)
}

/// The same as it stands, with a time of its own for each read and write.
pub fn http_within(
    within: Duration,
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<HttpAnswer> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    // A server may refuse a body before it has read it: what it answered counts, not that it stopped listening.
    let sent = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        sent?;
        read?;
    }
    parse(&answer).ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {}", String::from_utf8_lossy(&answer))))
}

fn parse(answer: &[u8]) -> Option<HttpAnswer> {
    let split = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let body = &answer[split + 4..];
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunk(body)? } else { body.to_vec() };
    Some(HttpAnswer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + length)?);
        rest = rest.get(line + 2 + length + 2..)?;
    }
}
