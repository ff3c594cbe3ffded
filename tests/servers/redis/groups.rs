//! Several servers that belong together: a primary with its replica, the same under Sentinels, and a cluster.
//!
//! Each is up and in step before a test gets it.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Build, Process, RedisServer, RedisSettings, cli, programs};
use crate::servers::free_port;

/// How long servers may take to find each other on a busy machine.
const TOGETHER_WITHIN: Duration = Duration::from_secs(60);
const SENTINELS: usize = 3;
/// After this silence Sentinels count a server as dead.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// A primary with a replica that is in step.
pub struct ReplicaPair {
    pub primary: RedisServer,
    pub replica: RedisServer,
}

impl ReplicaPair {
    /// Starts both with the same settings.
    pub fn start(build: Build, settings: &RedisSettings) -> Result<Self, String> {
        let primary = RedisServer::start_with(build, settings.clone())?;
        let mut following = settings.clone();
        following.lines.push(format!("replicaof 127.0.0.1 {}", primary.address().port()));
        following.lines.extend(settings.password.iter().map(|password| format!("masterauth {password}")));
        let replica = RedisServer::start_with(build, following)?;
        until("the replica is in step", || replica.info("master_link_status") == "up")?;
        // Until it has acknowledged something, WAIT does not count it.
        until("the primary counts the replica", || {
            primary.info("connected_slaves") == "1" && primary.info("slave0").contains("state=online")
        })?;
        Ok(Self { primary, replica })
    }
}

/// A primary and a replica that three Sentinels watch.
pub struct SentinelGroup {
    pub pair: ReplicaPair,
    sentinels: Vec<(SocketAddr, Process, TempDir)>,
}

impl SentinelGroup {
    /// The name of the primary in the settings of the Sentinels.
    pub const NAME: &str = "queues";

    /// Starts all of them. The Sentinels are those of Redis 7.0.
    pub fn start(build: Build) -> Result<Self, String> {
        let pair = ReplicaPair::start(build, &RedisSettings::default())?;
        let sentinels = (0..SENTINELS).map(|_| start_sentinel(&pair.primary)).collect::<Result<Vec<_>, String>>()?;
        let group = Self { pair, sentinels };
        until("the Sentinels know each other and the replica", || {
            group.sentinels.iter().all(|(address, ..)| {
                let known = cli::send(*address, None, &["SENTINEL", "MASTER", Self::NAME]).unwrap_or_default();
                let lines: Vec<&str> = known.lines().collect();
                let has = |name: &str, value: &str| lines.chunks_exact(2).any(|pair| pair == [name, value]);
                has("num-other-sentinels", "2") && has("num-slaves", "1") && has("flags", "master")
            })
        })?;
        Ok(group)
    }

    /// Sends a command to each Sentinel.
    pub fn ask_sentinels(&self, words: &[&str]) {
        for (address, ..) in &self.sentinels {
            cli::send(*address, None, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
    }

    /// Where the Sentinels listen.
    pub fn sentinels(&self) -> Vec<String> {
        self.addresses().iter().map(SocketAddr::to_string).collect()
    }

    /// The same as addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(|(address, ..)| *address).collect()
    }
}

/// A Sentinel that watches a primary alone, and reaches it by TLS.
pub struct LoneSentinel {
    _process: Process,
    _dir: TempDir,
}

impl LoneSentinel {
    /// The name of the primary in its settings.
    pub const NAME: &str = SentinelGroup::NAME;

    /// Starts it for a primary at a port for TLS. `lines` are the settings of a port of its own, which name its certificate.
    pub fn start_over_tls(primary: SocketAddr, lines: &[String]) -> Result<Self, String> {
        let lines = [lines, &["tls-replication yes".to_owned()]].concat();
        let (_, process, dir) = start_sentinel_at(primary, &lines)?;
        Ok(Self { _process: process, _dir: dir })
    }
}

fn start_sentinel(primary: &RedisServer) -> Result<(SocketAddr, Process, TempDir), String> {
    start_sentinel_at(primary.address(), &[])
}

fn start_sentinel_at(primary: SocketAddr, lines: &[String]) -> Result<(SocketAddr, Process, TempDir), String> {
    let said = |error: std::io::Error| format!("a Sentinel cannot be set up: {error}");
    let address = free_port().and_then(|free| free.local_addr()).map_err(said)?;
    let dir = TempDir::with_prefix("tallystone-sentinel-").map_err(said)?;
    let (name, millis, port) = (SentinelGroup::NAME, DEAD_AFTER.as_millis(), primary.port());
    let settings = format!(
        "bind 127.0.0.1\nport {}\ndir {}\ndaemonize no\nsentinel monitor {name} 127.0.0.1 {port} 2\n\
         sentinel down-after-milliseconds {name} {millis}\nsentinel failover-timeout {name} 3000\n{}\n",
        address.port(),
        dir.path().display(),
        lines.join("\n"),
    );
    let file = dir.path().join("sentinel.conf");
    fs::write(&file, settings).map_err(said)?;
    let process = Process::start(programs::sentinel()?, &[&file.to_string_lossy()], "+monitor master")?;
    Ok((address, process, dir))
}

/// A cluster of three primaries, each with a replica.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// After this silence a primary counts as dead.
    pub const NODE_TIMEOUT: Duration = Duration::from_secs(2);

