//! The settings of a server: one documented file of defaults, a file of the operator's, the environment, flags.
//!
//! Parsing is pure: everything comes in as values, so tests need no environment. The default file is the list of what
//! exists; whatever is not in it is an error with a suggestion.

mod auth;
mod bridge;
mod call_limits;
mod cassandra;
mod cluster_faults;
mod cluster_tls;
mod clusters;
mod console;
mod engines;
mod issuers;
mod listen;
mod log;
mod metrics;
mod numbers;
mod quotas;
mod redis;
mod roles;
mod tables;
mod tls;
mod traces;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::{Table, Value};

use crate::log_filter;
use crate::suggestions::closest_name;
use tallystone_domain::counter::NamespaceName;
use tallystone_engine::namespaces::{ClusterUse, Clusters, UnlistedClusters};

use numbers::{number_of, number_wanted};
use tables::{complete_named, find, in_quotes, insert, kind_of, leaves, like};

pub use auth::{AuthConfig, AuthMode};
pub use bridge::BridgeConfig;
pub use call_limits::CallLimitsConfig;
pub use cassandra::{attached_clusters, counter_cluster, options as cassandra_options};
pub use clusters::{
    BestEffortConfig, ClusterConfig, ClusterKind, DeclaredDurability, RedisTopology, ReplicasByDataCenter, Servers,
};
pub use console::ConsoleConfig;
pub use engines::{CacheConfig, CounterEngine, CountersConfig, QueueEngine, QueuesConfig};
pub use issuers::{ConfiguredIssuer, IssuerConfig, IssuerKeysPlace, trusted as trusted_issuers};
pub use listen::{ListenAddress, SERVER_DEFAULT};
pub use log::{LogConfig, LogFormat};
pub use metrics::MetricsConfig;
pub use quotas::QuotasConfig;
pub use redis::{client_options as redis_client_options, queue_cluster};
pub use roles::{AdvertisedAddress, ServerRoles};
pub use tls::{ClientAuth, TlsConfig};
pub use traces::TracesConfig;

/// The compiled-in defaults, which are also the documentation.
pub const DEFAULT_FILE: &str = include_str!("default.toml");

/// How environment variables begin.
pub const ENVIRONMENT_PREFIX: &str = "TALLYSTONE__";

/// Follows `counters.engine` unless it is set.
const CLUSTER_KIND: &str = "clusters.embedded.kind";

/// The settings of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: ServerConfig,
    pub tls: TlsConfig,
    pub auth: AuthConfig,
    pub quotas: QuotasConfig,
    pub limits: CallLimitsConfig,
    pub counters: CountersConfig,
    pub queues: QueuesConfig,
    pub cache: CacheConfig,
    pub storage: StorageConfig,
    pub best_effort: BestEffortConfig,
    pub log: LogConfig,
    pub traces: TracesConfig,
    pub metrics: MetricsConfig,
    pub bridge: BridgeConfig,
    pub console: ConsoleConfig,
    /// `[clusters.NAME]`
    pub clusters: BTreeMap<String, ClusterConfig>,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// The address at which everything is served.
    pub listen: ListenAddress,
    /// Host names under which the development server answers.
    pub hosts: String,
    /// The address at which the other servers of a fleet reach this one.
    pub advertise: AdvertisedAddress,
    /// How long a stop may take.
    pub drain_deadline_ms: u64,
    /// Worker threads of the runtime; 0 takes one for each core.
    pub worker_threads: usize,
    /// The bytes that requests and answers under way may take; 0 takes a quarter of the memory.
    pub buffer_bytes: u64,
    /// The roles of the server, where several share a store.
    pub roles: ServerRoles,
    /// The namespaces that a start makes where they are absent. Not a setting: the command line names them.
    #[serde(skip)]
    pub namespaces: Vec<NamespaceName>,
}

impl ServerConfig {
    /// The host names of the server: those that are listed, then the host of its port.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let listen = self.listen.as_str();
        let own = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
        self.hosts.split(',').chain([own])
    }
}

