//! The settings of a server: one documented file of defaults, a file of the operator's, the environment, flags.
//!
//! Parsing is pure: everything comes in as values, so tests need no environment. The default file is the list of what
//! exists; whatever is not in it is an error with a suggestion.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::{Table, Value};

/// The compiled-in defaults, which are also the documentation.
pub const DEFAULT_FILE: &str = include_str!("default.toml");

/// How environment variables begin.
const ENVIRONMENT_PREFIX: &str = "TALLYSTONE__";

/// The settings of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[server]`
    pub server: ServerConfig,
    /// `[storage]`
    pub storage: StorageConfig,
    /// `[best_effort]`
    pub best_effort: BestEffortConfig,
    /// `[log]`
    pub log: LogConfig,
    /// `[clusters.NAME]`
    pub clusters: BTreeMap<String, ClusterConfig>,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where everything is served.
    pub listen: SocketAddr,
    /// How long a stop may take.
    pub drain_deadline_ms: u64,
    /// Worker threads of the runtime; 0 takes one for each core.
    pub worker_threads: usize,
}

/// `[storage]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageConfig {
    /// What keeps the data.
    pub kind: StorageKind,
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
    /// Where slices are exported to.
    pub export_dir: PathBuf,
}

/// What keeps the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    /// The embedded store.
    Embedded,
    /// Memory only.
    Memory,
}

/// `[best_effort]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestEffortConfig {
    /// Memory for best-effort counters.
    pub capacity_bytes: u64,
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// The level, also by module.
    pub level: String,
    /// The form of a line.
    pub format: LogFormat,
}

/// The form of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// `[clusters.NAME]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// What it is.
    pub kind: StorageKind,
}

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The compiled-in file.
    Default,
    /// The operator's file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(&'static str),
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: Box<toml::de::Error>,
    },
    /// No such key.
    #[error("{origin}: there is no setting {key}{}", suggestion.as_ref().map(|s| format!("; did you mean {s}?")).unwrap_or_default())]
    UnknownKey {
        /// Where it was written.
        origin: Origin,
        /// The key.
        key: String,
        /// The nearest that exists.
        suggestion: Option<String>,
    },
    /// The value does not fit.
    #[error("{origin}: {key} {what}")]
    BadValue {
        /// Where it was written.
        origin: Origin,
        /// The key.
        key: String,
        /// What is wrong.
        what: String,
    },
}

/// What settings are made of.
#[derive(Debug, Default)]
pub struct Sources {
    /// The operator's file: its path and text.
    pub file: Option<(PathBuf, String)>,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// Flags: the key, the flag's name, the value.
    pub flags: Vec<(String, &'static str, String)>,
}

/// Settings with the origin of each value.
#[derive(Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// Every key in the order of names, with its value as TOML and where it came from.
    pub values: BTreeMap<String, (String, Origin)>,
}

struct Layers {
    table: Table,
    origins: BTreeMap<String, Origin>,
}

/// Puts settings together.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let table: Table = DEFAULT_FILE.parse().expect("the compiled-in file is TOML, as a test says");
    let mut layers = Layers { origins: BTreeMap::new(), table };
    let mut keys = Vec::new();
    leaves(&layers.table, "", &mut keys);
    layers.origins.extend(keys.into_iter().map(|(key, _)| (key, Origin::Default)));
    if let Some((path, text)) = &sources.file {
        let table: Table =
            text.parse().map_err(|source| ConfigError::Syntax { path: path.clone(), source: Box::new(source) })?;
        let mut keys = Vec::new();
        leaves(&table, "", &mut keys);
        for (key, value) in keys {
            layers.set(&key, value, &Origin::File(path.clone()))?;
        }
    }
    for (name, text) in &sources.environment {
        if let Some(path) = name.strip_prefix(ENVIRONMENT_PREFIX) {
            let key = path.to_lowercase().replace("__", ".");
            layers.set_text(&key, text, &Origin::Environment(name.clone()))?;
        }
    }
    for (key, flag, text) in &sources.flags {
        layers.set_text(key, text, &Origin::Flag(flag))?;
    }
    layers.finish()
}

