//! The settings `[clusters.NAME]` and `[best_effort]`: the servers of each named cluster, and where best-effort
//! counters are stored.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use crate::config::ListenAddress;
use tallystone_adapters::store_password::StorePassword;
use tallystone_cassandra::schema::Replication;
use tallystone_domain::limits::MEMCACHED_SERVERS_MAX;
use tallystone_domain::queue::Durability;

/// `[best_effort]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestEffortConfig {
    /// The memory bound, in bytes, for best-effort counters in this process.
    pub capacity_bytes: u64,
    /// The memcached cluster that stores best-effort counters; if empty, this process stores them.
    pub cluster: String,
}

/// `[clusters.NAME]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    pub kind: ClusterKind,
    /// The servers, grouped by replica.
    pub servers: Servers,
    pub key_prefix: String,
    /// The timeout in milliseconds for each of three waits of a call: for a send slot, for a connection, for the
    /// response.
    pub timeout_ms: u64,
    /// How long the tokens of best-effort adds are stored for deduplication, in seconds; 0 disables deduplication.
    pub dedupe_seconds: u32,
    /// The keyspace of a Cassandra cluster.
    pub keyspace: String,
    /// The local data centre of this server; may be empty if the cluster has only one.
    pub data_center: String,
    /// The replication of a keyspace that `migrate apply` creates.
    pub replication: ReplicasByDataCenter,
    /// The user name; empty if the cluster needs no authentication.
    pub user: String,
    pub password: String,
    /// A file that holds the password.
    pub password_file: PathBuf,
    /// Whether connections to the servers of a cluster of Cassandra or Redis are by TLS.
    pub tls: bool,
    /// The authorities of their certificates; empty: those that the machine trusts.
    pub tls_ca_file: PathBuf,
    /// The certificate to show them, and its private key.
    pub tls_cert_file: PathBuf,
    pub tls_key_file: PathBuf,
    /// The timeout of one request to the cluster, in milliseconds.
    pub request_timeout_ms: u64,
    /// How the servers of a cluster of Redis or Valkey are found.
    pub topology: RedisTopology,
    /// The name of the primary in the settings of its Sentinels.
    pub primary: String,
    /// The user name at the Sentinels; empty for their default user.
    pub sentinel_user: String,
    pub sentinel_password: String,
    /// A file that holds the password of the Sentinels.
    pub sentinel_password_file: PathBuf,
    /// How many replicas of each Redis must have a change before its answer.
    pub replicas: u32,
    /// The durability of a Redis that does not show its settings.
    pub durability: DeclaredDurability,
}

/// The kind of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterKind {
    /// The embedded store.
    Embedded,
    /// Memory only.
    Memory,
    /// memcached servers.
    Memcached,
    /// Nodes of a Cassandra or ScyllaDB cluster.
    Cassandra,
    /// Redis or Valkey: one server, a primary behind Sentinels, or a cluster.
    Redis,
}

impl ClusterKind {
    /// The kind as it is written in the settings.
    pub fn word(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Memory => "memory",
            Self::Memcached => "memcached",
            Self::Cassandra => "cassandra",
            Self::Redis => "redis",
        }
    }
}

/// How the servers of a cluster of Redis or Valkey are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedisTopology {
    /// One server.
    Single,
    /// Sentinels say which server is the primary.
    Sentinel,
    /// A cluster, which says which node serves which slot.
    Cluster,
}

/// The durability that an operator declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredDurability {
    /// None is declared.
    #[serde(rename = "")]
    None,
    /// A power cut may lose the last second.
    Fast,
    /// Every answer comes after an fsync.
    Safe,
    /// Replicas have a change before its answer.
    Replicated,
}

impl DeclaredDurability {
    /// The tier, if one is declared.
    pub fn tier(self) -> Option<Durability> {
        match self {
            Self::None => None,
            Self::Fast => Some(Durability::Fast),
            Self::Safe => Some(Durability::Safe),
            Self::Replicated => Some(Durability::Replicated),
        }
    }
}

/// Servers by replica: `HOST:PORT,HOST:PORT | HOST:PORT,HOST:PORT`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Servers(Vec<Vec<String>>);

impl ClusterConfig {
    /// The password of the cluster, from its file if it is in one.
    pub fn password(&self) -> Result<StorePassword, String> {
        store_password("password", &self.password, &self.password_file)
    }