/// `[storage]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageConfig {
    /// The directory of the embedded store.
    pub data_dir: PathBuf,
    /// Adds are refused below this much free space.
    pub reserve_bytes: u64,
    /// Memory for blocks.
    pub cache_bytes: u64,
    /// Memory for counts.
    pub count_cache_bytes: u64,
    /// Memory for recent events.
    pub tail_bytes: u64,
    /// The directory to which slices are exported.
    pub export_dir: PathBuf,
    /// How long after its end a time bucket is sealed; 0: never.
    pub seal_delay_seconds: u64,
}

/// The origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingOrigin {
    /// The compiled-in file.
    Default,
    /// The operator's file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    Flag(&'static str),
}

/// The reason why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML.
    #[error("{path} is not valid TOML")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: Box<toml::de::Error>,
    },
    /// No such key.
    #[error("{origin}: there is no setting {key}; {advice}")]
    UnknownKey {
        /// The place where it was written.
        origin: SettingOrigin,
        key: String,
        /// The setting that was meant, or those there are.
        advice: String,
    },
    /// The value does not fit.
    #[error("{origin}: {key} {what}")]
    BadValue {
        /// The place where it was written.
        origin: SettingOrigin,
        key: String,
        /// The fault of the value.
        what: String,
    },
}

/// The sources of settings.
#[derive(Debug, Default)]
pub struct ConfigSources {
    /// The operator's file: its path and text.
    pub file: Option<(PathBuf, String)>,
    pub environment: Vec<(String, String)>,
    /// Flags: the key, the flag's name, the value.
    pub flags: Vec<(String, &'static str, String)>,
}

/// Settings with the origin of each value.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    /// Every setting in the order of keys.
    pub settings: BTreeMap<String, ResolvedSetting>,
    /// Settings that have no effect beside the others, each in a sentence.
    pub notices: Vec<String>,
}

/// One setting, as it may be shown.
#[derive(Debug)]
pub struct ResolvedSetting {
    /// The value; secrets are masked.
    pub value: Value,
    /// The origin of the value.
    pub origin: SettingOrigin,
}

struct ConfigLayers {
    defaults: Table,
    table: Table,
    origins: BTreeMap<String, SettingOrigin>,
}

/// Puts settings together.
pub fn load(sources: &ConfigSources) -> Result<LoadedConfig, ConfigError> {
    let defaults: Table = DEFAULT_FILE.parse().expect("the compiled-in file is TOML, as a test says");
    let mut layers = ConfigLayers { origins: BTreeMap::new(), table: defaults.clone(), defaults };
    let mut keys = Vec::new();
    leaves(&layers.table, "", &mut keys);
    layers.origins.extend(keys.into_iter().map(|(key, _)| (key, SettingOrigin::Default)));
    if let Some((path, text)) = &sources.file {
        let table: Table =
            text.parse().map_err(|source| ConfigError::Syntax { path: path.clone(), source: Box::new(source) })?;
        let origin = SettingOrigin::File(path.clone());
        layers.declare(&table, "", &origin)?;
        let mut keys = Vec::new();
        leaves(&table, "", &mut keys);
        for (key, value) in keys {
            layers.set(&key, value, &origin)?;
        }
    }
    let named = |(name, text): &(String, String)| {
        let key = name.strip_prefix(ENVIRONMENT_PREFIX)?.to_lowercase().replace("__", ".");
        Some((key, text.clone(), SettingOrigin::Environment(name.clone())))
    };
    let environment = sources.environment.iter().filter_map(named);
    let flags = sources.flags.iter().map(|(key, flag, text)| (key.clone(), text.clone(), SettingOrigin::Flag(flag)));
    for (key, text, origin) in environment.chain(flags) {
        layers.set_text(&key, &text, &origin)?;
    }
    layers.finish()
}

