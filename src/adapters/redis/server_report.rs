//! The report on the servers of the queues: their versions, memory and persistence, the durability that they offer, and
//! what an operator should change.

use std::time::Duration;

use super::client::{NodeConfig, NodeFacts, NodeMemory, NodeReading, Product};
use tallystone_domain::queue::Durability;
use tallystone_ports::StoreMemory;

/// The percentage of the memory that a server may use from which enqueues are refused: the rest is for commands that
/// take messages out. Operators are warned before, from `MEMORY_TOLD_FROM_PERCENT` on.
const ENQUEUES_STOP_AT_PERCENT: u64 = 95;
/// The bytes of a value in a compact hash with which messages take the least memory.
const LISTPACK_VALUE: u64 = 512;
/// A replica that was heard of within this time counts. It is below the time for which nothing expires after a
/// failover.
const REPLICA_HEARD_WITHIN: Duration = Duration::from_secs(10);
/// The policy of memory with which nothing is thrown away.
const KEEPS_ALL: &str = "noeviction";
/// The first version that has functions.
const FIRST_VERSION: u64 = 7;

/// The requirements on the servers.
#[derive(Clone, Copy, Debug)]
pub struct AskedOfServers {
    /// The replicas that have to have each change before its answer; 0 for none.
    pub replicas: u32,
    /// The durability that an operator declares where a server does not show its settings.
    pub declared: Option<Durability>,
}

/// The servers at one moment.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// One line for each server: what it is and how it is set up.
    pub servers: Vec<String>,
    /// The changes that an operator should make.
    pub warnings: Vec<String>,
    /// The durability that all of them offer; none if queues end with the process of a server.
    pub durability: Option<Durability>,
    /// Whether that is what an operator declared.
    pub is_declared: bool,
    /// Whether a server has no memory left for enqueues.
    pub is_nearly_full: bool,
}

impl ServerReport {
    /// Judges what the servers said; none if one of them said nothing, because then nothing is known of it.
    pub fn of(readings: &[NodeReading], asked: AskedOfServers) -> Option<Self> {
        let mut report = Self {
            servers: Vec::new(),
            warnings: Vec::new(),
            durability: Durability::ALL.last().copied(),
            is_declared: false,
            is_nearly_full: false,
        };
        for NodeReading { address, reading } in readings {
            report.add(address, reading.as_ref().ok()?, asked);
        }
        (!readings.is_empty()).then_some(report)
    }

    fn add(&mut self, address: &str, facts: &NodeFacts, asked: AskedOfServers) {
        self.servers.push(format!("{address}: {}", description(facts)));
        let offered = match &facts.config {
            Some(config) => offered(facts, config, asked.replicas),
            None => {
                self.is_declared = true;
                if facts.append_only { asked.declared } else { None }
            }
        };
        self.durability = self.durability.min(offered);
        self.is_nearly_full |= is_nearly_full(&store_memory(address, &facts.memory));
        self.warnings.extend(warnings(facts, asked).into_iter().map(|why| format!("Redis at {address}: {why}")));
    }
}

fn description(facts: &NodeFacts) -> String {
    let product = match facts.product {
        Product::Redis => "Redis",
        Product::Valkey => "Valkey",
    };
    let memory = match facts.memory.limit {
        0 => format!("{} bytes of memory, no limit", facts.memory.used),
        limit => format!("{} of {limit} bytes of memory", facts.memory.used),
    };
    let persistence = match (&facts.config, facts.append_only) {
        (_, false) => "no append-only file".to_owned(),
        (Some(config), true) => format!("append-only file, fsync {}", config.append_fsync),
        (None, true) => "append-only file, fsync not shown".to_owned(),
    };
    let limits = facts.config.as_ref().map_or_else(
        || "listpack limits not shown".to_owned(),
        |config| {
            let [hash_entries, hash_value] = [config.hash_listpack_entries, config.hash_listpack_value];
            let [zset_entries, zset_value] = [config.zset_listpack_entries, config.zset_listpack_value];
            format!(
                "listpack limits {hash_entries}/{hash_value} of hashes and {zset_entries}/{zset_value} of sorted sets"
            )
        },
    );
    let (version, policy, replicas) = (&facts.version, &facts.memory.policy, facts.replicas);
    format!("{product} {version}, {memory}, policy {policy}, {persistence}, {replicas} replicas, {limits}")
}

