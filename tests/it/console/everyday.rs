//! Small things that an operator looks for on a page.

use serde_json::json;

use super::{done, get, header, hidden, post, tags_of, text_of, used_server};
use crate::support::harness::eventually;

const WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn an_unknown_order_of_the_overview_is_named_with_those_that_there_are() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = |sort: &str| get(&server, &format!("/console/?sort={sort}"), &[]);
    let refused = page("newest");
    assert_eq!(refused.status, 400);
    let said =
        "There is no sort &quot;newest&quot;. It is one of: name, attention, pending, errored, in, out, fail, oldest.";
    assert!(refused.body.contains(said), "{}", refused.body);
    for sort in ["", "name", "oldest"] {
        assert_eq!(page(sort).status, 200, "{sort}");
    }
}

#[test]
fn messages_that_are_over_are_found_and_purged_by_their_state() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let lease = done(&server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
    done(&server, "Complete", &json!({"queue": "mail", "leaseToken": lease}));
    for id in ["m5", "m6"] {
        done(&server, "CancelMessage", &json!({"queue": "mail", "messageId": id}));
    }
    let page = |place: &str| get(&server, &format!("/console/{place}"), &[]).body;
    let queue = page("queue?name=mail");
    for (state, kept) in [("completed", "1"), ("canceled", "2")] {
        assert!(queue.contains(&format!("href=\"messages?queue=mail&amp;state={state}\"")), "{queue}");
        let list = page(&format!("messages?queue=mail&state={state}"));
        let place = format!("act?do=purge&amp;queue=mail&amp;state={state}");
        assert!(list.contains(&format!("href=\"{place}\">Purge {state} messages</a>")), "{list}");
        let confirm = page(&place.replace("&amp;", "&"));
        assert_eq!(text_of(&confirm, "confirm-count"), kept, "{state}");
        assert!(confirm.contains(&format!("queue purge mail --state {state} --reason TEXT")), "{confirm}");
        let parts = ["do", "queue", "queue_id", "etag", "state", "token"];
        let parts = parts.map(|name| format!("{name}={}", hidden(&confirm, name))).join("&");
        let answer = post(&server, &format!("{parts}&reason=test&typed=mail"), &[]);
        let place = header(&answer, "location").unwrap_or_else(|| panic!("{state}: {}", answer.body)).to_owned();
        let said = format!("It took {kept} message");
        assert!(eventually(WITHIN, || page(&place).contains(&said)), "{state}: {}", page(&place));
    }
    let depth = done(&server, "GetDepth", &json!({"queue": "mail"}));
    assert_eq!([&depth["pending"], &depth["completed"], &depth["canceled"]], ["8", "0", "0"], "{depth}");
    assert!(!page("messages?queue=mail&state=pending").contains("do=purge"), "the queue has the button for these");
}

#[test]
fn a_value_is_limited_only_where_there_are_values() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let offers =
        |queue: &str| get(&server, &format!("/console/queue?name={queue}"), &[]).body.contains("do=limit&amp;");
    assert_eq!([offers("mail"), offers("odd%2Fname%3A50")], [false, true]);
}

#[test]
fn a_queue_says_how_much_of_its_quota_it_uses() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = || get(&server, "/console/queue?name=mail", &[]).body;
    let quotas = |page: &str| {
        let texts = page.split("data-testid=\"quota\">").skip(1).filter_map(|rest| rest.split('<').next());
        texts.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(quotas(&page()), ["12 of 100,000,000", "72 B of 64.0 GiB"]);
    done(&server, "UpdateQueue", &json!({"queue": {"name": "mail", "quota_messages": "12"}}));
    let full = page();
    assert_eq!(quotas(&full)[0], "12 of 12");
    assert!(full.contains("<div class=\"bad\"><dt>Messages</dt>"), "it is full: {full}");
}

#[test]
fn a_message_whose_ttl_was_over_says_so() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let short = json!({"messageId": "short", "ttl": "1s"});
    done(&server, "Enqueue", &json!({"queue": "mail", "message": short}));
    let page = || get(&server, "/console/message?queue=mail&id=short", &[]).body;
    let said = "<td data-label=\"Why\"><span>its TTL was over before anyone took it</span></td>";
    assert!(eventually(WITHIN, || page().contains(said)), "{}", page());
    assert!(!tags_of(&page(), "attempt-lane").is_empty());
}

#[test]
fn a_missing_page_of_the_runbook_shows_the_way_to_all_others() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let answer = get(&server, "/console/runbook?page=docs%2Frunbook%2Fnone.md", &[]);
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("The runbook has no page &quot;docs/runbook/none.md&quot;"), "{}", answer.body);
    assert!(answer.body.contains("href=\"runbook?page=docs%2Frunbook%2Fqueue-full.md\""), "{}", answer.body);
}
