//! `server`: run one, look at its settings, wait until it is ready.

use std::time::Duration;

use clap::{Args, Subcommand};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::app::cli::{Exit, Failure, arguments, on_a_runtime};
use crate::app::commands::{self, ServerCommand};

/// How long one question may take, and the pause after it.
const ASK_WITHIN: Duration = Duration::from_secs(1);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Run a server, look at its settings, wait for it.
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

/// Wait until a server takes calls; exits with 5 if it does not in time.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  tallystone server wait-ready --timeout 30s")]
struct WaitReadyArgs {
    /// The server, HOST:PORT.
    #[arg(
        long,
        env = "TALLYSTONE_SERVER",
        hide_env_values = true,
        default_value = "127.0.0.1:7450",
        value_name = "HOST:PORT"
    )]
    server: String,
    /// How long to wait.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = arguments::duration)]
    timeout: Duration,
}

impl ServerArgs {
    pub fn run(&self) -> Result<(), Failure> {
        match &self.command {
            ServerVerb::Process(command) => {
                commands::server(command).map_err(|error| Failure::other(format!("{error:#}")))
            }
            ServerVerb::WaitReady(args) => on_a_runtime(args.wait()),
        }
    }
}

impl WaitReadyArgs {
    async fn wait(&self) -> Result<(), Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.server.trim_start_matches("http://")));
        let endpoint = endpoint.map_err(|_| Failure::usage(format!("{:?} is no server's address", self.server)))?;
        let mut health = HealthClient::new(endpoint.timeout(ASK_WITHIN).connect_timeout(ASK_WITHIN).connect_lazy());
        let until_ready = async {
            // An answer other than "serving", and no answer at all, mean the same here: ask again.
            while !health
                .check(HealthCheckRequest::default())
                .await
                .is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving)
            {
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        tokio::time::timeout(self.timeout, until_ready).await.map_err(|_| {
            Failure::new(Exit::Unavailable, format!("{} was not ready within {:?}", self.server, self.timeout))
        })
    }
}
