//! `[auth]`: who may call.

use serde::Deserialize;

/// `[auth]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthConfig {
    /// Whether callers must show a key.
    pub mode: AuthMode,
    /// Whether callers need no key because only this machine reaches the server. Not a setting: `tallystone dev` decides it.
    #[serde(skip)]
    pub loopback_only: bool,
}

/// Whether callers must show a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every call shows an API key.
    Keys,
    /// Anyone who reaches the port may call everything.
    Off,
}