impl ConfigLayers {
    fn set_text(&mut self, key: &str, text: &str, origin: &SettingOrigin) -> Result<(), ConfigError> {
        let value = match self.known(key, origin)? {
            Value::Integer(_) => {
                let number = text.parse().ok().or_else(|| number_of(key, text)).map(Value::Integer);
                number.ok_or_else(|| bad(key, origin, &format!("must be {}", number_wanted(key))))
            }
            Value::Boolean(_) => {
                text.parse().map(Value::Boolean).map_err(|_| bad(key, origin, "must be true or false"))
            }
            Value::String(_) | Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                Ok(Value::String(text.to_owned()))
            }
        }?;
        self.set(key, value, origin)
    }

    /// Takes in the sections of a table, also those without any value: a cluster may be nothing but a name.
    fn declare(&mut self, table: &Table, prefix: &str, origin: &SettingOrigin) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let Some(section) = value.as_table() else { continue };
            match find(&self.defaults, &like(&key)) {
                Some(known) if known.is_table() => self.declare(section, &key, origin)?,
                Some(known) => return Err(bad(&key, origin, &format!("must be {}, not a section", kind_of(known)))),
                None => {
                    let advice = self.advice(&key);
                    return Err(ConfigError::UnknownKey { origin: origin.clone(), key, advice });
                }
            }
            if section.is_empty() && find(&self.table, &key).is_none() {
                insert(&mut self.table, &key, Value::Table(Table::new()));
            }
        }
        Ok(())
    }

    /// Sets a value, after it was tried alone on top of the defaults: so the one that cannot be used is the one blamed.
    fn set(&mut self, key: &str, value: Value, origin: &SettingOrigin) -> Result<(), ConfigError> {
        let known = self.known(key, origin)?;
        let with_unit = value.as_str().filter(|_| known.is_integer()).and_then(|text| number_of(key, text));
        let value = with_unit.map_or(value, Value::Integer);
        if !known.same_type(&value) {
            let wanted = if known.is_integer() { number_wanted(key) } else { kind_of(&known) };
            let example = in_quotes(key, &known, &value);
            return Err(bad(key, origin, &format!("must be {wanted}, not {}{example}", kind_of(&value))));
        }
        if value.as_integer().is_some_and(i64::is_negative) {
            return Err(bad(key, origin, "must be 0 or more"));
        }
        let mut alone = self.defaults.clone();
        insert(&mut alone, key, value.clone());
        complete_named(&mut alone, &self.defaults);
        Config::deserialize(alone)
            .map_err(|error| bad(key, origin, &format!("cannot be used: {}", error.message())))?;
        insert(&mut self.table, key, value);
        self.origins.insert(key.to_owned(), origin.clone());
        Ok(())
    }

    /// The default of a key, or of its like: clusters have any name.
    fn known(&self, key: &str, origin: &SettingOrigin) -> Result<Value, ConfigError> {
        let value = find(&self.defaults, &like(key)).filter(|value| !value.is_table()).cloned();
        value.ok_or_else(|| ConfigError::UnknownKey {
            origin: origin.clone(),
            key: key.to_owned(),
            advice: self.advice(key),
        })
    }

    /// The advice on what to write instead of a key that does not exist.
    fn advice(&self, key: &str) -> String {
        let names = |section: &Table| section.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let section_of = |key: &str| find(&self.defaults, &like(key)).and_then(Value::as_table);
        if let Some(section) = section_of(key) {
            return format!("{key} is a section; its settings are {}", names(section));
        }
        let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
        if let Some(known) = section_of(section) {
            return match closest_name(name, known.keys().map(String::as_str)) {
                Some(name) => format!("did you mean {section}.{name}?"),
                None => format!("the settings of {section} are {}", names(known)),
            };
        }
        let known = closest_name(section, self.defaults.keys().map(String::as_str));
        let alike = known.and_then(|section| {
            let name = closest_name(name, section_of(section)?.keys().map(String::as_str))?;
            Some(format!("{section}.{name}"))
        });
        let same_name = || self.origins.keys().find(|known| known.rsplit('.').next() == Some(name)).cloned();
        match alike.or_else(same_name) {
            Some(key) => format!("did you mean {key}?"),
            None => format!("the sections are {}", names(&self.defaults)),
        }
    }

    fn finish(mut self) -> Result<LoadedConfig, ConfigError> {
        if self.origins.get(CLUSTER_KIND) == Some(&SettingOrigin::Default)
            && let Some(kind) = find(&self.table, "counters.engine").cloned()
            && kind.as_str() != Some("cassandra")
        {
            insert(&mut self.table, CLUSTER_KIND, kind);
        }
        let like = self.table.clone();
        complete_named(&mut self.table, &like);
        let config = Config::deserialize(self.table.clone());
        let config = config.expect("every value was tried alone, and none depends on another");
        let mut keys = Vec::new();
        leaves(&self.table, "", &mut keys);
        let settings = keys.into_iter().map(|(key, value)| {
            let origin = self.origins.get(&key).cloned().unwrap_or(SettingOrigin::Default);
            let is_hidden = is_secret(&key) && value.as_str() != Some("");
            let value = if is_hidden { Value::String("***".to_owned()) } else { value };
            (key, ResolvedSetting { value, origin })
        });
        let mut loaded = LoadedConfig { config, settings: settings.collect(), notices: Vec::new() };
        loaded.notices.extend(loaded.unused_directory());
        loaded.check()?;
        Ok(loaded)
    }
}

