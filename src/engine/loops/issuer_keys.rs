//! Reads the signing keys of issuers of tokens, and ends the calls of tokens that are over.

use std::sync::Arc;

use async_trait::async_trait;

use crate::access::{IssuerKeys, Tokens};
use crate::driver::{BackgroundLoop, NextActivation};
use tallystone_domain::limits::KEYS_CHECKED_EVERY;

/// The loop that reads the keys of one issuer.
pub struct IssuerKeysLoop {
    tokens: Tokens,
    issuer: Arc<IssuerKeys>,
}

/// The loop that ends tokens.
pub struct TokensLoop {
    tokens: Tokens,
}

impl IssuerKeysLoop {
    /// Makes the loop; it reads at once.
    pub fn new(tokens: Tokens, issuer: Arc<IssuerKeys>) -> Self {
        Self { tokens, issuer }
    }
}

impl TokensLoop {
    /// Makes the loop.
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens }
    }
}

#[async_trait]
impl BackgroundLoop for IssuerKeysLoop {
    fn name(&self) -> &'static str {
        "issuer keys"
    }

    async fn woken(&self) {
        self.issuer.wanted().await;
    }

    async fn activate(&mut self) -> NextActivation {
        NextActivation::AfterOrWoken(self.tokens.read_keys(&self.issuer).await)
    }
}

#[async_trait]
impl BackgroundLoop for TokensLoop {
    fn name(&self) -> &'static str {
        "tokens"
    }

    async fn activate(&mut self) -> NextActivation {
        self.tokens.end_expired();
        NextActivation::After(KEYS_CHECKED_EVERY)
    }
}
