//! The text that a server prints when it is ready: the address on which it listens, the place of its data, and commands
//! to try.

use std::ffi::OsString;
use std::net::SocketAddr;

use crate::config::{
    AuthMode, ClientAuth, Config, CounterEngine, QueueEngine, SERVER_DEFAULT, counter_cluster, queue_cluster,
};
use crate::notices::{print_line, shell_quoted};
use crate::server::preset::Preset;

/// The warnings of a server that listens on an address other than loopback: without keys, with TLS or not; and with
/// keys.
const NO_AUTHENTICATION_WARNING: &str = "there is no authentication: anyone who reaches this address can read and change \
    everything; keep it in a trusted network, listen on 127.0.0.1, or set auth.mode to \"keys\"";
const NOTHING_WARNING: &str = "there is no authentication and no TLS: anyone who reaches this address can read and change \
    everything; keep it in a trusted network, or listen on 127.0.0.1";
const NO_TLS_WARNING: &str = "there is no TLS: API keys and data cross the network in clear text; set tls.cert_file and \
    tls.key_file, keep it in a trusted network, or listen on 127.0.0.1 behind a proxy with TLS";

/// The warning for servers that share the queues while each has counters of its own.
const OWN_COUNTERS_WARNING: &str = "other servers may share the queues, but these counters are this server's own: its counters of \
    queues have what other servers did up to 30 s later, as reported_to says, and all other counters differ between servers; use \
    counters.engine = \"cassandra\" where several servers share a Redis";

/// Prints the listening address, the storage locations, and example commands.
pub fn print(config: &Config, preset: Preset, address: SocketAddr) {
    let url = format!("{}://{address}", if config.tls.is_on() { "https" } else { "http" });
    print_line(&format!("tallystone {} listens on {url}", env!("CARGO_PKG_VERSION")));
    let warning = match (config.auth.mode, config.tls.is_on()) {
        (AuthMode::Off, false) => Some(NOTHING_WARNING),
        (AuthMode::Off, true) if config.tls.client_auth == ClientAuth::Required => None,
        (AuthMode::Off, true) => Some(NO_AUTHENTICATION_WARNING),
        (AuthMode::Keys, false) => Some(NO_TLS_WARNING),
        (AuthMode::Keys, true) => None,
    };
    if let Some(warning) = warning.filter(|_| !address.ip().to_canonical().is_loopback()) {
        tracing::warn!(%address, "{warning}");
        print_line(&format!("warning: {warning}"));
    }
    for line in storage_locations(config, preset) {
        print_line(&line);
    }
    if config.queues.engine == QueueEngine::Redis && config.counters.engine != CounterEngine::Cassandra {
        tracing::warn!("{OWN_COUNTERS_WARNING}");
        print_line(&format!("warning: {OWN_COUNTERS_WARNING}"));
    }
    if let Some(cluster) = config.clusters.get(&config.best_effort.cluster) {
        print_line(&format!("best-effort counters: memcached at {}", cluster.servers));
    }
    if config.console.enabled {
        print_line(&format!("console: {url}/console/"));
    }
    let local_ca = config.tls.local_ca_file.as_ref().map(|file| shell_quoted(&file.to_string_lossy()).into_owned());
    if let Some(file) = &local_ca {
        print_line(&format!("TLS:   clients trust this server by the authority in {file}"));
    }
    if preset == Preset::Dev {
        let trusted = local_ca.as_ref().map_or_else(String::new, |file| format!("--cacert {file} "));
        print_line(&format!(
            "try:   curl -s {trusted}{url}/tallystone.counter.v1.CounterService/AddCount \\\n         \
             -H 'content-type: application/json' \\\n         \
             -d '{{\"namespace\": \"default\", \"counter_name\": \"views\", \"delta\": 1}}'"
        ));
        let server = match (config.tls.is_on(), is_default_server(address)) {
            (true, _) => {
                let trusted = local_ca.as_ref().map_or_else(String::new, |file| format!(" --ca-file {file}"));
                format!(" --server {url}{trusted}")
            }
            (false, true) => String::new(),
            (false, false) => format!(" --server {address}"),
        };
        let program = this_program(std::env::args_os().next());
        print_line(&format!("then:  {program} counter get views --fresh{server}"));
        if config.queues.engine != QueueEngine::None {
            print_line(&format!("queue: {program} msg push -q timed/hello hello{server}"));
        }
    }
}

/// Describes where counters and queues are stored: one line each, or one line if they share a store.
fn storage_locations(config: &Config, preset: Preset) -> Vec<String> {
    let directory = || config.storage.data_dir.display().to_string();
    let memory = || "in memory only; lost when the process ends".to_owned();
    let counters = match config.counters.engine {
        CounterEngine::Embedded => directory(),
        CounterEngine::Memory => memory(),
        CounterEngine::Cassandra => counter_cluster(config).map_or_else(String::new, |(_, cluster)| {
            format!("keyspace {} of Cassandra at {}", cluster.keyspace, cluster.servers)
        }),
    };
    let queues = match config.queues.engine {
        QueueEngine::Embedded => directory(),
        QueueEngine::Memory => memory(),
        QueueEngine::Redis => {
            queue_cluster(config).map_or_else(String::new, |(_, cluster)| format!("Redis at {}", cluster.servers))
        }
        QueueEngine::None => match preset {
            Preset::Dev => "this server has no queues; name a directory for them with --data DIR".to_owned(),
            Preset::Server => "this server has no queues (queues.engine)".to_owned(),
        },
    };
    match counters == queues {
        true => vec![format!("data:  {counters}")],
        false => vec![format!("data:  {counters}"), format!("queues: {queues}")],
    }
}

/// Whether the command line connects to this address by default.
fn is_default_server(address: SocketAddr) -> bool {
    let default: SocketAddr = SERVER_DEFAULT.parse().expect("the default is a valid address");
    address == default || (address.ip().is_unspecified() && address.port() == default.port())
}

/// The command that started this program, quoted for a shell; `tallystone` if it is unknown.
fn this_program(called: Option<OsString>) -> String {
    let called = called.and_then(|called| called.into_string().ok()).filter(|called| !called.is_empty());
    shell_quoted(called.as_deref().unwrap_or("tallystone")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_commands_name_a_server_that_is_not_the_default() {
        let is_found = |text: &str| is_default_server(text.parse().expect("an address"));
        assert!(is_found("127.0.0.1:7450") && is_found("0.0.0.0:7450") && is_found("[::]:7450"));
        assert!(!is_found("127.0.0.1:7451") && !is_found("0.0.0.0:7451") && !is_found("192.0.2.1:7450"));
        assert!(!is_found("[::1]:7450"), "the default is an IPv4 address");
    }

    #[test]
    fn example_commands_use_the_path_of_the_running_program() {
        let called = |text: &str| this_program(Some(OsString::from(text)));
        assert_eq!(called("target/debug/tallystone"), "target/debug/tallystone");
        assert_eq!(called("/opt/my tools/tallystone"), "'/opt/my tools/tallystone'");
        assert_eq!(this_program(None), "tallystone");
    }
}
