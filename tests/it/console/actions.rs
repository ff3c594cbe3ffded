//! Actions without scripts: a page with the count, then a form that does it once.

use std::time::Instant;

use serde_json::{Value, json};

use super::{CONSOLE_WAITS, done, fill, get, header, hidden, post, status_under, text_of, used_server};
use crate::support::harness::{Launch, Server, eventually};

/// How long a busy machine may take for an operation.
const WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

fn form(page: &str, more: &str) -> String {
    let fields =
        ["do", "queue", "queue_id", "etag", "id", "token"].map(|name| format!("{name}={}", hidden(page, name)));
    format!("{}&{more}", fields.join("&"))
}

fn lines(server: &Server) -> Vec<(String, String, String)> {
    let answer = server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let text = |act: &Value, field: &str| act[field].as_str().expect("a text").to_owned();
    let acts = answer["actions"].as_array().expect("a list").clone();
    acts.iter().map(|act| (text(act, "action"), text(act, "reason"), text(act, "outcome"))).collect()
}

fn depth(server: &Server) -> [String; 3] {
    let depth = done(server, "GetDepth", &json!({"queue": "mail"}));
    ["pending", "errored", "canceled"].map(|state| depth[state].as_str().expect("a count").to_owned())
}

#[test]
fn a_purge_posted_twice_is_one_purge_with_one_line() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = get(&server, "/console/act?do=purge&queue=mail", &[]).body;
    assert_eq!(text_of(&page, "confirm-count"), "11");
    assert!(page.contains(&format!("tallystone queue purge mail --reason TEXT --server {}", server.address)), "{page}");
    let before = lines(&server).len();
    let wrong = post(&server, &form(&page, "reason=clean&typed=mial"), &[]);
    assert_eq!((wrong.status, depth(&server)), (400, ["11", "1", "0"].map(str::to_owned)));
    let right = form(&page, "reason=clean+up%20%C3%BC&typed=mail");
    let posted = || {
        let answer = post(&server, &right, &[]);
        assert_eq!(answer.status, 303, "{}", answer.body);
        header(&answer, "location").expect("a place").to_owned()
    };
    let began = Instant::now();
    let place = posted();
    let waited = began.elapsed();
    assert_eq!(posted(), place, "the same form leads to the same page");
    // On a busy machine the purge may go on for longer than the console waits. Then the page says so once it is loaded again.
    let is_over = place == "queue?name=mail&done=purge&messages=11";
    let is_started = place.starts_with("queue?name=mail&started=purge&operation=");
    assert!(is_over || is_started && waited >= CONSOLE_WAITS, "{waited:?}: {place}");
    let shown = || get(&server, &format!("/console/{place}"), &[]).body;
    assert!(eventually(WITHIN, || shown().contains("It took 11 messages.")), "{}", shown());
    assert_eq!(depth(&server), ["0", "1", "11"].map(str::to_owned));
    let lines = lines(&server);
    assert_eq!(lines[0], ("PurgeQueue".to_owned(), "clean up ü".to_owned(), "OK".to_owned()));
    assert_eq!(lines.len(), before + 1, "{lines:?}");
}

#[test]
fn a_purge_redrive_and_discard_say_how_many_messages_they_took() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let server = &server;
    let act = |name: &str| {
        let page = get(server, &format!("/console/act?do={name}&queue=mail"), &[]).body;
        let answer = post(server, &form(&page, "reason=test&typed=mail"), &[]);
        let place = header(&answer, "location").unwrap_or_else(|| panic!("{name}: {}", answer.body)).to_owned();
        move || get(server, &format!("/console/{place}"), &[]).body
    };
    // A busy machine may show the page while the operation continues. Then it says so once it is loaded again.
    for (name, said) in
        [("redrive", "It took 1 message."), ("purge", "It took 12 messages."), ("discard", "It took 0 messages.")]
    {
        let page = act(name);
        assert!(eventually(WITHIN, || page().contains(said)), "{name}: {}", page());
    }
}

/// The rows of the operations on the page of a queue: their texts without markup.
fn operation_rows(server: &Server, queue: &str) -> Vec<String> {
    let page = get(server, &format!("/console/queue?name={queue}"), &[]).body;
    let rows = page.split("data-testid=\"operation-row\"").skip(1);
    let row = |rest: &str| {
        let row = rest.split("</tr>").next().unwrap_or_default();
        let texts = row.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text));
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
    };
    rows.map(row).collect()
}

