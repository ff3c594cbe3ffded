//! `[auth.jwt.NAME]`: the issuers whose tokens count.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::Config;
use tallystone_adapters::jwt::KeyUrl;
use tallystone_domain::access::{GroupGrants, IssuerName, IssuerPolicy, TokenAlgorithm};
use tallystone_domain::limits::ISSUERS_MAX;

/// `[auth.jwt.NAME]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerConfig {
    /// The claim `iss` of its tokens; empty: the section counts for nothing.
    pub issuer: String,
    /// The audiences, with commas between.
    pub audience: String,
    /// The algorithms, with commas between.
    pub algorithms: String,
    /// The file with its keys.
    pub jwks_file: PathBuf,
    /// The URL with its keys.
    pub jwks_url: String,
    /// The certificates of authorities for that URL; empty: those of the system.
    pub jwks_ca_file: PathBuf,
    /// The claim that names the principal.
    pub principal_claim: String,
    /// The claim with grants; empty: none.
    pub grants_claim: String,
    /// The claim with groups; empty: none.
    pub groups_claim: String,
    /// The grants of groups.
    pub group_grants: String,
}

/// The place where an issuer publishes its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IssuerKeysPlace {
    /// A file.
    File(PathBuf),
    /// A URL, with the file of certificates that it is checked with; none: those of the system.
    Url(String, Option<PathBuf>),
}

/// An issuer whose settings are valid.
#[derive(Clone, Debug)]
pub struct ConfiguredIssuer {
    /// The identity of the issuer, and how its tokens are understood.
    pub policy: IssuerPolicy,
    /// The place of its keys.
    pub keys: IssuerKeysPlace,
}

