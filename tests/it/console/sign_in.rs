//! Sign-in: where callers must show a key, the console asks for one, and knows no more than the key.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{POLICY, get, header, hidden};
use crate::support::beside;
use crate::support::harness::{HttpAnswer, Launch, Server, http};

fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(arguments);
    command
}

/// Makes a key in the directory of a server that does not run.
pub fn key_of(name: &str, data: &Path) -> String {
    let data = data.to_str().expect("UTF-8");
    let made = binary(&["key", "create", name, "--offline", "--data", data]).output().expect("the binary starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("text").trim().to_owned()
}

/// A server whose callers show keys and whose console acts, with a queue.
pub fn keyed(data: &Path, key: &str) -> Server {
    let mut command =
        binary(&["server", "start", "--listen", "127.0.0.1:0", "--set", "console.read_only=false", "--data"]);
    command.arg(data);
    let server = Launch::of(command).start();
    let made = call(&server, key, "/tallystone.queue.v1.QueueService/CreateQueue", &json!({"queue": {"name": "mail"}}));
    assert_eq!(made.status, 200, "{}", made.body);
    server
}

fn call(server: &Server, key: &str, path: &str, body: &serde_json::Value) -> HttpAnswer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
    http(server.address, "POST", path, &headers, &body.to_string()).expect("the server answers")
}

fn sign_in(server: &Server, form: &str) -> HttpAnswer {
    let typed = [("content-type", "application/x-www-form-urlencoded")];
    http(server.address, "POST", "/console/sign-in", &typed, form).expect("the server answers")
}

#[test]
fn a_key_opens_the_console_until_it_ends() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (key, other) = (key_of("ann", data.path()), key_of("bob", data.path()));
    let server = keyed(data.path(), &key);
    let asked = get(&server, "/console/queue?name=mail", &[]);
    assert_eq!((asked.status, header(&asked, "location")), (303, Some("sign-in?to=queue%3Fname%3Dmail")));
    assert_eq!(get(&server, "/console/live", &[]).status, 401);
    let page = get(&server, "/console/sign-in?to=queue%3Fname%3Dmail", &[]);
    assert_eq!((page.status, header(&page, "content-security-policy")), (200, Some(POLICY)));
    assert!(page.body.contains("type=\"password\""), "{}", page.body);
    assert_eq!(hidden(&page.body, "to"), "queue?name=mail");

    let wrong = sign_in(&server, &format!("to=./&key={}", key.replace("ts_", "tx_")));
    assert_eq!((wrong.status, header(&wrong, "set-cookie")), (401, None), "{}", wrong.body);
    let right = sign_in(&server, &format!("to=queue%3Fname%3Dmail&key={key}"));
    assert_eq!((right.status, header(&right, "location")), (303, Some("queue?name=mail")), "{}", right.body);
    let cookie = header(&right, "set-cookie").expect("a cookie").to_owned();
    assert_eq!(cookie, format!("tallystone-key={key}; HttpOnly; SameSite=Strict"), "it ends with the browser");
    let cookie = cookie.split(';').next().expect("a pair").to_owned();

    let shown = get(&server, "/console/queue?name=mail", &[("cookie", &cookie)]);
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert!(shown.body.contains("ann") && !shown.body.contains(&key), "{}", shown.body);
    let out = http(server.address, "POST", "/console/sign-out", &[("cookie", &cookie)], "").expect("it answers");
    assert_eq!((out.status, header(&out, "location")), (303, Some("sign-in")));
    assert!(header(&out, "set-cookie").is_some_and(|gone| gone.contains("Max-Age=0")), "{}", out.head);

    let gone = call(&server, &other, "/tallystone.admin.v1.KeyService/DeleteKey", &json!({"name": "ann"}));
    assert_eq!(gone.status, 200, "{}", gone.body);
    let is_out = || get(&server, "/console/", &[("cookie", &cookie)]).status == 303;
    beside(&server).comes(Instant::now(), Duration::from_secs(10), "the key ended", is_out);
}

