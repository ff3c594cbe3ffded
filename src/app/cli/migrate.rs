//! `tallystone migrate`: shows and applies the schema of a Cassandra keyspace.

use std::sync::Arc;

use clap::{Args, Subcommand};
use scylla::client::session::Session;
use serde_json::json;

use crate::commands::{SettingsArgs, load_settings};
use crate::output::{IncrementalPrinter, Output, TableRows};
use crate::{Exit, Failure, GlobalFormat, OutputArgs};
use tallystone_adapters::system::SystemClock;
use tallystone_api::grpc::saturating_i64;
use tallystone_app::config::{ClusterConfig, ClusterKind, counter_cluster};
use tallystone_app::units::counted;
use tallystone_cassandra::schema::{self, MIGRATIONS, Migration, SchemaState};
use tallystone_cassandra::{OpenError, Options, StartupDeadline};

/// Inspect the schema of a Cassandra keyspace, and migrate it to this release.
#[derive(Clone, Debug, Subcommand)]
pub enum MigrateCommand {
    /// Print the statements of `apply`; change nothing.
    #[command(after_help = "Example:\n  tallystone migrate plan --config tallystone.toml")]
    Plan(MigrateTargetArgs),
    /// Create the keyspace if it is missing, and apply missing migrations.
    #[command(after_help = "Example:\n  tallystone migrate apply --config tallystone.toml")]
    Apply(MigrateTargetArgs),
    /// List the applied migrations; exits with 4 if a server of this release could not start.
    #[command(after_help = "Example:\n  tallystone migrate status --config tallystone.toml")]
    Status(MigrateStatusArgs),
}

/// Whose schema.
#[derive(Clone, Debug, Args)]
pub struct MigrateTargetArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// The name of the cluster of kind "cassandra" with the keyspace [default: counters.cluster]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

/// Whose schema, and how it is printed.
#[derive(Clone, Debug, Args)]
pub struct MigrateStatusArgs {
    #[command(flatten)]
    migrate: MigrateTargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A keyspace with the state of its schema.
struct MigrateTarget {
    /// The name of the cluster in the settings.
    name: String,
    cluster: ClusterConfig,
    options: Options,
    session: Session,
    state: SchemaState,
}

/// Runs a command.
pub async fn run(command: &MigrateCommand, given: &GlobalFormat) -> Result<(), Failure> {
    match command {
        MigrateCommand::Plan(args) => plan(&inspect(args).await?),
        MigrateCommand::Apply(args) => apply(&inspect(args).await?).await,
        MigrateCommand::Status(args) => status(&inspect(&args.migrate).await?, args.output.or(given)),
    }
}

fn refused(error: OpenError) -> Failure {
    let exit = Exit::from(&error);
    Failure::new(exit, format!("{:#}", anyhow::Error::new(error)))
}

/// Rewrites an error about the data centre with the setting's full key, as in the settings file.
fn wrong_data_center(error: OpenError, cluster: &str) -> Failure {
    let is_about_it = matches!(error, OpenError::DataCenter { .. } | OpenError::DataCenterUnnamed { .. });
    let failure = refused(error);
    if is_about_it { failure.hint(format!("the setting is clusters.{cluster}.data_center")) } else { failure }
}

async fn inspect(args: &MigrateTargetArgs) -> Result<MigrateTarget, Failure> {
    let loaded = load_settings(&args.settings)?;
    let Some((home, _)) = counter_cluster(&loaded.config) else {
        let what = "counters.engine is not \"cassandra\"; only Cassandra keyspaces have a schema to migrate";
        return Err(Failure::usage(what));
    };
    let named = args.cluster.as_deref().unwrap_or(home);
    let listed = loaded.config.clusters.get(named);
    let Some(cluster) = listed.filter(|cluster| cluster.kind == ClusterKind::Cassandra) else {
        let what =
            format!("the settings have no [clusters.{named}] of kind \"cassandra\"; add it, or name another cluster");
        return Err(Failure::usage(what));
    };
    let options = tallystone_app::config::cassandra_options(cluster).map_err(Failure::usage)?;
    let patience = StartupDeadline::start(Arc::new(SystemClock));
    let session =
        tallystone_cassandra::connect(&options, &patience).await.map_err(|error| wrong_data_center(error, named))?;
    let looking = async {
        let state = schema::state(&session, &options.keyspace, &SystemClock).await;
        state.map_err(|fault| OpenError::of(fault, &options.keyspace))
    };
    let state = tallystone_cassandra::within_deadline(&patience, &options.keyspace, looking).await.map_err(refused)?;
    Ok(MigrateTarget { name: named.to_owned(), cluster: cluster.clone(), options, session, state })
}

impl MigrateTarget {
    /// Returns the missing migrations, if they can be applied.
    fn missing(&self) -> Result<Vec<Migration>, Failure> {
        let keyspace = &self.options.keyspace;
        match &self.state {
            SchemaState::NoKeyspace => Ok(MIGRATIONS.to_vec()),
            SchemaState::Behind(missing) => Ok(missing.clone()),
            SchemaState::Current => Ok(Vec::new()),
            SchemaState::Ahead(number) => {
                let what = format!("keyspace {keyspace} has migration {number}, which this release does not know");
                Err(Failure::new(Exit::Precondition, what).hint("use the release that applied it, or a newer one"))
            }
            SchemaState::Differs(number) => {
                let what = format!("migration {number} of keyspace {keyspace} was applied with different text");
                Err(Failure::new(Exit::Precondition, what)
                    .hint("use the release that applied it, or another keyspace; builds before 0.1.0 had other tables"))
            }
        }
    }

