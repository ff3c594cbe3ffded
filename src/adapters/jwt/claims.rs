//! The claims of a token, from its JSON.

use serde_json::{Map, Value};

use tallystone_domain::access::{ClaimValue, IssuerPolicy, SigningKeyId, TokenRefusal, VerifiedToken};
use tallystone_domain::time::Timestamp;

/// All claims of a token.
pub(super) type Claims = Map<String, Value>;

/// Reads what a policy looks at.
pub(super) fn read(
    claims: &Claims,
    policy: &IssuerPolicy,
    signed_by: SigningKeyId,
) -> Result<VerifiedToken, TokenRefusal> {
    let time = |value| time_of(value).ok_or(TokenRefusal::UnreadableTime);
    let expires = claims.get("exp").filter(|value| !value.is_null()).ok_or(TokenRefusal::NoExpiry).and_then(time)?;
    let begins = claims.get("nbf").map(time).transpose()?;
    let named = |claim: &Option<String>| claim.as_deref().map_or(ClaimValue::Missing, |claim| value_of(claims, claim));
    Ok(VerifiedToken {
        signed_by,
        expires,
        not_before: begins,
        principal: value_of(claims, &policy.principal_claim),
        grants: named(&policy.grants_claim),
        groups: named(&policy.groups_claim),
    })
}

/// The value under a name. A name that no claim has leads into objects, by its dots.
fn value_of(claims: &Claims, name: &str) -> ClaimValue {
    let inside = || {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, part| value.as_object()?.get(part))
    };
    match claims.get(name).or_else(inside) {
        None | Some(Value::Null) => ClaimValue::Missing,
        Some(Value::String(text)) => ClaimValue::Text(text.clone()),
        Some(Value::Array(items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>();
            texts.map_or(ClaimValue::Unreadable, ClaimValue::Texts)
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => ClaimValue::Unreadable,
    }
}

/// The last second of the year 9999. A later one is a time in other units than seconds.
const LAST_SECOND: i64 = 253_402_300_799;

/// A time in seconds since 1970, which may have a fraction (RFC 7519, section 2). None before 1970, after the year
/// 9999, and for other values.
fn time_of(value: &Value) -> Option<Timestamp> {
    const MICROS: f64 = 1e6;
    if let Some(seconds) = value.as_u64() {
        let seconds = i64::try_from(seconds).ok().filter(|seconds| *seconds <= LAST_SECOND)?;
        return Some(Timestamp::from_secs(seconds));
    }
    let seconds = value.as_f64().filter(|seconds| (0.0..=LAST_SECOND as f64).contains(seconds))?;
    Some(Timestamp::from_micros((seconds * MICROS) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(value: Value) -> Claims {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn a_claim_is_found_by_its_name_or_inside_objects() {
        let claims = claims(json!({
            "https://shop.example/roles": ["a"], "realm_access": {"roles": ["b", "c"]}, "a.b": "whole", "a": {"b": "inside"},
            "number": 1, "mixed": ["a", 1], "none": null, "deep": {"er": {"est": "d"}},
        }));
        let texts = |texts: &[&str]| ClaimValue::Texts(texts.iter().map(|text| (*text).to_owned()).collect());
        for (name, value) in [
            ("https://shop.example/roles", texts(&["a"])),
            ("realm_access.roles", texts(&["b", "c"])),
            ("a.b", ClaimValue::Text("whole".to_owned())),
            ("deep.er.est", ClaimValue::Text("d".to_owned())),
            ("number", ClaimValue::Unreadable),
            ("mixed", ClaimValue::Unreadable),
            ("realm_access", ClaimValue::Unreadable),
            ("none", ClaimValue::Missing),
            ("absent", ClaimValue::Missing),
            ("number.x", ClaimValue::Missing),
            ("realm_access.groups", ClaimValue::Missing),
        ] {
            assert_eq!(value_of(&claims, name), value, "{name}");
        }
    }

    #[test]
    fn times_are_seconds_with_or_without_a_fraction() {
        for (value, micros) in [
            (json!(0), Some(0)),
            (json!(1_700_000_000), Some(1_700_000_000_000_000)),
            (json!(1.5), Some(1_500_000)),
            (json!(253_402_300_799_u64), Some(253_402_300_799_000_000)),
            (json!(253_402_300_800_u64), None),
            (json!(1_700_000_000_000_u64), None),
            (json!(u64::MAX), None),
            (json!(1e300), None),
            (json!(-1), None),
            (json!(-0.5), None),
            (json!("1700000000"), None),
            (json!(null), None),
            (json!([1]), None),
        ] {
            assert_eq!(time_of(&value).map(Timestamp::micros), micros, "{value}");
        }
    }
}
