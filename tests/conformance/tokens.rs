//! The laws of tokens: where issuers publish their keys, the format, and the keys.

use std::sync::Arc;

use serde_json::{Value, json};
use tallystone_adapters::jwt::{Jwt, KeyFile, KeyUrl};
use tallystone_domain::Timestamp;
use tallystone_domain::access::{
    ClaimValue, GroupGrants, IssuerName, IssuerPolicy, TokenAlgorithm, TokenRefusal, VerifiedToken,
};
use tallystone_domain::limits::{ISSUER_KEYS_BYTES_MAX, ISSUER_KEYS_MAX};
use tallystone_ports::{KeyDocument, SigningKeys, TokenFormat};

use crate::servers::issuer::{KeyServer, Served, TokenKey, key_set};

const ISSUER: &str = "https://sso.example";

fn policy(algorithms: &[TokenAlgorithm]) -> IssuerPolicy {
    IssuerPolicy {
        name: IssuerName::new("sso").expect("a valid name"),
        issuer: ISSUER.to_owned(),
        audiences: vec!["tallystone".to_owned(), "counts".to_owned()],
        algorithms: algorithms.to_vec(),
        principal_claim: "sub".to_owned(),
        grants_claim: None,
        groups_claim: Some("realm.roles".to_owned()),
        group_grants: GroupGrants::default(),
    }
}

fn keys_of(document: &str, algorithms: &[TokenAlgorithm]) -> Result<Arc<dyn SigningKeys>, String> {
    Jwt.keys(document.as_bytes(), &policy(algorithms)).map_err(|error| error.to_string())
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "tallystone", "sub": "ann", "exp": 10, "nbf": 5, "realm": {"roles": ["a", "b"]}})
}

