//! Every page answers with its policy, escapes what others wrote, and shows the numbers that the calls answer.

use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{POLICY, QUEUES, done, get, header, status_under, tags_of, text_of, used_server};
use crate::support::harness::{IN_MEMORY, Launch, eventually, http};

const ODD: &str = "odd%2Fname%3A50";
/// A text that would run if a page took it as markup, in an element, an attribute or a script.
const HOSTILE: &str = r#"'"><script>alert(1)</script><img src=x onerror=alert(1)>"#;
/// The same as a query has it.
const HOSTILE_SENT: &str = "%27%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E%3Cimg+src%3Dx+onerror%3Dalert(1)%3E";

#[test]
fn every_page_has_the_policy_and_escapes_names_and_errors() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let pages = [
        ("", "Queues"),
        ("?filter=ma&sort=pending", "mail"),
        ("?filter=none", "No queue begins with"),
        ("queue?name=mail", "Ready"),
        (&format!("queue?name={ODD}"), "odd/name:50"),
        ("messages?queue=mail&state=pending", "m1"),
        ("messages?queue=mail&state=errored", "refuses"),
        ("message?queue=mail&id=m0", "errored"),
        ("message?queue=mail&id=nobody", "does not keep"),
        ("counters", "default"),
        ("counters?ns=default", "views"),
        ("counter?ns=default&name=views&with=other,views", "Beside it"),
        ("counter?ns=default&name=odd%2Fname%3D50%25", "odd/name=50%"),
        ("message?queue=mail&id=m1", "&lt;b&gt;50%"),
        ("experiments?baseline=0.2&effect=0.05&power=0.8", "1,030"),
        ("health", "embedded"),
        ("control?kind=queue&name=mail", "Changes"),
        ("control?kind=namespace&name=default", "default"),
        ("runbook?page=docs/runbook/queue-blocked.md", "A queue is blocked"),
        ("audit", "CreateQueue"),
    ];
    for (page, words) in pages {
        let answer = get(&server, &format!("/console/{page}"), &[]);
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
        assert_eq!(header(&answer, "content-security-policy"), Some(POLICY), "{page}");
        assert!(answer.body.contains(words), "{page} lacks {words}: {}", answer.body);
        for raw in ["<b>", "<i>", "<img", "c2VjcmV0", "secret", " style=", "<script>", "'\">", "javascript:", "onclick"]
        {
            assert!(!answer.body.contains(raw), "{page} has {raw}: {}", answer.body);
        }
        let links = answer.body.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or(""));
        assert!(
            links.clone().all(|link| !link.starts_with('/') && !link.contains("://")),
            "{page}: {:?}",
            links.collect::<Vec<_>>()
        );
    }
    for (page, status) in
        [("nothing", 404), ("queue?name=none", 404), ("message?queue=none&id=x", 404), ("assets/none.js", 404)]
    {
        let answer = get(&server, &format!("/console/{page}"), &[]);
        assert_eq!((answer.status, header(&answer, "content-security-policy")), (status, Some(POLICY)), "{page}");
    }
    let page = get(&server, "/console/", &[]).body;
    let assets = page.split("\"assets/").skip(1).map(|rest| rest.split('"').next().expect("a link ends"));
    for asset in assets {
        let answer = get(&server, &format!("/console/assets/{asset}"), &[]);
        assert_eq!(answer.status, 200, "{asset}");
        assert!(header(&answer, "cache-control").is_some_and(|kept| kept.contains("immutable")), "{asset}");
    }
    assert!(server.stop().success());
}

