//! Messages that are selected in a list: one form, a call for each, and what came of them.

use serde_json::{Value, json};

use super::browser::shown_server;
use super::chromium::Browser;
use super::live_pages::until;
use super::{done, get, header, hidden, post, text_of, used_server};
use crate::support::harness::Server;

fn depth(server: &Server) -> [String; 3] {
    let depth = done(server, "GetDepth", &json!({"queue": "mail"}));
    ["pending", "errored", "canceled"].map(|state| depth[state].as_str().expect("a count").to_owned())
}

fn list(server: &Server, state: &str) -> String {
    get(server, &format!("/console/messages?queue=mail&state={state}"), &[]).body
}

/// The keys of the messages that a list offers to select, in its order.
fn offered(page: &str) -> Vec<String> {
    let boxes = page.split("name=\"m\" value=\"").skip(1);
    boxes.map(|rest| rest.split('"').next().expect("a value ends").to_owned()).collect()
}

fn chosen(keys: &[String]) -> String {
    keys.iter().map(|key| format!("m={key}")).collect::<Vec<_>>().join("&")
}

/// Asks for the page that says how many messages an act is about, and sends its form.
fn act(server: &Server, name: &str, keys: &[String], more: &str) -> (String, String) {
    let place = format!("/console/act?do={name}&queue=mail&state=pending&{}", chosen(keys));
    let page = get(server, &place, &[]).body;
    let count = text_of(&page, "confirm-count").to_owned();
    let form = format!(
        "do={name}&queue=mail&state=pending&token={}&{}&reason=test&{more}",
        hidden(&page, "token"),
        chosen(keys)
    );
    let answer = post(server, &form, &[]);
    assert_eq!(answer.status, 303, "{name}: {}", answer.body);
    let place = header(&answer, "location").expect("a place").to_owned();
    let again = post(server, &form, &[]);
    assert_eq!(header(&again, "location"), Some(&*place), "the same form leads to the same page");
    let said = get(server, &format!("/console/{place}"), &[]).body;
    let notice = said.split("class=\"notice\"").nth(1).and_then(|rest| rest.split('>').nth(1)).unwrap_or_default();
    (count, notice.split('<').next().unwrap_or_default().to_owned())
}

#[test]
fn selected_messages_are_canceled_with_one_form_and_the_page_says_what_came_of_each() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = list(&server, "pending");
    let keys = offered(&page);
    assert_eq!(keys.len(), 11, "{page}");
    assert!(page.contains("value=\"cancel-selected\"") && !page.contains("redrive-selected"), "{page}");
    // Of these, one is completed, one is canceled and one is leased before the form is sent.
    let id = |at: usize| json!({"queue": "mail", "message_id": keys[at]});
    let lease = done(&server, "Dequeue", &id(0))["leases"][0]["leaseToken"].clone();
    done(&server, "Complete", &json!({"queue": "mail", "leaseToken": lease}));
    done(&server, "CancelMessage", &id(1));
    done(&server, "Dequeue", &id(2));
    let (count, said) = act(&server, "cancel-selected", &keys[..6], "");
    assert_eq!(count, "6");
    assert_eq!(
        said,
        "Canceled 3 of 6 messages. 1 is running: its worker is asked to stop. 2 were already in another state."
    );
    assert_eq!(depth(&server), ["5", "1", "4"].map(str::to_owned));
    let audited = server.post("/tallystone.admin.v1.AuditService/ListAdminActions", "{}").json();
    let acts = audited["actions"].as_array().expect("a list");
    let canceled = acts.iter().filter(|act| act["action"] == "CancelMessage" && act["reason"] == "test").count();
    assert_eq!(canceled, 4, "a line for each message that was canceled or asked: {audited}");
}

#[test]
fn selected_dead_letters_are_redriven_and_discarded() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    for id in ["x", "y", "z"] {
        done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": id, "priority": "1"}}));
        let lease = done(&server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
        done(&server, "Fail", &json!({"queue": "mail", "leaseToken": lease}));
    }
    let page = list(&server, "errored");
    let keys = offered(&page);
    assert_eq!(keys.len(), 4, "{page}");
    let (count, said) = act(&server, "redrive-selected", &keys[..2], "");
    assert_eq!((&*count, &*said), ("2", "Redrove 2 of 2 messages."));
    assert_eq!(depth(&server), ["13", "2", "0"].map(str::to_owned));
    done(&server, "DiscardMessages", &json!({"queue": "mail", "message_id": keys[3]}));
    let untyped = format!("do=discard-selected&queue=mail&token=t&reason=x&{}", chosen(&keys[1..]));
    assert_eq!(post(&server, &untyped, &[]).status, 400, "the name of the queue is not typed");
    let (_, said) = act(&server, "discard-selected", &keys[1..], "typed=mail");
    assert_eq!(said, "Discarded 1 of 3 messages. 1 was already in another state. 1 was gone.");
    assert_eq!(depth(&server), ["13", "0", "0"].map(str::to_owned));
}

