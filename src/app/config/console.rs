//! `[console]`: pages for people.

use serde::Deserialize;

use crate::config::ServerConfig;
use tallystone_api::http::{AllowedHosts, ConsoleSettings};

/// `[console]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleConfig {
    /// Whether there is a console.
    pub enabled: bool,
    /// Whether its actions are refused.
    pub read_only: bool,
    /// Whether payloads of messages may be shown.
    pub show_payloads: bool,
    /// Host names under which it answers.
    pub hosts: String,
}

impl ConsoleConfig {
    /// The settings of the console of a server, under whose names it answers too.
    pub fn settings(&self, server: &ServerConfig) -> ConsoleSettings {
        let names = self.hosts.split(',').chain(server.names()).map(str::to_owned);
        ConsoleSettings {
            enabled: self.enabled,
            read_only: self.read_only,
            show_payloads: self.show_payloads,
            hosts: AllowedHosts::only(names),
        }
    }
}
