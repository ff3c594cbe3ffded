//! The content of a token whose signature was verified, and the reasons why a token is refused.

use std::fmt;

use crate::access::{Grants, PrincipalName};
use crate::time::Timestamp;

/// The key of an issuer that signed a token: a hash over the id and the public key. Another key under the same id is
/// another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SigningKeyId(pub [u8; 32]);

/// The content of a token under a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimValue {
    /// The token has no such claim.
    Missing,
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// Something else: a number, an object, a list with other things than texts.
    Unreadable,
}

/// A token whose signature, issuer and audience were verified.
#[derive(Clone, Debug)]
pub struct VerifiedToken {
    /// The key that signed it.
    pub signed_by: SigningKeyId,
    /// The claim `exp`: the first moment at which it is not valid any more.
    pub expires: Timestamp,
    /// The claim `nbf`, if it has one: the first moment at which it is valid.
    pub not_before: Option<Timestamp>,
    /// The claim that names the principal.
    pub principal: ClaimValue,
    /// The claim with grants; missing if the settings name none.
    pub grants: ClaimValue,
    /// The claim with groups; missing if the settings name none.
    pub groups: ClaimValue,
}

/// The caller that a token stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenCaller {
    /// The principal.
    pub name: PrincipalName,
    /// The grants of the caller. May be empty.
    pub grants: Grants,
    /// The first moment at which the token is not valid any more.
    pub expires: Timestamp,
}

/// The reason why a token is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TokenRefusal {
    /// It is not a signed token with an issuer, or too long.
    Malformed,
    /// Its header does not say which key has signed it.
    NoKeyId,
    /// Its header lists extensions that must be understood.
    Extended,
    /// Its header or its claims say one thing twice.
    Repeated,
    /// The settings do not list its issuer.
    UnknownIssuer,
    /// Its issuer publishes no key of its id.
    UnknownKey,
    /// The keys of its issuer could not be read for so long that they do not count any more.
    KeysUnavailable,
    /// Its key may not be used with its algorithm, or the settings do not list the algorithm.
    Algorithm,
    /// It was not signed by the key, or was changed.
    Signature,
    /// It is for another audience, or for none.
    Audience,
    /// It has no expiry.
    NoExpiry,
    /// Its expiry, or the time from which it is valid, cannot be read.
    UnreadableTime,
    /// It was valid, and is not any more.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// It does not say who calls.
    Principal,
    /// Its statement about grants cannot be understood.
    Grants,
}

impl TokenRefusal {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Malformed,
        Self::NoKeyId,
        Self::Extended,
        Self::Repeated,
        Self::UnknownIssuer,
        Self::UnknownKey,
        Self::KeysUnavailable,
        Self::Algorithm,
        Self::Signature,
        Self::Audience,
        Self::NoExpiry,
        Self::UnreadableTime,
        Self::Expired,
        Self::NotYetValid,
        Self::Principal,
        Self::Grants,
    ];

    /// The name in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoKeyId => "no_key_id",
            Self::Extended => "extended",
            Self::Repeated => "repeated",
            Self::UnknownIssuer => "unknown_issuer",
            Self::UnknownKey => "unknown_key",
            Self::KeysUnavailable => "keys_unavailable",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Audience => "audience",
            Self::NoExpiry => "no_expiry",
            Self::UnreadableTime => "unreadable_time",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Principal => "principal",
            Self::Grants => "grants",
        }
    }

    /// Whether keys that are read again may change the answer.
    pub fn may_pass_with_new_keys(self) -> bool {
        matches!(self, Self::UnknownKey | Self::KeysUnavailable)
    }
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "it is neither an API key nor a token that this server can read",
            Self::NoKeyId => "its header names no signing key: kid is missing or is no text",
            Self::Extended => "its header has crit, and this server understands no extension",
            Self::Repeated => "its header or its claims say one thing twice",
            Self::UnknownIssuer => "this server does not know its issuer",
            Self::UnknownKey => "its issuer publishes no signing key of its kid",
            Self::KeysUnavailable => "this server cannot read the signing keys of its issuer",
            Self::Algorithm => "its algorithm is not allowed",
            Self::Signature => "its signature is wrong",
            Self::Audience => "it is for another audience",
            Self::NoExpiry => "it has no expiry",
            Self::UnreadableTime => {
                "its exp or nbf is no time: write seconds since 1970 as a number, up to the year 9999"
            }
            Self::Expired => "it has expired",
            Self::NotYetValid => "it is not valid yet",
            Self::Principal => "it does not say who calls",
            Self::Grants => "its grants cannot be understood",
        })
    }
}