    /// Starts six nodes and makes them a cluster.
    pub fn start(build: Build) -> Result<Self, String> {
        let cli = programs::cli()?;
        let nodes = (0..6).map(|_| Self::start_node(build)).collect::<Result<Vec<_>, String>>()?;
        let mut create = Command::new(cli);
        create.args(["--cluster", "create"]).args(nodes.iter().map(|node| node.address().to_string()));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let created = create.output().map_err(|error| format!("redis-cli does not start: {error}"))?;
        if !created.status.success() {
            return Err(format!("no cluster: {}", String::from_utf8_lossy(&created.stdout)));
        }
        let cluster = Self { nodes };
        until("every node sees a whole cluster", || {
            cluster.nodes.iter().all(|node| {
                let is_ok = node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
                let view = node.cli(&["CLUSTER", "NODES"]);
                is_ok && view.lines().filter(|line| line.contains("slave")).count() == 3 && !view.contains("fail")
            })
        })?;
        until("the replicas are in step", || {
            cluster.nodes.iter().all(|node| node.info("role") == "master" || node.info("master_link_status") == "up")
        })?;
        Ok(cluster)
    }

    fn start_node(build: Build) -> Result<RedisServer, String> {
        // The port of the bus is free like the other one, instead of 10,000 above it.
        let bus = free_port().and_then(|free| free.local_addr()).map_err(|error| error.to_string())?.port();
        let timeout = Self::NODE_TIMEOUT.as_millis();
        let lines = [
            "cluster-enabled yes".to_owned(),
            format!("cluster-port {bus}"),
            format!("cluster-node-timeout {timeout}"),
            // Slots whose primary lives go on without the others.
            "cluster-require-full-coverage no".to_owned(),
            // A replica that was cut off for a moment may still be the next primary.
            "cluster-replica-validity-factor 0".to_owned(),
        ];
        RedisServer::start_with(build, RedisSettings { lines: lines.into(), ..RedisSettings::default() })
    }

    /// Where all nodes listen.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address().to_string()).collect()
    }

    /// The place of the primary that owns a slot, as a living node sees it.
    pub fn owner_of(&self, slot: u16, seen_by: usize) -> usize {
        let view = self.nodes[seen_by].cli(&["CLUSTER", "NODES"]);
        let owner =
            view.lines().find(|line| owns(line, slot)).unwrap_or_else(|| panic!("slot {slot} has an owner: {view}"));
        let address = owner.split(' ').nth(1).and_then(|address| address.split('@').next()).expect("an address");
        let at = self.nodes.iter().position(|node| node.address().to_string() == address);
        at.expect("a node of the cluster")
    }

    /// Begins to move a slot from one node to another by SETSLOT.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Ends the move of a slot that holds no keys any more.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        for node in [to, from] {
            self.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.id(to)]);
        }
    }

    /// The id of a node.
    pub fn id(&self, at: usize) -> String {
        self.nodes[at].cli(&["CLUSTER", "MYID"])
    }
}

/// Whether a line of CLUSTER NODES is of a living primary that owns the slot.
fn owns(line: &str, slot: u16) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let is_primary = words.get(2).is_some_and(|flags| flags.contains("master") && !flags.contains("fail"));
    let holds = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let bounds = first.parse::<u16>().and_then(|first| Ok((first, last.parse::<u16>()?)));
        bounds.is_ok_and(|(first, last)| (first..=last).contains(&slot))
    };
    is_primary && words.iter().skip(8).any(holds)
}

/// Waits for servers.
fn until(what: &str, condition: impl Fn() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + TOGETHER_WITHIN;
    while !condition() {
        if Instant::now() > deadline {
            return Err(format!("not in time: {what}"));
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}
