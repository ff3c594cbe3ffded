//! Issuers of tokens: what the settings say of them becomes what verifies their tokens.

use std::sync::Arc;

use crate::config::{AuthMode, Config, ConfiguredIssuer, IssuerKeysPlace, trusted_issuers};
use crate::server::keyspace::UnusableSetting;
use crate::server::metrics::MetricCollector;
use tallystone_adapters::jwt::{Jwt, KeyFile, KeyUrl};
use tallystone_api::http::Gateway;
use tallystone_domain::limits::{ISSUER_KEYS_FILE_EVERY, ISSUER_KEYS_URL_EVERY};
use tallystone_engine::Engine;
use tallystone_engine::access::TrustedIssuer;
use tallystone_ports::KeyDocument;

/// The issuers of the settings. Whether their keys can be read is seen later; that their certificates of authorities
/// can be is checked here.
pub fn of(config: &Config) -> anyhow::Result<Vec<TrustedIssuer>> {
    match config.auth.mode {
        AuthMode::Keys => trusted_issuers(config).into_iter().map(issuer).collect(),
        AuthMode::Off => Ok(Vec::new()),
    }
}

fn issuer(configured: ConfiguredIssuer) -> anyhow::Result<TrustedIssuer> {
    let ConfiguredIssuer { policy, keys } = configured;
    let (document, read_every): (Arc<dyn KeyDocument>, _) = match keys {
        IssuerKeysPlace::File(path) => (Arc::new(KeyFile::new(path)), ISSUER_KEYS_FILE_EVERY),
        IssuerKeysPlace::Url(url, authorities) => {
            let document = KeyUrl::new(&url, authorities.as_deref());
            let document = document.map_err(|error| {
                UnusableSetting(format!("auth.jwt.{}: {error}; set jwks_ca_file to a PEM file of them", policy.name))
            })?;
            (Arc::new(document), ISSUER_KEYS_URL_EVERY)
        }
    };
    Ok(TrustedIssuer { policy, document, read_every })
}

/// Takes tokens of these issuers from now on. Call it once, before the gateway opens.
pub fn open(issuers: Vec<TrustedIssuer>, engine: &Engine, gateway: &Gateway) {
    let tokens = engine.trust(Arc::new(Jwt), issuers);
    gateway.register_collector(MetricCollector::of(tokens.clone()));
    gateway.open_tokens(tokens);
}