#[test]
fn what_others_wrote_never_becomes_markup() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let blocked = json!({"name": "mail", "dequeue_blocked": true, "dequeue_blocked_reason": HOSTILE});
    done(&server, "UpdateQueue", &json!({"queue": blocked, "reason": HOSTILE}));
    done(
        &server,
        "CreateQueue",
        &json!({"queue": {"name": "evil", "default_max_attempts": 1, "description": HOSTILE}}),
    );
    let message = json!({"messageId": HOSTILE, "metadata": {"tenant": HOSTILE}});
    done(&server, "Enqueue", &json!({"queue": "evil", "message": message}));
    let page = |place: &str| get(&server, &format!("/console/{place}"), &[]);
    let id = format!("queue=evil&id={HOSTILE_SENT}");
    let shows = [
        "queue?name=mail".to_owned(),
        "control?kind=queue&name=mail".to_owned(),
        "audit".to_owned(),
        "messages?queue=evil&state=pending".to_owned(),
        format!("message?{id}"),
        format!("act?do=cancel&{id}"),
        format!("?filter={HOSTILE_SENT}&sort=pending"),
        format!("audit?target={HOSTILE_SENT}"),
    ];
    let others = [
        format!("?sort={HOSTILE_SENT}"),
        format!("payload?{id}"),
        format!("queue?name={HOSTILE_SENT}"),
        format!("messages?queue={HOSTILE_SENT}&state={HOSTILE_SENT}"),
        format!("counters?ns=default&prefix={HOSTILE_SENT}"),
        format!("counter?ns=default&name={HOSTILE_SENT}&with={HOSTILE_SENT}&range={HOSTILE_SENT}"),
        format!("experiment?name={HOSTILE_SENT}&arms=A,{HOSTILE_SENT}&metric={HOSTILE_SENT}"),
        format!("experiments?name={HOSTILE_SENT}&baseline={HOSTILE_SENT}"),
        format!("control?kind={HOSTILE_SENT}&name={HOSTILE_SENT}"),
        format!("act?do={HOSTILE_SENT}&queue=mail"),
        format!("runbook?page={HOSTILE_SENT}"),
        format!("sign-in?to={HOSTILE_SENT}"),
        HOSTILE_SENT.to_owned(),
    ];
    let is_clean = |place: &str| {
        let body = page(place).body;
        for raw in ["<script>", "<img", "'\">", "'\"&gt;"] {
            assert!(!body.contains(raw), "{place} has {raw}: {body}");
        }
        body
    };
    for place in shows {
        assert!(is_clean(&place).contains("&lt;script&gt;"), "{place} does not show the text");
    }
    for place in others {
        is_clean(&place);
    }
    let lease = done(&server, "Dequeue", &json!({"queue": "evil"}))["leases"][0]["leaseToken"].clone();
    let error = json!({"signature": HOSTILE, "text": HOSTILE});
    done(&server, "Fail", &json!({"queue": "evil", "leaseToken": lease, "error": error}));
    assert!(is_clean("messages?queue=evil&state=errored").contains("&lt;script&gt;"));
    let is_counted = || is_clean("queue?name=evil").contains("data-testid=\"error-group\"");
    assert!(eventually(Duration::from_secs(60), is_counted), "{}", page("queue?name=evil").body);
}

