//! The caller of a request, found out from the head of the request, before its body is read.
//!
//! Invariant: where callers must show a key or token, no method of any protocol runs without one. Only `/healthz` and
//! `/readyz` are not asked here. Refusals of keys say no more than that the key is not valid. Refusals of tokens say
//! why: a caller that has the token can read that in it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, header};
use tonic::metadata::MetadataMap;

use crate::errors::ApiError;
use crate::grpc::rollup_signals::{member_refusal, presented_secret};
use crate::http::call::{deadline, effective_timeout};
use crate::http::metrics::{CallMetrics, UnauthenticatedCall};
use crate::tls::ClientCertificate;
use tallystone_domain::Reason;
use tallystone_domain::access::{ApiKey, TokenRefusal};
use tallystone_engine::access::{AccessKeys, Identity, KeyRefusal, TokenDenial, Tokens};
use tallystone_engine::rolling::SignalReceiver;
use tallystone_proto::SECRET_METADATA;

/// Whether callers must show a key or token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Authentication {
    /// Anyone who reaches the port may call everything.
    #[default]
    Off,
    /// Every call shows an API key, or a token of an issuer that the settings list.
    Keys,
}

/// Finds out who calls.
pub struct IdentityCheck {
    mode: Authentication,
    /// Absent until the store is open.
    known: OnceLock<KnownCallers>,
    /// Absent until the store is open.
    tokens: OnceLock<Tokens>,
    metrics: CallMetrics,
}

/// The callers that may call.
struct KnownCallers {
    keys: AccessKeys,
    /// The other servers of a fleet, by the secrets of their heartbeats.
    members: Option<SignalReceiver>,
}

impl IdentityCheck {
    /// A check that knows nobody yet.
    pub fn new(mode: Authentication, metrics: CallMetrics) -> Self {
        Self { mode, known: OnceLock::new(), tokens: OnceLock::new(), metrics }
    }

    /// Takes tokens from now on. Call it once, before `open`.
    pub fn open_tokens(&self, tokens: Tokens) {
        assert!(self.tokens.set(tokens).is_ok(), "the issuers are made known once");
    }

    /// Knows these callers from now on. Call it once.
    pub fn open(&self, keys: AccessKeys, members: Option<SignalReceiver>) {
        assert!(self.known.set(KnownCallers { keys, members }).is_ok(), "the callers are made known once");
    }

    /// Finds out who sent a request to an application's method. None: callers need not say. Waits only for a token that
    /// names an unknown key of its issuer.
    pub async fn caller(&self, headers: &HeaderMap) -> Result<Option<Arc<Identity>>, ApiError> {
        if self.mode == Authentication::Off {
            return Ok(None);
        }
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        let one = match (shown.next(), shown.next()) {
            (Some(one), None) => one,
            (None, _) => return Err(self.refusal(UnauthenticatedCall::Missing)),
            (Some(_), Some(_)) => {
                self.metrics.unauthenticated(UnauthenticatedCall::Invalid);
                let what = "the call has more than one authorization header; nothing was applied: send it once, with one key \
                            or token";
                return Err(ApiError::new(Reason::Unauthenticated, what).without_effect());
            }
        };
        let shown = bearer(one.as_bytes()).ok_or_else(|| self.refusal(UnauthenticatedCall::Invalid))?;
        let Some(key) = ApiKey::parse(shown) else {
            // Boxed, so that calls with keys, which are more, do not reserve its space.
            return Box::pin(self.caller_of_token(shown, time_of(headers))).await.map(Some);
        };
        match self.known()?.keys.identify(&key) {
            Ok(identity) => Ok(Some(identity)),
            Err(KeyRefusal::Unknown) => Err(self.refusal(UnauthenticatedCall::Invalid)),
            Err(KeyRefusal::Expired) => Err(self.refusal(UnauthenticatedCall::Expired)),
        }
    }

