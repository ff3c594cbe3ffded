//! The command line: noun, verb, answer.
//!
//! Data goes to stdout in the requested format, everything else to stderr. A command ends with one of the exit codes of
//! `failure`. The help of every command ends with an example that a test runs.

/// Makes a call of a session with retries, and converts its error to a command's failure. `ask` is for calls without
/// side effects.
macro_rules! call {
    (ask $session:expr, $service:ident . $method:ident, $request:expr) => {
        call!($session, asked, $service.$method, $request)
    };
    ($session:expr, $service:ident . $method:ident, $request:expr) => {
        call!($session, retried, $service.$method, $request)
    };
    ($session:expr, $how:ident, $service:ident . $method:ident, $request:expr) => {{
        let session = &$session;
        let answer = session.client.$how($request, |request| {
            // Created for each attempt: the client may prefer another server by then.
            let mut client = session.client.$service();
            async move { client.$method(request).await }
        });
        answer.await.map_err(|error| session.failed(&error))
    }};
}

mod apply;
mod arguments;
mod backup;
mod bridge;
mod check;
pub mod commands;
mod counter;
mod credentials;
mod dead_letters;
mod demo;
mod experiments;
mod failure;
mod keys;
mod message;
mod migrate;
mod namespaces;
mod operations;
mod output;
mod pages;
mod plan;
mod queue;
mod reasons;
mod rules;
mod server;
mod sessions;
mod status;
mod tls;
mod top;
mod usage;
mod work;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::DevArgs;
use crate::migrate::MigrateCommand;
use tallystone_app::config::SERVER_DEFAULT;
use tallystone_client::{CallError, Client, RetryPolicy};
use tallystone_domain::shell_word::shell_word;

use credentials::KeyText;
pub use failure::{Exit, Failure};
use output::{CsvCells, Format, Output};
use tls::{InheritedTlsArgs, TlsArgs};