/// A test id, with the attributes of its elements.
type TestId = (&'static str, &'static [&'static str]);
/// A page, with its test ids.
type PageContract = (&'static str, &'static [TestId]);

/// The numbers of a queue.
const NUMBERS: [TestId; 9] = [
    ("depth-pending", &[]),
    ("depth-invisible", &[]),
    ("depth-running", &[]),
    ("depth-errored", &[]),
    ("rate-in", &[]),
    ("rate-out", &[]),
    ("rate-fail", &[]),
    ("oldest-age", &[]),
    ("drain-time", &[]),
];

/// The test ids of each page, with their attributes, as the contract of the console has them.
const CONTRACT: [PageContract; 13] = [
    ("", &NUMBERS),
    ("queue?name=mail", &NUMBERS),
    ("", &[("attention-row", &["data-reason"]), ("queue-row", &["data-queue"]), ("live-state", &[]), AGE]),
    ("?filter=none", &[("empty", &[]), AGE]),
    ("queue?name=mail", &[("attention-row", &["data-reason"]), ("live-state", &[]), ("error-group", &[]), AGE]),
    ("messages?queue=mail&state=running", &[("empty", &[]), AGE]),
    ("message?queue=mail&id=m0", &[("attempt-lane", &[]), AGE]),
    ("counter?ns=default&name=views", &[AGE]),
    ("experiments", &[("empty", &[]), AGE]),
    (
        "experiment?name=checkout&arms=A,B&metric=bought&planned=20000",
        &[
            ("arm-row", &["data-arm"]),
            ("arm-interval", &[]),
            ("contrast-interval", &[]),
            ("verdict", &["data-verdict"]),
            ("sample-ratio", &[]),
            ("trust-banner", &[]),
            AGE,
        ],
    ),
    ("control?kind=queue&name=mail", &[AGE]),
    ("audit", &[("audit-row", &[]), AGE]),
    ("act?do=purge&queue=mail", &[("confirm-count", &[]), ("confirm-submit", &[]), AGE]),
];
const AGE: TestId = ("age", &["data-as-of", "data-age-state"]);

/// Whether the mark of a page has a state and a time of this century, in milliseconds.
fn is_dated(page: &str) -> bool {
    let tags = tags_of(page, "age");
    let value = |name: &str| tags[0].split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
    let is_state = value("data-age-state").is_some_and(|state| ["fresh", "lagging", "stale", "away"].contains(&state));
    let millis = value("data-as-of").and_then(|as_of| as_of.parse::<u64>().ok());
    is_state && millis.is_some_and(|millis| millis > 1_700_000_000_000)
}

#[test]
fn an_unknown_state_kind_or_range_in_an_address_is_named_with_what_is_allowed() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let states = "It is one of: pending, invisible, running, errored, completed, canceled.";
    for (place, status, said) in [
        ("messages?queue=mail&state=ready", 400, states),
        ("messages?queue=mail&state=PENDING", 400, states),
        ("control?kind=counter&name=mail", 400, "It is one of: queue, namespace."),
        ("queue?name=mail&range=2h", 200, "It is one of: 5m, 1h, 24h, 7d."),
        ("messages?queue=mail", 200, "m1"),
        ("control?name=mail", 200, "Changes"),
    ] {
        let page = get(&server, &format!("/console/{place}"), &[]);
        assert!(page.status == status && page.body.contains(said), "{place}: {} {}", page.status, page.body);
    }
}

#[test]
fn every_page_has_the_test_ids_of_the_contract() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    // Arms that were not filled as declared, so that the page has a banner.
    for (counter, delta) in [("A/exposures", 12_000), ("A/bought", 600), ("B/exposures", 8_000), ("B/bought", 600)] {
        let add = json!({"namespace": "default", "counterName": format!("exp/checkout/{counter}"), "delta": delta});
        assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", &add.to_string()).status, 200);
    }
    let is_there = |page: &str, (testid, attributes): TestId| {
        let tags = tags_of(page, testid);
        let has_all = |tag: &&str| attributes.iter().all(|name| tag.contains(&format!(" {name}=\"")));
        !tags.is_empty() && tags.iter().all(has_all)
    };
    for (place, ids) in CONTRACT {
        let page = || get(&server, &format!("/console/{place}"), &[]).body;
        let lacks = || {
            let page = page();
            ids.iter().filter(|id| !is_there(&page, **id)).map(|(testid, _)| *testid).collect::<Vec<_>>()
        };
        // Histories, errors and the first numbers follow within seconds.
        let is_whole = eventually(Duration::from_secs(60), || lacks().is_empty() && is_dated(&page()));
        assert!(is_whole, "{place} lacks {:?}: {}", lacks(), page());
    }
}

#[test]
fn numbers_of_counters_on_the_page_of_a_queue_name_their_source_and_age() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let page = || get(&server, "/console/queue?name=mail", &[]).body;
    let notes = || {
        let page = page();
        let note = |title: &str| {
            let after = page.split(&format!("<h2>{title}</h2>")).nth(1).unwrap_or_default();
            let note = after.split("<p class=\"note\">").nth(1).and_then(|rest| rest.split("</p>").next());
            note.unwrap_or_default().to_owned()
        };
        ["Flow", "Attempts", "Waits and runs", "Errors"].map(note)
    };
    let is_dated =
        |note: &String| note.contains(" · counters, as of <time datetime=\"2") && note.contains(" UTC</time> ");
    let are_dated = || notes().iter().all(is_dated);
    assert!(eventually(Duration::from_secs(60), are_dated), "{:?}: {}", notes(), page());
}

#[test]
fn the_overview_and_the_page_of_a_queue_show_what_the_calls_answer() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let is_read = || done(&server, "GetQueueActivity", &json!({"queue": "mail"}))["activity"]["errored"] == json!("1");
    assert!(eventually(Duration::from_secs(60), is_read));
    let overview = || get(&server, "/console/?filter=mail", &[]).body;
    assert!(eventually(Duration::from_secs(60), || text_of(&overview(), "depth-pending") == "11"), "{}", overview());
    for page in [overview(), get(&server, "/console/queue?name=mail", &[]).body] {
        let shown = ["depth-pending", "depth-invisible", "depth-running", "depth-errored"].map(|id| text_of(&page, id));
        assert_eq!(shown, ["11", "0", "0", "1"]);
        assert_eq!(text_of(&page, "drain-time"), "–");
        assert!(page.contains("data-reason=\"MESSAGES_ERRORED\""), "{page}");
        assert!(page.contains("data-age-state=\"fresh\""), "{page}");
    }
    assert!(overview().contains("<tr data-testid=\"queue-row\" data-queue=\"mail\">"));
    let queue = || get(&server, "/console/queue?name=mail", &[]).body;
    let is_told = || {
        let page = queue();
        let row = page.split("data-testid=\"error-group\"").nth(1).and_then(|rest| rest.split("</tr>").next());
        row.is_some_and(|row| row.contains("SmtpDown") && row.matches(">1<").count() == 2)
    };
    assert!(eventually(Duration::from_secs(60), is_told), "one failed attempt, and it was the last: {}", queue());
    let listed = || server.post(&format!("{QUEUES}/ListQueueActivity"), "{}").json();
    let is_summed = || listed()["totals"]["pending"] == json!("11");
    assert!(eventually(Duration::from_secs(60), is_summed), "{}", listed());
}

