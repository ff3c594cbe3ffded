//! `tallystone dev` and `tallystone server`: settings in, a running server out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::output::{IncrementalPrinter, Output, TableRows};
use crate::{Exit, Failure, GlobalFormat, OutputArgs};
use tallystone_adapters::system::SystemClock;
use tallystone_app::config::{
    self, ClusterKind, Config, ConfigSources, ENVIRONMENT_PREFIX, ListenAddress, LoadedConfig, Servers, SettingOrigin,
    TlsConfig,
};
use tallystone_app::notices::print_notice;
use tallystone_app::server::issuers;
use tallystone_app::server::keyspace::UnusableSetting;
use tallystone_app::server::memcached::MemcachedUnreachable;
use tallystone_app::server::preset::Preset;
use tallystone_app::server::redis::RedisUnusable;
use tallystone_app::server::run;
use tallystone_app::server::tls;
use tallystone_app::server::tls::local_authority::{self, TemporaryFolder};
use tallystone_app::telemetry;
use tallystone_cassandra::OpenError;
use tallystone_domain::counter::NamespaceName;
use tallystone_ports::Clock as _;

/// The environment's name of the settings file.
const CONFIG_VARIABLE: &str = "TALLYSTONE_CONFIG";
/// The keyspace of `dev`, apart from that of a production that shares the cluster.
const DEV_KEYSPACE: &str = "tallystone_dev";

/// Run a development server: one process with an embedded store and a namespace `default`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  tallystone dev --listen 127.0.0.1:7450 --data ./tallystone-data")]
pub struct DevArgs {
    /// The address to listen on; port 0 picks a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<ListenAddress>,
    /// The data directory [default: $XDG_DATA_HOME/tallystone/dev, or ~/.local/share/tallystone/dev].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Keep all data in memory; it is lost when the process ends.
    #[arg(long, conflicts_with = "data")]
    pub memory: bool,
    /// Keep best-effort counters in these memcached servers instead of this process; separate replicas with |.
    #[arg(long, value_name = "HOST:PORT[,...]")]
    pub memcached: Option<Servers>,
    /// Keep counters in a keyspace of these Cassandra or ScyllaDB nodes; it is created and migrated if missing. Queues
    /// need --redis, --data or --memory.
    #[arg(long, value_name = "HOST:PORT[,...]")]
    pub cassandra: Option<Servers>,
    /// Keep queues in this Redis or Valkey; several addresses are nodes of one cluster. Servers on the same Redis share its
    /// queues.
    #[arg(long, value_name = "HOST:PORT[,...]")]
    pub redis: Option<Servers>,
    /// The roles of this server besides reads: writer, roller, or both. A single role needs other servers on the same
    /// keyspace.
    #[arg(long, value_name = "ROLE[,...]", requires = "cassandra")]
    pub roles: Option<String>,
    /// Speak TLS, with a certificate for this machine from a local authority. Both are made in the data directory; with
    /// --memory they last as long as the process.
    #[arg(long)]
    pub tls: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// What `tallystone server` does in its own process.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerCommand {
    /// Run a server.
    #[command(after_help = "Example:\n  tallystone server start --config tallystone.toml")]
    Start(RunArgs),
    /// Check the settings without starting a server.
    #[command(after_help = "Example:\n  tallystone server check-config --config tallystone.toml")]
    CheckConfig(StartArgs),
    /// Print every setting with its value and origin.
    #[command(after_help = "Example:\n  tallystone server print-config")]
    PrintConfig(PrintArgs),
}

/// Which settings to print, and how.
#[derive(Clone, Debug, Args)]
pub struct PrintArgs {
    #[command(flatten)]
    start: StartArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A server, and what it makes at its start.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    start: StartArgs,
    /// A namespace that the start makes with the defaults where it is absent; may be repeated.
    #[arg(long = "namespace", value_name = "NAME", value_parser = namespace_name)]
    namespaces: Vec<NamespaceName>,
}

/// Where a server listens and keeps its data, and its other settings.
#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// The address to listen on; port 0 picks a free port.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<ListenAddress>,
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The roles of this server besides reads: writer, roller, or both. A single role needs other servers on the same
    /// keyspace.
    #[arg(long, value_name = "ROLE[,...]")]
    roles: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// A settings file, and single settings.