    async fn caller_of_token(&self, shown: &[u8], within: Duration) -> Result<Arc<Identity>, ApiError> {
        self.known()?;
        let tokens = self.tokens.get().filter(|tokens| !tokens.issuers().is_empty());
        // Every token has two dots, and no key has one.
        let token = std::str::from_utf8(shown).ok().filter(|text| text.contains('.'));
        let Some((tokens, token)) = tokens.zip(token) else {
            return Err(self.refusal(UnauthenticatedCall::Invalid));
        };
        tokens.identify_within(token, within).await.map_err(|denial| {
            let why = match denial {
                TokenDenial::Refused(why) => why,
                TokenDenial::KeysReadIn(left) => {
                    let what = "the issuer of the token of the call may have published its key just now, and its keys are \
                                read again soon; nothing was applied: retry";
                    let refusal = ApiError::new(Reason::RetryLater, what).without_effect();
                    return ApiError { retry_after: Some(left), ..refusal };
                }
            };
            self.metrics.unauthenticated(match why {
                TokenRefusal::Expired => UnauthenticatedCall::Expired,
                _ => UnauthenticatedCall::Invalid, // a metric of tokens says more
            });
            let what = format!("the token of the call is refused: {why}; nothing was applied");
            ApiError::new(Reason::Unauthenticated, what).without_effect()
        })
    }

    /// Finds out who sent a request on a connection, which may have shown a certificate. A credential in the request
    /// wins, and is refused if it is not valid: it speaks for the one call, the certificate for all of the connection.
    pub async fn caller_on(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Option<Arc<Identity>>, ApiError> {
        let name = certificate.and_then(|certificate| certificate.name.as_ref());
        let Some(name) = name.filter(|_| !headers.contains_key(header::AUTHORIZATION)) else {
            return self.caller(headers).await;
        };
        if self.mode == Authentication::Off {
            return Ok(None);
        }
        self.known()?.keys.named(name).map(Some).map_err(|why| {
            self.metrics.unauthenticated(match why {
                KeyRefusal::Unknown => UnauthenticatedCall::Invalid,
                KeyRefusal::Expired => UnauthenticatedCall::Expired,
            });
            let what =
                format!("no valid API key has the name {name} of the certificate of the call; nothing was applied");
            ApiError::new(Reason::Unauthenticated, what).without_effect()
        })
    }

    /// Refuses a request to a method between servers that comes from no member of the fleet.
    pub fn check_member(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.mode == Authentication::Off {
            return Ok(()); // the method checks it
        }
        if !headers.contains_key(SECRET_METADATA) {
            return Err(self.refusal(UnauthenticatedCall::Missing));
        }
        let shown = presented_secret(&MetadataMap::from_headers(headers.clone()));
        let members = self.known()?.members.as_ref();
        match members.is_some_and(|members| members.is_of_member(shown.as_ref())) {
            true => Ok(()),
            false => Err(member_refusal()),
        }
    }

    fn known(&self) -> Result<&KnownCallers, ApiError> {
        self.known.get().ok_or_else(|| {
            ApiError::new(Reason::StoreUnavailable, "the server is starting and its store is not open yet")
        })
    }

    fn refusal(&self, why: UnauthenticatedCall) -> ApiError {
        self.metrics.unauthenticated(why);
        let what = match why {
            UnauthenticatedCall::Missing => "the call has no API key; nothing was applied",
            UnauthenticatedCall::Invalid | UnauthenticatedCall::Expired => {
                "the API key of the call is not valid; nothing was applied"
            }
        };
        ApiError::new(Reason::Unauthenticated, what).without_effect()
    }
}

/// The credential after the word `Bearer`, which may be in any letter case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, credential) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| credential.trim_ascii())
}

/// How long a call has, by its head. One whose deadline cannot be read is refused later.
fn time_of(headers: &HeaderMap) -> Duration {
    effective_timeout(deadline(headers).unwrap_or_default(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_is_known_by_its_scheme() {
        for text in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(bearer(text.as_bytes()), Some(&b"abc"[..]), "{text}");
        }
        for text in ["", "Bearer", "abc", "Basic abc", "Bearerabc"] {
            assert_eq!(bearer(text.as_bytes()), None, "{text}");
        }
        assert_eq!(bearer(b"Bearer "), Some(&b""[..]));
    }
}