/// Distributed counters and priority queues in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "tallystone",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Exit codes:\n  0 ok, 1 failure, 2 usage, 3 not found, 4 precondition, 5 unavailable, 6 partial,\n  8 over already\n\n\
                  Example:\n  tallystone counter add views 5"
)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Dev(DevArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Server(server::ServerArgs),
    Migrate(MigrateArgs),
    Apply(apply::ApplyArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Ns(namespaces::NsArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Key(Box<keys::KeyArgs>),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Counter(Box<counter::CounterArgs>),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Queue(Box<queue::QueueArgs>),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Msg(Box<message::MsgArgs>),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Dlq(Box<dead_letters::DlqArgs>),
    Check(check::CheckArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Session(sessions::SessionArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Rule(Box<rules::RuleArgs>),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Bridge(bridge::BridgeArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Exp(experiments::ExpArgs),
    Demo(Box<demo::DemoArgs>),
    Work(Box<work::WorkArgs>),
    Backup(Box<backup::BackupArgs>),
    Restore(backup::RestoreArgs),
    Status(status::StatusArgs),
    Top(top::TopScreenArgs),
    Plan(plan::PlanArgs),
    ExplainError(reasons::ExplainErrorArgs),
    Completion(CompletionArgs),
}

/// Inspect the schema of a Cassandra keyspace, and migrate it to this release.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Example:\n  tallystone migrate status --config tallystone.toml"
)]
struct MigrateArgs {
    #[command(subcommand)]
    command: MigrateCommand,
}

/// Print the completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone completion bash > tallystone.bash")]
struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

/// How a command reaches a server and prints its answer. What is given before the noun counts as well.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection and output")]
struct ClientArgs {
    /// The server, HOST:PORT or https://HOST:PORT; several separated by commas are tried in turn [env: TALLYSTONE_SERVER]
    /// [default: 127.0.0.1:7450].
    #[arg(long, global = true, value_name = "HOST:PORT")]
    server: Option<String>,
    /// The timeout of a call, retries included [default: 10s].
    #[arg(long, global = true, value_name = "TIME", value_parser = arguments::timeout)]
    timeout: Option<Duration>,
    /// The API key [env: TALLYSTONE_KEY]. Other users of the machine see it in the list of processes; prefer --key-file.
    #[arg(long, global = true, value_name = "KEY")]
    key: Option<KeyText>,
    /// The file with the API key [env: TALLYSTONE_KEY_FILE].
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    tls: InheritedTlsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// The output format; json and jsonl match the HTTP API [default: table].
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
    /// Print CSV cells as they are. Otherwise those that a spreadsheet would take for formulas begin with an apostrophe.
    #[arg(long, global = true)]
    raw: bool,
}

/// What may stand before the noun, for every command that it says something to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct GlobalArgs {
    /// The server, HOST:PORT or https://HOST:PORT; several separated by commas are tried in turn [env: TALLYSTONE_SERVER]
    /// [default: 127.0.0.1:7450].
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// The timeout of a call, retries included [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = arguments::timeout)]
    timeout: Option<Duration>,
    /// The API key [env: TALLYSTONE_KEY]. Other users of the machine see it in the list of processes; prefer --key-file.
    #[arg(long, value_name = "KEY")]
    key: Option<KeyText>,
    /// The file with the API key [env: TALLYSTONE_KEY_FILE].
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// The output format; json and jsonl match the HTTP API [default: table].
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// The format given before the noun.
pub struct GlobalFormat(Option<Format>);

/// The settings and connection of a client command.
struct ClientContext {
    client: Client,
    output: Output,
    server: String,
    timeout: Duration,
}

/// The environment variable with the server's address.
const SERVER_VARIABLE: &str = "TALLYSTONE_SERVER";

/// The server: from the option after the noun, the one before it, the environment, or the default.
fn server_of(after: Option<&String>, global: &GlobalArgs) -> String {
    let given = after.or(global.server.as_ref()).cloned();
    let of_environment = || std::env::var_os(SERVER_VARIABLE).map(|name| name.to_string_lossy().into_owned());
    given.or_else(|| of_environment().filter(|name| !name.is_empty())).unwrap_or_else(|| SERVER_DEFAULT.to_owned())
}

impl OutputArgs {
    /// Prints in the format given after the noun, else in the one given before it.
    pub fn or(self, given: &GlobalFormat) -> Output {
        let cells = if self.raw { CsvCells::Raw } else { CsvCells::WithoutFormulas };
        Output::new(self.output.or(given.0).unwrap_or(Format::Table)).with_cells(cells)
    }
}

impl GlobalArgs {
    fn output(&self) -> GlobalFormat {
        GlobalFormat(self.output)
    }

    /// Refuses options that a command does not accept, so that no option is ignored silently.
    fn only(&self, command: &str, useful: &[&str]) -> Result<(), Failure> {
        let given = [
            ("--server", self.server.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--key", self.key.is_some()),
            ("--key-file", self.key_file.is_some()),
            ("--output", self.output.is_some()),
        ];
        let mut given = given.into_iter().chain(self.tls.given());
        match given.find(|(name, is_given)| *is_given && !useful.contains(name)) {
            Some((name, _)) => Err(Failure::usage(format!("`{command}` does not accept {name}"))),
            None => Ok(()),
        }
    }
}

impl ClientArgs {
    fn open(&self, global: &GlobalArgs) -> Result<ClientContext, Failure> {
        let mut policy = RetryPolicy::default();
        policy.total = self.timeout.or(global.timeout).unwrap_or(policy.total);
        let server = server_of(self.server.as_ref(), global);
        let servers: Vec<&str> = server.split(',').map(str::trim).collect();
        if servers.len() > 1 {
            // One server that hangs leaves time for the others.
            policy.attempt_max = policy.total / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        }
        let tls = tls::tls_of(self.tls.files(), global.tls.files(), &servers)?;
        let client = Client::of_tls(&servers, &tls, policy).map_err(|error| Failure::usage(error.to_string()))?;
        let given = (self.key.as_ref(), self.key_file.as_deref());
        let client = match credentials::key_of(given, (global.key.as_ref(), global.key_file.as_deref()))? {
            Some(key) => client.with_key(&key).map_err(|error| Failure::usage(error.to_string()))?,
            None => client,
        };
        // The caller's name: the local user, if the environment has it.
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
        let output = self.output.or(&global.output());
        Ok(ClientContext { client: client.acting_as(&user), output, server, timeout: policy.total })
    }
}

impl ClientContext {
    /// The same session with a reason for the audit.
    fn because(mut self, reason: &str) -> Self {
        self.client = self.client.because(reason);
        self
    }

    /// A command to type next, for the same server.
    fn hint(&self, words: &str) -> String {
        match self.server == SERVER_DEFAULT {
            true => format!("tallystone {words}"),
            false => format!("tallystone {words} --server {}", shell_word(&self.server)),
        }
    }

    fn failed(&self, error: &CallError) -> Failure {
        Failure::of_call(error, &self.server)
    }

    /// The failure of a stream of readings that did not begin.
    fn not_begun(&self, status: tonic::Status) -> Failure {
        self.failed(&once(status))
    }

    /// The failure of a stream that has shown readings already, so that the address is right and TLS is not the matter.
    fn cut_off(&self, status: tonic::Status) -> Failure {
        let error = once(status);
        if error.got_no_answer() { Failure::cut_off(&error, &self.server) } else { self.failed(&error) }
    }
}

/// The error of a read that is tried once.
fn once(status: tonic::Status) -> CallError {
    CallError { status: Box::new(status), attempts: 1, may_be_applied: false }
}

/// Shows the help that was asked for, or why the words are no command. A help that nobody can read is a failure.
fn told(error: clap::Error) -> ExitCode {
    let shown = usage::with_plain_message(error, &command());
    let is_help = !shown.use_stderr();
    match shown.print().and_then(|()| io::stdout().flush()) {
        Err(error) if is_help => Failure::from(error).report(),
        _ => ExitCode::from(u8::try_from(shown.exit_code()).unwrap_or(1)), // what goes to stderr cannot be told elsewhere
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return told(error),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return told(error),
    };
    match run(cli) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => failure.about(&names_of(&matches)).report(),
    }
}

/// The placeholders in the text of a refusal, with their names from this command line, so that suggested commands can
/// be pasted.
fn names_of(matches: &ArgMatches) -> Vec<(&'static str, String)> {
    let Some((noun, mut last)) = matches.subcommand() else { return Vec::new() };
    while let Some((_, below)) = last.subcommand() {
        last = below;
    }
    let given = |argument: &str| last.try_get_one::<String>(argument).ok().flatten().cloned();
    let queue = given(if noun == "queue" { "name" } else { "queue" });
    let message = given("message_id").or_else(|| given("id"));
    let is_one_word = |name: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        !name.is_empty() && name.bytes().all(is_plain)
    };
    let names = [("QUEUE", queue), ("MESSAGE", message)];
    names.into_iter().filter_map(|(place, name)| Some((place, name.filter(is_one_word)?))).collect()
}

/// Returns the clap command, for completions and for tests of the help.
pub fn command() -> clap::Command {
    Cli::command()
}

fn run(cli: Cli) -> Result<(), Failure> {
    let global = cli.global;
    match cli.command {
        CliCommand::Dev(args) => {
            global.only("dev", &[])?;
            commands::dev(&args)
        }
        CliCommand::Server(args) => args.run(&global),
        CliCommand::Migrate(args) => {
            global.only("migrate", &["--output"])?;
            on_a_runtime(migrate::run(&args.command, &global.output()))
        }
        CliCommand::Apply(args) => on_a_runtime(args.run(&global)),
        CliCommand::Ns(args) => on_a_runtime(args.run(&global)),
        CliCommand::Key(args) => args.run(&global),
        CliCommand::Counter(args) => on_a_runtime(args.run(&global)),
        CliCommand::Queue(args) => on_a_runtime(args.run(&global)),
        CliCommand::Msg(args) => on_a_runtime(args.run(&global)),
        CliCommand::Dlq(args) => on_a_runtime(args.run(&global)),
        CliCommand::Check(args) => on_a_runtime(args.run(&global)),
        CliCommand::Session(args) => on_a_runtime(args.run(&global)),
        CliCommand::Rule(args) => on_a_runtime(args.run(&global)),
        CliCommand::Bridge(args) => on_a_runtime(args.run(&global)),
        CliCommand::Exp(args) => on_a_runtime(args.run(&global)),
        CliCommand::Demo(args) => on_a_runtime(args.run(&global)),
        CliCommand::Work(args) => on_a_runtime(args.run(&global)),
        CliCommand::Backup(args) => args.run(&global),
        CliCommand::Restore(args) => args.run(&global),
        CliCommand::Status(args) => on_a_runtime(args.run(&global)),
        CliCommand::Top(args) => on_a_runtime(args.run(&global)),
        CliCommand::Plan(args) => {
            global.only("plan", &["--output"])?;
            args.run(&global.output())
        }
        CliCommand::ExplainError(args) => {
            global.only("explain-error", &["--output"])?;
            args.run(&global.output())
        }
        CliCommand::Completion(args) => {
            global.only("completion", &[])?;
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut command(), "tallystone", &mut script);
            Output::plain().bytes(&script)
        }
    }
}

/// Runs a client on one thread. Ctrl-c ends the process; the token of a change settles its outcome.
fn on_a_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    // Its own function, not generic: the library compiles what it runs several times over, which would be every
    // command.
    block_on(Box::pin(work))
}