impl LoadedConfig {
    /// A data directory that no role uses.
    fn unused_directory(&self) -> Option<String> {
        let set = self.settings.get("storage.data_dir").filter(|setting| setting.value.as_str() != Some(""))?;
        let text = "storage.data_dir is not used: neither counters.engine nor queues.engine is \"embedded\"";
        (!self.config.uses_directory()).then(|| format!("{}: {text}", set.origin))
    }

    /// Checks what the type of a value does not say.
    fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, what: &str| {
            Err(bad(key, self.settings.get(key).map_or(&SettingOrigin::Default, |setting| &setting.origin), what))
        };
        if self.config.server.drain_deadline_ms == 0 {
            return invalid("server.drain_deadline_ms", "must be at least 1");
        }
        if self.config.storage.tail_bytes < 16 * 1024 * 1024 {
            return invalid("storage.tail_bytes", "must be at least 16777216");
        }
        if self.config.storage.cache_bytes < 8 * 1024 * 1024 {
            return invalid("storage.cache_bytes", "must be at least 8388608");
        }
        // A number without its unit.
        if (1..64 * 1024).contains(&self.config.queues.memory_bytes) {
            return invalid("queues.memory_bytes", "must be at least 65536 (64KiB), or 0 for half of the memory");
        }
        if self.config.log.level.trim().is_empty() {
            return invalid("log.level", "must name a level: error, warn, info, debug or trace");
        }
        if let Err(error) = log_filter::filter(&self.config.log.level) {
            return invalid("log.level", &format!("cannot be used: {error}"));
        }
        let named = |(key, what): (&str, String)| (key.to_owned(), what);
        let of_traces = || traces::find_invalid(&self.config).map(|(key, what)| (key.to_owned(), what));
        match cluster_faults::find_invalid(&self.config)
            .or_else(of_traces)
            .or_else(|| auth::find_invalid(&self.config))
            .or_else(|| roles::find_invalid(&self.config).map(named))
            .or_else(|| tls::find_invalid(&self.config).map(named))
            .or_else(|| call_limits::find_invalid(&self.config).map(named))
            .or_else(|| bridge::find_invalid(&self.config).map(named))
            .or_else(|| metrics::find_invalid(&self.config).map(named))
        {
            Some((key, what)) => invalid(&key, &what),
            None => Ok(()),
        }
    }
}