/// The fault of an issuer: the setting, and what to write.
type IssuerFault = (&'static str, String);

impl IssuerConfig {
    /// Whether the section names an issuer.
    pub fn is_set(&self) -> bool {
        !self.issuer.is_empty()
    }

    fn configured(&self, name: &str) -> Result<ConfiguredIssuer, IssuerFault> {
        let fault = |setting, what: &str| Err((setting, what.to_owned()));
        let name = IssuerName::new(name).map_err(|reject| ("", format!("is not a valid name: {}", reject.message)))?;
        let audiences = listed(&self.audience);
        if audiences.is_empty() {
            return fault(
                "audience",
                "must name the audience of the tokens; a token for any audience would be one for none",
            );
        }
        let algorithms =
            listed(&self.algorithms).into_iter().map(|word| algorithm_of(&word)).collect::<Result<Vec<_>, _>>();
        let algorithms = algorithms.map_err(|what| ("algorithms", what))?;
        if algorithms.is_empty() {
            return fault("algorithms", "must name an algorithm, as in RS256");
        }
        if self.principal_claim.is_empty() {
            return fault("principal_claim", "must name a claim, as in sub");
        }
        let lines = self.group_grants.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
        let group_grants = GroupGrants::parse(lines);
        let group_grants =
            group_grants.map_err(|reject| ("group_grants", format!("cannot be used: {}", reject.message)))?;
        if self.groups_claim.is_empty() && group_grants != GroupGrants::default() {
            return fault("groups_claim", "must name the claim with the groups that group_grants is about");
        }
        let named = |claim: &String| Some(claim.clone()).filter(|claim| !claim.is_empty());
        let policy = IssuerPolicy {
            name,
            issuer: self.issuer.clone(),
            audiences,
            algorithms,
            principal_claim: self.principal_claim.clone(),
            grants_claim: named(&self.grants_claim),
            groups_claim: named(&self.groups_claim),
            group_grants,
        };
        Ok(ConfiguredIssuer { policy, keys: self.keys()? })
    }

    fn keys(&self) -> Result<IssuerKeysPlace, IssuerFault> {
        let is_given = |path: &Path| !path.as_os_str().is_empty();
        match (is_given(&self.jwks_file), !self.jwks_url.is_empty()) {
            (true, true) => Err(("jwks_url", "cannot be used beside jwks_file; remove one of the two".to_owned())),
            (false, false) => {
                Err(("jwks_url", "must say where the signing keys of the issuer are, or jwks_file must".to_owned()))
            }
            (true, false) if is_given(&self.jwks_ca_file) => {
                Err(("jwks_ca_file", "applies only to jwks_url; remove it".to_owned()))
            }
            (true, false) => Ok(IssuerKeysPlace::File(self.jwks_file.clone())),
            (false, true) => {
                KeyUrl::parse(&self.jwks_url).map_err(|error| ("jwks_url", error.to_string()))?;
                let authorities = Some(self.jwks_ca_file.clone()).filter(|file| is_given(file));
                Ok(IssuerKeysPlace::Url(self.jwks_url.clone(), authorities))
            }
        }
    }

    /// A setting of a section that names no issuer, and that means nothing without.
    fn stray(&self) -> bool {
        let has_path = [&self.jwks_file, &self.jwks_ca_file].iter().any(|path| !path.as_os_str().is_empty());
        let texts = [&self.audience, &self.jwks_url, &self.grants_claim, &self.groups_claim, &self.group_grants];
        has_path || texts.iter().any(|text| !text.is_empty())
    }
}

/// The issuers. Their settings were checked when they were loaded.
pub fn trusted(config: &Config) -> Vec<ConfiguredIssuer> {
    let set = config.auth.jwt.iter().filter(|(_, issuer)| issuer.is_set());
    set.filter_map(|(name, issuer)| issuer.configured(name).ok()).collect()
}

/// The setting of an issuer that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(String, String)> {
    let key = |name: &str, setting: &str| format!("auth.jwt.{name}.{setting}").trim_end_matches('.').to_owned();
    for (name, issuer) in &config.auth.jwt {
        if !issuer.is_set() {
            if issuer.stray() {
                return Some((
                    key(name, "issuer"),
                    "must be the claim iss of the tokens that the section is about".to_owned(),
                ));
            }
            continue;
        }
        if let Err((setting, what)) = issuer.configured(name) {
            return Some((key(name, setting), what));
        }
        let is_same = |(other, same): &(&String, &IssuerConfig)| *other < name && same.issuer == issuer.issuer;
        if let Some((other, _)) = config.auth.jwt.iter().find(is_same) {
            let what = format!("is also the issuer of [auth.jwt.{other}]; remove one of the two sections");
            return Some((key(name, "issuer"), what));
        }
    }
    let count = config.auth.jwt.values().filter(|issuer| issuer.is_set()).count();
    (count > ISSUERS_MAX)
        .then(|| ("auth.jwt".to_owned(), format!("has {count} issuers; at most {ISSUERS_MAX} are taken")))
}