#[test]
fn a_selection_without_scripts_takes_all_rows_of_a_page_or_none() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let checked = |page: &str| page.matches("checked=\"checked\"").count();
    let page = list(&server, "pending");
    assert_eq!(checked(&page), 0);
    let all = page.split("id=\"select-link\" href=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a link");
    let page = get(&server, &format!("/console/{}", all.replace("&amp;", "&")), &[]).body;
    assert_eq!(checked(&page), 11, "{page}");
    assert!(page.contains(">Select none</a>"), "{page}");
    for (query, why) in [("", "No message is selected"), ("&m=a", "confirm-count")] {
        let answer = get(&server, &format!("/console/act?do=cancel-selected&queue=mail&state=pending{query}"), &[]);
        assert!(answer.body.contains(why), "{query}: {}", answer.body);
    }
    let many: String = (0..51).map(|number| format!("&m=k{number}")).collect();
    let answer = get(&server, &format!("/console/act?do=cancel-selected&queue=mail{many}"), &[]);
    assert!(answer.status == 400 && answer.body.contains("at most 50"), "{}", answer.body);
    assert!(!list(&server, "completed").contains("name=\"m\""), "what is over is not selected");
}

#[test]
fn what_is_said_of_a_selection_is_said_on_the_page_of_its_queue_only() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let keys = offered(&list(&server, "pending"));
    let page = get(&server, &format!("/console/act?do=cancel-selected&queue=mail&{}", chosen(&keys[..1])), &[]).body;
    let token = hidden(&page, "token").to_owned();
    let form = format!("do=cancel-selected&queue=mail&token={token}&{}&reason=test", chosen(&keys[..1]));
    assert_eq!(post(&server, &form, &[]).status, 303);
    let other = format!("do=cancel-selected&queue=mail&token={token}&{}&reason=test", chosen(&keys[..2]));
    let refused = post(&server, &other, &[]);
    assert!(refused.status == 400 && refused.body.contains("sent before with other content"), "{}", refused.body);
    let said = |queue: &str| {
        get(&server, &format!("/console/messages?queue={queue}&selection={token}"), &[])
            .body
            .contains("Canceled 1 of 1")
    };
    assert_eq!([said("mail"), said("odd%2Fname%3A50")], [true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_selected_and_canceled_by_the_keyboard() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.look_like(1440, "light").await;
    browser.open(&server, "messages?queue=mail&state=pending").await;
    let press = async |keys: &[&str]| {
        for key in keys {
            let focused = browser.session.active_element().await.expect("something has the focus");
            focused.send_keys(*key).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    };
    let selected = |count: usize| {
        format!(
            "return document.querySelector('[data-testid=\"selected-count\"]').textContent === '{count} of 11 selected';"
        )
    };
    until(&browser, "nothing is selected", &selected(0)).await;
    let off = "return document.querySelector('button[value=\"cancel-selected\"]').disabled === ";
    until(&browser, "and nothing can be done", &format!("{off}true;")).await;
    press(&["j", "x", "j", "x", "j", "x"]).await;
    until(&browser, "x selects the row of the focus", &selected(3)).await;
    press(&["x"]).await;
    until(&browser, "and leaves it", &selected(2)).await;
    until(&browser, "the button is on", &format!("{off}false;")).await;
    let all = browser.wait_for("#select-all input").await;
    all.click().await.expect("a box");
    until(&browser, "one box selects all", &selected(11)).await;
    // A box has the focus: the keys of rows go on from there.
    all.send_keys(" ").await.expect("a box");
    until(&browser, "and none", &selected(0)).await;
    press(&["j", "x"]).await;
    until(&browser, "one is selected", &selected(1)).await;
    browser.wait_for("button[value='cancel-selected']").await.send_keys("\u{e007}").await.expect("a button");
    let count = browser.wait_for("[data-testid='confirm-count']").await.text().await.expect("a text");
    assert_eq!(count, "1");
    browser.wait_for("input[name='reason']").await.send_keys("maintenance\u{e007}").await.expect("a field");
    until(
        &browser,
        "the list says what came of it",
        "return document.body.innerText.includes('Canceled 1 of 1 message.');",
    )
    .await;
    let depth: Value = done(&server, "GetDepth", &json!({"queue": "mail"}));
    assert_eq!(depth["pending"], "10");
    browser.end().await;
}
