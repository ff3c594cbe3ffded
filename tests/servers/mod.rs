//! Real servers that tests start and end by themselves, on free loopback ports.
//!
//! A server is ready when it says so on its output; dropping it kills it. One that is not installed is an error with what
//! to do, never a stand-in: `tests/run` installs it.

#![allow(dead_code, reason = "each test binary takes what it needs")]

pub mod cassandra;
pub mod chromedriver;
pub mod cluster;
pub mod issuer;
pub mod lent_node;
pub mod node;
pub mod prometheus;
pub mod proxy;
pub mod redis;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;

/// A memcached of the test's own.
pub struct Memcached {
    child: Child,
    address: SocketAddr,
    reader: Option<thread::JoinHandle<()>>,
}

/// Ports below those that systems give to connections. A server that is restarted on one of these finds it free; on one of
/// the others a client that keeps calling a dead server may have taken it meanwhile, or have called itself.
const PORTS: std::ops::Range<u64> = 10_000..30_000;
const PORTS_LOOKED_AT_MAX: usize = 1_000;

/// Listens on a free port; whoever drops it may have something else listen there.
pub fn free_port() -> std::io::Result<TcpListener> {
    let mut found = Err(std::io::Error::other("no port was looked at"));
    for _ in 0..PORTS_LOOKED_AT_MAX {
        let chance = uuid::Uuid::now_v7().as_u64_pair().1;
        let port = PORTS.start + chance % (PORTS.end - PORTS.start);
        found = TcpListener::bind(("127.0.0.1", u16::try_from(port).expect("below 30,000")));
        if found.is_ok() {
            break;
        }
    }
    found
}

/// How often another free port is tried, if somebody took the one that was free.
const PORTS_TRIED: usize = 5;

impl Memcached {
    /// Starts one on a free port.
    pub fn start() -> Result<Self, String> {
        let mut why = String::new();
        for _ in 0..PORTS_TRIED {
            let free = free_port().and_then(|listener| listener.local_addr());
            match Self::start_at(free.map_err(|error| error.to_string())?) {
                Ok(server) => return Ok(server),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Starts one at an address, as after a restart.
    pub fn start_at(address: SocketAddr) -> Result<Self, String> {
        Self::start_with(address, &[])
    }

    /// The same with further arguments, as `-M`: it refuses values instead of forgetting others.
    pub fn start_with(address: SocketAddr, arguments: &[&str]) -> Result<Self, String> {
        let mut command = Command::new("memcached");
        command
            .args(["-l", "127.0.0.1", "-U", "0", "-m", "64", "-t", "2", "-vv", "-p"])
            .arg(address.port().to_string());
        // It refuses to run as root, and says so to nobody else.
        command.args(["-u", "nobody"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("memcached does not start: {error}; install it (Debian package memcached)"))?;
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut server = Self { child, address, reader: None };
        wait_until_listening(&mut lines)?;
        server.reader = Some(thread::spawn(move || drain(lines)));
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it at once and answers where it was.
    pub fn kill(self) -> SocketAddr {
        self.address
    }

    /// Ends it at once.
    pub fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Forgets everything that it holds.
    pub fn flush(&self) {
        let mut connection = TcpStream::connect(self.address).expect("memcached takes connections");
        connection.write_all(b"flush_all\r\nquit\r\n").expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("OK"), "{answer}");
    }

    /// Stops its process without ending it: connections stay open and nothing is answered.
    #[allow(unsafe_code, reason = "std waits for the end of a child only")]
    pub fn pause(&self) {
        let id = self.signal(libc::SIGSTOP);
        // The signal is only on its way: until every thread has stopped, it may still answer.
        let mut status = 0;
        // SAFETY: `status` outlives the call; nobody else waits for this child meanwhile.
        let waited = unsafe { libc::waitpid(id, &raw mut status, libc::WUNTRACED) };
        assert!(waited == id && libc::WIFSTOPPED(status), "a child can be stopped");
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    #[allow(unsafe_code, reason = "std sends no signals but SIGKILL")]
    fn signal(&self, signal: libc::c_int) -> libc::pid_t {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: no memory is involved; the process is a child of ours that was not waited for, so the id is still its.
        let sent = unsafe { libc::kill(id, signal) };
        assert_eq!(sent, 0, "a child can be signalled");
        id
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.end();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn wait_until_listening(lines: &mut BufReader<ChildStderr>) -> Result<(), String> {
    let mut said = String::new();
    loop {
        let begun = said.len();
        match lines.read_line(&mut said) {
            Ok(0) => return Err(format!("memcached ended before it listened: {said}")),
            Ok(_) if said[begun..].contains("server listening") => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(format!("memcached's output cannot be read: {error}")),
        }
    }
}

/// Reads on, so that the server is never held up by a full pipe.
fn drain(mut lines: BufReader<ChildStderr>) {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        line.clear();
    }
}