/// The parts of a text with commas between.
fn listed(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn algorithm_of(word: &str) -> Result<TokenAlgorithm, String> {
    TokenAlgorithm::of(word).ok_or_else(|| {
        let all = TokenAlgorithm::ALL.map(TokenAlgorithm::word).join(", ");
        format!("has {word:?}, which is not an algorithm with a public and a private key; use some of {all}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, load};

    fn loaded(pairs: &[(&str, &str)]) -> Result<Config, String> {
        let flags = pairs.iter().map(|(key, value)| (format!("auth.{key}"), "--set", (*value).to_owned())).collect();
        let loaded = load(&ConfigSources { flags, ..ConfigSources::default() });
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    const ISSUER: (&str, &str) = ("jwt.sso.issuer", "https://sso.example");
    const AUDIENCE: (&str, &str) = ("jwt.sso.audience", "tallystone, https://counts.example");
    const URL: (&str, &str) = ("jwt.sso.jwks_url", "https://sso.example/jwks.json");

    #[test]
    fn an_issuer_is_read_with_the_defaults_of_the_documented_one() {
        let config = loaded(&[
            ISSUER,
            AUDIENCE,
            URL,
            ("jwt.sso.groups_claim", "roles"),
            ("jwt.sso.group_grants", "a => admin;b => viewer\nc => worker"),
        ]);
        let config = config.expect("valid settings");
        let issuers = trusted(&config);
        let [one] = &issuers[..] else { panic!("one issuer: {issuers:?}") };
        assert_eq!((one.policy.name.as_str(), one.policy.audiences.len()), ("sso", 2));
        assert_eq!(one.policy.algorithms, [TokenAlgorithm::Rs256, TokenAlgorithm::Es256]);
        assert_eq!((one.policy.principal_claim.as_str(), &one.policy.grants_claim), ("sub", &None));
        assert_eq!(
            one.policy.group_grants,
            GroupGrants::parse(["a => admin", "b => viewer", "c => worker"]).expect("grants")
        );
        assert_eq!(one.keys, IssuerKeysPlace::Url("https://sso.example/jwks.json".to_owned(), None));
        assert!(config.auth.takes_tokens() && !loaded(&[]).expect("the defaults").auth.takes_tokens());
    }

    #[test]
    fn an_issuer_that_cannot_be_used_is_refused_with_what_to_write() {
        for (pairs, words) in [
            (vec![AUDIENCE], "auth.jwt.sso.issuer must be the claim iss"),
            (vec![ISSUER, URL], "auth.jwt.sso.audience must name the audience"),
            (vec![ISSUER, AUDIENCE], "auth.jwt.sso.jwks_url must say where the signing keys"),
            (
                vec![ISSUER, AUDIENCE, URL, ("jwt.sso.jwks_file", "k.json")],
                "auth.jwt.sso.jwks_url cannot be used beside",
            ),
            (
                vec![ISSUER, AUDIENCE, ("jwt.sso.jwks_url", "http://sso.example/k")],
                "auth.jwt.sso.jwks_url must be an https URL",
            ),
            (
                vec![ISSUER, AUDIENCE, ("jwt.sso.jwks_file", "k"), ("jwt.sso.jwks_ca_file", "c")],
                "auth.jwt.sso.jwks_ca_file applies",
            ),
            (
                vec![ISSUER, AUDIENCE, URL, ("jwt.sso.algorithms", "RS256,HS256")],
                "auth.jwt.sso.algorithms has \"HS256\"",
            ),
            (vec![ISSUER, AUDIENCE, URL, ("jwt.sso.algorithms", "none")], "auth.jwt.sso.algorithms has \"none\""),
            (vec![ISSUER, AUDIENCE, URL, ("jwt.sso.algorithms", " , ")], "auth.jwt.sso.algorithms must name"),
            (vec![ISSUER, AUDIENCE, URL, ("jwt.sso.principal_claim", "")], "auth.jwt.sso.principal_claim must name"),
            (
                vec![ISSUER, AUDIENCE, URL, ("jwt.sso.group_grants", "a => admin")],
                "auth.jwt.sso.groups_claim must name",
            ),
            (
                vec![ISSUER, AUDIENCE, URL, ("jwt.sso.group_grants", "a => boss")],
                "auth.jwt.sso.group_grants cannot be used: there is no role",
            ),
            (vec![ISSUER, AUDIENCE, URL, ("mode", "off")], "auth.jwt.sso.issuer is of no use with auth.mode"),
            (vec![("jwt.a_b.issuer", "x")], "auth.jwt.a_b is not a valid name"),
            (
                vec![
                    ISSUER,
                    AUDIENCE,
                    URL,
                    ("jwt.x.issuer", ISSUER.1),
                    ("jwt.x.audience", "a"),
                    ("jwt.x.jwks_file", "k"),
                ],
                "auth.jwt.x.issuer is also the issuer of [auth.jwt.sso]",
            ),
            (vec![("jwt.sso.isuer", "x")], "there is no setting auth.jwt.sso.isuer; did you mean auth.jwt.sso.issuer?"),
        ] {
            let error = loaded(&pairs).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
