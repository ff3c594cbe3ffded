//! Tokens as JWTs (RFC 7519) with signatures (RFC 7515), and the keys of issuers as JSON Web Key Sets (RFC 7517), by
//! the library `jsonwebtoken`.
//!
//! The library verifies the signature, the issuer and the audience. It does not look at time here: that needs a clock.
//! Invariant: a token is verified only with an algorithm that its key and the settings allow, all of which have two
//! keys.

mod claims;
mod key_file;
mod key_set;
mod key_url;
mod unique;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::dangerous;
use serde_json::Value;

use tallystone_domain::access::{IssuerPolicy, TokenRefusal};
use tallystone_ports::{KeyDocumentError, SigningKeys, TokenFormat};

pub use key_file::KeyFile;
pub use key_url::{KeyUrl, KeyUrlError};
use unique::UniqueObject;

/// The format.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jwt;

impl TokenFormat for Jwt {
    fn issuer_of(&self, token: &str) -> Result<String, TokenRefusal> {
        // Says only whose keys to verify the token with; the verification looks at the issuer again.
        let claims = dangerous::insecure_decode_claims::<UniqueObject>(token);
        let UniqueObject(claims) = claims.map_err(|error| key_set::refusal(error.kind()))?;
        claims.get("iss").and_then(Value::as_str).map(str::to_owned).ok_or(TokenRefusal::Malformed)
    }

    fn key_of(&self, token: &str) -> Option<String> {
        TokenHead::of(token).ok()?.kid
    }

    fn keys(&self, document: &[u8], policy: &IssuerPolicy) -> Result<Arc<dyn SigningKeys>, KeyDocumentError> {
        Ok(Arc::new(key_set::JwkKeys::read(document, policy)?))
    }
}

/// The fields of the head of a token, as far as they matter.
struct TokenHead {
    alg: String,
    kid: Option<String>,
    /// Whether it lists extensions that must be understood. None is.
    is_extended: bool,
}

impl TokenHead {
    fn of(token: &str) -> Result<Self, TokenRefusal> {
        let (head, _) = token.split_once('.').ok_or(TokenRefusal::Malformed)?;
        let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| TokenRefusal::Malformed)?;
        let UniqueObject(head) = serde_json::from_slice(&head).map_err(|error| unique::refusal(&error))?;
        let text = |name: &str| head.get(name).and_then(Value::as_str).map(str::to_owned);
        let alg = text("alg").ok_or(TokenRefusal::Malformed)?;
        Ok(Self { alg, kid: text("kid"), is_extended: head.contains_key("crit") })
    }
}
