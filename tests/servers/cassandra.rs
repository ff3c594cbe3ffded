//! Cassandra 5.0 from its published Java artifacts: one node, on free loopback ports, with a directory of its own. Several
//! that are a cluster are in `cluster`.
//!
//! Maven fetches the artifacts once, into the target directory. A shell stands between the test and the node and waits on
//! a pipe: when the test process ends, however it ends, the shell kills the node and removes its directory. The node is
//! ready when its log says that it listens.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::free_port;

const VERSION: &str = "5.0.6";
const PORTS_TRIED: usize = 5;
/// How long a node on a busy machine may take to read a row.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// What the Java platform has to open to it (the server's own list for JDK 17).
const OPENS: &[&str] = &[
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "java.rmi/sun.rmi.transport.tcp",
    "jdk.management/com.sun.management.internal",
    "jdk.management.jfr/jdk.management.jfr",
    "jdk.compiler/com.sun.tools.javac.file",
];
const EXPORTS: &[&str] = &[
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/java.lang.ref",
    "java.base/jdk.internal.util",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.api",
];

/// Starts the node, says its process id, waits until the pipe ends, kills it and removes its directory.
///
/// After each request workers of a node look for the next one every 10 us, for 10 ms or longer. On a quiet node that costs more than
/// the request. With a slack of its timers, which it inherits from the shell, a pause between two looks lasts up to a millisecond:
/// nodes with little to do take a quarter less of the processors.
const KEEPER: &str = r#"dir="$1"; shift; echo 1000000 >/proc/self/timerslack_ns
java "$@" 2>&1 & node=$!; echo "node $node"; exec >/dev/null 2>&1
read -r verdict; kill -9 "$node"; wait; [ "$verdict" = keep ] || rm -rf "$dir""#;

/// A Cassandra node of the test's own.
pub struct Cassandra {
    address: SocketAddr,
    node: u32,
    keeper: Child,
    /// Closing it ends the node.
    pipe: Option<ChildStdin>,
    settings: Settings,
}

/// How a node is set up.
#[derive(Clone)]
pub struct Settings {
    dir: PathBuf,
    /// The address of its ports.
    pub host: Ipv4Addr,
    /// Its ports.
    pub ports: Ports,
    /// The address of a node that tells it of the others; its own if it is the first one.
    pub seed: Ipv4Addr,
    /// The memory of its objects.
    pub heap_mib: u32,
    /// Whether users have to log in, and may do only what they were permitted.
    pub with_passwords: bool,
    /// Whether it comes up again after a kill as it was; one that never does is quicker.
    pub survives_kills: bool,
    /// Further lines of its settings file.
    pub lines: String,
}

/// The ports of a node; those of one cluster have the same ones.
#[derive(Clone, Copy)]
pub struct Ports {
    /// For clients.
    pub cql: u16,
    storage: u16,
    ssl: u16,
}

/// The node that the tests of this process share.
pub fn shared() -> Result<SocketAddr, String> {
    static SHARED: OnceLock<Result<Cassandra, String>> = OnceLock::new();
    // Each test has tables of its own, hundreds together, and each table takes memory while it is there.
    let node = SHARED
        .get_or_init(|| Cassandra::start(|settings| (settings.survives_kills, settings.heap_mib) = (false, 1_536)));
    node.as_ref().map(Cassandra::address).map_err(Clone::clone)
}

