//! How a node is: what INFO says of it, and CONFIG where the user may read it.

use std::sync::Arc;

use crate::client::command::RedisCommand;
use crate::client::deadline::Deadline;
use crate::client::failure::{CallFailure, FailureCause};
use crate::client::info::field;
use crate::client::node::Node;
use crate::client::reply::RedisReply;

/// How one node is, or why that cannot be read.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeReading {
    /// The node.
    pub address: String,
    /// The answer of the node.
    pub reading: Result<NodeFacts, CallFailure>,
}

/// The product of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

/// The role of a node towards others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It follows a primary.
    Replica,
}

/// The facts of a node that INFO reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeFacts {
    /// The product of the node.
    pub product: Product,
    /// Its version.
    pub version: String,
    /// Whether it takes writes.
    pub role: Role,
    /// Names the life of its process.
    pub run_id: String,
    /// Names the history of its data: a replica that becomes a primary begins another one.
    pub replication_id: String,
    /// Its memory.
    pub memory: NodeMemory,
    /// Whether it writes an append-only file.
    pub append_only: bool,
    /// The replicas that are connected.
    pub replicas: u32,
    /// Settings; none if the user may not read them.
    pub config: Option<NodeConfig>,
}

/// The settings of a node that CONFIG reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// When the append-only file is synced: `always`, `everysec` or `no`.
    pub append_fsync: String,
    /// Fewer replicas than this refuse writes.
    pub replicas_to_write: u32,
    /// A replica counts while it was heard of so many seconds ago.
    pub replicas_lag_seconds: u32,
    /// The fields of a hash that is kept as a list.
    pub hash_listpack_entries: u64,
    /// The bytes of a value of such a hash.
    pub hash_listpack_value: u64,
    /// The members of a sorted set that is kept as a list.
    pub zset_listpack_entries: u64,
    /// The bytes of a member of such a sorted set.
    pub zset_listpack_value: u64,
}

/// The memory of a node, as it reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeMemory {
    /// Bytes in use.
    pub used: u64,
    /// The most bytes that it may use; 0 without a limit.
    pub limit: u64,
    /// The eviction policy: what it does beyond the limit; `noeviction` loses nothing.
    pub policy: String,
}

const CONFIG: [&str; 7] = [
    "appendfsync",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
];

/// Reads how a node is.
pub(super) async fn read(node: Arc<Node>, deadline: &Deadline) -> NodeReading {
    let reading = facts(&node, deadline).await;
    NodeReading { address: node.endpoint().address.to_string(), reading }
}

/// Reads the memory of a node, which takes a tenth of the time of everything that it is.
pub(super) async fn read_memory(node: Arc<Node>, deadline: &Deadline) -> (String, Result<NodeMemory, CallFailure>) {
    let address = node.endpoint().address.to_string();
    let info = node.ask(RedisCommand::new("INFO").arg("memory"), deadline).await.and_then(RedisReply::into_text);
    (address, info.and_then(|info| memory_of(&info)))
}

fn memory_of(info: &str) -> Result<NodeMemory, CallFailure> {
    let text = |name| field(info, name).ok_or_else(|| missing("INFO", name));
    let number = |name| text(name)?.parse().map_err(|_| missing("INFO", name));
    let policy = text("maxmemory_policy")?.to_owned();
    Ok(NodeMemory { used: number("used_memory")?, limit: number("maxmemory")?, policy })
}

async fn facts(node: &Node, deadline: &Deadline) -> Result<NodeFacts, CallFailure> {
    let sections = ["server", "memory", "persistence", "replication"];
    let info = sections.iter().fold(RedisCommand::new("INFO"), RedisCommand::arg);
    let info = node.ask(info, deadline).await?.into_text()?;
    let config = CONFIG.iter().fold(RedisCommand::new("CONFIG").arg("GET"), RedisCommand::arg);
    let config = match node.ask(config, deadline).await {
        Ok(reply) => Some(read_config(reply)?),
        // Hosted servers hide CONFIG, or have renamed it.
        Err(failure) if failure.cause == FailureCause::Denied || failure.text.contains("unknown command") => None,
        Err(failure) => return Err(failure),
    };
    read_info(&info, config)
}

