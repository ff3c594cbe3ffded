//! `server`: runs a server, shows its settings, waits until it is ready.

use std::time::Duration;

use clap::{Args, Subcommand};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Channel;

use crate::commands::{self, ServerCommand};
use crate::tls::{self, TlsArgs};
use crate::{Exit, Failure, GlobalArgs, arguments, on_a_runtime, server_of};
use tallystone_client::{CallError, ClientTls};

const READY_PAGE: &str = "/readyz";
/// The timeout of one request, and the pause after it.
const ASK_WITHIN: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The default time to wait for a server to start.
const WAIT_DEFAULT: Duration = Duration::from_secs(60);

/// Run a server, check its settings, or wait until it is ready.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  tallystone server print-config")]
pub struct ServerArgs {
    #[command(subcommand)]
    command: ServerVerb,
}

#[derive(Clone, Debug, Subcommand)]
enum ServerVerb {
    #[command(flatten)]
    Process(ServerCommand),
    WaitReady(WaitReadyArgs),
}

/// Wait until a server accepts calls; exits with 5 on timeout.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  tallystone server wait-ready --timeout 30s")]
struct WaitReadyArgs {
    /// The server, HOST:PORT or https://HOST:PORT [env: TALLYSTONE_SERVER] [default: 127.0.0.1:7450].
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// The maximum time to wait [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = arguments::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    tls: TlsArgs,
}

impl ServerArgs {
    pub fn run(&self, global: &GlobalArgs) -> Result<(), Failure> {
        match &self.command {
            ServerVerb::Process(command) => {
                let useful: &[_] = if matches!(command, ServerCommand::PrintConfig(_)) { &["--output"] } else { &[] };
                global.only("server", useful)?;
                commands::server(command, &global.output())
            }
            ServerVerb::WaitReady(args) => {
                let useful = ["--server", "--timeout", "--ca-file", "--client-cert", "--client-key"];
                global.only("server wait-ready", &useful)?;
                let server = server_of(args.server.as_ref(), global);
                let tls = tls::tls_of(args.tls.files(), global.tls.files(), &[&server])?;
                let timeout = args.timeout.or(global.timeout).unwrap_or(WAIT_DEFAULT);
                on_a_runtime(wait(&server, &tls, timeout))
            }
        }
    }
}

/// Polls `/readyz`, which needs no key: it succeeds while all services are served, and not during startup or shutdown.
async fn wait(server: &str, tls: &ClientTls, timeout: Duration) -> Result<(), Failure> {
    let endpoint = tallystone_client::endpoint(server, tls).map_err(|error| Failure::usage(error.to_string()))?;
    let mut channel = endpoint.timeout(ASK_WITHIN).connect_timeout(ASK_WITHIN).connect_lazy();
    let until_ready = async {
        // An answer other than 200 and no answer at all mean the same here: ask again. A certificate stays as it is.
        loop {
            match is_ready(&mut channel).await {
                Ok(true) => return Ok(()),
                Err(error) if error.tls_failure().is_some() => return Err(Failure::of_call(&error, server)),
                Ok(false) | Err(_) => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    };
    let late = |_| Failure::new(Exit::Unavailable, format!("{server} was not ready within {timeout:?}"));
    tokio::time::timeout(timeout, until_ready).await.map_err(late)?
}

async fn is_ready(channel: &mut Channel) -> Result<bool, CallError> {
    let mut request = http::Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static(READY_PAGE);
    let failed = |error: tonic::transport::Error| CallError::of_one(Status::from_error(Box::new(error)));
    std::future::poll_fn(|cx| Service::<http::Request<Body>>::poll_ready(channel, cx)).await.map_err(failed)?;
    let answer = channel.call(request).await.map_err(failed)?;
    Ok(answer.status() == http::StatusCode::OK)
}
