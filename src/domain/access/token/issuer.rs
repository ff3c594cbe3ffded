//! Issuers of tokens, as an operator lists them, and whom their tokens stand for.
//!
//! A name of a principal is that of the issuer, `|`, and what the token says. No key and no other issuer has such a
//! name. Grants come from two places, which add up: a claim with grants as `key create` reads them, and the groups of
//! the caller, to which the settings give grants. Denials win as they do for keys.

use std::collections::BTreeMap;

use crate::access::token::{ClaimValue, TokenAlgorithm, TokenCaller, TokenRefusal, VerifiedToken};
use crate::access::{Grant, Grants, IssuerName, PrincipalName};
use crate::limits::TOKEN_NOT_BEFORE_LEEWAY;
use crate::reason::{Reason, Reject};
use crate::time::Timestamp;

/// Separates a group from its grants in a setting.
const ARROW: &str = "=>";

/// The grants that the settings give to the groups of an issuer.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GroupGrants(BTreeMap<String, Vec<Grant>>);

/// An issuer whose tokens count, and how they are understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuerPolicy {
    /// The beginning of the names of its principals.
    pub name: IssuerName,
    /// The claim `iss` of its tokens, letter by letter.
    pub issuer: String,
    /// The audiences of which a token needs one: at least one.
    pub audiences: Vec<String>,
    /// The algorithms that its keys may be used with: at least one.
    pub algorithms: Vec<TokenAlgorithm>,
    /// The claim that names the principal.
    pub principal_claim: String,
    /// The claim with grants, if there is one.
    pub grants_claim: Option<String>,
    /// The claim with groups, if there is one.
    pub groups_claim: Option<String>,
    /// The grants of its groups.
    pub group_grants: GroupGrants,
}

impl GroupGrants {
    /// Reads `GROUP => GRANT[, GRANT...]`, one for each text. A group may occur again: its grants add up.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, Reject> {
        let mut all: BTreeMap<String, Vec<Grant>> = BTreeMap::new();
        for text in texts {
            let (group, grants) =
                text.rsplit_once(ARROW).map(|(group, grants)| (group.trim(), grants)).unwrap_or_default();
            if group.is_empty() {
                let what = format!("{text:?} is not of the form GROUP {ARROW} GRANT[, GRANT...]");
                return Err(Reject::new(Reason::InvalidArgument, what));
            }
            let grants = grants.split(',').map(|grant| Grant::parse_signed(grant.trim()));
            all.entry(group.to_owned()).or_default().extend(grants.collect::<Result<Vec<_>, _>>()?);
        }
        // One by one they may be valid, and all together too many for a caller that is in every group.
        Grants::of_caller(all.values().flatten().cloned().collect()).map(|_| Self(all))
    }

    fn of<'a>(&'a self, groups: &'a [String]) -> impl Iterator<Item = &'a Grant> {
        groups.iter().filter_map(|group| self.0.get(group)).flatten()
    }
}

impl IssuerPolicy {
    /// Finds out for whom a verified token stands at a time.
    pub fn caller(&self, token: &VerifiedToken, now: Timestamp) -> Result<TokenCaller, TokenRefusal> {
        if token.not_before.is_some_and(|begins| now + TOKEN_NOT_BEFORE_LEEWAY < begins) {
            return Err(TokenRefusal::NotYetValid);
        }
        if now >= token.expires {
            return Err(TokenRefusal::Expired);
        }
        let name = match &token.principal {
            ClaimValue::Text(subject) if !subject.is_empty() => PrincipalName::of_subject(&self.name, subject),
            ClaimValue::Text(_) | ClaimValue::Texts(_) | ClaimValue::Missing | ClaimValue::Unreadable => {
                return Err(TokenRefusal::Principal);
            }
        };
        Ok(TokenCaller { name, grants: self.grants(token)?, expires: token.expires })
    }

