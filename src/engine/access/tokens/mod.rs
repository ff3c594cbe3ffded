//! Callers that show a token of an identity provider.
//!
//! A token is verified once and remembered by its hash, because a signature costs more than the rest of a small call.
//! Nothing of a token is kept but the hash and what it stands for. What was verified ends at its expiry, when its
//! issuer withdraws the key that signed it, and when the keys of the issuer could not be read for too long. Open calls
//! of the token end with it.

mod issuer_keys;
mod known_tokens;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::access::{CredentialKind, Identity, PrincipalAccounts};
use crate::stats::Count;
use tallystone_domain::access::{IssuerPolicy, KeyQuotas, Principal, TokenRefusal};
use tallystone_domain::limits::ISSUER_TOKEN_BYTES_MAX;
use tallystone_ports::{Clock, KeyDocument, TokenFormat};

use issuer_keys::KeysAnew;
pub use issuer_keys::{IssuerGauges, IssuerKeys};
use known_tokens::{KnownTokens, TokenHash, VerifiedBy};

/// An issuer whose tokens count, and where it publishes its keys.
pub struct TrustedIssuer {
    /// The identity of the issuer, and how its tokens are understood.
    pub policy: IssuerPolicy,
    /// Its keys.
    pub document: Arc<dyn KeyDocument>,
    /// How often they are read.
    pub read_every: Duration,
}

/// The reason why a token is not taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenDenial {
    /// It is refused.
    Refused(TokenRefusal),
    /// Its key may be one that its issuer has just published. The keys are read again after this time.
    KeysReadIn(Duration),
}

/// The counts of tokens at one moment.
#[derive(Clone, Debug, Default)]
pub struct TokensInUse {
    /// Tokens that were verified, one signature each.
    pub verified: u64,
    /// Tokens that are remembered.
    pub known: usize,
    /// Refused calls, by why.
    pub refused: Vec<(TokenRefusal, u64)>,
}

/// The callers with tokens. Cheap to clone.
#[derive(Clone)]
pub struct Tokens {
    shared: Arc<TokensShared>,
}

struct TokensShared {
    format: Arc<dyn TokenFormat>,
    issuers: Vec<Arc<IssuerKeys>>,
    accounts: Arc<PrincipalAccounts>,
    known: KnownTokens,
    clock: Arc<dyn Clock>,
    verified: Count,
    refused: [Count; TokenRefusal::ALL.len()],
}

/// A refusal, with the issuer whose keys it depends on.
type ShownTokenVerdict = Result<Arc<Identity>, (TokenRefusal, Option<Arc<IssuerKeys>>)>;