/// A document in both places, with how it is changed there.
type Place = (&'static str, Box<dyn KeyDocument>, Box<dyn Fn(Option<&str>)>);

fn places() -> (Vec<Place>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("jwks.json");
    let (plain, tls) = (KeyServer::start(Served::Nothing), KeyServer::start_tls(Served::Nothing));
    let authority = folder.path().join("ca.pem");
    std::fs::write(&authority, &tls.authority).expect("the folder takes files");
    let (http, https) = (KeyUrl::new(&plain.url(), None), KeyUrl::new(&tls.url(), Some(&authority)));
    let file = KeyFile::new(&path);
    let write = move |document: Option<&str>| match document {
        Some(document) => std::fs::write(&path, document).expect("the folder takes files"),
        None => std::fs::remove_file(&path).expect("it was written before"),
    };
    let serve = |server: KeyServer| {
        move |document: Option<&str>| {
            server.serves(
                document.map_or(Served::Status(404, "none".to_owned()), |text| Served::Document(text.to_owned())),
            );
        }
    };
    let places: Vec<Place> = vec![
        ("a file", Box::new(file), Box::new(write)),
        ("http", Box::new(http.expect("a URL")), Box::new(serve(plain))),
        ("https", Box::new(https.expect("a URL")), Box::new(serve(tls))),
    ];
    (places, folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn key_document_law_1_what_is_there_is_read_whole_or_it_says_why_not() {
    let (places, _folder) = places();
    for (name, document, publish) in &places {
        for text in ["", "first", "another"] {
            publish(Some(text));
            assert_eq!(document.read().await, Ok(text.as_bytes().to_vec()), "{name}");
        }
        publish(None);
        let why = document.read().await.expect_err("it is gone").to_string();
        assert!(why.starts_with("cannot read "), "{name}: {why}");
    }
    // A redirect may lead anywhere.
    let server = KeyServer::start(Served::Status(302, "{}".to_owned()));
    let url = KeyUrl::new(&server.url(), None).expect("a URL");
    assert!(url.read().await.expect_err("it is not followed").to_string().contains("302"));
    drop(server);
    // What answers with a certificate of nobody is not the issuer.
    let server = KeyServer::start_tls(Served::Document("{}".to_owned()));
    let other = KeyServer::start_tls(Served::Nothing);
    let folder = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(folder.path().join("ca.pem"), &other.authority).expect("the folder takes files");
    let url = KeyUrl::new(&server.url(), Some(&folder.path().join("ca.pem"))).expect("a URL");
    let why = url.read().await.expect_err("another authority").to_string();
    assert!(why.contains("certificate"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_document_law_2_a_longer_document_is_refused() {
    let (places, _folder) = places();
    for (name, document, publish) in &places {
        let longest = "x".repeat(ISSUER_KEYS_BYTES_MAX);
        publish(Some(&longest));
        assert_eq!(document.read().await.map(|read| read.len()), Ok(ISSUER_KEYS_BYTES_MAX), "{name}");
        publish(Some(&format!("{longest}x")));
        assert!(document.read().await.is_err(), "{name}");
        publish(Some(&longest.repeat(20)));
        assert!(document.read().await.is_err(), "{name}");
    }
}

#[test]
fn token_format_law_1_a_token_names_its_issuer_and_proves_nothing() {
    let key = TokenKey::es256("one");
    let signed = key.sign(&claims());
    let unsigned = format!("{}.x", signed.rsplit_once('.').expect("a token has dots").0);
    for token in [&signed, &unsigned] {
        assert_eq!(Jwt.issuer_of(token), Ok(ISSUER.to_owned()));
    }
    for none in ["", ".", "..", "a.b.c", &key.sign(&json!({"sub": "ann"})), &key.sign(&json!({"iss": 1}))] {
        assert_eq!(Jwt.issuer_of(none), Err(TokenRefusal::Malformed), "{none}");
    }
}

#[test]
fn token_format_law_2_only_keys_that_may_verify_are_taken() {
    let all = [TokenAlgorithm::Rs256, TokenAlgorithm::Es256, TokenAlgorithm::EdDsa];
    let keys = [TokenKey::rs256("rsa"), TokenKey::es256("ec"), TokenKey::eddsa("ed")];
    let whole = key_set(&keys.each_ref());
    assert_eq!(keys_of(&whole, &all).map(|keys| keys.count()), Ok(3));
    for one in all {
        assert_eq!(keys_of(&whole, &[one]).map(|keys| keys.count()), Ok(1), "{one}");
    }
    let with = |changes: &[(&str, Value)]| {
        let mut key = keys[1].jwk();
        for (name, value) in changes {
            key[*name] = value.clone();
        }
        key
    };
    let of = |jwk: Value| keys_of(&json!({"keys": [jwk, keys[0].jwk()]}).to_string(), &all).map(|keys| keys.count());
    for (changes, count) in [
        (vec![], 2),
        (vec![("alg", Value::Null)], 2),
        (vec![("use", Value::Null), ("key_ops", json!(["verify"]))], 2),
        (vec![("use", json!("enc"))], 1),
        (vec![("use", json!("other"))], 1),
        (vec![("key_ops", json!(["sign"]))], 1),
        (vec![("alg", json!("ES384"))], 1),
        (vec![("alg", json!("HS256"))], 1),
        (vec![("alg", json!("none"))], 1),
        (vec![("crv", json!("P-521"))], 1),
        (vec![("crv", json!("secp256k1"))], 1),
        (vec![("kid", Value::Null)], 1),
        (vec![("x", json!("?"))], 1),
        (vec![("kty", json!("AKP"))], 1),
        (vec![("kid", json!("rsa"))], 1),
    ] {
        assert_eq!(of(with(&changes)), Ok(count), "{changes:?}");
    }
    assert_eq!(of(json!({"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"})), Ok(1), "a secret signs too");
    assert_eq!(of(json!(7)), Ok(1));
    let many: Vec<Value> = (0..=ISSUER_KEYS_MAX).map(|_| keys[1].jwk()).collect();
    for refused in ["", "7", "{}", "{\"keys\": []}", "{\"keys\": 1}", &json!({"keys": many}).to_string()] {
        assert!(keys_of(refused, &all).is_err(), "{refused}");
    }
}

#[test]
fn signing_keys_law_1_a_token_is_taken_from_its_key_and_its_issuer_for_its_audience_only() {
    let all = [TokenAlgorithm::Rs256, TokenAlgorithm::Es256, TokenAlgorithm::EdDsa];
    let keys = [TokenKey::rs256("rsa"), TokenKey::es256("ec"), TokenKey::eddsa("ed")];
    let held = keys_of(&key_set(&keys.each_ref()), &all).expect("keys");
    let verify = |token: &str| held.verify(token, &policy(&all));
    for key in &keys {
        let VerifiedToken { expires, not_before, principal, grants, groups, .. } =
            verify(&key.sign(&claims())).expect("a valid token");
        assert_eq!((expires, not_before), (Timestamp::from_secs(10), Some(Timestamp::from_secs(5))));
        assert_eq!((principal, grants), (ClaimValue::Text("ann".to_owned()), ClaimValue::Missing));
        assert_eq!(groups, ClaimValue::Texts(vec!["a".to_owned(), "b".to_owned()]));
    }
    let but = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        verify(&keys[1].sign(&claims)).err()
    };
    assert_eq!(but("aud", json!(["x", "counts"])), None);
    for (name, value, refusal) in [
        ("aud", json!("x"), TokenRefusal::Audience),
        ("aud", Value::Null, TokenRefusal::Audience),
        ("aud", json!([]), TokenRefusal::Audience),
        ("iss", json!("https://sso.example/"), TokenRefusal::UnknownIssuer),
        ("exp", Value::Null, TokenRefusal::NoExpiry),
        ("exp", json!("10"), TokenRefusal::UnreadableTime),
        ("nbf", json!("5"), TokenRefusal::UnreadableTime),
    ] {
        assert_eq!(but(name, value.clone()), Some(refusal), "{name} {value}");
    }
    let token = keys[1].sign(&claims());
    for at in 0..token.len() {
        let mut other = token.clone().into_bytes();
        other[at] = if other[at] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(other).expect("ASCII");
        // The last letters of a part may stand for the same bytes: then it is the same token.
        let taken = verify(&other);
        assert!(taken.is_err() || at + 1 == token.len(), "letter {at} of {token}");
    }
}

#[test]
fn signing_keys_law_2_keys_hold_what_they_verified() {
    let all = [TokenAlgorithm::Es256];
    let (one, other) = (TokenKey::es256("one"), TokenKey::es256("one"));
    let keys = |key: &TokenKey| keys_of(&key_set(&[key]), &all).expect("keys");
    let verified = keys(&one).verify(&one.sign(&claims()), &policy(&all)).expect("a valid token");
    assert!(keys(&one).holds(&verified.signed_by) && !keys(&other).holds(&verified.signed_by));
    let both = keys_of(&key_set(&[&TokenKey::es256("two"), &one]), &all).expect("keys");
    assert!(both.holds(&verified.signed_by), "wherever it stands");
}