fn offered(facts: &NodeFacts, config: &NodeConfig, replicas: u32) -> Option<Durability> {
    if !facts.append_only || evicts(facts) {
        return None;
    }
    match config.append_fsync.as_str() {
        "always" if replicas > 0 && holds_replicas(config, replicas) => Some(Durability::Replicated),
        "always" => Some(Durability::Safe),
        "everysec" => Some(Durability::Fast),
        _ => None, // the system writes when it likes, and a power cut may lose half a minute
    }
}

/// Whether the server refuses writes without so many replicas.
fn holds_replicas(config: &NodeConfig, replicas: u32) -> bool {
    let lag = Duration::from_secs(config.replicas_lag_seconds.into());
    config.replicas_to_write >= replicas && !lag.is_zero() && lag <= REPLICA_HEARD_WITHIN
}

fn evicts(facts: &NodeFacts) -> bool {
    facts.memory.limit > 0 && facts.memory.policy != KEEPS_ALL
}

/// The memory of a server, as operators are told of it.
pub(super) fn store_memory(server: &str, memory: &NodeMemory) -> StoreMemory {
    StoreMemory {
        server: server.to_owned(),
        used_bytes: memory.used,
        limit_bytes: Some(memory.limit).filter(|limit| *limit > 0),
        eviction_policy: Some(memory.policy.clone()).filter(|policy| policy != KEEPS_ALL),
    }
}

/// Whether a server has no memory left for enqueues.
pub(super) fn is_nearly_full(memory: &StoreMemory) -> bool {
    memory.used_percent().is_some_and(|percent| percent >= ENQUEUES_STOP_AT_PERCENT)
}