impl Config {
    /// The clusters that namespaces may name.
    pub fn cluster_names(&self, unlisted: UnlistedClusters) -> Clusters {
        let usage = |name: &str, kind| match kind {
            ClusterKind::Cassandra if name != self.counters.cluster => Some(ClusterUse::Attached),
            ClusterKind::Embedded | ClusterKind::Memory | ClusterKind::Cassandra => Some(ClusterUse::Store),
            ClusterKind::Memcached => Some(ClusterUse::Cache),
            // It keeps queues, and no dataset of a namespace.
            ClusterKind::Redis => None,
        };
        let listed = self.clusters.iter().filter_map(|(name, cluster)| {
            // What is no name was refused when the settings were checked.
            Some((NamespaceName::new(name).ok()?, usage(name, cluster.kind)?))
        });
        Clusters { listed: listed.collect(), unlisted }
    }

    /// Whether a role of the server keeps its data in the embedded directory.
    pub fn uses_directory(&self) -> bool {
        self.counters.engine == CounterEngine::Embedded || self.queues.engine == QueueEngine::Embedded
    }

    /// Whether a role of the server keeps its data in memory.
    pub fn uses_memory(&self) -> bool {
        self.counters.engine == CounterEngine::Memory || self.queues.engine == QueueEngine::Memory
    }