    /// The grants of a token. A grant or group that cannot be understood may be a denial, so nothing is left out.
    fn grants(&self, token: &VerifiedToken) -> Result<Grants, TokenRefusal> {
        let understood = |claim: &Option<String>, value: &ClaimValue| match (claim, value) {
            (None, _) | (_, ClaimValue::Missing) => Ok(Vec::new()),
            (Some(claim), ClaimValue::Text(text)) => Ok(texts_of(claim, text)),
            (Some(_), ClaimValue::Texts(texts)) => Ok(texts.clone()),
            (Some(_), ClaimValue::Unreadable) => Err(TokenRefusal::Grants),
        };
        let own = understood(&self.grants_claim, &token.grants)?;
        let own = own.iter().map(|text| Grant::parse_signed(text)).collect::<Result<Vec<_>, _>>();
        let mut all = own.map_err(|_| TokenRefusal::Grants)?;
        let groups = understood(&self.groups_claim, &token.groups)?;
        all.extend(self.group_grants.of(&groups).cloned());
        Grants::of_caller(all).map_err(|_| TokenRefusal::Grants)
    }
}

/// The values in a text of a claim. Scopes of OAuth (RFC 8693, section 4.2) are one text with spaces between.
fn texts_of(claim: &str, text: &str) -> Vec<String> {
    match claim {
        "scope" | "scp" => text.split_ascii_whitespace().map(str::to_owned).collect(),
        _ => vec![text.to_owned()], // any other text is one value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{AccessResource, AccessRole, SigningKeyId};
    use proptest::prelude::*;

    fn policy() -> IssuerPolicy {
        IssuerPolicy {
            name: IssuerName::new("sso").expect("a valid name"),
            issuer: "https://sso.example".to_owned(),
            audiences: vec!["tallystone".to_owned()],
            algorithms: vec![TokenAlgorithm::Rs256],
            principal_claim: "sub".to_owned(),
            grants_claim: Some("grants".to_owned()),
            groups_claim: Some("groups".to_owned()),
            group_grants: GroupGrants::parse([
                "ops => admin",
                "shop workers => worker:queue:orders/*, enqueuer:queue:orders/*",
                "interns => not worker:queue:orders/secret",
            ])
            .expect("valid grants"),
        }
    }

    fn token() -> VerifiedToken {
        VerifiedToken {
            signed_by: SigningKeyId([0; 32]),
            expires: Timestamp::from_secs(100),
            not_before: None,
            principal: ClaimValue::Text("ann".to_owned()),
            grants: ClaimValue::Missing,
            groups: ClaimValue::Missing,
        }
    }

    fn texts(texts: &[&str]) -> ClaimValue {
        ClaimValue::Texts(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    fn at(token: &VerifiedToken, micros: i64) -> Result<TokenCaller, TokenRefusal> {
        policy().caller(token, Timestamp::from_micros(micros))
    }

    #[test]
    fn a_token_is_valid_until_its_expiry_and_from_shortly_before_its_begin() {
        let begins = VerifiedToken { not_before: Some(Timestamp::from_secs(50)), ..token() };
        for (micros, answer) in [
            (19_999_999, Some(TokenRefusal::NotYetValid)),
            (20_000_000, None),
            (99_999_999, None),
            (100_000_000, Some(TokenRefusal::Expired)),
        ] {
            assert_eq!(at(&begins, micros).err(), answer, "at {micros}");
        }
        assert_eq!(at(&token(), 0).map(|caller| caller.expires), Ok(Timestamp::from_secs(100)));
    }

    #[test]
    fn a_token_that_names_nobody_is_refused() {
        for principal in [ClaimValue::Missing, ClaimValue::Text(String::new()), texts(&["ann"]), ClaimValue::Unreadable]
        {
            let nobody = VerifiedToken { principal, ..token() };
            assert_eq!(at(&nobody, 0).err(), Some(TokenRefusal::Principal));
        }
        assert_eq!(at(&token(), 0).map(|caller| caller.name.to_string()), Ok("sso|ann".to_owned()));
    }

    #[test]
    fn a_token_without_grants_allows_nothing_and_one_that_is_not_understood_is_refused() {
        let none = at(&token(), 0).expect("a caller");
        assert!(!none.grants.allows(AccessRole::Viewer, AccessResource::Server) && none.grants.iter().next().is_none());
        let unknown = VerifiedToken { groups: texts(&["others", "ops2"]), ..token() };
        assert_eq!(at(&unknown, 0).map(|caller| caller.grants), Ok(Grants::default()));
        for value in [texts(&["boss"]), texts(&["worker:queue:a", "not boss"]), ClaimValue::Unreadable] {
            let refused = VerifiedToken { grants: value, ..token() };
            assert_eq!(at(&refused, 0).err(), Some(TokenRefusal::Grants));
        }
        let refused = VerifiedToken { groups: ClaimValue::Unreadable, ..token() };
        assert_eq!(at(&refused, 0).err(), Some(TokenRefusal::Grants), "a group may be what denies");
    }

    #[test]
    fn grants_of_the_token_and_of_its_groups_add_up_and_denials_win() {
        let allows = |token: &VerifiedToken, role, queue| {
            at(token, 0).expect("a caller").grants.allows(role, AccessResource::Queue(queue))
        };
        let groups = VerifiedToken { groups: texts(&["shop workers", "interns"]), ..token() };
        assert!(allows(&groups, AccessRole::Worker, "orders/1") && allows(&groups, AccessRole::Enqueuer, "orders/1"));
        assert!(!allows(&groups, AccessRole::Worker, "orders/secret") && !allows(&groups, AccessRole::Worker, "mail"));
        let both = VerifiedToken { grants: texts(&["worker:queue:mail", "not worker:queue:orders/1"]), ..groups };
        assert!(allows(&both, AccessRole::Worker, "mail") && !allows(&both, AccessRole::Worker, "orders/1"));
        let one = VerifiedToken { grants: ClaimValue::Text("viewer".to_owned()), ..token() };
        assert!(allows(&one, AccessRole::Viewer, "mail"));
    }

    #[test]
    fn a_scope_is_a_list_and_any_other_text_is_one_value() {
        let scoped = IssuerPolicy { groups_claim: Some("scope".to_owned()), ..policy() };
        let token = VerifiedToken { groups: ClaimValue::Text("openid ops".to_owned()), ..token() };
        let grants = |policy: &IssuerPolicy| policy.caller(&token, Timestamp::from_secs(0)).expect("a caller").grants;
        assert!(grants(&scoped).allows(AccessRole::Admin, AccessResource::Server));
        assert!(!grants(&policy()).allows(AccessRole::Admin, AccessResource::Server), "a name may have spaces");
    }

    #[test]
    fn groups_are_read_with_their_grants() {
        for bad in ["ops", "=> admin", "ops =>", "ops => boss", "ops => admin,", "ops => admin viewer"] {
            assert!(GroupGrants::parse([bad]).is_err(), "{bad}");
        }
        assert!(GroupGrants::parse(["a => b => admin"]).is_ok(), "a group may have any name");
    }

    proptest! {
        /// Two subjects, or two issuers, never share a principal, and no key has the name of one.
        #[test]
        fn principals_of_tokens_are_told_apart(
            one in "\\PC{1,80}|[a-z~%|]{1,80}", other in "\\PC{1,80}|[a-z~%|]{1,80}", issuers in ("[a-c]{1,3}", "[a-c]{1,3}"),
        ) {
            let issuer = |name: &str| IssuerName::new(name).expect("a valid name");
            let names = (PrincipalName::of_subject(&issuer(&issuers.0), &one), PrincipalName::of_subject(&issuer(&issuers.1), &other));
            prop_assert_eq!(names.0 == names.1, one == other && issuers.0 == issuers.1);
            prop_assert!(names.0.as_str().len() <= crate::limits::PRINCIPAL_NAME_BYTES_MAX);
            prop_assert!(names.0.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{}", names.0);
            prop_assert!(PrincipalName::new(names.0.as_str()).is_err(), "no key has this name");
        }
    }
}
