//! The command line: noun, verb, answer.
//!
//! Data goes to stdout in the format that was asked for, everything else to stderr. A command ends with one of the exit
//! codes of `failure`. Every command's help ends with an example that a test runs.

/// Makes a call of a session with retries; fails with what the command prints.
macro_rules! call {
    ($session:expr, $service:ident . $method:ident, $request:expr) => {{
        let session = &$session;
        let client = session.client.$service();
        let answer = session.client.retried($request, |request| {
            let mut client = client.clone();
            async move { client.$method(request).await }
        });
        answer.await.map_err(|error| session.failed(&error))
    }};
}

mod apply;
mod arguments;
mod counter;
mod failure;
mod namespaces;
mod output;
mod reasons;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::app::commands::{self, DevArgs};
use crate::client::{CallError, Client, RetryPolicy};

pub use failure::{Exit, Failure};
use output::{Format, Output};

/// Distributed counters and priority queues in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "tallystone",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Example:\n  tallystone counter add views 5\n\nExit codes:\n  0 ok, 1 failure, 2 usage, 3 not found, \
                  4 precondition, 5 unavailable, 6 partial"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Dev(DevArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Server(server::ServerArgs),
    Apply(apply::ApplyArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Ns(namespaces::NsArgs),
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Counter(Box<counter::CounterArgs>),
    ExplainError(reasons::ExplainErrorArgs),
    Completion(CompletionArgs),
}

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone completion bash > tallystone.bash")]
struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

/// How a command reaches a server and prints its answer.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection and output")]
struct ClientArgs {
    /// The server, HOST:PORT.
    #[arg(
        long,
        global = true,
        env = "TALLYSTONE_SERVER",
        hide_env_values = true,
        default_value = "127.0.0.1:7450",
        value_name = "HOST:PORT"
    )]
    server: String,
    /// How long a call may take, its retries counted.
    #[arg(long, global = true, default_value = "10s", value_name = "TIME", value_parser = arguments::duration)]
    timeout: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Args)]
struct OutputArgs {
    /// How the answer is printed; json and jsonl as the HTTP API answers.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    output: Format,
}

/// What a client command works with.
struct Session {
    client: Client,
    output: Output,
    server: String,
}

impl ClientArgs {
    fn open(&self) -> Result<Session, Failure> {
        let policy = RetryPolicy { total: self.timeout, ..RetryPolicy::default() };
        let client = Client::new(&self.server, policy).map_err(|error| Failure::usage(error.to_string()))?;
        // Who calls: the user of this machine, as far as the environment knows.
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
        Ok(Session {
            client: client.acting_as(&user),
            output: Output::new(self.output.output),
            server: self.server.clone(),
        })
    }
}

impl Session {
    fn failed(&self, error: &CallError) -> Failure {
        Failure::of_call(error, &self.server)
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => failure.report(),
    }
}

/// The command line as clap knows it, for completions and for tests of the help.
pub fn command() -> clap::Command {
    Cli::command()
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Dev(args) => commands::dev(&args).map_err(|error| Failure::other(format!("{error:#}"))),
        Command::Server(args) => args.run(),
        Command::Apply(args) => on_a_runtime(args.run()),
        Command::Ns(args) => on_a_runtime(args.run()),
        Command::Counter(args) => on_a_runtime(args.run()),
        Command::ExplainError(args) => args.run(),
        Command::Completion(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut command(), "tallystone", &mut script);
            Output::new(Format::Table).bytes(&script)
        }
    }
}

/// A client needs one thread; ctrl-c ends the process, which leaves nothing half done that a token does not settle.
fn on_a_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::other(format!("cannot start a runtime: {error}")))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{EFFECT_UNKNOWN, RETRYABLE};
    use crate::domain::Reason;
    use crate::domain::reason::{Effect, Retry};

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
    fn both_ends_call_the_actor_the_same() {
        assert_eq!(crate::client::ACTOR_METADATA, crate::api::grpc::namespaces::ACTOR_METADATA);
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
            let begins = format!("Example:\n  {}", path.trim());
            assert!(help.starts_with(&begins) || path == " tallystone", "{path} has no example: {help:?}");
            for below in below {
                walk(below, &path);
            }
        }
        walk(&command(), "");
    }
}
