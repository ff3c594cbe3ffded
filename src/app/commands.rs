//! `tallystone dev` and `tallystone server`: settings in, a running server out.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::app::config::{self, Loaded, Sources};
use crate::app::run::{self, Preset};
use crate::app::telemetry;

/// Run a server for development: everything in one process, on an embedded store, with a namespace `default`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  tallystone dev --listen 127.0.0.1:7450 --data ./tallystone-data")]
pub struct DevArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where to keep the data [default: $XDG_DATA_HOME/tallystone/dev, or ~/.local/share/tallystone/dev].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Keep nothing: all data is in memory and gone with the process.
    #[arg(long, conflicts_with = "data")]
    pub memory: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// What `tallystone server` does in its own process.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerCommand {
    /// Run a server.
    #[command(after_help = "Example:\n  tallystone server start --config tallystone.toml")]
    Start(StartArgs),
    /// Say whether the settings can be used, without starting anything.
    #[command(after_help = "Example:\n  tallystone server check-config --config tallystone.toml")]
    CheckConfig(StartArgs),
    /// Print every setting with its value and where it came from.
    #[command(after_help = "Example:\n  tallystone server print-config")]
    PrintConfig(StartArgs),
}

/// Where a server listens and keeps its data, and its other settings.
#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,
    /// Where to keep the data.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
}

#[derive(Clone, Debug, Args)]
struct SettingsArgs {
    /// A settings file; `server print-config` shows what there is.
    #[arg(long, value_name = "FILE", env = "TALLYSTONE_CONFIG")]
    config: Option<PathBuf>,
    /// One setting, as KEY=VALUE; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs the development server until it is told to stop.
pub fn dev(args: &DevArgs) -> anyhow::Result<()> {
    let mut sources = sources(&args.settings, args.listen, args.data.as_deref())?;
    if args.memory {
        sources.flags.push(("storage.kind".to_owned(), "--memory", "memory".to_owned()));
    }
    let mut loaded = config::load(&sources)?;
    if loaded.config.storage.data_dir.as_os_str().is_empty() {
        loaded.config.storage.data_dir = default_data_dir().context(
            "there is no home directory to keep data in; name a directory with --data, or keep nothing with --memory",
        )?;
    }
    telemetry::start(&loaded.config.log).map_err(anyhow::Error::msg)?;
    run::until_stopped(loaded.config, Preset::Dev)
}

/// Runs a server until it is told to stop, or shows its settings.
pub fn server(command: &ServerCommand) -> anyhow::Result<()> {
    match command {
        ServerCommand::Start(args) => {
            let loaded = load(args)?;
            telemetry::start(&loaded.config.log).map_err(anyhow::Error::msg)?;
            run::until_stopped(loaded.config, Preset::Server)
        }
        ServerCommand::CheckConfig(args) => {
            let loaded = load(args)?;
            println!("the settings are valid: {} values", loaded.values.len());
            Ok(())
        }
        ServerCommand::PrintConfig(args) => {
            print(&config::load(&sources(&args.settings, args.listen, args.data.as_deref())?)?);
            Ok(())
        }
    }
}

fn load(args: &StartArgs) -> anyhow::Result<Loaded> {
    let loaded = config::load(&sources(&args.settings, args.listen, args.data.as_deref())?)?;
    anyhow::ensure!(
        loaded.config.storage.kind == config::StorageKind::Memory
            || !loaded.config.storage.data_dir.as_os_str().is_empty(),
        "storage.data_dir is not set; name a directory with --data DIR or in the settings file"
    );
    Ok(loaded)
}

fn print(loaded: &Loaded) {
    let key_width = loaded.values.keys().map(String::len).max().unwrap_or(0);
    let value_width = loaded.values.values().map(|(value, _)| value.len()).max().unwrap_or(0);
    for (key, (value, origin)) in &loaded.values {
        println!("{key:key_width$} = {value:value_width$}  # {origin}");
    }
}

fn sources(
    settings: &SettingsArgs,
    listen: Option<SocketAddr>,
    data: Option<&std::path::Path>,
) -> anyhow::Result<Sources> {
    let file = match &settings.config {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            Some((path.clone(), text))
        }
        None => None,
    };
    let mut flags = Vec::new();
    for pair in &settings.set {
        let (key, value) = pair.split_once('=').with_context(|| format!("--set takes KEY=VALUE, not {pair}"))?;
        flags.push((key.to_owned(), "--set", value.to_owned()));
    }
    if let Some(listen) = listen {
        flags.push(("server.listen".to_owned(), "--listen", listen.to_string()));
    }
    if let Some(data) = data {
        let data = data.to_str().context("the data directory's name is not valid UTF-8")?;
        flags.push(("storage.data_dir".to_owned(), "--data", data.to_owned()));
    }
    Ok(Sources { file, environment: std::env::vars().collect(), flags })
}

/// Where `dev` keeps its data when nobody says where.
fn default_data_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")))?;
    Some(base.join("tallystone").join("dev"))
}