#[test]
fn a_browser_is_led_to_the_console_and_a_foreign_page_or_host_is_refused() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let front = get(&server, "/", &[("accept", "text/html,*/*")]);
    assert_eq!((front.status, header(&front, "location")), (303, Some("console/")));
    let text = get(&server, "/", &[("accept", "*/*")]);
    assert_eq!(text.status, 200);
    assert!(text.body.starts_with("tallystone ") && text.body.contains("/console/"), "{}", text.body);
    let own = format!("http://{}", server.address);
    for (headers, status) in [
        (vec![("origin", own.as_str())], 200),
        (vec![("origin", "http://evil.example")], 403),
        (vec![("origin", "null")], 403),
        // A link of another site leads here.
        (vec![("sec-fetch-site", "cross-site"), ("referer", "http://evil.example/")], 200),
    ] {
        let answer = get(&server, "/console/", &headers);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
    }
    for (path, allowed) in [("/console/health", "GET, HEAD"), ("/console/sign-in", "GET, HEAD, POST")] {
        let refused = http(server.address, "DELETE", path, &[], "").expect("an answer");
        assert_eq!((refused.status, header(&refused, "allow")), (405, Some(allowed)), "{path}");
    }
    assert_eq!(status_under(&server, "GET /console/", "evil.example", ""), 403);
}

#[test]
fn a_server_shows_its_console_under_the_names_that_its_settings_give() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["server", "start", "--listen", "127.0.0.1:0", "--set", "auth.mode=off"]);
    command.args(IN_MEMORY);
    command.args(["--set", "console.hosts=ops.example", "--set", "server.hosts=counts.example"]);
    let server = Launch::of(command).start();
    for (host, status) in [("ops.example", 200), ("counts.example:80", 200), ("evil.example", 403)] {
        assert_eq!(status_under(&server, "GET /console/", host, ""), status, "{host}");
    }
    // Another application at the same name, or under a name of the settings, is another origin.
    for origin in [
        "http://ops.example:8443",
        "https://counts.example",
        &format!("http://127.0.0.1:{}", server.address.port() - 1),
    ] {
        assert_eq!(get(&server, "/console/", &[("origin", origin)]).status, 403, "{origin}");
    }
    let act = get(&server, "/console/act?do=purge&queue=mail", &[]);
    assert_eq!(act.status, 403, "a server is read-only unless its settings say otherwise: {}", act.body);
}

#[test]
fn an_unknown_page_in_a_folder_is_as_styled_as_any_other_and_leads_back() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    for (path, up) in [("nowhere", ""), ("queue/", "../"), ("queues/mail/unknown/y", "../../../")] {
        let page = get(&server, &format!("/console/{path}"), &[]);
        assert_eq!((page.status, header(&page, "content-security-policy")), (404, Some(POLICY)), "{path}");
        assert!(page.body.contains("No such page") && page.body.contains(path), "{}", page.body);
        let links = page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let links: Vec<&str> = links.filter(|link| !link.starts_with('#')).collect();
        assert!(links.len() > 5 && links.iter().all(|link| link.starts_with(up)), "{path}: {links:?}");
        let style = links.iter().find(|link| link.ends_with(".css")).expect("a style sheet");
        let style = style.strip_prefix(up).expect("as every link");
        assert_eq!(get(&server, &format!("/console/{style}"), &[]).status, 200, "{path}: {style}");
    }
}

#[test]
fn a_server_without_a_console_has_no_page_of_it() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).env("TALLYSTONE__CONSOLE__ENABLED", "false").start();
    assert_eq!(get(&server, "/console/", &[]).status, 404);
    assert_eq!(get(&server, "/", &[("accept", "text/html")]).status, 200);
}
