//! `[auth]`: who may call.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::{Config, IssuerConfig, issuers};

/// `[auth]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthConfig {
    /// Whether callers must show a key or a token.
    pub mode: AuthMode,
    /// `[auth.jwt.NAME]`
    pub jwt: BTreeMap<String, IssuerConfig>,
    /// Whether callers need no key because only this machine reaches the server. Not a setting: `tallystone dev`
    /// decides it.
    #[serde(skip)]
    pub loopback_only: bool,
}

/// Whether callers must show a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every call shows an API key, or a token of an issuer.
    Keys,
    /// Anyone who reaches the port may call everything.
    Off,
}

impl AuthConfig {
    /// Whether tokens of any issuer count.
    pub fn takes_tokens(&self) -> bool {
        self.jwt.values().any(IssuerConfig::is_set)
    }
}

/// The setting that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(String, String)> {
    let idle = || {
        let (name, _) = config.auth.jwt.iter().find(|(_, issuer)| issuer.is_set())?;
        let what = "is of no use with auth.mode = \"off\", which asks nobody for a token; remove one of the two";
        (config.auth.mode == AuthMode::Off).then(|| (format!("auth.jwt.{name}.issuer"), what.to_owned()))
    };
    issuers::find_invalid(config).or_else(idle)
}