    /// The password of its Sentinels, likewise.
    pub fn sentinel_password(&self) -> Result<StorePassword, String> {
        store_password("sentinel_password", &self.sentinel_password, &self.sentinel_password_file)
    }

    /// The timeout for each of three waits of a call: for a send slot, for a connection, for the response.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// A password of the settings. That of a file is read again for each new connection.
fn store_password(setting: &str, password: &str, file: &Path) -> Result<StorePassword, String> {
    if file.as_os_str().is_empty() {
        return Ok(StorePassword::from(password));
    }
    StorePassword::of_file(file.to_owned()).map_err(|error| {
        format!(
            "cannot read {}, the {setting}_file of the cluster: {error}; correct {setting}_file, or set {setting} instead",
            file.display()
        )
    })
}

impl Servers {
    pub fn replicas(&self) -> &[Vec<String>] {
        &self.0
    }
}

impl FromStr for Servers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let replica = |text: &str| {
            let servers = text.split(',').map(|server| server.trim().parse::<ListenAddress>());
            servers.map(|server| server.map(|server| server.to_string())).collect::<Result<Vec<_>, _>>()
        };
        let replicas = text.split('|').map(replica).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<&String> = replicas.iter().flatten().collect();
        if all.len() > MEMCACHED_SERVERS_MAX {
            return Err(format!("more than {MEMCACHED_SERVERS_MAX} servers"));
        }
        all.sort();
        match all.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("{} occurs twice", pair[0])),
            None => Ok(Self(replicas)),
        }
    }
}

impl TryFrom<String> for Servers {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replicas: Vec<String> = self.0.iter().map(|servers| servers.join(",")).collect();
        f.write_str(&replicas.join(" | "))
    }
}

/// Copies by data centre: `DC:N,DC:N`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ReplicasByDataCenter(Vec<(String, u32)>);

impl ReplicasByDataCenter {
    /// How a keyspace is replicated; none if nobody said.
    pub fn replication(&self) -> Option<Replication> {
        (!self.0.is_empty()).then(|| Replication::new(self.0.clone()))
    }

    /// The data centres that hold copies.
    pub fn data_centers(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

impl FromStr for ReplicasByDataCenter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let one = |pair: &str| {
            let (name, copies) = pair.trim().rsplit_once(':')?;
            let is_name = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
            let copies = copies.parse().ok().filter(|copies| (1..=9).contains(copies))?;
            (!name.is_empty() && name.chars().all(is_name)).then(|| (name.to_owned(), copies))
        };
        let all = text.split(',').map(one).collect::<Option<Vec<_>>>();
        all.map(Self).ok_or_else(|| "must be DATACENTER:COPIES[,...] with 1 to 9 copies, as in dc1:3".to_owned())
    }
}

impl TryFrom<String> for ReplicasByDataCenter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ReplicasByDataCenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.0.iter().map(|(name, copies)| format!("{name}:{copies}")).collect();
        f.write_str(&pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_parsed_by_replica_and_duplicates_are_refused() {
        let servers: Servers = "a:1, b:2 | [::1]:3".parse().expect("valid servers");
        assert_eq!(servers.to_string(), "a:1,b:2 | [::1]:3");
        assert_eq!(servers.replicas().len(), 2);
        assert_eq!("".parse::<Servers>(), Ok(Servers::default()));
        for bad in ["a", "a:1,", "a:1 | ", "a:1,a:1", "a:1|a:1", "a:1;b:2"] {
            assert!(bad.parse::<Servers>().is_err(), "{bad}");
        }
    }

    #[test]
    fn copies_are_read_by_data_centre() {
        let copies: ReplicasByDataCenter = "dc1:3, dc-2:1".parse().expect("valid copies");
        assert_eq!(copies.to_string(), "dc1:3,dc-2:1");
        assert_eq!("".parse::<ReplicasByDataCenter>(), Ok(ReplicasByDataCenter::default()));
        for bad in ["dc1", "dc1:0", "dc1:10", ":3", "dc1:3,", "dc'1:3", "dc1:x"] {
            assert!(bad.parse::<ReplicasByDataCenter>().is_err(), "{bad}");
        }
    }
}