#[derive(Clone, Debug, Args)]
pub struct SettingsArgs {
    /// The settings file [env: TALLYSTONE_CONFIG]; `server print-config` lists all settings.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting, as KEY=VALUE; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The settings of a stopped server.
#[derive(Clone, Debug, Args)]
pub struct OfflineArgs {
    /// The settings file of the stopped server [env: TALLYSTONE_CONFIG].
    #[arg(short, long, value_name = "FILE", requires = "offline")]
    config: Option<PathBuf>,
    /// A setting of the stopped server, as KEY=VALUE; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "offline")]
    set: Vec<String>,
}

/// Runs the development server until it is told to stop.
pub fn dev(args: &DevArgs) -> Result<(), Failure> {
    let mut sources = sources(&args.settings, args.listen.as_ref(), args.data.as_deref())?;
    let mut presets = Vec::new();
    if args.memory {
        let settings = [("counters.engine", "memory"), ("queues.engine", "memory")];
        presets.extend(settings.map(|(key, value)| (key.to_owned(), "--memory", value.to_owned())));
    }
    if let Some(servers) = &args.memcached {
        let settings = [
            ("clusters.memcached.kind", "memcached".to_owned()),
            ("clusters.memcached.servers", servers.to_string()),
            ("best_effort.cluster", "memcached".to_owned()),
        ];
        sources.flags.extend(settings.map(|(key, value)| (key.to_owned(), "--memcached", value)));
    }
    if let Some(servers) = &args.cassandra {
        let settings = [
            ("counters.engine", "cassandra".to_owned()),
            ("counters.cluster", "cassandra".to_owned()),
            ("clusters.cassandra.kind", "cassandra".to_owned()),
            ("clusters.cassandra.servers", servers.to_string()),
            ("clusters.cassandra.keyspace", DEV_KEYSPACE.to_owned()),
        ];
        presets.extend(settings.map(|(key, value)| (key.to_owned(), "--cassandra", value)));
        if args.data.is_none() && !args.memory {
            presets.push(("queues.engine".to_owned(), "--cassandra", "none".to_owned()));
        }
    }
    // After --cassandra and --memory, which would put queues elsewhere.
    presets.extend(args.redis.iter().flat_map(of_redis));
    // Before those of --set, so that one of them may name another keyspace or engine.
    sources.flags.splice(0..0, presets);
    sources.flags.extend(of_roles(args.roles.as_ref()));
    let mut loaded = config::load(&sources).map_err(unusable)?;
    if loaded.config.uses_directory() && loaded.config.storage.data_dir.as_os_str().is_empty() {
        loaded.config.storage.data_dir = default_data_dir().ok_or_else(|| {
            Failure::usage(
                "there is no home directory for the data; name a directory with --data, or keep data in memory with \
                 --memory",
            )
        })?;
    }
    let is_default =
        |key: &str| loaded.settings.get(key).is_some_and(|setting| setting.origin == SettingOrigin::Default);
    let (opens, writes) = (is_default("auth.mode"), is_default("console.read_only"));
    // Whoever lists issuers means to ask for tokens.
    if opens && !loaded.config.auth.takes_tokens() {
        loaded.config.auth.mode = config::AuthMode::Off;
        loaded.config.auth.loopback_only = true;
    }
    if writes {
        loaded.config.console.read_only = false;
    }
    // Removed when the server has ended.
    let mut folder = None;
    if args.tls {
        loaded.config.tls = local_tls(&loaded.config, &mut folder)?;
    }
    run(loaded, Preset::Dev)
}

/// The certificate of a development server, in its directory, or in one that is removed with `folder`.
fn local_tls(config: &Config, folder: &mut Option<TemporaryFolder>) -> Result<TlsConfig, Failure> {
    if config.tls.is_on() {
        return Err(Failure::usage("--tls makes a certificate, and tls.cert_file names one; remove one of the two"));
    }
    let failed = |error| Failure::other(format!("{:#}", anyhow::Error::new(error)));
    let place = match config.uses_directory() {
        true => config.storage.data_dir.join("tls"),
        false => folder.insert(TemporaryFolder::make().map_err(failed)?).path().to_owned(),
    };
    let names: Vec<String> = config.server.names().map(|name| name.trim().to_owned()).collect();
    local_authority::make(&place, &names, SystemClock.now()).map_err(failed)
}

/// Runs a server until it is told to stop, or shows its settings.
pub fn server(command: &ServerCommand, given: &GlobalFormat) -> Result<(), Failure> {
    match command {
        ServerCommand::Start(args) => {
            let mut loaded = complete(&args.start)?;
            loaded.config.server.namespaces.clone_from(&args.namespaces);
            run(loaded, Preset::Server)
        }
        ServerCommand::CheckConfig(args) => {
            let loaded = complete(args)?;
            // What a start reads of other files it has to find.
            for cluster in loaded.config.clusters.values() {
                match cluster.kind {
                    ClusterKind::Cassandra => config::cassandra_options(cluster).map(drop).map_err(Failure::usage)?,
                    ClusterKind::Redis => config::redis_client_options(cluster).map(drop).map_err(Failure::usage)?,
                    ClusterKind::Embedded | ClusterKind::Memory | ClusterKind::Memcached => {}
                }
            }
            issuers::of(&loaded.config).map(drop).map_err(|error| failure_of_start(&error))?;
            tls::check(&loaded.config.tls)
                .map_err(|error| Failure::usage(format!("{:#}", anyhow::Error::new(error))))?;
            loaded.notices.iter().for_each(|notice| print_notice(notice));
            let text = format!("the settings are valid: {} values\n", loaded.settings.len());
            Output::plain().bytes(text.as_bytes())
        }
        ServerCommand::PrintConfig(args) => print(&load(&args.start)?, args.output.or(given)),
    }
}

fn run(loaded: LoadedConfig, preset: Preset) -> Result<(), Failure> {
    let telemetry = telemetry::start(&loaded.config.log, &loaded.config.traces).map_err(Failure::usage)?;
    for notice in &loaded.notices {
        tracing::warn!("{notice}");
    }
    let outcome = run::run_until_stopped(loaded.config, preset);
    telemetry.finish();
    outcome.map_err(|error| failure_of_start(&error))
}

/// The failure of stores that cannot be opened, with its exit code.
pub fn failure_of_start(error: &anyhow::Error) -> Failure {
    let exit = if let Some(error) = error.downcast_ref::<OpenError>() {
        Exit::from(error)
    } else if let Some(error) = error.downcast_ref::<RedisUnusable>() {
        Exit::from(&error.why)
    } else if error.is::<MemcachedUnreachable>() {
        Exit::Unavailable
    } else if error.is::<UnusableSetting>() {
        Exit::Usage
    } else {
        Exit::Failure
    };
    Failure::new(exit, format!("{error:#}"))
}

/// Settings without a place to listen or to keep data, as for `migrate`.
pub fn load_settings(args: &SettingsArgs) -> Result<LoadedConfig, Failure> {
    config::load(&sources(args, None, None)?).map_err(unusable)
}

/// Settings with which the stores of a stopped server can be opened.
pub fn load_offline(args: &OfflineArgs, data: Option<&Path>) -> Result<LoadedConfig, Failure> {
    let settings = SettingsArgs { config: args.config.clone(), set: args.set.clone() };
    with_directory(config::load(&sources(&settings, None, data)?).map_err(unusable)?)
}

fn load(args: &StartArgs) -> Result<LoadedConfig, Failure> {
    let mut sources = sources(&args.settings, args.listen.as_ref(), args.data.as_deref())?;
    sources.flags.extend(of_roles(args.roles.as_ref()));
    config::load(&sources).map_err(unusable)
}

fn of_roles(roles: Option<&String>) -> Option<(String, &'static str, String)> {
    roles.map(|roles| ("server.roles".to_owned(), "--roles", roles.clone()))
}

/// The settings of `--redis`.
fn of_redis(servers: &Servers) -> Vec<(String, &'static str, String)> {
    let is_cluster = servers.replicas().iter().flatten().count() > 1;
    let settings = [
        ("queues.engine", "redis".to_owned()),
        ("queues.cluster", "redis".to_owned()),
        ("clusters.redis.kind", "redis".to_owned()),
        ("clusters.redis.servers", servers.to_string()),
        ("clusters.redis.topology", if is_cluster { "cluster" } else { "single" }.to_owned()),
    ];
    settings.map(|(key, value)| (key.to_owned(), "--redis", value)).into()
}

/// Settings that a server can start with.
fn complete(args: &StartArgs) -> Result<LoadedConfig, Failure> {
    with_directory(load(args)?)
}

fn with_directory(loaded: LoadedConfig) -> Result<LoadedConfig, Failure> {
    if loaded.config.uses_directory() && loaded.config.storage.data_dir.as_os_str().is_empty() {
        let what = match loaded.config.counters.engine {
            config::CounterEngine::Embedded => {
                "storage.data_dir is not set; name a directory with --data DIR or in the settings file"
            }
            config::CounterEngine::Memory | config::CounterEngine::Cassandra => {
                "storage.data_dir is not set, and queues need it; name a directory with --data DIR or in the settings file, \
                 or set queues.engine to \"none\""
            }
        };
        return Err(Failure::usage(what));
    }
    Ok(loaded)
}

fn namespace_name(text: &str) -> Result<NamespaceName, String> {
    NamespaceName::new(text).map_err(|invalid| invalid.to_string())
}

/// A setting is a value on the command line, wherever it was written.
fn unusable(error: config::ConfigError) -> Failure {
    Failure::usage(format!("{:#}", anyhow::Error::new(error)).trim_end())
}

fn print(loaded: &LoadedConfig, output: Output) -> Result<(), Failure> {
    let key_width = loaded.settings.keys().map(String::len).max().unwrap_or(0);
    let value_width = loaded.settings.values().map(|setting| setting.value.to_string().len()).max().unwrap_or(0);
    if output.is_for_people() {
        let lines = loaded.settings.iter().map(|(key, setting)| {
            let value = setting.value.to_string();
            format!("{key:key_width$} = {value:value_width$}  # {}\n", setting.origin)
        });
        return output.bytes(lines.collect::<String>().as_bytes());
    }
    let row = |(key, setting): (&String, &config::ResolvedSetting)| {
        let value = match &setting.value {
            toml::Value::String(text) => text.clone(),
            value => value.to_string(), // every other value is written as in the file
        };
        vec![key.clone(), value, setting.origin.to_string()]
    };
    let rows = TableRows { columns: &["key", "value", "origin"], cells: loaded.settings.iter().map(row).collect() };
    let items = loaded.settings.iter().map(|(key, setting)| {
        let value = serde_json::to_value(&setting.value).expect("a value of TOML has a JSON form");
        json!({ "key": key, "value": value, "origin": setting.origin.to_string() })
    });
    let mut parts = IncrementalPrinter::list(output);
    parts.print(&items.collect::<Vec<_>>(), &rows)?;
    parts.end(rows.columns)
}

fn sources(
    settings: &SettingsArgs,
    listen: Option<&ListenAddress>,
    data: Option<&Path>,
) -> Result<ConfigSources, Failure> {
    let named = || std::env::var_os(CONFIG_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let file = match settings.config.clone().or_else(named) {
        Some(path) => {
            let text = std::fs::read_to_string(&path);
            let text = text.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
            Some((path, text))
        }
        None => None,
    };
    let mut flags = Vec::new();
    for pair in &settings.set {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| Failure::usage(format!("--set takes KEY=VALUE, not {pair}")))?;
        flags.push((key.to_owned(), "--set", value.to_owned()));
    }
    if let Some(listen) = listen {
        flags.push(("server.listen".to_owned(), "--listen", listen.to_string()));
    }
    if let Some(data) = data {
        let data = data.to_str().ok_or_else(|| Failure::usage("the data directory's name is not valid UTF-8"))?;
        flags.push(("storage.data_dir".to_owned(), "--data", data.to_owned()));
    }
    Ok(ConfigSources { file, environment: settings_of(std::env::vars_os())?, flags })
}

/// The variables that are settings. What else is in the environment is none of ours, whatever its bytes.
fn settings_of(environment: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, Failure> {
    let ours = environment.filter(|(name, _)| name.as_encoded_bytes().starts_with(ENVIRONMENT_PREFIX.as_bytes()));
    ours.map(|(name, value)| match (name.to_str(), value.to_str()) {
        (Some(name), Some(value)) => Ok((name.to_owned(), value.to_owned())),
        (_, _) => Err(Failure::usage(format!("the variable {} is not valid UTF-8", name.display()))),
    })
    .collect()
}

/// The directory of the data of `dev` when the caller names none.
fn default_data_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
    Some(base.join("tallystone").join("dev"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn only_variables_of_ours_have_to_be_text() {
        let odd = || OsString::from_vec(vec![0xff]);
        let named = |name: &str| OsString::from(name);
        let strange = [(named("OTHER"), odd()), (odd(), named("x")), (named("TALLYSTONE__LOG__LEVEL"), named("debug"))];
        let found = settings_of(strange.into_iter()).expect("the strange ones are none of ours");
        assert_eq!(found, [("TALLYSTONE__LOG__LEVEL".to_owned(), "debug".to_owned())]);
        let refused = settings_of([(named("TALLYSTONE__LOG__LEVEL"), odd())].into_iter()).expect_err("no text");
        assert!(refused.to_string().contains("TALLYSTONE__LOG__LEVEL is not valid UTF-8"), "{refused}");
    }
}
