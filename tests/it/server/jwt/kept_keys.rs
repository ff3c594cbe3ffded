//! How long the signing keys of an issuer count when they cannot be read, by a clock that is moved.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tallystone::adapters::jwt::{Jwt, KeyFile};
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::Timestamp;
use tallystone::domain::access::{GroupGrants, IssuerName, IssuerPolicy, TokenAlgorithm, TokenRefusal};
use tallystone::engine::access::{Tokens, TrustedIssuer};

use crate::servers::issuer::{TokenKey, key_set};

const NOW: i64 = 1_800_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const ISSUER: &str = "https://sso.example";

fn tokens(file: &Path) -> (Tokens, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(NOW));
    let policy = IssuerPolicy {
        name: IssuerName::new("sso").expect("a valid name"),
        issuer: ISSUER.to_owned(),
        audiences: vec!["tallystone".to_owned()],
        algorithms: vec![TokenAlgorithm::Es256],
        principal_claim: "sub".to_owned(),
        grants_claim: None,
        groups_claim: None,
        group_grants: GroupGrants::default(),
    };
    let issuer = TrustedIssuer { policy, document: Arc::new(KeyFile::new(file)), read_every: 5 * MINUTE };
    (Tokens::new(Arc::new(Jwt), vec![issuer], Arc::default(), Arc::new(clock.clone())), clock)
}

fn signed(key: &TokenKey, subject: &str) -> String {
    key.sign(&json!({"iss": ISSUER, "aud": "tallystone", "sub": subject, "exp": NOW + 86_400}))
}

#[tokio::test]
async fn the_last_keys_that_were_read_count_for_an_hour_and_then_no_token_does() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (file, key) = (folder.path().join("jwks.json"), TokenKey::es256("one"));
    let write = |text: &str| std::fs::write(&file, text).expect("the folder takes files");
    write(&key_set(&[&key]));
    let (tokens, clock) = tokens(&file);
    let issuer = Arc::clone(&tokens.issuers()[0]);
    assert_eq!(tokens.read_keys(&issuer).await, 5 * MINUTE);
    let known = tokens.identify(&signed(&key, "ann")).await.expect("a valid token");
    for broken in [
        "",
        "{}",
        "{\"keys\": []}",
        "{\"keys\": [{\"kty\": \"oct\", \"kid\": \"one\", \"k\": \"c2VjcmV0\"}]}",
        "nothing",
    ] {
        write(broken);
        clock.advance(MINUTE);
        assert!(tokens.read_keys(&issuer).await < MINUTE, "it is tried again soon: {broken}");
    }
    std::fs::remove_file(&file).expect("it is there");
    clock.advance(54 * MINUTE + MINUTE - Duration::from_micros(1));
    tokens.read_keys(&issuer).await;
    tokens.end_expired();
    let gauges = tokens.gauges(&issuer);
    assert_eq!((gauges.keys, gauges.failures, gauges.readings), (1, 6, 7), "{gauges:?}");
    assert!(!known.has_ended());
    tokens.identify(&signed(&key, "bob")).await.expect("tokens that were not seen before count too");
    clock.advance(Duration::from_micros(1));
    tokens.end_expired();
    assert!(known.has_ended(), "what was known of the caller ends with the keys");
    let token = signed(&key, "ann");
    let asked = tokens.identify(&token);
    let answered = async {
        // Nobody reads the keys here, so the caller gives up waiting.
        clock.wait_for_sleepers(1).await;
        clock.advance(MINUTE);
    };
    let (refused, ()) = tokio::join!(asked, answered);
    assert_eq!(refused.expect_err("no keys count"), TokenRefusal::KeysUnavailable);
    assert_eq!(tokens.gauges(&issuer).keys, 0);
    write(&key_set(&[&key]));
    tokens.read_keys(&issuer).await;
    tokens.identify(&signed(&key, "ann")).await.expect("the keys are back");
}

#[tokio::test]
async fn a_token_ends_when_its_key_is_withdrawn_or_replaced_under_its_id() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("jwks.json");
    let (kept, withdrawn, replaced) = (TokenKey::es256("kept"), TokenKey::es256("gone"), TokenKey::es256("id"));
    let write = |keys: &[&TokenKey]| std::fs::write(&file, key_set(keys)).expect("the folder takes files");
    write(&[&kept, &withdrawn, &replaced]);
    let (tokens, clock) = tokens(&file);
    let issuer = Arc::clone(&tokens.issuers()[0]);
    tokens.read_keys(&issuer).await;
    let mut known = Vec::new();
    for key in [&kept, &withdrawn, &replaced] {
        known.push(tokens.identify(&signed(key, "ann")).await.expect("a valid token"));
    }
    assert_eq!((tokens.in_use().verified, tokens.in_use().known), (3, 3));
    tokens.identify(&signed(&kept, "bob")).await.expect("a valid token");
    let again = signed(&kept, "cyd");
    for _ in 0..3 {
        tokens.identify(&again).await.expect("a valid token");
    }
    assert_eq!(tokens.in_use().verified, 5, "a known token is not verified again");
    write(&[&kept, &TokenKey::es256("id")]);
    clock.advance(MINUTE);
    tokens.read_keys(&issuer).await;
    assert_eq!(known.iter().map(|one| one.has_ended()).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(tokens.identify(&signed(&replaced, "ann")).await.err(), Some(TokenRefusal::Signature));
}
