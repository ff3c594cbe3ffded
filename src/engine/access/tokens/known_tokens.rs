//! Tokens that were verified, by their hashes; and whose calls are open, by their expiry.
//!
//! The first are bounded: the longest unused are forgotten. The second are as many as there are calls and first ones.
//! Invariant: every identity that a caller may hold is among the second, so that its end reaches the caller.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::access::Identity;
use tallystone_domain::Timestamp;
use tallystone_domain::access::{IssuerName, SigningKeyId};
use tallystone_domain::limits::TOKENS_KNOWN_MAX;

/// The SHA-256 of a token. Nobody finds two tokens with the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenHash(pub [u8; 32]);

/// The issuer and the key of a token.
pub(super) struct VerifiedBy {
    pub issuer: IssuerName,
    pub key: SigningKeyId,
}

#[derive(Clone)]
struct KnownToken {
    identity: Arc<Identity>,
    expires: Timestamp,
}

struct LiveToken {
    by: VerifiedBy,
    identity: Weak<Identity>,
}

/// All of them.
pub(super) struct KnownTokens {
    by_hash: Cache<TokenHash, KnownToken>,
    live: Mutex<LiveTokens>,
}

/// Identities by expiry, each with a number of its own.
#[derive(Default)]
struct LiveTokens {
    by_expiry: BTreeMap<(Timestamp, u64), LiveToken>,
    next: u64,
}

impl Default for KnownTokens {
    fn default() -> Self {
        Self { by_hash: Cache::new(TOKENS_KNOWN_MAX), live: Mutex::default() }
    }
}

impl KnownTokens {
    /// Returns the identity of the caller that showed a token, if the token was verified and still counts at a time.
    pub fn get(&self, hash: &TokenHash, now: Timestamp) -> Option<Arc<Identity>> {
        let known = self.by_hash.get(hash)?;
        if now < known.expires && !known.identity.has_ended() {
            return Some(known.identity);
        }
        self.by_hash.remove(hash);
        None
    }

    pub fn insert(&self, hash: TokenHash, by: VerifiedBy, identity: &Arc<Identity>, expires: Timestamp) {
        let mut live = self.live.lock();
        let number = live.next;
        live.next += 1;
        live.by_expiry.insert((expires, number), LiveToken { by, identity: Arc::downgrade(identity) });
        drop(live);
        self.by_hash.insert(hash, KnownToken { identity: Arc::clone(identity), expires });
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Ends those that are over at a time, and forgets those whose calls have ended. O(tokens).
    pub fn end_expired(&self, now: Timestamp) {
        let mut live = self.live.lock();
        let later = live.by_expiry.split_off(&(now.just_after(), 0));
        let over = std::mem::replace(&mut live.by_expiry, later);
        live.by_expiry.retain(|_, token| token.identity.strong_count() > 0);
        drop(live);
        over.into_values().for_each(LiveToken::end);
    }

    /// Ends those of an issuer whose key does not count. O(tokens).
    pub fn end_unless(&self, issuer: &str, counts: impl Fn(&SigningKeyId) -> bool) {
        let mut ended = Vec::new();
        let mut live = self.live.lock();
        let is_over = |token: &mut LiveToken| token.by.issuer.as_str() == issuer && !counts(&token.by.key);
        ended.extend(live.by_expiry.extract_if(.., |_, token| is_over(token)).map(|(_, token)| token));
        drop(live);
        ended.into_iter().for_each(LiveToken::end);
    }
}

impl LiveToken {
    fn end(self) {
        if let Some(identity) = self.identity.upgrade() {
            identity.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{CredentialKind, PrincipalAccounts};
    use tallystone_domain::access::{Grants, KeyQuotas, Principal, PrincipalName};

    fn known(tokens: &KnownTokens, number: u8, expires: i64) -> Arc<Identity> {
        let issuer = IssuerName::new(if number < 10 { "sso" } else { "k8s" }).expect("a valid name");
        let principal = Principal { name: PrincipalName::of_subject(&issuer, &number.to_string()) };
        let account = PrincipalAccounts::default().account(&principal.name, &KeyQuotas::default());
        let identity = Arc::new(Identity::new(principal, Grants::default(), CredentialKind::Token, account));
        let by = VerifiedBy { issuer, key: SigningKeyId([number; 32]) };
        tokens.insert(TokenHash([number; 32]), by, &identity, Timestamp::from_secs(expires));
        identity
    }

    fn is_known(tokens: &KnownTokens, number: u8, micros: i64) -> bool {
        tokens.get(&TokenHash([number; 32]), Timestamp::from_micros(micros)).is_some()
    }

    #[test]
    fn a_token_ends_at_its_expiry_with_its_calls() {
        let tokens = KnownTokens::default();
        let (first, second) = (known(&tokens, 1, 10), known(&tokens, 2, 11));
        tokens.end_expired(Timestamp::from_micros(9_999_999));
        assert!(!first.has_ended() && is_known(&tokens, 1, 9_999_999));
        tokens.end_expired(Timestamp::from_secs(10));
        assert!(first.has_ended() && !second.has_ended() && is_known(&tokens, 2, 10_000_000));
        assert!(!is_known(&tokens, 2, 11_000_000), "also before anybody has ended it");
        assert!(!is_known(&tokens, 1, 0), "what has ended is not known any more, wherever the clock goes");
    }

    #[test]
    fn tokens_of_a_withdrawn_key_end_and_those_of_others_stay() {
        let tokens = KnownTokens::default();
        let (kept, withdrawn, other) = (known(&tokens, 1, 10), known(&tokens, 2, 10), known(&tokens, 12, 10));
        tokens.end_unless("sso", |key| *key == SigningKeyId([1; 32]));
        assert_eq!([&kept, &withdrawn, &other].map(|one| one.has_ended()), [false, true, false]);
        assert!(is_known(&tokens, 1, 0) && !is_known(&tokens, 2, 0) && is_known(&tokens, 12, 0));
    }

    #[test]
    fn a_forgotten_token_still_ends_its_open_calls() {
        let tokens = KnownTokens::default();
        let open = known(&tokens, 1, 10);
        tokens.by_hash.remove(&TokenHash([1; 32]));
        assert!(!is_known(&tokens, 1, 0));
        tokens.end_expired(Timestamp::from_secs(10));
        assert!(open.has_ended());
        drop(known(&tokens, 2, 20));
        tokens.by_hash.remove(&TokenHash([2; 32]));
        tokens.end_expired(Timestamp::from_secs(11));
        assert!(tokens.live.lock().by_expiry.is_empty(), "nothing is kept for calls that have ended");
    }
}
