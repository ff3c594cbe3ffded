//! Tokens of identity providers: their format, and the keys with which issuers sign them.

use std::sync::Arc;

use async_trait::async_trait;

use tallystone_domain::access::{IssuerPolicy, SigningKeyId, TokenRefusal, VerifiedToken};

/// The document in which an issuer publishes the keys with which it signs.
///
/// Laws:
/// 1. `read` answers the whole document as it is at that moment, or why it cannot. It may be dropped at any point.
/// 2. It answers `ISSUER_KEYS_BYTES_MAX` at most, and reads no more of a longer document.
#[async_trait]
pub trait KeyDocument: Send + Sync + 'static {
    /// Reads the document.
    async fn read(&self) -> Result<Vec<u8>, KeyDocumentError>;
}

/// The reason why the keys of an issuer cannot be read, in words for an operator.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyDocumentError(pub String);

/// A format of signed tokens.
///
/// Laws:
/// 1. `issuer_of` says what a token claims, and proves nothing.
/// 2. `keys` takes the keys of a document that may verify with an algorithm of the policy, and leaves out all others. A
///    document without any is refused.
pub trait TokenFormat: Send + Sync + 'static {
    /// The issuer that a token names.
    fn issuer_of(&self, token: &str) -> Result<String, TokenRefusal>;

    /// The id of the key that a token names; none if it names none. It proves as little.
    fn key_of(&self, token: &str) -> Option<String>;

    /// Reads the keys that an issuer publishes.
    fn keys(&self, document: &[u8], policy: &IssuerPolicy) -> Result<Arc<dyn SigningKeys>, KeyDocumentError>;
}

/// The keys of an issuer at one moment.
///
/// Laws:
/// 1. `verify` takes a token only if the key of its id made its signature, with an algorithm that both the key and the
///    policy allow, and if its issuer and one of its audiences are those of the policy. What the token says of the
///    algorithm chooses among these, and never beyond. It has an expiry; whether that has passed is not looked at.
/// 2. `holds` says whether `verify` may still answer a token with this `signed_by`.
pub trait SigningKeys: Send + Sync + 'static {
    /// Verifies a token. Cost: one signature.
    fn verify(&self, token: &str, policy: &IssuerPolicy) -> Result<VerifiedToken, TokenRefusal>;

    /// Whether the key is one of these.
    fn holds(&self, key: &SigningKeyId) -> bool;

    /// How many there are, at least 1.
    fn count(&self) -> usize;
}
