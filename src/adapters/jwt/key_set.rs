//! The keys of an issuer, from a JSON Web Key Set.
//!
//! A set may hold keys for other uses, of other kinds, or of kinds to come. They are left out, as RFC 7517 asks
//! (section 5). So are keys without an id: a token names its key by `kid`.

use std::collections::BTreeMap;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::TokenHead;
use super::claims;
use super::unique::{self, UniqueObject};
use tallystone_domain::access::{IssuerPolicy, SigningKeyId, TokenAlgorithm, TokenRefusal, VerifiedToken};
use tallystone_domain::limits::ISSUER_KEYS_MAX;
use tallystone_ports::{KeyDocumentError, SigningKeys};

/// The keys that may verify tokens, by their ids.
pub(super) struct JwkKeys(BTreeMap<String, PublishedKey>);

struct PublishedKey {
    id: SigningKeyId,
    key: DecodingKey,
    /// The algorithms that it may be used with, by itself and by the policy.
    algorithms: Vec<TokenAlgorithm>,
}

impl JwkKeys {
    /// Reads a set, for the algorithms of a policy.
    pub fn read(document: &[u8], policy: &IssuerPolicy) -> Result<Self, KeyDocumentError> {
        #[derive(Deserialize)]
        struct KeySet {
            keys: Vec<Value>,
        }
        let set: KeySet = serde_json::from_slice(document)
            .map_err(|error| KeyDocumentError(format!("it is not a JSON Web Key Set: {error}")))?;
        if set.keys.len() > ISSUER_KEYS_MAX {
            let what = format!("it has {} keys; at most {ISSUER_KEYS_MAX} are read", set.keys.len());
            return Err(KeyDocumentError(what));
        }
        let mut keys = BTreeMap::new();
        for (kid, key) in set.keys.iter().filter_map(|value| published(value, policy)) {
            // Of two under one id the first counts.
            keys.entry(kid).or_insert(key);
        }
        if keys.is_empty() {
            let words: Vec<_> = policy.algorithms.iter().map(|algorithm| algorithm.word()).collect();
            let what = format!("none of its keys has a kid and may verify {}", words.join(" or "));
            return Err(KeyDocumentError(what));
        }
        Ok(Self(keys))
    }
}

impl SigningKeys for JwkKeys {
    fn verify(&self, token: &str, policy: &IssuerPolicy) -> Result<VerifiedToken, TokenRefusal> {
        let head = TokenHead::of(token)?;
        if head.is_extended {
            return Err(TokenRefusal::Extended);
        }
        let algorithm = TokenAlgorithm::of(&head.alg).ok_or(TokenRefusal::Algorithm)?;
        let kid = head.kid.ok_or(TokenRefusal::NoKeyId)?;
        let key = self.0.get(&kid).ok_or(TokenRefusal::UnknownKey)?;
        if !key.algorithms.contains(&algorithm) {
            return Err(TokenRefusal::Algorithm);
        }
        let mut validation = Validation::new(as_library(algorithm));
        // Whether there is an expiry, and one that can be read, is judged with the other claims.
        validation.set_required_spec_claims(&["iss", "aud"]);
        validation.set_issuer(&[&policy.issuer]);
        validation.set_audience(&policy.audiences);
        // Time is for the policy, by the clock of this server.
        validation.validate_exp = false;
        let verified = decode::<UniqueObject>(token, &key.key, &validation).map_err(|error| refusal(error.kind()))?;
        claims::read(&verified.claims.0, policy, key.id)
    }

    fn holds(&self, key: &SigningKeyId) -> bool {
        self.0.values().any(|held| held.id == *key)
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

/// A key with its id; none if it verifies no token.
fn published(value: &Value, policy: &IssuerPolicy) -> Option<(String, PublishedKey)> {
    let jwk = Jwk::deserialize(value).ok()?;
    let kid = jwk.common.key_id.clone()?;
    let is_for_signatures = jwk.common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
    let may_verify = jwk.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    let algorithms = algorithms_of(&jwk, policy);
    if !is_for_signatures || !may_verify || algorithms.is_empty() {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    let public = serde_json::to_vec(&jwk).ok()?;
    Some((kid, PublishedKey { id: SigningKeyId(Sha256::digest(&public).into()), key, algorithms }))
}

/// The algorithms that a key may be used with: by its kind, by the algorithm that it names itself, and by the policy.
fn algorithms_of(jwk: &Jwk, policy: &IssuerPolicy) -> Vec<TokenAlgorithm> {
    use TokenAlgorithm::{EdDsa, Es256, Es384, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
    let by_kind: &[TokenAlgorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[Rs256, Rs384, Rs512, Ps256, Ps384, Ps512],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => &[Es256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => &[Es384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDsa],
        _ => &[], // what verifies with a shared secret, on another curve, or in a way to come
    };
    let says = |algorithm: &TokenAlgorithm| {
        let own = jwk.common.key_algorithm;
        own.is_none_or(|own| own == KeyAlgorithm::from(as_library(*algorithm)))
    };
    by_kind.iter().copied().filter(says).filter(|algorithm| policy.algorithms.contains(algorithm)).collect()
}

fn as_library(algorithm: TokenAlgorithm) -> Algorithm {
    match algorithm {
        TokenAlgorithm::Rs256 => Algorithm::RS256,
        TokenAlgorithm::Rs384 => Algorithm::RS384,
        TokenAlgorithm::Rs512 => Algorithm::RS512,
        TokenAlgorithm::Ps256 => Algorithm::PS256,
        TokenAlgorithm::Ps384 => Algorithm::PS384,
        TokenAlgorithm::Ps512 => Algorithm::PS512,
        TokenAlgorithm::Es256 => Algorithm::ES256,
        TokenAlgorithm::Es384 => Algorithm::ES384,
        TokenAlgorithm::EdDsa => Algorithm::EdDSA,
    }
}

/// The reason for which the library takes no token.
pub(super) fn refusal(error: &ErrorKind) -> TokenRefusal {
    match error {
        ErrorKind::InvalidSignature => TokenRefusal::Signature,
        ErrorKind::InvalidAudience => TokenRefusal::Audience,
        ErrorKind::InvalidIssuer => TokenRefusal::UnknownIssuer,
        ErrorKind::InvalidAlgorithm => TokenRefusal::Algorithm,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenRefusal::Audience,
        ErrorKind::Json(error) => unique::refusal(error),
        _ => TokenRefusal::Malformed, // whatever else the library finds, the token is not one
    }
}
