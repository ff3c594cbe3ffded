//! Payloads: hidden, unless the settings allow a look, which asks for a reason and is one line of the audit.

use serde_json::json;

use super::{done, fill, get, hidden, used_server};
use crate::support::harness::{HttpAnswer, Launch, Server, http};

const MESSAGE: &str = "queue=mail&id=m1";

fn look(server: &Server, form: &str) -> HttpAnswer {
    let typed = [("content-type", "application/x-www-form-urlencoded")];
    http(server.address, "POST", "/console/payload", &typed, form).expect("the server answers")
}

/// The lines of the audit about looks.
fn looks(server: &Server) -> Vec<serde_json::Value> {
    let lines = server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let lines = lines["actions"].as_array().expect("a list").clone();
    lines.into_iter().filter(|line| line["action"] == json!("RevealPayload")).collect()
}

#[test]
fn no_payload_is_shown_unless_the_settings_allow_it() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = get(&server, &format!("/console/message?{MESSAGE}"), &[]).body;
    assert!(!page.contains("href=\"payload"), "{page}");
    assert_eq!(get(&server, &format!("/console/payload?{MESSAGE}"), &[]).status, 403);
    let refused = look(&server, &format!("{MESSAGE}&reason=x&token=t"));
    assert_eq!(refused.status, 403);
    assert!(!refused.body.contains("secret"), "{}", refused.body);
    assert_eq!(looks(&server).len(), 0);
}

#[test]
fn a_look_at_a_payload_asks_why_and_is_one_line_of_the_audit() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).env("TALLYSTONE__CONSOLE__SHOW_PAYLOADS", "true").start();
    fill(&server);
    done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": "bytes", "payload": "/w=="}}));
    let page = get(&server, &format!("/console/message?{MESSAGE}"), &[]).body;
    assert!(page.contains("href=\"payload?queue=mail&amp;id=m1\"") && !page.contains("secret"), "{page}");
    let page = get(&server, &format!("/console/payload?{MESSAGE}"), &[]).body;
    assert!(!page.contains("secret"), "{page}");
    let token = hidden(&page, "token").to_owned();
    assert_eq!(look(&server, &format!("{MESSAGE}&token={token}&reason=")).status, 400);
    assert_eq!(looks(&server).len(), 0, "nothing was shown yet");
    for _ in 0..2 {
        let shown = look(&server, &format!("{MESSAGE}&token={token}&reason=a+complaint"));
        assert_eq!(shown.status, 200, "{}", shown.body);
        assert!(shown.body.contains("<code>secret</code>"), "{}", shown.body);
    }
    let looks = looks(&server);
    assert_eq!(looks.len(), 1, "{looks:?}");
    let told = ["target", "part", "reason", "outcome"].map(|field| looks[0][field].as_str().expect("a text"));
    assert_eq!(told, ["mail", "m1", "a complaint", "OK"]);
    let bytes = look(&server, "queue=mail&id=bytes&token=other&reason=x").body;
    assert!(bytes.contains("<code>/w==</code>"), "{bytes}");
}