#[test]
fn operations_are_rows_of_the_page_of_their_queue_and_of_no_other() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    assert_eq!(operation_rows(&server, "mail"), Vec::<String>::new());
    done(&server, "RedriveMessages", &json!({"queue": "mail", "dry_run": true}));
    let fails = |id: &str| {
        done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": id, "priority": "1"}}));
        let lease = done(&server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
        done(&server, "Fail", &json!({"queue": "mail", "leaseToken": lease}));
    };
    (0..30).for_each(|number| fails(&format!("dead-{number}")));
    let purge =
        done(&server, "PurgeQueue", &json!({"queue": "mail", "filter": {"tenant": "acme"}}))["operation"].clone();
    let rows = || operation_rows(&server, "mail");
    assert!(eventually(WITHIN, || rows().first().is_some_and(|row| row.contains("took 11 messages"))), "{:?}", rows());
    let slow =
        done(&server, "RedriveMessages", &json!({"queue": "mail", "rate": 1}))["operation"]["operationId"].clone();
    let rows = rows();
    assert_eq!(rows.len(), 2, "the dry run is none: {rows:?}");
    assert!(rows[1].starts_with("Purge invisible, pending · tenant=acme"), "{rows:?}");
    assert!(rows[0].starts_with("Redrive errored · at most 1 a second") && rows[0].contains("of about 31"), "{rows:?}");
    assert_eq!(operation_rows(&server, "odd%2Fname%3A50"), Vec::<String>::new());
    // An id that somebody typed into the address of another queue says nothing there.
    let id = purge["operationId"].as_str().expect("an id");
    let notice = |queue: &str| {
        let page = get(&server, &format!("/console/queue?name={queue}&started=purge&operation={id}"), &[]).body;
        page.contains("It took 11 messages.")
    };
    assert_eq!([notice("mail"), notice("odd%2Fname%3A50")], [true, false]);
    done(&server, "CancelOperation", &json!({"operationId": slow}));
    let is_stopped = || operation_rows(&server, "mail")[0].contains("stopped after");
    assert!(eventually(WITHIN, is_stopped), "{:?}", operation_rows(&server, "mail"));
}

#[test]
fn the_dead_letters_of_one_error_are_redriven_and_discarded_by_its_buttons() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    for (id, signature) in [("a", "time out <5 s>"), ("b", "time out <5 s>"), ("c", "gone"), ("d", "")] {
        done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": id, "priority": "1"}}));
        let lease = done(&server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
        let error = json!({"signature": signature, "text": "no answer"});
        let error = if signature.is_empty() { Value::Null } else { error };
        done(&server, "Fail", &json!({"queue": "mail", "leaseToken": lease, "error": error}));
    }
    let groups = || get(&server, "/console/queue?name=mail", &[]).body;
    let button = |act: &str, signature: &str| format!("href=\"act?do={act}&amp;queue=mail&amp;signature={signature}\"");
    let smtp = button("redrive", "SmtpDown");
    assert!(eventually(WITHIN, || groups().matches("data-testid=\"error-group\"").count() == 4), "{}", groups());
    let page = groups();
    assert!(page.contains(&smtp) && page.contains(&button("discard", "gone")), "{page}");
    assert_eq!(page.matches("&amp;signature=").count(), 6, "failures without a signature have no buttons: {page}");

    let act = |place: &str, more: &str| {
        let page = get(&server, &format!("/console/act?{place}"), &[]).body;
        let signature = hidden(&page, "signature").replace("&lt;", "%3C").replace("&gt;", "%3E").replace(' ', "+");
        let count = text_of(&page, "confirm-count").to_owned();
        let answer = post(&server, &form(&page, &format!("signature={signature}&reason=test&{more}")), &[]);
        assert_eq!(answer.status, 303, "{place}: {}", answer.body);
        (count, page)
    };
    let timed_out = "queue=mail&signature=time+out+%3C5+s%3E";
    let (count, page) = act(&format!("do=redrive&{timed_out}"), "");
    assert_eq!(count, "2");
    assert!(
        page.contains("dlq redrive -q mail --error-signature &#39;time out &lt;5 s&gt;&#39; --reason TEXT"),
        "{page}"
    );
    assert!(eventually(WITHIN, || depth(&server) == ["13", "3", "0"].map(str::to_owned)), "{:?}", depth(&server));
    let (count, _) = act("do=discard&queue=mail&signature=gone", "typed=mail");
    assert_eq!(count, "1");
    assert!(eventually(WITHIN, || depth(&server) == ["13", "2", "0"].map(str::to_owned)), "{:?}", depth(&server));
    let errored = done(&server, "ListMessages", &json!({"queue": "mail", "state": "ERRORED"}));
    let ids: Vec<&str> =
        errored["messages"].as_array().expect("a list").iter().filter_map(|m| m["messageId"].as_str()).collect();
    assert_eq!(ids, ["m0", "d"], "those of other errors stay");
}

