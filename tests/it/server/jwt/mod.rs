//! Tokens of identity providers: which are taken, which are refused, and what they may do.

mod grants;
mod kept_keys;
mod rotation;
mod secrets;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt;

use crate::server::keys::{ENDED_WITHIN, binary, call, client, files_with, first_key, post, run, waiting, working};
use crate::servers::issuer::{TokenKey, encoded, key_set, seconds_from_now};
use crate::support::beside;
use crate::support::harness::{Launch, Server, http};
use crate::support::patience::{PatientChannel, patient_channel};

const ISSUER: &str = "https://sso.example/realms/shop";
const LIST_QUEUES: &str = "/tallystone.queue.v1.QueueService/ListQueues";
const CREATE_QUEUE: &str = "/tallystone.queue.v1.QueueService/CreateQueue";
const CREATE_NAMESPACE: &str = "/tallystone.admin.v1.NamespaceService/CreateNamespace";

/// Starts a server that takes tokens of `sso`, whose keys are where the settings say.
fn start(data: &Path, settings: &[(&str, &str)]) -> Server {
    Launch::of(command(data, settings)).start()
}

fn command(data: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = binary(&["server", "start", "--listen", "127.0.0.1:0", "--set", "log.level=debug", "--data"]);
    command.arg(data).args(issuer_arguments(settings));
    command
}

/// The settings of the issuer as arguments.
fn issuer_arguments(settings: &[(&str, &str)]) -> Vec<String> {
    let common = [
        ("issuer", ISSUER),
        ("audience", "tallystone,https://counts.example"),
        ("algorithms", "RS256,ES256,EdDSA"),
        ("grants_claim", "tallystone.grants"),
        ("groups_claim", "groups"),
        ("group_grants", "operators => admin; workers => worker:queue:own/*, viewer:queue:seen"),
    ];
    let of = |(setting, value): &(&str, &str)| ["--set".to_owned(), format!("auth.jwt.sso.{setting}={value}")];
    common.iter().chain(settings).flat_map(of).collect()
}

/// A server that takes the tokens of some keys, from a file, with an API key of its admin.
struct Trusting {
    server: Server,
    admin: String,
    _folder: tempfile::TempDir,
}

impl Trusting {
    fn of(keys: &[&TokenKey]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let admin = first_key(&folder.path().join("data"), "ann");
        let file = folder.path().join("jwks.json");
        std::fs::write(&file, key_set(keys)).expect("the folder takes files");
        let server = start(&folder.path().join("data"), &[("jwks_file", file.to_str().expect("UTF-8"))]);
        Self { server, admin, _folder: folder }
    }
}

/// Claims of a valid token of an operator, with some others in their place. Null takes one away.
fn claims(others: &Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": "tallystone", "sub": "ann", "exp": seconds_from_now(600), "groups": ["operators"],
    });
    for (name, value) in others.as_object().expect("claims are an object") {
        claims[name] = value.clone();
    }
    claims.as_object_mut().expect("it is one").retain(|_, value| !value.is_null());
    claims
}

async fn channel(server: &Server) -> PatientChannel {
    patient_channel(&server.url()).await
}

/// The status of a gRPC-Web answer without a message.
fn web_status(server: &Server, path: &str, token: &str) -> Option<String> {
    let bearer = format!("Bearer {token}");
    let headers = [("content-type", "application/grpc-web+proto"), ("authorization", &*bearer)];
    let answer = http(server.address, "POST", path, &headers, "\0\0\0\0\0").expect("the server answers");
    let text = format!("{}\n{}", answer.head, answer.body);
    let (_, status) = text.split_once("grpc-status:")?;
    Some(status.trim_start().chars().take_while(char::is_ascii_digit).collect())
}