impl Tokens {
    /// Takes the tokens of these issuers, once their keys are read. Their principals have the quotas of the server.
    pub fn new(
        format: Arc<dyn TokenFormat>,
        issuers: Vec<TrustedIssuer>,
        accounts: Arc<PrincipalAccounts>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let issuers = issuers.into_iter().map(|issuer| Arc::new(IssuerKeys::new(issuer))).collect();
        let shared = TokensShared {
            format,
            issuers,
            accounts,
            known: KnownTokens::default(),
            clock,
            verified: Count::default(),
            refused: Default::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Finds out who shows a token, however long that takes.
    pub async fn identify(&self, token: &str) -> Result<Arc<Identity>, TokenRefusal> {
        self.identify_within(token, Duration::MAX).await.map_err(|denial| match denial {
            TokenDenial::Refused(why) => why,
            TokenDenial::KeysReadIn(_) => TokenRefusal::UnknownKey,
        })
    }

    /// Finds the caller that shows a token. A known token costs a hash and a look-up, a new one a signature. One with
    /// an unknown key waits for the keys of its issuer. If they were read just now, it waits for the next time, unless
    /// that is later than `within`: the issuer may have published the key since.
    pub async fn identify_within(&self, token: &str, within: Duration) -> Result<Arc<Identity>, TokenDenial> {
        let shared = &self.shared;
        let mut verdict = shared.identify(token);
        // A reading that is under way may have begun before the issuer published the key, so the next one is waited for
        // too.
        for _ in 0..2 {
            let Err((why, Some(issuer))) = &verdict else { break };
            if !why.may_pass_with_new_keys() {
                break;
            }
            let key = shared.format.key_of(token).filter(|_| *why == TokenRefusal::UnknownKey);
            let may_come = key.is_some_and(|key| !issuer.is_unpublished(&key));
            let patience = if may_come { within } else { Duration::ZERO };
            match issuer.wait_for_keys(&*shared.clock, patience).await {
                KeysAnew::Read => verdict = shared.identify(token),
                KeysAnew::In(left) if may_come => return Err(TokenDenial::KeysReadIn(left)),
                KeysAnew::In(_) | KeysAnew::No => break,
            }
        }
        verdict.map_err(|(why, _)| {
            let at = TokenRefusal::ALL.iter().position(|one| *one == why);
            if let Some(count) = at.and_then(|at| shared.refused.get(at)) {
                count.increment();
            }
            TokenDenial::Refused(why)
        })
    }

    /// The issuers.
    pub fn issuers(&self) -> &[Arc<IssuerKeys>] {
        &self.shared.issuers
    }

    /// Reads the keys of an issuer, and ends the tokens of those that it withdrew. Answers how long to wait before the
    /// next time.
    pub async fn read_keys(&self, issuer: &Arc<IssuerKeys>) -> Duration {
        let shared = &self.shared;
        let (changed, pause) = issuer.read(&*shared.format, &*shared.clock).await;
        if let Some(keys) = changed {
            shared.known.end_unless(issuer.policy.name.as_str(), |key| keys.holds(key));
        }
        pause
    }

    /// Ends the calls of tokens that are over by now, and of issuers whose keys do not count any more.
    pub fn end_expired(&self) {
        let shared = &self.shared;
        shared.known.end_expired(shared.clock.now());
        let elapsed = shared.clock.elapsed();
        for issuer in shared.issuers.iter().filter(|issuer| issuer.keys(elapsed).is_none()) {
            shared.known.end_unless(issuer.policy.name.as_str(), |_| false);
        }
    }

    /// How the keys of an issuer are.
    pub fn gauges(&self, issuer: &IssuerKeys) -> IssuerGauges {
        issuer.gauges(self.shared.clock.elapsed())
    }

    /// The counts of tokens now.
    pub fn in_use(&self) -> TokensInUse {
        let refused = TokenRefusal::ALL.into_iter().zip(self.shared.refused.iter().map(Count::get));
        TokensInUse { verified: self.shared.verified.get(), known: self.shared.known.len(), refused: refused.collect() }
    }
}

impl TokensShared {
    fn identify(&self, token: &str) -> ShownTokenVerdict {
        if token.len() > ISSUER_TOKEN_BYTES_MAX {
            return Err((TokenRefusal::Malformed, None));
        }
        let hash = TokenHash(Sha256::digest(token.as_bytes()).into());
        match self.known.get(&hash, self.clock.now()) {
            Some(identity) => Ok(identity),
            None => self.verify(token, hash),
        }
    }

    fn verify(&self, token: &str, hash: TokenHash) -> ShownTokenVerdict {
        let named = self.format.issuer_of(token).map_err(|why| (why, None))?;
        let issuer = self.issuers.iter().find(|issuer| issuer.policy.issuer == named);
        let issuer = issuer.ok_or((TokenRefusal::UnknownIssuer, None))?;
        let refused = |why| (why, Some(Arc::clone(issuer)));
        let keys = issuer.keys(self.clock.elapsed()).ok_or_else(|| refused(TokenRefusal::KeysUnavailable))?;
        let verified = keys.verify(token, &issuer.policy).map_err(refused)?;
        self.verified.increment();
        let caller = issuer.policy.caller(&verified, self.clock.now()).map_err(refused)?;
        let account = self.accounts.account(&caller.name, &KeyQuotas::default());
        let principal = Principal { name: caller.name };
        let identity = Arc::new(Identity::new(principal, caller.grants, CredentialKind::Token, account));
        let by = VerifiedBy { issuer: issuer.policy.name.clone(), key: verified.signed_by };
        self.known.insert(hash, by, &identity, caller.expires);
        // The key may have been withdrawn since it was looked up. Whoever withdraws it after this line finds the token.
        match issuer.keys(self.clock.elapsed()).is_some_and(|keys| keys.holds(&verified.signed_by)) {
            true => Ok(identity),
            false => {
                identity.end();
                Err(refused(TokenRefusal::UnknownKey))
            }
        }
    }
}