fn block_on(work: Pin<Box<dyn Future<Output = Result<(), Failure>> + '_>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::other(format!("cannot start a runtime: {error}")))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_client::{EFFECT_UNKNOWN, RETRYABLE};
    use tallystone_domain::Reason;
    use tallystone_domain::reason::{Effect, Retry};

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn the_client_knows_the_same_reasons_as_the_service() {
        for reason in Reason::ALL {
            let info = reason.info();
            assert_eq!(RETRYABLE.contains(&info.name), info.retry == Retry::SameToken, "{reason}");
            assert_eq!(EFFECT_UNKNOWN.contains(&info.name), info.effect == Effect::Unknown, "{reason}");
        }
    }

    #[test]
    fn the_client_sends_no_call_that_is_refused_for_its_deadline() {
        assert_eq!(tallystone_client::DEADLINE_LEAST, tallystone_domain::limits::DEADLINE_LEAST);
    }

    #[test]
    fn both_ends_call_actor_and_reason_the_same() {
        assert_eq!(tallystone_client::ACTOR_METADATA, tallystone_api::grpc::namespaces::ACTOR_METADATA);
        assert_eq!(tallystone_client::REASON_METADATA, tallystone_api::http::REASON_METADATA);
    }

    #[test]
    fn every_command_says_what_it_does_and_ends_with_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} does not say what it does");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path}: {} is not explained", argument.get_id());
            }
            let below: Vec<_> = command.get_subcommands().filter(|below| below.get_name() != "help").collect();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = help.rsplit("\n\n").next().unwrap_or_default();
            let begins = format!("Example:\n  {}", path.trim());
            assert!(example.starts_with(&begins), "{path} does not end with an example: {help:?}");
            for below in below {
                walk(below, &path);
            }
        }
        walk(&command(), "");
    }
}