impl Cassandra {
    /// Starts a node on free ports.
    pub fn start(change: impl Fn(&mut Settings)) -> Result<Self, String> {
        let mut why = String::new();
        for _ in 0..PORTS_TRIED {
            let mut settings = Settings::new().map_err(|error| error.to_string())?;
            change(&mut settings);
            match Self::start_with(settings) {
                Ok(node) => return Ok(node),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it at once and answers what it takes to start it again on what it left.
    pub fn kill(mut self) -> Settings {
        if let Some(pipe) = &mut self.pipe {
            // A keeper that has gone has nothing left to keep.
            let _ = pipe.write_all(b"keep\n");
        }
        self.settings.clone()
    }

    /// Starts a node as its settings say, or one that was killed, where it was.
    pub fn start_again(settings: Settings) -> Result<Self, String> {
        Self::start_with(settings)
    }

    /// Stops its process without ending it.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.node.to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "a node of ours can be signalled");
    }

    fn start_with(settings: Settings) -> Result<Self, String> {
        let jars = jars()?;
        write_settings(&settings).map_err(|error| format!("the settings of Cassandra cannot be written: {error}"))?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(&settings.dir).args(java_arguments(&settings, &jars));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().map_err(|error| format!("no shell: {error}"))?;
        let pipe = keeper.stdin.take();
        let mut lines = BufReader::new(keeper.stdout.take().expect("stdout is piped"));
        let address = SocketAddr::from((settings.host, settings.ports.cql));
        let mut node = Self { address, node: 0, keeper, pipe, settings };
        node.node = wait_until_listening(&mut lines)?;
        // Reads on, so that the node is never held up by a full pipe; ends with the node.
        thread::spawn(move || lines.lines().for_each(drop));
        Ok(node)
    }
}

impl Drop for Cassandra {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.keeper.wait();
    }
}

impl Settings {
    /// Of a node on free ports, in a directory of its own.
    pub fn new() -> std::io::Result<Self> {
        let dir = TempDir::with_prefix("tallystone-cassandra-")?.keep();
        let (host, ports) = (Ipv4Addr::LOCALHOST, free_ports()?);
        Ok(Self {
            dir,
            host,
            ports,
            seed: host,
            heap_mib: 512,
            with_passwords: false,
            survives_kills: true,
            lines: String::new(),
        })
    }
}

/// Reads one row that every node has, on a connection of its own: what a node needs for a call that nobody waits for.
pub fn read_a_row(node: SocketAddr) -> std::io::Result<()> {
    const STARTUP: u8 = 1;
    const QUERY: u8 = 7;
    let statement = b"SELECT key FROM system.local";
    let length = u32::try_from(statement.len()).expect("short");
    // The statement, consistency ONE, and no flags.
    let query = [&length.to_be_bytes()[..], &statement[..], &[0, 1, 0]].concat();
    let startup = b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0";
    let mut connection = TcpStream::connect(node)?;
    connection.set_read_timeout(Some(READ_WITHIN))?;
    for (opcode, body) in [(STARTUP, &startup[..]), (QUERY, &query[..])] {
        let length = u32::try_from(body.len()).expect("short");
        connection.write_all(&[&[4, 0, 0, 0, opcode][..], &length.to_be_bytes(), body].concat())?;
        let mut head = [0; 9];
        connection.read_exact(&mut head)?;
        let length = u32::from_be_bytes(head[5..].try_into().expect("four bytes"));
        connection.read_exact(&mut vec![0_u8; usize::try_from(length).expect("it fits")])?;
    }
    Ok(())
}

fn free_ports() -> std::io::Result<Ports> {
    let listeners = [free_port()?, free_port()?, free_port()?];
    let [cql, storage, ssl] = listeners.map(|listener| listener.local_addr().map(|address| address.port()));
    Ok(Ports { cql: cql?, storage: storage?, ssl: ssl? })
}

fn write_settings(settings: &Settings) -> std::io::Result<()> {
    let Settings { dir, host, ports, seed, with_passwords, .. } = settings;
    let (authenticator, authorizer) = if *with_passwords {
        ("PasswordAuthenticator", "CassandraAuthorizer")
    } else {
        ("AllowAllAuthenticator", "AllowAllAuthorizer")
    };
    let commitlog_sync = if settings.survives_kills {
        "commitlog_sync: batch"
    } else {
        "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms"
    };
    let text = include_str!("cassandra/cassandra.yaml")
        .replace("{dir}", &dir.to_string_lossy())
        .replace("{host}", &host.to_string())
        .replace("{seed}", &seed.to_string())
        .replace("{cql_port}", &ports.cql.to_string())
        .replace("{storage_port}", &ports.storage.to_string())
        .replace("{ssl_port}", &ports.ssl.to_string())
        .replace("{authenticator}", authenticator)
        .replace("{authorizer}", authorizer)
        .replace("{commitlog_sync}", commitlog_sync);
    fs::write(dir.join("cassandra.yaml"), text + settings.lines.as_str())?;
    fs::write(dir.join("logback.xml"), include_str!("cassandra/logback.xml"))
}

fn java_arguments(settings: &Settings, jars: &Path) -> Vec<String> {
    let dir = settings.dir.to_string_lossy().into_owned();
    let jars = jars.to_string_lossy().into_owned();
    let mut arguments = vec![format!("-Xms{}m", settings.heap_mib), format!("-Xmx{}m", settings.heap_mib)];
    let same_for_all = [
        "-Xss256k",
        "-XX:+UseSerialGC",
        // A node that lives for a minute never earns back what the second compiler costs.
        "-XX:TieredStopAtLevel=1",
        "-XX:-RestrictContended",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dcassandra-foreground=yes",
        // By default it wakes up each 2 ms to read its clock: 17 of the 85 s of processors of a node that had little else to do.
        "-Dcassandra.approximate_time_precision_ms=50",
        "-Dcassandra.ring_delay_ms=1000",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.superuser_setup_delay_ms=0",
    ];
    arguments.extend(same_for_all.map(str::to_owned));
    arguments.extend(OPENS.iter().flat_map(|of| ["--add-opens".to_owned(), format!("{of}=ALL-UNNAMED")]));
    arguments.extend(EXPORTS.iter().flat_map(|of| ["--add-exports".to_owned(), format!("{of}=ALL-UNNAMED")]));
    arguments.extend([
        format!("-javaagent:{jars}/jamm-0.4.0.jar"),
        format!("-Dcassandra.config=file://{dir}/cassandra.yaml"),
        format!("-Dlogback.configurationFile={dir}/logback.xml"),
        format!("-Dcassandra.storagedir={dir}"),
        format!("-Dcassandra.logdir={dir}"),
        format!("-Dcassandra.unsafesystem={}", !settings.survives_kills),
        "-cp".to_owned(),
        format!("{dir}:{jars}/*"),
        "org.apache.cassandra.service.CassandraDaemon".to_owned(),
    ]);
    arguments
}

/// Reads the log until the node listens; answers its process id.
fn wait_until_listening(lines: &mut BufReader<ChildStdout>) -> Result<u32, String> {
    let mut node = None;
    let mut last = Vec::new();
    for line in lines.lines() {
        let line = line.map_err(|error| format!("Cassandra's output cannot be read: {error}"))?;
        if let Some(id) = line.strip_prefix("node ") {
            node = id.trim().parse().ok();
        }
        if line.contains("Startup complete") {
            return node.ok_or_else(|| "the shell did not say which process the node is".to_owned());
        }
        last.push(line);
        if last.len() > 30 {
            last.remove(0);
        }
    }
    let advice = "it needs a Java runtime of version 17 (Debian package openjdk-17-jre-headless)";
    Err(format!("Cassandra ended before it listened; {advice}:\n{}", last.join("\n")))
}

/// The artifacts, fetched once into the target directory.
fn jars() -> Result<PathBuf, String> {
    static JARS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    JARS.get_or_init(fetch).clone()
}

fn fetch() -> Result<PathBuf, String> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cassandra-{VERSION}"));
    if kept.is_dir() {
        return Ok(kept);
    }
    let said = |error: std::io::Error| format!("the artifacts of Cassandra cannot be kept: {error}");
    let fresh = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).map_err(said)?;
    let pom = fresh.path().join("pom.xml");
    fs::write(&pom, include_str!("cassandra/pom.xml")).map_err(said)?;
    let fetched = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(pom)
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", fresh.path().display()))
        .output()
        .map_err(|error| format!("Maven does not start: {error}; install it (Debian package maven)"))?;
    if !fetched.status.success() {
        return Err(format!("Maven cannot fetch Cassandra: {}", String::from_utf8_lossy(&fetched.stdout)));
    }
    match fs::rename(fresh.keep(), &kept) {
        Ok(()) => Ok(kept),
        // Another test binary was quicker.
        Err(_) if kept.is_dir() => Ok(kept),
        Err(error) => Err(said(error)),
    }
}
