//! Tokens as JWTs (RFC 7519) with signatures (RFC 7515), and the keys of issuers as JSON Web Key Sets (RFC 7517), by the library
//! `jsonwebtoken`.
//!
//! The library verifies the signature, the issuer and the audience. What it does not look at here is time: that needs a clock.
//! Invariant: a token is verified only with an algorithm that its key and the settings allow, all of which have two keys.

mod claims;
mod key_file;
mod key_set;
mod key_url;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::dangerous;
use serde::Deserialize;
use serde::de::IgnoredAny;

use tallystone_domain::access::{IssuerPolicy, TokenRefusal};
use tallystone_ports::{KeyDocumentError, SigningKeys, TokenFormat};

pub use key_file::KeyFile;
pub use key_url::{KeyUrl, KeyUrlError};

/// The format.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jwt;

impl TokenFormat for Jwt {
    fn issuer_of(&self, token: &str) -> Result<String, TokenRefusal> {
        #[derive(Deserialize)]
        struct NamesIssuer {
            iss: String,
        }
        // Says only whose keys to verify the token with; the verification looks at the issuer again.
        let claims = dangerous::insecure_decode_claims::<NamesIssuer>(token);
        claims.map(|claims| claims.iss).map_err(|_| TokenRefusal::Malformed)
    }

    fn key_of(&self, token: &str) -> Option<String> {
        TokenHead::of(token)?.kid
    }

    fn keys(&self, document: &[u8], policy: &IssuerPolicy) -> Result<Arc<dyn SigningKeys>, KeyDocumentError> {
        Ok(Arc::new(key_set::JwkKeys::read(document, policy)?))
    }
}

/// What the head of a token says, as far as it matters.
#[derive(Deserialize)]
struct TokenHead {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood. None is.
    crit: Option<IgnoredAny>,
}

impl TokenHead {
    fn of(token: &str) -> Option<Self> {
        let (head, _) = token.split_once('.')?;
        let head = URL_SAFE_NO_PAD.decode(head).ok()?;
        serde_json::from_slice(&head).ok()
    }
}