#[test]
fn every_action_does_what_its_page_says() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let act = |place: &str, more: &str| {
        let page = get(&server, &format!("/console/act?{place}"), &[]);
        assert_eq!(page.status, 200, "{place}: {}", page.body);
        let answer = post(&server, &form(&page.body, &format!("reason=test&{more}")), &[]);
        assert_eq!(answer.status, 303, "{place}: {}", answer.body);
    };
    let queue = || done(&server, "GetQueue", &json!({"queue": "mail"}))["queue"].clone();
    act("do=block-dequeue&queue=mail", "");
    assert_eq!((&queue()["dequeueBlocked"], &queue()["dequeueBlockedReason"]), (&json!(true), &json!("test")));
    act("do=block-enqueue&queue=mail", "");
    act("do=unblock&queue=mail", "");
    assert_eq!((&queue()["dequeueBlocked"], &queue()["enqueueBlocked"]), (&json!(false), &json!(false)));
    act("do=redrive&queue=mail", "");
    // A busy machine may show the page while the redrive continues.
    assert!(eventually(WITHIN, || depth(&server) == ["12", "0", "0"].map(str::to_owned)));
    act("do=cancel&queue=mail&id=m3", "");
    assert_eq!(depth(&server), ["11", "0", "1"].map(str::to_owned));
    act("do=limit&queue=odd%2Fname%3A50", "value=acme&limit=2");
    act("do=discard&queue=mail", "typed=mail");
    act("do=delete&queue=mail", "typed=mail");
    assert_eq!(get(&server, "/console/queue?name=mail", &[]).status, 404);
    let did: Vec<String> = lines(&server).into_iter().map(|(action, ..)| action).take(8).collect();
    let expected = [
        "DeleteQueue",
        "DiscardMessages",
        "SetValueLimit",
        "CancelMessage",
        "RedriveMessages",
        "UpdateQueue",
        "UpdateQueue",
        "UpdateQueue",
    ];
    assert_eq!(did, expected);
}

#[test]
fn a_token_stands_for_one_content_and_a_form_that_failed_can_be_sent_again() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = get(&server, "/console/act?do=limit&queue=odd%2Fname%3A50", &[]).body;
    let send = |more: &str| post(&server, &form(&page, &format!("reason=test&{more}")), &[]);
    let wrong = send("value=acme&limit=many");
    assert!(wrong.status == 400 && wrong.body.contains("Nothing was done"), "{}", wrong.body);
    assert!(wrong.body.contains("href=\"act?do=limit&amp;queue=odd%2Fname%3A50\""), "{}", wrong.body);
    let before = lines(&server).len();
    for _ in 0..2 {
        assert_eq!(send("value=acme&limit=2").status, 303);
    }
    for _ in 0..2 {
        let other = send("value=other&limit=3");
        assert!(other.status == 400 && other.body.contains("sent before with other content"), "{}", other.body);
    }
    assert_eq!(lines(&server).len(), before + 1, "one limit was set");
}

#[test]
fn a_form_of_a_queue_that_changed_since_is_refused_as_such() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let stale = get(&server, "/console/act?do=block-enqueue&queue=mail", &[]).body;
    let fresh = get(&server, "/console/act?do=block-dequeue&queue=mail", &[]).body;
    assert_eq!(post(&server, &form(&fresh, "reason=test"), &[]).status, 303);
    let refused = post(&server, &form(&stale, "reason=test"), &[]);
    assert!(refused.status == 409 && refused.body.contains("Changed meanwhile"), "{}", refused.body);
    let audited = server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let parts: Vec<&str> =
        audited["actions"].as_array().expect("a list").iter().filter_map(|act| act["part"].as_str()).collect();
    assert_eq!(parts.iter().filter(|part| **part == "block dequeue").count(), 1, "{audited}");
}

#[test]
fn a_read_only_console_and_a_foreign_page_change_nothing() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = get(&server, "/console/act?do=purge&queue=mail", &[]).body;
    let purge = form(&page, "reason=x&typed=mail");
    for of_another in [
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("referer", "http://evil.example/console/queue"),
    ] {
        assert_eq!(post(&server, &purge, &[of_another]).status, 403, "{of_another:?}");
    }
    assert_eq!(status_under(&server, "POST /console/act", "evil.example", &purge), 403);
    assert_eq!(depth(&server)[0], "11");
    assert!(server.stop().success());

    let other = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(other.path()).env("TALLYSTONE__CONSOLE__READ_ONLY", "true").start();
    fill(&server);
    let before = lines(&server);
    for act in ["block-dequeue", "block-enqueue", "unblock", "purge", "redrive", "discard", "cancel", "limit", "delete"]
    {
        let form = format!("do={act}&queue=mail&token=t&reason=x&typed=mail&id=m1&value=a&limit=1");
        assert_eq!(post(&server, &form, &[]).status, 403, "{act}");
        assert_eq!(get(&server, &format!("/console/act?do={act}&queue=mail"), &[]).status, 403, "{act}");
    }
    assert_eq!((depth(&server), lines(&server)), (["11", "1", "0"].map(str::to_owned), before));
    assert!(get(&server, "/console/queue?name=mail", &[]).body.contains("aria-disabled=\"true\""));
}