    /// The replication settings for a missing keyspace.
    fn replication(&self) -> Result<Option<schema::Replication>, Failure> {
        if self.state != SchemaState::NoKeyspace {
            return Ok(None);
        }
        let known = tallystone_cassandra::data_centers(&self.session);
        let listed = || known.iter().cloned().collect::<Vec<_>>().join(", ");
        let setting = format!("clusters.{}.replication", self.name);
        let copies = &self.cluster.replication;
        let Some(replication) = copies.replication() else {
            let what = format!(
                "keyspace {} does not exist, and {setting} does not set its replication",
                self.options.keyspace
            );
            let advice = format!("set {setting}, as in \"dc1:3\"; the data centres of the cluster are {}", listed());
            return Err(Failure::new(Exit::Precondition, what).hint(advice));
        };
        // Cassandra would refuse the statement without naming the setting at fault.
        if let Some(unknown) = copies.data_centers().find(|name| !known.contains(*name)) {
            let what = format!("{setting} names data centre {unknown}, which the cluster does not have");
            let advice = format!("correct {setting}; the data centres of the cluster are {}", listed());
            return Err(Failure::new(Exit::Precondition, what).hint(advice));
        }
        Ok(Some(replication))
    }
}

fn plan(target: &MigrateTarget) -> Result<(), Failure> {
    let missing = target.missing()?;
    let mut text = String::new();
    let keyspace = &target.options.keyspace;
    if let Some(replication) = target.replication()? {
        text.push_str(&format!("{};\n", schema::create_keyspace(keyspace, &replication)));
    }
    for migration in &missing {
        text.push_str(&format!("-- {:04} {}\n", migration.number, migration.name));
        for statement in migration.statements(keyspace) {
            text.push_str(&format!("{statement};\n"));
        }
    }
    if missing.is_empty() {
        text.push_str(&format!("-- keyspace {keyspace} is up to date\n"));
    }
    Output::plain().bytes(text.as_bytes())
}

async fn apply(target: &MigrateTarget) -> Result<(), Failure> {
    let missing = target.missing()?;
    let keyspace = &target.options.keyspace;
    let failed = |fault| refused(OpenError::of(fault, keyspace));
    if let Some(replication) = target.replication()? {
        schema::make_keyspace(&target.session, keyspace, &replication, &SystemClock).await.map_err(failed)?;
    }
    if !missing.is_empty() {
        schema::apply(&target.session, keyspace, &missing, &SystemClock, &|| ()).await.map_err(failed)?;
    }
    let text = match missing.len() {
        0 => format!("keyspace {keyspace} is up to date\n"),
        count => format!("keyspace {keyspace}: {} applied\n", migrations(count)),
    };
    Output::plain().bytes(text.as_bytes())
}

fn status(target: &MigrateTarget, output: Output) -> Result<(), Failure> {
    let missing = match &target.state {
        SchemaState::NoKeyspace => MIGRATIONS.to_vec(),
        SchemaState::Behind(missing) => missing.clone(),
        SchemaState::Current | SchemaState::Ahead(_) | SchemaState::Differs(_) => Vec::new(),
    };
    let state_of = |migration: &Migration| match &target.state {
        SchemaState::Differs(number) if *number == migration.number => "differs",
        _ if missing.contains(migration) => "missing", // whatever other problems the keyspace has
        _ => "applied",                                // the rest
    };
    let rows = TableRows {
        columns: &["number", "name", "state"],
        cells: MIGRATIONS
            .iter()
            .map(|one| vec![one.number.to_string(), one.name.to_owned(), state_of(one).to_owned()])
            .collect(),
    };
    let items = MIGRATIONS.iter().map(|one| json!({"number": one.number, "name": one.name, "state": state_of(one)}));
    let mut parts = IncrementalPrinter::list(output);
    parts.print(&items.collect::<Vec<_>>(), &rows)?;
    parts.end(rows.columns)?;
    let keyspace = &target.options.keyspace;
    let what = match &target.state {
        SchemaState::Current => return Ok(()),
        SchemaState::NoKeyspace => format!("keyspace {keyspace} does not exist"),
        SchemaState::Behind(missing) => format!("keyspace {keyspace} lacks {}", migrations(missing.len())),
        SchemaState::Ahead(_) | SchemaState::Differs(_) => return target.missing().map(|_| ()),
    };
    Err(Failure::new(Exit::Precondition, what).hint("migrate it with `tallystone migrate apply`"))
}

/// Formats a number of migrations.
fn migrations(count: usize) -> String {
    counted(saturating_i64(count), "migration", "migrations")
}