    /// How long a stop may take.
    pub fn drain_deadline(&self) -> Duration {
        Duration::from_millis(self.server.drain_deadline_ms)
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

fn bad(key: &str, origin: &SettingOrigin, what: &str) -> ConfigError {
    ConfigError::BadValue { origin: origin.clone(), key: key.to_owned(), what: what.to_owned() }
}

fn is_secret(key: &str) -> bool {
    !key.ends_with("_file") && ["secret", "password", "api_key"].iter().any(|word| key.contains(word))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The settings after these flags, or why they are refused.
    pub fn loaded(pairs: &[(&str, &str)]) -> Result<Config, String> {
        let flags = pairs.iter().map(|(key, value)| ((*key).to_owned(), "--set", (*value).to_owned())).collect();
        let loaded = load(&ConfigSources { flags, ..ConfigSources::default() });
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    fn file(text: &str) -> ConfigSources {
        ConfigSources { file: Some((PathBuf::from("my.toml"), text.to_owned())), ..ConfigSources::default() }
    }

    #[test]
    fn the_default_file_is_complete() {
        let loaded = load(&ConfigSources::default()).expect("the defaults are valid");
        assert_eq!(loaded.config.server.listen.as_str(), "127.0.0.1:7450");
        assert!(loaded.settings.values().all(|setting| setting.origin == SettingOrigin::Default));
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let mut sources = file("[server]\ndrain_deadline_ms = 2\n");
        let value = |sources: &ConfigSources| load(sources).expect("valid settings").config.server.drain_deadline_ms;
        assert_eq!(value(&sources), 2);
        sources.environment.push(("TALLYSTONE__SERVER__DRAIN_DEADLINE_MS".to_owned(), "3".to_owned()));
        assert_eq!(value(&sources), 3);
        sources.flags.push(("server.drain_deadline_ms".to_owned(), "--drain-deadline-ms", "4".to_owned()));
        assert_eq!(value(&sources), 4);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_a_suggestion() {
        let error = load(&file("[storage]\nreserve_byte = 1\n")).expect_err("no such key").to_string();
        assert_eq!(
            error,
            "file my.toml: there is no setting storage.reserve_byte; did you mean storage.reserve_bytes?"
        );
        let mut sources = ConfigSources::default();
        sources.environment.push(("TALLYSTONE__LOG__LEVLE".to_owned(), "debug".to_owned()));
        let error = load(&sources).expect_err("no such key").to_string();
        assert!(error.contains("did you mean log.level?"), "{error}");
    }

    #[test]
    fn an_empty_section_is_known_or_refused_by_its_name() {
        for (text, words) in [
            ("[strage]\n", "there is no setting strage; the sections are"),
            ("[server.tls]\n", "there is no setting server.tls; the settings of server are"),
            ("[server.listen]\n", "server.listen must be a text, not a section"),
            (
                "[server]\nlisten = 7612\n",
                "server.listen must be a text, not a whole number; write it in quotes: listen = \"127.0.0.1:7612\"",
            ),
            (
                "[log]\nlevel = 5\n",
                "log.level must be a text, not a whole number; write it in quotes: level = \"info\"",
            ),
            ("[clusters.near.keys]\n", "there is no setting clusters.near.keys"),
        ] {
            let error = load(&file(text)).expect_err(text).to_string();
            assert!(error.starts_with("file my.toml: ") && error.contains(words), "{error}");
        }
        let loaded = load(&file("[server]\n[clusters.near]\n")).expect("both are known");
        assert_eq!(loaded.config.clusters["near"].kind, ClusterKind::Embedded);
    }

    #[test]
    fn a_value_that_does_not_fit_names_its_key_and_where_it_was_written() {
        for (text, word) in [
            ("[server]\nlisten = \"nowhere\"\n", "server.listen"),
            (
                "[server]\ndrain_deadline_ms = \"soon\"\n",
                "server.drain_deadline_ms must be a whole number of milliseconds, or a time such as 10s, not a text",
            ),
            ("[queues]\nengine = \"tape\"\n", "queues.engine cannot be used"),
            ("[storage]\ntail_bytes = 1\n", "storage.tail_bytes must be at least"),
            ("[queues]\nmemory_bytes = 64\n", "queues.memory_bytes must be at least 65536 (64KiB), or 0"),
            ("[server\n", "not valid TOML"),
        ] {
            let error = load(&file(text)).expect_err(text).to_string();
            assert!(error.contains(word) && error.contains("my.toml"), "{error}");
        }
    }

    #[test]
    fn a_directory_that_no_role_uses_is_pointed_out() {
        let notices = |text: &str| load(&file(text)).expect("settings that load").notices;
        let unused =
            notices("[counters]\nengine = \"memory\"\n[queues]\nengine = \"none\"\n[storage]\ndata_dir = \"d\"\n");
        assert_eq!(unused.len(), 1, "{unused:?}");
        assert!(unused[0].contains("storage.data_dir is not used"), "{unused:?}");
        assert!(notices("[storage]\ndata_dir = \"d\"\n").is_empty());
    }

    #[test]
    fn sizes_and_times_may_be_written_with_units_wherever_settings_come_from() {
        let mut sources = file("[storage]\nreserve_bytes = \"1GiB\"\n");
        sources.environment.push(("TALLYSTONE__SERVER__DRAIN_DEADLINE_MS".to_owned(), "1m30s".to_owned()));
        sources.flags.push(("storage.seal_delay_seconds".to_owned(), "--set", "4h".to_owned()));
        let config = load(&sources).expect("valid settings").config;
        let numbers =
            (config.storage.reserve_bytes, config.server.drain_deadline_ms, config.storage.seal_delay_seconds);
        assert_eq!(numbers, (1 << 30, 90_000, 14_400));
    }

    #[test]
    fn a_text_says_once_what_is_wrong_with_toml() {
        let error = anyhow::Error::new(load(&file("[server\n")).expect_err("no TOML"));
        assert_eq!(format!("{error:#}").matches("TOML parse error").count(), 1, "{error:#}");
    }

    #[test]
    fn the_value_that_cannot_be_used_is_the_one_that_is_blamed() {
        let blamed = |sources: &ConfigSources| load(sources).expect_err("one value is bad").to_string();
        let flag = |key: &str, value: &str| (key.to_owned(), "--set", value.to_owned());
        let mut sources = file("[server]\nlisten = \"1.2.3.4\"\n");
        sources.flags.push(flag("storage.data_dir", "x"));
        assert!(
            blamed(&sources).starts_with("file my.toml: server.listen cannot be used: must be HOST:PORT"),
            "{sources:?}"
        );
        let mut sources = ConfigSources { flags: vec![flag("storage.data_dir", "x")], ..ConfigSources::default() };
        sources.environment.push(("TALLYSTONE__LOG__FORMAT".to_owned(), "xml".to_owned()));
        assert!(
            blamed(&sources).starts_with("environment TALLYSTONE__LOG__FORMAT: log.format "),
            "{}",
            blamed(&sources)
        );
        for (key, value, words) in [
            ("server.worker_threads", "-1", "flag --set: server.worker_threads must be 0 or more"),
            ("queues.memory_bytes", "-1", "flag --set: queues.memory_bytes must be 0 or more"),
            ("server.worker_threads", "x", "flag --set: server.worker_threads must be a whole number"),
            ("log.level", "bogus[[", "flag --set: log.level cannot be used"),
            ("log.level", "inof", "flag --set: log.level cannot be used: \"inof\" is not a level; did you mean info?"),
            (
                "log.level",
                "warn,tallystone=debgu",
                "flag --set: log.level cannot be used: \"debgu\" is not a level; did",
            ),
            (
                "log.level",
                "tallystone",
                "flag --set: log.level cannot be used: \"tallystone\" is not a level; the levels",
            ),
            ("clusters.embedded.kind", "memory", "flag --set: clusters.embedded.kind must be counters.engine"),
        ] {
            let sources = ConfigSources {
                flags: vec![flag("storage.data_dir", "x"), flag(key, value)],
                ..ConfigSources::default()
            };
            assert!(blamed(&sources).starts_with(words), "{}", blamed(&sources));
        }
    }

    #[test]
    fn a_key_that_does_not_exist_is_compared_within_its_section() {
        for (key, advice) in [
            ("server.drain_ms", "did you mean server.drain_deadline_ms?"),
            ("server.drain", "did you mean server.drain_deadline_ms?"),
            ("server.lisen", "did you mean server.listen?"),
            (
                "server.xyzzy",
                "the settings of server are advertise, buffer_bytes, drain_deadline_ms, hosts, listen, roles, worker_threads",
            ),
            (
                "server",
                "server is a section; its settings are advertise, buffer_bytes, drain_deadline_ms, hosts, listen, roles, worker_threads",
            ),
            ("sever.listen", "did you mean server.listen?"),
            ("listen", "did you mean server.listen?"),
            ("clusters.foo.kin", "did you mean clusters.foo.kind?"),
            (
                "clusters.foo",
                "clusters.foo is a section; its settings are data_center, dedupe_seconds, durability, key_prefix, keyspace, kind, password, \
                 password_file, primary, replicas, replication, request_timeout_ms, sentinel_password, sentinel_password_file, sentinel_user, servers, timeout_ms, tls, tls_ca_file, tls_cert_file, tls_key_file, topology, user",
            ),
            (
                "xyzzy.plugh",
                "the sections are auth, best_effort, bridge, cache, clusters, console, counters, limits, log, metrics, queues, quotas, server, storage, \
                 tls, traces",
            ),
        ] {
            let flags = vec![(key.to_owned(), "--set", "3".to_owned())];
            let error = load(&ConfigSources { flags, ..ConfigSources::default() }).expect_err(key).to_string();
            assert_eq!(error, format!("flag --set: there is no setting {key}; {advice}"));
        }
        assert!(load(&file("server = 3\n")).expect_err("a section").to_string().contains("server is a section"));
    }

    #[test]
    fn clusters_have_any_name_and_the_kind_of_the_storage() {
        let loaded = load(&file("[clusters.eu-cache]\nkind = \"embedded\"\n")).expect("valid settings");
        assert_eq!(loaded.config.clusters["eu-cache"].kind, ClusterKind::Embedded);
        let error = load(&file("[clusters.eu-cache]\nkind = \"memory\"\n")).expect_err("another store").to_string();
        assert!(error.starts_with("file my.toml: clusters.eu-cache.kind must be counters.engine"), "{error}");
        let text = "[counters]\nengine = \"memory\"\n[clusters.far]\ntimeout_ms = 7\n";
        let loaded = load(&file(text)).expect("clusters that nobody gave a kind follow");
        assert_eq!(loaded.config.clusters["embedded"].kind, ClusterKind::Memory);
        let (far, documented) = (&loaded.config.clusters["far"], &loaded.config.clusters["embedded"]);
        assert_eq!((far.kind, far.timeout_ms, &far.key_prefix), (ClusterKind::Memory, 7, &documented.key_prefix));
    }
}