/// Expects that a token is taken over all protocols.
async fn is_taken(server: &Server, token: &str) {
    let status = call(&channel(server).await, LIST_QUEUES, Some(&format!("Bearer {token}"))).await;
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    assert_eq!(web_status(server, LIST_QUEUES, token).as_deref(), Some("0"));
    let answer = post(server, LIST_QUEUES, token, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Expects that a token is refused over all protocols, for this reason.
async fn is_refused(server: &Server, token: &str, words: &str) {
    let status = call(&channel(server).await, LIST_QUEUES, Some(&format!("Bearer {token}"))).await;
    assert_eq!(status.code(), Code::Unauthenticated, "{words}: {status:?}");
    assert_eq!(status.get_details_error_info().expect("an ErrorInfo").reason, "UNAUTHENTICATED");
    assert!(status.message().contains(words), "{words}: {}", status.message());
    assert_eq!(web_status(server, LIST_QUEUES, token).as_deref(), Some("16"), "{words}");
    let answer = post(server, LIST_QUEUES, token, &json!({}));
    assert_eq!(answer.status, 401, "{words}: {}", answer.body);
    assert!(answer.body.contains(words), "{words}: {}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_every_kind_of_key_call_over_every_protocol() {
    let keys = [TokenKey::rs256("rsa"), TokenKey::es256("ec"), TokenKey::eddsa("ed")];
    let trusting = Trusting::of(&keys.each_ref());
    for key in &keys {
        is_taken(&trusting.server, &key.sign(&claims(&json!({})))).await;
    }
    let audiences = json!({"aud": ["others", "https://counts.example"], "nbf": seconds_from_now(20), "exp": 4e9 + 0.5});
    is_taken(&trusting.server, &keys[0].sign(&claims(&audiences))).await;
    is_taken(&trusting.server, &trusting.admin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_the_algorithm_none_is_refused() {
    let key = TokenKey::rs256("one");
    let trusting = Trusting::of(&[&key]);
    let valid = key.sign(&claims(&json!({})));
    let (_, signature) = valid.rsplit_once('.').expect("a token has dots");
    for word in ["none", "None", "NONE", "nOnE", ""] {
        let head = encoded(json!({"alg": word, "kid": "one"}).to_string());
        let unsigned = format!("{head}.{}", encoded(claims(&json!({})).to_string()));
        for signature in ["", signature] {
            is_refused(&trusting.server, &format!("{unsigned}.{signature}"), "its algorithm is not allowed").await;
        }
        is_refused(&trusting.server, &unsigned, "neither an API key nor a token").await;
    }
    is_taken(&trusting.server, &valid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_signed_with_a_public_key_as_the_secret_of_hs256_is_refused() {
    let keys = [TokenKey::rs256("rsa"), TokenKey::es256("ec"), TokenKey::eddsa("ed")];
    let trusting = Trusting::of(&keys.each_ref());
    for key in &keys {
        let secrets = [key.public_bytes(), key.jwk().to_string().into_bytes(), key_set(&[key]).into_bytes()];
        for secret in secrets {
            let head = encoded(json!({"alg": "HS256", "kid": key.kid, "typ": "JWT"}).to_string());
            let text = format!("{head}.{}", encoded(claims(&json!({})).to_string()));
            let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
            let forged = format!("{text}.{}", encoded(aws_lc_rs::hmac::sign(&secret, text.as_bytes())));
            is_refused(&trusting.server, &forged, "its algorithm is not allowed").await;
        }
        is_taken(&trusting.server, &key.sign(&claims(&json!({})))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_another_audience_is_refused() {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    for audience in
        [json!("others"), json!(["others", "tallystone2"]), json!([]), json!(null), json!("TALLYSTONE"), json!("")]
    {
        let token = key.sign(&claims(&json!({"aud": audience})));
        is_refused(&trusting.server, &token, "it is for another audience").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_expired_or_never_expires_is_refused() {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    let with = |expiry: Value| key.sign(&claims(&json!({"exp": expiry})));
    for expired in [json!(seconds_from_now(-1)), json!(0), json!(1.5)] {
        is_refused(&trusting.server, &with(expired), "it has expired").await;
    }
    is_refused(&trusting.server, &with(json!(null)), "it has no expiry").await;
    let in_milliseconds = json!(seconds_from_now(600) * 1_000);
    let none = [json!("soon"), json!(seconds_from_now(600).to_string()), json!(-1), json!([]), json!(true)];
    for unreadable in none.into_iter().chain([in_milliseconds, json!(u64::MAX), json!(1e300)]) {
        is_refused(&trusting.server, &with(unreadable), "its exp or nbf is no time").await;
    }
    let begins = key.sign(&claims(&json!({"nbf": "soon"})));
    is_refused(&trusting.server, &begins, "its exp or nbf is no time").await;
    let early = key.sign(&claims(&json!({"nbf": seconds_from_now(60)})));
    is_refused(&trusting.server, &early, "it is not valid yet").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_an_unknown_kid_is_refused() {
    let (key, stranger) = (TokenKey::es256("one"), TokenKey::es256("two"));
    let trusting = Trusting::of(&[&key]);
    let unknown = "its issuer publishes no signing key of its kid";
    is_refused(&trusting.server, &stranger.sign(&claims(&json!({}))), unknown).await;
    let named = |kid: &str| key.sign_as(&json!({"alg": "ES256", "kid": kid}), &claims(&json!({})));
    for kid in ["", "ONE", "one ", "../one"] {
        is_refused(&trusting.server, &named(kid), unknown).await;
    }
    let nameless = key.sign_as(&json!({"alg": "ES256"}), &claims(&json!({})));
    is_refused(&trusting.server, &nameless, "its header names no signing key").await;
    for kid in [json!(null), json!(1), json!(["one"])] {
        let token = key.sign_as(&json!({"alg": "ES256", "kid": kid}), &claims(&json!({})));
        is_refused(&trusting.server, &token, "its header names no signing key").await;
    }
    is_taken(&trusting.server, &named("one")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_its_key_did_not_sign_is_refused() {
    let (key, rsa, stranger) = (TokenKey::es256("one"), TokenKey::rs256("rsa"), TokenKey::es256("one"));
    let trusting = Trusting::of(&[&key, &rsa]);
    let server = &trusting.server;
    let wrong = "its signature is wrong";
    is_refused(server, &stranger.sign(&claims(&json!({}))), wrong).await;
    let valid = key.sign(&claims(&json!({"groups": []})));
    let (head, rest) = valid.split_once('.').expect("a token has dots");
    let (_, signature) = rest.split_once('.').expect("a token has two");
    let more = encoded(claims(&json!({})).to_string());
    is_refused(server, &format!("{head}.{more}.{signature}"), wrong).await;
    is_refused(server, &format!("{head}.{more}."), wrong).await;
    // What the head says chooses no key but that of its kid, and no algorithm that the key has not.
    let own = json!({"alg": "ES256", "kid": "one", "jwk": stranger.jwk(), "jku": "https://evil.example/k", "x5u": "https://evil.example/c"});
    is_refused(server, &stranger.sign_as(&own, &claims(&json!({}))), wrong).await;
    for (kid, algorithm) in [("one", "RS256"), ("one", "EdDSA"), ("rsa", "ES256"), ("rsa", "RS512"), ("rsa", "PS256")] {
        let token = key.sign_as(&json!({"alg": algorithm, "kid": kid}), &claims(&json!({})));
        is_refused(server, &token, "its algorithm is not allowed").await;
    }
    for crit in [json!(["exp"]), json!([]), json!(null)] {
        let extended = key.sign_as(&json!({"alg": "ES256", "kid": "one", "crit": crit}), &claims(&json!({})));
        is_refused(server, &extended, "its header has crit").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_says_one_thing_twice_is_refused_whichever_would_count() {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    let (head, body) = (json!({"alg": "ES256", "kid": "one"}).to_string(), claims(&json!({})).to_string());
    is_taken(&trusting.server, &key.sign_text(&head, &body)).await;
    let with = |text: &str, more: &str| format!("{{{more}, {}", text.strip_prefix('{').expect("an object"));
    for more in [r#""groups": []"#, r#""exp": 1"#, r#""sub": "boss""#, r#""iss": "x""#, r#""x": {"a": 1, "a": 2}"#] {
        let token = key.sign_text(&head, &with(&body, more));
        is_refused(&trusting.server, &token, "say one thing twice").await;
    }
    for more in [r#""alg": "none""#, r#""kid": "two""#, r#""x": 1, "x": 1"#] {
        let token = key.sign_text(&with(&head, more), &body);
        is_refused(&trusting.server, &token, "say one thing twice").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_issuer_without_a_principal_or_too_long_is_refused() {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    let server = &trusting.server;
    for issuer in [json!("https://sso.example/realms/shop/"), json!("https://sso.example"), json!("")] {
        is_refused(server, &key.sign(&claims(&json!({"iss": issuer}))), "this server does not know its issuer").await;
    }
    for issuer in [json!(null), json!([ISSUER]), json!(1)] {
        is_refused(server, &key.sign(&claims(&json!({"iss": issuer}))), "neither an API key nor a token").await;
    }
    for subject in [json!(["ann"]), json!(7)] {
        is_refused(server, &key.sign(&claims(&json!({"sub": subject}))), "the token of the call is refused").await;
    }
    for subject in [json!(null), json!("")] {
        is_refused(server, &key.sign(&claims(&json!({"sub": subject}))), "it does not say who calls").await;
    }
    for groups in [json!("boss"), json!({"a": 1}), json!([1])] {
        let token = key.sign(&claims(&json!({"tallystone": {"grants": groups}})));
        is_refused(server, &token, "its grants cannot be understood").await;
    }
    let long = key.sign(&claims(&json!({"note": "x".repeat(6_000)})));
    assert!(long.len() > 8_192);
    is_refused(server, &long, "neither an API key nor a token").await;
    for text in ["a.b", "a.b.c", "..", ".", "a.b.c.d", "eyJ.eyJ.sig"] {
        is_refused(server, text, "neither an API key nor a token").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_streams_of_a_token_end_at_its_expiry() {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    let (server, admin) = (&trusting.server, &trusting.admin);
    assert_eq!(post(server, CREATE_NAMESPACE, admin, &json!({"namespace": {"name": "mail"}})).status, 200);
    assert_eq!(post(server, CREATE_QUEUE, admin, &json!({"queue": {"name": "mail"}})).status, 200);
    // Long enough for a busy machine to open all three calls before.
    let lasts = 10;
    let token = key.sign(&claims(&json!({"exp": seconds_from_now(lasts)})));
    // The expiry is a whole second, so it may come a second early by this clock.
    let ends = Instant::now() + Duration::from_secs(lasts.unsigned_abs());
    let (watch, dequeue) = waiting(server, &token, "mail").await;
    let work = working(&client(server, &token), "mail").await;
    let yardstick = beside(server);
    for (what, ended) in [("watch", watch), ("dequeue", dequeue), ("work", work)] {
        let status = ended.await.expect("no task panics");
        assert_eq!(status.code(), Code::Unauthenticated, "{what}: {status:?}");
        assert!(status.message().contains("the token of the call is no longer valid"), "{what}: {status:?}");
        yardstick.holds(ends, ENDED_WITHIN, format!("{what} ends after its token"));
    }
    is_refused(server, &token, "it has expired").await;
}

#[test]
fn a_server_with_an_issuer_starts_without_a_key_and_keeps_no_token() {
    let (key, folder) = (TokenKey::es256("one"), tempfile::tempdir().expect("a temporary directory"));
    let (data, file) = (folder.path().join("data"), folder.path().join("jwks.json"));
    std::fs::write(&file, key_set(&[&key])).expect("the folder takes files");
    let mut server = start(&data, &[("jwks_file", file.to_str().expect("UTF-8"))]);
    let token = key.sign(&claims(&json!({})));
    let made = post(&server, CREATE_QUEUE, &token, &json!({"queue": {"name": "mail"}, "reason": "new"}));
    assert_eq!(made.status, 200, "{}", made.body);
    let acts = post(&server, "/tallystone.admin.v1.AuditService/ListAdminActions", &token, &json!({})).json();
    assert_eq!(
        (&acts["actions"][0]["actor"], &acts["actions"][0]["action"]),
        (&json!("sso|ann"), &json!("CreateQueue"))
    );
    let expired = key.sign(&claims(&json!({"exp": 1})));
    assert_eq!(post(&server, LIST_QUEUES, &expired, &json!({})).status, 401);
    let bearer = format!("Bearer {token}");
    let metrics = http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").body;
    let row = |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    assert!(row("tallystone_issuer_keys{issuer=\"sso\"}").ends_with(" 1.0"), "{metrics}");
    assert!(row("tallystone_tokens_refused_total{why=\"expired\"}").ends_with(" 1"), "{metrics}");
    let signed_in = http(
        server.address,
        "POST",
        "/console/sign-in",
        &[("content-type", "application/x-www-form-urlencoded")],
        &format!("to=./&key={token}"),
    )
    .expect("an answer");
    assert!(signed_in.status == 303 && signed_in.head.contains(&token), "{signed_in:?}");
    server.signal(libc::SIGTERM);
    assert!(server.wait().success());
    let log = server.printed();
    assert!(log.contains("the signing keys of an issuer were read"), "the log was read: {log}");
    for token in [&token, &expired] {
        for part in token.split('.') {
            assert!(!log.contains(part) && !metrics.contains(part), "a token is in the log or the metrics");
            assert_eq!(files_with(&data, part), [""; 0], "no file has a token");
        }
    }
}

#[test]
fn settings_that_cannot_be_used_are_told_before_a_start() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().to_str().expect("UTF-8");
    let check = |settings: &[&str]| {
        let common = ["auth.jwt.sso.issuer=x", "auth.jwt.sso.audience=y"];
        let settings = common.iter().chain(settings).flat_map(|setting| ["--set", setting]);
        run(binary(&[&["server", "check-config", "--data", data][..], &settings.collect::<Vec<_>>()].concat()))
    };
    let (code, _, told) = check(&["auth.jwt.sso.jwks_url=http://sso.example/k"]);
    assert!(code == 2 && told.contains("auth.jwt.sso.jwks_url must be an https URL"), "{told}");
    let (code, _, told) =
        check(&["auth.jwt.sso.jwks_url=https://sso.example/k", "auth.jwt.sso.jwks_ca_file=absent.pem"]);
    assert!(code == 2 && told.contains("cannot read the certificates of authorities: absent.pem"), "{told}");
    let (code, _, told) = check(&["auth.jwt.sso.jwks_file=absent.json"]);
    assert_eq!(code, 0, "the keys may come later: {told}");
}