/// The faults of a server that an operator should mend, each with the remedy.
fn warnings(facts: &NodeFacts, asked: AskedOfServers) -> Vec<String> {
    let mut found = Vec::new();
    let mut warn = |is_so: bool, why: String| {
        if is_so {
            found.push(why);
        }
    };
    let major = facts.version.split('.').next().and_then(|major| major.parse::<u64>().ok());
    warn(
        major.is_none_or(|major| major < FIRST_VERSION),
        format!("version {} has no functions; use Redis 7.0 or later, or Valkey", facts.version),
    );
    let (policy, memory) = (&facts.memory.policy, store_memory("", &facts.memory));
    warn(
        memory.eviction_policy.is_some(),
        format!("policy {policy} throws messages away when memory is short; set maxmemory-policy noeviction"),
    );
    warn(
        memory.limit_bytes.is_none(),
        "no limit of memory; set maxmemory, so that enqueues are refused before the machine has none left".to_owned(),
    );
    warn(
        memory.is_short(),
        format!(
            "{} % of maxmemory is used, and enqueues are refused from {ENQUEUES_STOP_AT_PERCENT} % on; drain queues or raise it",
            memory.used_percent().unwrap_or_default()
        ),
    );
    warn(!facts.append_only, "no append-only file: a restart loses messages; set appendonly yes".to_owned());
    let Some(config) = &facts.config else {
        let declared = asked.declared.map_or_else(|| "nothing".to_owned(), |declared| declared.to_string());
        warn(true, format!("CONFIG may not be read, so the durability is what was declared: {declared}"));
        return found;
    };
    let fsync = &config.append_fsync;
    warn(
        facts.append_only && fsync != "always",
        format!(
            "appendfsync {fsync} can lose the last acknowledged changes; set it to always for queues that require SAFE"
        ),
    );
    let replicas = asked.replicas;
    warn(
        replicas > 0 && !holds_replicas(config, replicas),
        format!("REPLICATED is asked for; set min-replicas-to-write {replicas} and min-replicas-max-lag 1 to 10"),
    );
    warn(
        config.hash_listpack_value < LISTPACK_VALUE,
        format!("a message takes up to 60 % more memory; set hash-max-listpack-value {LISTPACK_VALUE}"),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{CallFailure, FailureCause, Role};

    fn memory(used: u64, limit: u64, policy: &str) -> NodeMemory {
        NodeMemory { used, limit, policy: policy.to_owned() }
    }

    fn safe() -> NodeFacts {
        NodeFacts {
            product: Product::Redis,
            version: "7.0.15".to_owned(),
            role: Role::Primary,
            run_id: "a".to_owned(),
            replication_id: "b".to_owned(),
            memory: memory(50, 100, "noeviction"),
            append_only: true,
            replicas: 0,
            config: Some(NodeConfig {
                append_fsync: "always".to_owned(),
                replicas_to_write: 1,
                replicas_lag_seconds: 10,
                hash_listpack_entries: 512,
                hash_listpack_value: 512,
                zset_listpack_entries: 128,
                zset_listpack_value: 64,
            }),
        }
    }

    fn with_config(change: impl FnOnce(&mut NodeConfig)) -> NodeFacts {
        let mut facts = safe();
        change(facts.config.as_mut().expect("it has one"));
        facts
    }

    fn judged(facts: NodeFacts, replicas: u32, declared: Option<Durability>) -> ServerReport {
        let reading = NodeReading { address: "127.0.0.1:1".to_owned(), reading: Ok(facts) };
        ServerReport::of(&[reading], AskedOfServers { replicas, declared }).expect("it answered")
    }

    #[test]
    fn the_durability_is_what_the_settings_of_the_server_hold() {
        let of = |facts, replicas| judged(facts, replicas, None).durability;
        assert_eq!((of(safe(), 0), of(safe(), 1)), (Some(Durability::Safe), Some(Durability::Replicated)));
        assert_eq!(of(safe(), 2), Some(Durability::Safe), "it takes writes with one replica");
        assert_eq!(of(with_config(|config| config.replicas_lag_seconds = 11), 1), Some(Durability::Safe));
        assert_eq!(of(with_config(|config| config.replicas_lag_seconds = 0), 1), Some(Durability::Safe));
        let everysec = with_config(|config| config.append_fsync = "everysec".to_owned());
        assert_eq!(of(everysec.clone(), 1), Some(Durability::Fast));
        assert_eq!(of(with_config(|config| config.append_fsync = "no".to_owned()), 0), None);
        assert_eq!(of(NodeFacts { append_only: false, ..safe() }, 1), None);
        assert_eq!(of(NodeFacts { memory: memory(50, 100, "allkeys-lru"), ..safe() }, 0), None);
        let readings = [safe(), everysec].map(|facts| NodeReading { address: String::new(), reading: Ok(facts) });
        let both = ServerReport::of(&readings, AskedOfServers { replicas: 0, declared: None }).expect("they answered");
        assert_eq!(both.durability, Some(Durability::Fast), "the weakest counts");
    }

    #[test]
    fn a_server_that_hides_its_settings_offers_what_was_declared() {
        let hidden = || NodeFacts { config: None, ..safe() };
        let declared = judged(hidden(), 0, Some(Durability::Safe));
        assert_eq!((declared.durability, declared.is_declared), (Some(Durability::Safe), true));
        assert!(declared.warnings.iter().any(|why| why.contains("declared: SAFE")), "{:?}", declared.warnings);
        assert_eq!(judged(hidden(), 0, None).durability, None);
        let none = judged(NodeFacts { append_only: false, ..hidden() }, 0, Some(Durability::Safe));
        assert_eq!(none.durability, None, "INFO says more than the declaration");
    }

    #[test]
    fn nothing_is_known_if_a_server_does_not_answer() {
        let failure = CallFailure::new(FailureCause::Unreachable, "away");
        let away = NodeReading { address: String::new(), reading: Err(failure) };
        let asked = AskedOfServers { replicas: 0, declared: None };
        assert!(ServerReport::of(&[away], asked).is_none() && ServerReport::of(&[], asked).is_none());
    }

    #[test]
    fn warnings_say_what_to_do_and_a_good_server_has_none() {
        let good = judged(safe(), 1, None);
        assert!(good.warnings.is_empty() && !good.is_nearly_full, "{:?}", good.warnings);
        assert!(good.servers[0].contains("Redis 7.0.15, 50 of 100 bytes"), "{:?}", good.servers);
        let short = judged(NodeFacts { memory: memory(85, 100, "noeviction"), ..safe() }, 0, None);
        assert!(
            !short.is_nearly_full && short.warnings[0].contains("85 % of maxmemory is used"),
            "{:?}",
            short.warnings
        );
        let full = judged(NodeFacts { memory: memory(95, 100, "noeviction"), ..safe() }, 0, None);
        assert!(full.is_nearly_full && full.warnings[0].contains("enqueues are refused"), "{:?}", full.warnings);
        let evicts = judged(NodeFacts { memory: memory(50, 0, "volatile-lru"), ..safe() }, 0, None);
        assert!(evicts.warnings[0].contains("set maxmemory-policy noeviction"), "{:?}", evicts.warnings);
        let bad = NodeFacts {
            version: "6.2.1".to_owned(),
            memory: memory(50, 0, "noeviction"),
            append_only: false,
            ..with_config(|config| config.hash_listpack_value = 64)
        };
        let told = judged(bad, 2, None).warnings;
        for advice in ["Redis 7.0 or later", "set maxmemory,", "appendonly yes", "to-write 2", "listpack-value 512"] {
            assert!(told.iter().any(|why| why.contains(advice)), "{advice}: {told:?}");
        }
    }
}