fn read_info(info: &str, config: Option<NodeConfig>) -> Result<NodeFacts, CallFailure> {
    let text = |name| field(info, name).ok_or_else(|| missing("INFO", name));
    let number = |name| text(name)?.parse::<u64>().map_err(|_| missing("INFO", name));
    let (product, version) = match field(info, "valkey_version") {
        Some(version) => (Product::Valkey, version),
        None => (Product::Redis, text("redis_version")?),
    };
    Ok(NodeFacts {
        product,
        version: version.to_owned(),
        role: if text("role")? == "master" { Role::Primary } else { Role::Replica },
        run_id: text("run_id")?.to_owned(),
        replication_id: text("master_replid")?.to_owned(),
        memory: memory_of(info)?,
        append_only: text("aof_enabled")? == "1",
        replicas: u32::try_from(number("connected_slaves")?).unwrap_or(u32::MAX),
        config,
    })
}

fn read_config(reply: RedisReply) -> Result<NodeConfig, CallFailure> {
    let words: Result<Vec<String>, CallFailure> = reply.into_list()?.into_iter().map(RedisReply::into_text).collect();
    let words = words?;
    let text = |name: &str| {
        let found = words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
        found.ok_or_else(|| missing("CONFIG", name))
    };
    let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| missing("CONFIG", name));
    let small = |name: &str| number(name).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let [append_fsync, to_write, lag, hash_entries, hash_value, zset_entries, zset_value] = CONFIG;
    Ok(NodeConfig {
        append_fsync: text(append_fsync)?.to_owned(),
        replicas_to_write: small(to_write)?,
        replicas_lag_seconds: small(lag)?,
        hash_listpack_entries: number(hash_entries)?,
        hash_listpack_value: number(hash_value)?,
        zset_listpack_entries: number(zset_entries)?,
        zset_listpack_value: number(zset_value)?,
    })
}

fn missing(command: &str, name: &str) -> CallFailure {
    CallFailure::new(FailureCause::Protocol, format!("the answer to {command} has no valid {name}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.1\r\nrun_id:aa\r\n\
                        # Memory\r\nused_memory:1000\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
                        # Persistence\r\naof_enabled:1\r\n\
                        # Replication\r\nrole:master\r\nconnected_slaves:2\r\nmaster_replid:bb\r\n";

    #[test]
    fn a_node_is_read_from_the_fields_of_info() {
        let facts = read_info(INFO, None).expect("an answer");
        let expected = NodeFacts {
            product: Product::Valkey,
            version: "9.0.1".to_owned(),
            role: Role::Primary,
            run_id: "aa".to_owned(),
            replication_id: "bb".to_owned(),
            memory: NodeMemory { used: 1_000, limit: 0, policy: "noeviction".to_owned() },
            append_only: true,
            replicas: 2,
            config: None,
        };
        assert_eq!(facts, expected);
        let redis = INFO.replace("valkey_version:9.0.1\r\n", "").replace("role:master", "role:slave");
        let facts = read_info(&redis, None).expect("an answer");
        assert_eq!((facts.product, facts.version.as_str(), facts.role), (Product::Redis, "7.2.4", Role::Replica));
        assert!(read_info(&INFO.replace("run_id", "another"), None).is_err());
    }

    #[test]
    fn settings_are_read_by_name_in_any_order() {
        let words: Vec<RedisReply> = CONFIG
            .iter()
            .rev()
            .enumerate()
            .flat_map(|(at, name)| {
                let value = if *name == "appendfsync" { "always".to_owned() } else { at.to_string() };
                [(*name).to_owned(), value]
            })
            .map(|word| RedisReply::Bytes(Bytes::from(word)))
            .collect();
        let config = read_config(RedisReply::List(words.clone())).expect("an answer");
        assert_eq!((config.append_fsync.as_str(), config.replicas_to_write), ("always", 5));
        assert_eq!((config.zset_listpack_value, config.hash_listpack_entries), (0, 3));
        assert!(read_config(RedisReply::List(words[2..].to_vec())).is_err());
    }
}