impl Layers {
    fn set_text(&mut self, key: &str, text: &str, origin: &Origin) -> Result<(), ConfigError> {
        let value = match self.known(key, origin)? {
            Value::Integer(_) => {
                text.parse().map(Value::Integer).map_err(|_| bad(key, origin, "must be a whole number"))
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

    fn set(&mut self, key: &str, value: Value, origin: &Origin) -> Result<(), ConfigError> {
        let known = self.known(key, origin)?;
        if !known.same_type(&value) {
            return Err(bad(key, origin, &format!("must be a {}, not a {}", known.type_str(), value.type_str())));
        }
        let mut table = &mut self.table;
        let mut parts = key.split('.').collect::<Vec<_>>();
        let last = parts.pop().expect("a key has at least one part");
        for part in parts {
            let next = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            table = next.as_table_mut().ok_or_else(|| bad(key, origin, "is not a section"))?;
        }
        table.insert(last.to_owned(), value);
        self.origins.insert(key.to_owned(), origin.clone());
        Ok(())
    }

    /// The present value of a key, or of its like: clusters have any name.
    fn known(&self, key: &str, origin: &Origin) -> Result<Value, ConfigError> {
        let like = match key.split('.').collect::<Vec<_>>()[..] {
            ["clusters", _, setting] => format!("clusters.embedded.{setting}"),
            _ => key.to_owned(), // every other section has a fixed name
        };
        let mut value = Some(&Value::Table(self.table.clone())).cloned();
        for part in like.split('.') {
            value = value.and_then(|value| value.get(part).cloned());
        }
        value.filter(|value| !value.is_table()).ok_or_else(|| ConfigError::UnknownKey {
            origin: origin.clone(),
            key: key.to_owned(),
            suggestion: self.nearest(key),
        })
    }

    fn nearest(&self, key: &str) -> Option<String> {
        let distance = |known: &&String| strsim::damerau_levenshtein(known, key);
        self.origins.keys().min_by_key(distance).filter(|known| distance(known) <= 1 + key.len() / 3).cloned()
    }

    fn finish(self) -> Result<Loaded, ConfigError> {
        let config: Config = Value::Table(self.table.clone()).try_into().map_err(|error: toml::de::Error| {
            let key = self.guess_key(error.message());
            let origin = self.origins.get(&key).cloned().unwrap_or(Origin::Default);
            ConfigError::BadValue { origin, key, what: format!("cannot be used: {}", error.message()) }
        })?;
        let mut keys = Vec::new();
        leaves(&self.table, "", &mut keys);
        let values = keys
            .into_iter()
            .map(|(key, value)| {
                let origin = self.origins.get(&key).cloned().unwrap_or(Origin::Default);
                let shown = if is_secret(&key) { "\"***\"".to_owned() } else { value.to_string() };
                (key, (shown, origin))
            })
            .collect();
        let loaded = Loaded { config, values };
        loaded.check(&self.origins)?;
        Ok(loaded)
    }

    /// The key that a value error is most likely about: the last one that was not a default.
    fn guess_key(&self, message: &str) -> String {
        let changed = || self.origins.iter().filter(|(_, origin)| **origin != Origin::Default);
        let names = |key: &String| key.rsplit('.').next().is_some_and(|last| message.contains(last));
        let named = changed().find(|(key, _)| names(key)).or_else(|| changed().next_back());
        named.map_or_else(|| "settings".to_owned(), |(key, _)| key.clone())
    }
}

impl Loaded {
    fn check(&self, origins: &BTreeMap<String, Origin>) -> Result<(), ConfigError> {
        let fault = |key: &str, what: &str| Err(bad(key, origins.get(key).unwrap_or(&Origin::Default), what));
        if self.config.server.drain_deadline_ms == 0 {
            return fault("server.drain_deadline_ms", "must be at least 1");
        }
        if self.config.storage.tail_bytes < 16 * 1024 * 1024 {
            return fault("storage.tail_bytes", "must be at least 16777216");
        }
        if self.config.storage.cache_bytes < 8 * 1024 * 1024 {
            return fault("storage.cache_bytes", "must be at least 8388608");
        }
        Ok(())
    }
}

impl Config {
    /// How long a stop may take.
    pub fn drain_deadline(&self) -> Duration {
        Duration::from_millis(self.server.drain_deadline_ms)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

fn bad(key: &str, origin: &Origin, what: &str) -> ConfigError {
    ConfigError::BadValue { origin: origin.clone(), key: key.to_owned(), what: what.to_owned() }
}

fn is_secret(key: &str) -> bool {
    ["secret", "password", "api_key"].iter().any(|word| key.contains(word))
}

/// Every value of a table under its dotted key.
fn leaves(table: &Table, prefix: &str, found: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(table) => leaves(table, &key, found),
            value => found.push((key, value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Sources {
        Sources { file: Some((PathBuf::from("my.toml"), text.to_owned())), ..Sources::default() }
    }

    #[test]
    fn the_default_file_is_complete() {
        let loaded = load(&Sources::default()).expect("the defaults are valid");
        assert_eq!(loaded.config.server.listen.port(), 7450);
        assert!(loaded.values.values().all(|(_, origin)| *origin == Origin::Default));
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let mut sources = file("[server]\ndrain_deadline_ms = 2\n");
        let value = |sources: &Sources| load(sources).expect("valid settings").config.server.drain_deadline_ms;
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
        let mut sources = Sources::default();
        sources.environment.push(("TALLYSTONE__LOG__LEVLE".to_owned(), "debug".to_owned()));
        let error = load(&sources).expect_err("no such key").to_string();
        assert!(error.contains("did you mean log.level?"), "{error}");
    }

    #[test]
    fn a_value_that_does_not_fit_names_its_key_and_where_it_was_written() {
        for (text, word) in [
            ("[server]\nlisten = \"nowhere\"\n", "server.listen"),
            ("[server]\ndrain_deadline_ms = \"soon\"\n", "server.drain_deadline_ms must be a integer"),
            ("[storage]\nkind = \"tape\"\n", "storage.kind"),
            ("[storage]\ntail_bytes = 1\n", "storage.tail_bytes must be at least"),
            ("[server\n", "not valid TOML"),
        ] {
            let error = load(&file(text)).expect_err(text).to_string();
            assert!(error.contains(word) && error.contains("my.toml"), "{error}");
        }
    }

    #[test]
    fn clusters_have_any_name() {
        let loaded = load(&file("[clusters.eu-cache]\nkind = \"memory\"\n")).expect("valid settings");
        assert_eq!(loaded.config.clusters["eu-cache"].kind, StorageKind::Memory);
        assert!(load(&file("[clusters.eu-cache]\nkinds = \"memory\"\n")).is_err());
    }
}
