//! Roles: each method takes callers with its role, as `docs/roles.md` lists them, and refuses all others.

use serde_json::json;
use tallystone::domain::access::AccessRole;
use tallystone::proto::METHOD_ROLES;
use tonic::Code;
use tonic_types::StatusExt;

use super::keys::{call, command_with, keyed, methods, post};
use crate::support::harness::{Server, http};
use crate::support::patience::patient_channel;

const REASON: &str = "ROLE_MISSING";

/// A key with one role.
fn key_of(server: &Server, admin: &str, role: AccessRole) -> String {
    let (code, out, told) = command_with(server, admin, &["key", "create", role.word(), "--grant", role.word()]);
    assert_eq!(code, 0, "{told}");
    out.trim().to_owned()
}

/// Whether a method refuses a key for its role, over gRPC-Web.
fn is_refused_on_the_web(server: &Server, path: &str, bearer: &str) -> bool {
    let headers = [("content-type", "application/grpc-web+proto"), ("authorization", bearer)];
    // One empty message.
    let answer = http(server.address, "POST", path, &headers, "\0\0\0\0\0").expect("the server answers");
    let text = format!("{}{}", answer.head, answer.body).to_ascii_lowercase().replace(": ", ":");
    text.contains("grpc-status:7") && text.contains("needs%20the%20role")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_takes_its_role_and_admin_and_refuses_all_others_on_every_protocol() {
    let (server, admin, _folder) = keyed();
    let channel = patient_channel(&server.url()).await;
    let declared = methods();
    let ours = METHOD_ROLES.iter().filter(|(name, _)| !name.starts_with("tallystone.internal."));
    let ours: Vec<_> = ours.map(|(name, role)| (*name, AccessRole::from_number(*role).expect("a role"))).collect();
    assert!(ours.len() > 60, "{ours:?}");
    for role in AccessRole::OF_KEYS {
        let key = key_of(&server, &admin, role);
        let bearer = format!("Bearer {key}");
        for (name, needed) in &ours {
            let (service, method) = name.rsplit_once('.').expect("a service");
            let path = format!("/{service}/{method}");
            assert!(declared.contains(&path), "{path}");
            let is_allowed = *needed == role || role == AccessRole::Admin;
            let status = call(&channel, &path, Some(&bearer)).await;
            let reason = status.get_details_error_info().map(|info| info.reason);
            let is_refused = status.code() == Code::PermissionDenied && reason.as_deref() == Some(REASON);
            assert_eq!(is_refused, !is_allowed, "{path} as {role}: {status:?}");
            assert_eq!(is_refused_on_the_web(&server, &path, &bearer), !is_allowed, "{path} as {role} on the web");
            let answer = post(&server, &path, &key, &json!({}));
            let is_stream = answer.body.contains("is a stream");
            let is_refused = answer.status == 403 && answer.json()["details"][0]["reason"] == REASON;
            assert_eq!(is_refused, !is_allowed && !is_stream, "{path} as {role} over JSON: {}", answer.body);
        }
        let headers = [("authorization", &*bearer)];
        let status = |page| http(server.address, "GET", page, &headers, "").expect("an answer").status;
        let may_read = [AccessRole::Metrics, AccessRole::Admin].contains(&role);
        assert_eq!(status("/metrics"), if may_read { 200 } else { 403 }, "/metrics as {role}");
        assert_eq!(status("/"), 200, "the front page needs no role");
        let internal = call(&channel, "/tallystone.internal.v1.RollupSignalService/SignalRollups", Some(&bearer)).await;
        assert_eq!(internal.code(), Code::Unauthenticated, "no key is a server");
        let health = call(&channel, "/grpc.health.v1.Health/Check", Some(&bearer)).await;
        assert_ne!(health.code(), Code::PermissionDenied, "health needs no role");
    }
}

#[test]
fn a_key_is_given_grants_and_loses_them_at_once() {
    let (server, admin, _folder) = keyed();
    let key = key_of(&server, &admin, AccessRole::Viewer);
    let listed = || post(&server, "/tallystone.admin.v1.NamespaceService/ListNamespaces", &key, &json!({})).status;
    assert_eq!(listed(), 200);
    let update = |grants: &[&str]| {
        let grants: Vec<_> = grants.iter().flat_map(|grant| ["--grant", *grant]).collect();
        command_with(&server, &admin, &[&["key", "update", "viewer"], &grants[..]].concat())
    };
    let (code, out, told) = update(&["worker:queue:a*", "enqueuer"]);
    assert!(code == 0 && out.contains("enqueuer, worker:queue:a*"), "{out}{told}");
    assert_eq!(listed(), 403);
    assert_eq!(update(&["viewer"]).0, 0);
    assert_eq!(listed(), 200);
    for grants in [
        json!([]),
        json!([{"role": "ROLE_PEER"}]),
        json!([{"role": 77}]),
        json!([{"role": "ROLE_VIEWER", "deny": true}]),
    ] {
        let body = json!({"name": "viewer", "grants": grants});
        let answer = post(&server, "/tallystone.admin.v1.KeyService/UpdateKey", &admin, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    }
    let (code, _, told) = command_with(&server, &admin, &["key", "create", "nobody"]);
    assert!(code == 2 && told.contains("--grant"), "{told}");
}