#[test]
fn refused_sign_ins_and_visits_without_a_key_stand_in_the_audit_as_a_sample() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let key = key_of("ann", data.path());
    let server = keyed(data.path(), &key);
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let foreign = key_of("ann", elsewhere.path());
    for number in 0..30 {
        assert_eq!(sign_in(&server, &format!("to=./&key={}{number:02}", &foreign[..foreign.len() - 2])).status, 401);
        assert_eq!(get(&server, &format!("/console/queue?name=secret-{number}"), &[]).status, 303);
    }
    assert_eq!(get(&server, "/console/sign-in", &[]).status, 200, "to ask for the page is no refusal");
    let lines = call(&server, &key, "/tallystone.admin.v1.AuditService/ListAdminActions", &json!({}));
    assert!(!lines.body.contains("secret") && !lines.body.contains("ts_"), "{}", lines.body);
    let lines = lines.json();
    let refused = lines["actions"].as_array().expect("a list").iter().filter(|act| act["outcome"] != "OK");
    let mut refused: Vec<_> = refused
        .map(|act| ["action", "actor", "outcome"].map(|field| act[field].as_str().expect("a text").to_owned()))
        .collect();
    refused.sort();
    refused.dedup();
    let told =
        ["/console/", "/console/sign-in"].map(|place| [place, "127.0.0.1", "UNAUTHENTICATED"].map(str::to_owned));
    assert_eq!(refused, told);
    let count = lines["actions"].as_array().expect("a list").len();
    assert!(count <= 1 + 2 * 2, "one of each in a minute: {lines}");
}

#[test]
fn an_act_is_that_of_the_principal_and_nothing_is_done_without_a_key() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let key = key_of("ann", data.path());
    let server = keyed(data.path(), &key);
    let cookie = format!("tallystone-key={key}");
    let page = get(&server, "/console/act?do=block-dequeue&queue=mail", &[("cookie", &cookie)]);
    assert_eq!(page.status, 200, "{}", page.body);
    let fields = ["do", "queue", "queue_id", "etag", "id", "token"];
    let fields = fields.map(|name| format!("{name}={}", hidden(&page.body, name)));
    let form = format!("{}&reason=maintenance", fields.join("&"));
    let typed = ("content-type", "application/x-www-form-urlencoded");
    let post = |headers: &[(&str, &str)]| {
        http(server.address, "POST", "/console/act", headers, &form).expect("the server answers")
    };
    assert_eq!(post(&[typed]).status, 401);
    let queue = || call(&server, &key, "/tallystone.queue.v1.QueueService/GetQueue", &json!({"queue": "mail"})).json();
    assert_ne!(queue()["queue"]["dequeueBlocked"], json!(true), "{}", queue());
    let done = post(&[typed, ("cookie", &cookie)]);
    assert_eq!(done.status, 303, "{}", done.body);
    assert_eq!(queue()["queue"]["dequeueBlocked"], json!(true));
    let lines = call(&server, &key, "/tallystone.admin.v1.AuditService/ListAdminActions", &json!({})).json();
    let newest = &lines["actions"][0];
    assert_eq!((&newest["actor"], &newest["action"]), (&json!("ann"), &json!("UpdateQueue")), "{lines}");
}

#[test]
fn styles_and_the_way_to_the_console_need_no_key() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let key = key_of("ann", data.path());
    let server = keyed(data.path(), &key);
    let front = get(&server, "/", &[("accept", "text/html")]);
    assert_eq!((front.status, header(&front, "location")), (303, Some("console/")));
    let page = get(&server, "/console/sign-in", &[]).body;
    let asset = page.split("\"assets/").nth(1).and_then(|rest| rest.split('"').next()).expect("the page has a style");
    assert_eq!(get(&server, &format!("/console/assets/{asset}"), &[]).status, 200);
    for foreign in ["http%3A%2F%2Fevil.example", "%2F%2Fevil.example", "..%2F..%2F"] {
        let led = sign_in(&server, &format!("to={foreign}&key={key}"));
        assert_eq!((led.status, header(&led, "location")), (303, Some("./")), "{foreign}");
    }
}
