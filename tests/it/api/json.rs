//! JSON over HTTP/1.1 and HTTP/2.

use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tallystone::domain::Timestamp;
use tonic::body::Body;
use tonic::codegen::Service;

use super::{COUNTERS, Wire, at};

/// A time as the published bodies write it.
fn rfc3339(time: &prost_types::Timestamp) -> String {
    time.to_string()
}

#[tokio::test]
async fn the_published_bodies_are_taken_as_they_are() {
    let wire = Wire::start().await;
    let body = |time: &str| {
        format!(
            r#"{{"namespace": "exact", "counter_name": "counter123", "delta": 2,
                 "idempotency_token": {{"token": "some_event_id", "generation_time": "{time}"}}}}"#
        )
    };
    let (status, answer) = wire.post("AddCount", &body("2024-10-05T14:48:00Z")).await;
    assert_eq!((status, &answer["details"][0]["reason"]), (412, &json!("TOO_OLD")), "{answer}");
    let now = body(&rfc3339(&at(0.0)));
    let (status, answer) = wire.post("AddCount", &now).await;
    assert_eq!((status, &answer["outcome"]), (200, &json!("OUTCOME_APPLIED")), "{answer}");
    let (_, answer) = wire.post("AddCount", &now).await;
    assert_eq!(answer["outcome"], "OUTCOME_ALREADY_APPLIED", "{answer}");
    let (status, answer) = wire.post("GetCount", r#"{"namespace": "exact", "counter_name": "counter123"}"#).await;
    assert_eq!((status, &answer["count"], &answer["exactness"]), (200, &json!("2"), &json!("EXACTNESS_UP_TO_DATE")));
}

#[tokio::test]
async fn answers_are_canonical_and_hold_every_field() {
    let wire = Wire::start().await;
    let (status, answer) = wire.post("GetCount", r#"{"namespace": "exact", "counterName": "never"}"#).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["count"], json!("0"), "64-bit numbers are texts");
    assert_eq!(answer["behind"], json!(false), "defaults are there");
    assert_eq!(answer["saturated"], json!(false));
    assert!(answer.get("lastWriteTime").is_none(), "what is absent is left out: {answer}");
    let checked_at = answer["checkedAt"].as_str().expect("a time is a text");
    assert!(checked_at.ends_with('Z') && checked_at.contains('T'), "{checked_at}");
    let (_, answer) =
        wire.post("AddCount", r#"{"namespace": "exact", "counterName": "far", "delta": "-9223372036854775808"}"#).await;
    assert_eq!(answer["idempotent"], json!(false), "{answer}");
    assert_eq!(answer["idempotencyToken"]["token"].as_str().map(str::len), Some(36), "{answer}");
    let read = r#"{"namespace": "exact", "counter_name": "far", "freshness": "UP_TO_DATE"}"#;
    assert_eq!(wire.post("GetCount", read).await.1["count"], json!("-9223372036854775808"));
}

#[tokio::test]
async fn a_batch_answers_each_item() {
    let wire = Wire::start().await;
    let body = json!({"namespace": "exact", "items": [
        {"counter_name": "a", "delta": "3"},
        {"counter_name": "no good", "delta": 1},
        {"counter_name": "b", "delta": 4, "provenance": "x".repeat(257)},
    ]});
    let (status, answer) = wire.post("BatchAddCounts", &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["results"][0]["outcome"], "OUTCOME_APPLIED");
    let errors: Vec<&Value> = (1..3).map(|at| &answer["results"][at]["error"]).collect();
    assert_eq!(errors[0]["reason"], "INVALID_COUNTER_NAME", "{answer}");
    assert_eq!(errors[1]["reason"], "INVALID_PROVENANCE", "{answer}");
    assert_eq!(errors[0]["code"], 3);
}

#[tokio::test]
async fn counts_and_series_of_queues_say_in_json_how_far_queues_are_reported() {
    let wire = Wire::start().await;
    wire.engine.namespaces().ensure_queue_namespace().await.expect("the service makes it");
    wire.engine.set_queues_reported_to(Some(Timestamp::from_secs(1_795_132_800)));
    let ago = rfc3339(&at(-60.0));
    let counter = r#""namespace": "tallystone.queues", "counter_name": "jobs~enqueued""#;
    let names = r#""namespace": "tallystone.queues", "counter_names": ["jobs~enqueued"]"#;
    for (method, body, path) in [
        ("GetCount", format!("{{{counter}}}"), "/reportedTo"),
        ("BatchGetCounts", format!("{{{names}}}"), "/results/0/reading/reportedTo"),
        ("GetCountSeries", format!("{{{counter}, \"from\": \"{ago}\"}}"), "/reportedTo"),
        ("BatchGetCountSeries", format!("{{{names}, \"from\": \"{ago}\"}}"), "/results/0/series/reportedTo"),
    ] {
        let (status, answer) = wire.post(method, &body).await;
        assert_eq!(status, 200, "{method}: {answer}");
        assert_eq!(answer.pointer(path), Some(&Value::from("2026-11-20T00:00:00Z")), "{method}: {answer}");
    }
    let (_, answer) = wire.post("GetCount", r#"{"namespace": "shop", "counter_name": "views"}"#).await;
    assert_eq!(answer.get("reportedTo"), None, "{answer}");
    let add = format!("{{{counter}, \"delta\": 1}}");
    let (_, refused) = wire.post("AddCount", &add).await;
    assert!(refused.to_string().contains("the queues write namespace tallystone.queues"), "{refused}");
}

#[tokio::test]
async fn days_weeks_and_months_of_a_time_zone_are_steps_in_json() {
    let wire = Wire::start().await;
    wire.post("AddCount", r#"{"namespace": "shop", "counter_name": "seen", "delta": 1}"#).await;
    let ago = rfc3339(&at(-60.0));
    let ask = async |rest: &str| {
        let body = format!(r#"{{"namespace": "shop", "counter_name": "seen", "from": "{ago}", {rest}}}"#);
        wire.post("GetCountSeries", &body).await
    };
    for step in ["1d", "1w", "1mo"] {
        let (status, answer) = ask(&format!(r#""step": "{step}", "time_zone": "Asia/Kolkata""#)).await;
        assert_eq!((status, &answer["step"]), (200, &Value::from(step)), "{answer}");
        let start = answer["rows"][0]["stepStart"].as_str().expect("a row says where it begins");
        assert!(start.ends_with("T18:30:00Z"), "{start}");
    }
    assert_eq!(ask(r#""step": "600s""#).await.1["step"], "600s");
    assert_eq!(ask(r#""step": "10m""#).await.1["step"], "600s");
    for (rest, field) in [
        (r#""step": "1d", "timeZone": "Mars/Olympus""#, "time_zone"),
        (r#""step": "10s", "timeZone": "Asia/Kolkata""#, "time_zone"),
        (r#""timeZone": "Asia/Kolkata""#, "time_zone"),
        (r#""step": "1 day""#, "step"),
    ] {
        let (status, answer) = ask(rest).await;
        assert_eq!(status, 400, "{rest}: {answer}");
        assert!(answer.to_string().contains("INVALID_RANGE") && answer.to_string().contains(field), "{rest}: {answer}");
    }
}

#[tokio::test]
async fn every_unary_method_takes_json() {
    let wire = Wire::start().await;
    let now = rfc3339(&at(0.0));
    let ago = rfc3339(&at(-60.0));
    wire.post("AddCount", r#"{"namespace": "shop", "counter_name": "seen", "delta": 1}"#).await;
    let counter = r#""namespace": "shop", "counter_name": "seen""#;
    for (method, body) in [
        ("AddCount", format!("{{{counter}, \"delta\": 1}}")),
        ("AddAndGetCount", format!("{{{counter}, \"delta\": 1, \"freshness\": \"UP_TO_DATE\"}}")),
        ("GetCount", format!("{{{counter}, \"max_staleness\": \"5s\"}}")),
        ("BatchAddCounts", r#"{"namespace": "shop", "items": [{"counter_name": "seen", "delta": 1}]}"#.to_owned()),
        ("BatchGetCounts", r#"{"namespace": "shop", "counter_names": ["seen"]}"#.to_owned()),
        (
            "ReportTotals",
            r#"{"namespace": "totals", "source": "s", "epoch": 1, "serial": 1,
                "items": [{"counter_name": "seen", "total": 5}]}"#
                .to_owned(),
        ),
        (
            "CheckToken",
            format!("{{{counter}, \"idempotency_token\": {{\"token\": \"t\", \"generation_time\": \"{now}\"}}}}"),
        ),
        ("GetCountSeries", format!("{{{counter}, \"from\": \"{ago}\", \"to\": \"{now}\", \"cumulative\": true}}")),
        (
            "BatchGetCountSeries",
            format!("{{\"namespace\": \"shop\", \"counter_names\": [\"seen\"], \"from\": \"{ago}\"}}"),
        ),
        ("ListCounters", r#"{"namespace": "shop", "prefix": "se", "page_size": 5}"#.to_owned()),
        ("TopCounters", r#"{"namespace": "shop", "n": 3}"#.to_owned()),
        ("ListCountEvents", format!("{{{counter}}}")),
        ("RecountCounter", format!("{{{counter}}}")),
        ("ExplainCounter", format!("{{{counter}, \"rows\": 5}}")),
        ("ClearCount", format!("{{{counter}}}")),
    ] {
        let (status, answer) = wire.post(method, &body).await;
        assert_eq!(status, 200, "{method}: {answer}");
    }
    let path = "/tallystone.admin.v1.NamespaceService/ListNamespaces";
    let answer = wire.http("POST", path, &[("content-type", "application/json")], "{}").await;
    assert_eq!(super::json(&answer.body)["namespaces"][0]["name"], "exact", "{}", answer.body);
    let path = "/grpc.health.v1.Health/Check";
    let answer = wire.http("POST", path, &[("content-type", "application/json; charset=UTF-8")], "{}").await;
    assert_eq!(super::json(&answer.body)["status"], "SERVING", "{}", answer.body);
}

#[tokio::test]
async fn json_travels_on_http_2_as_well() {
    let wire = Wire::start().await;
    let mut channel = wire.channel().await;
    let body = r#"{"namespace": "exact", "counter_name": "two", "delta": 2}"#;
    let request = http::Request::post(format!("http://{}{COUNTERS}/AddCount", wire.address))
        .header("content-type", "application/json")
        .body(Body::new(Full::from(body)))
        .expect("a valid request");
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("the channel is ready");
    let answer = channel.call(request).await.expect("an answer");
    assert_eq!((answer.status(), answer.version()), (http::StatusCode::OK, http::Version::HTTP_2));
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(super::json(&String::from_utf8_lossy(&body))["outcome"], "OUTCOME_APPLIED");
}

#[tokio::test]
async fn pages_go_on_where_the_last_one_ended() {
    let wire = Wire::start().await;
    for at in 0..5 {
        wire.post("AddCount", &format!(r#"{{"namespace": "shop", "counter_name": "c{at}", "delta": 1}}"#)).await;
    }
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let body = json!({"namespace": "shop", "prefix": "c", "page_size": 2, "page_token": page_token});
        let (status, answer) = wire.post("ListCounters", &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        let counters = answer["counters"].as_array().expect("a list");
        seen.extend(counters.iter().map(|counter| counter["counterName"].as_str().expect("a name").to_owned()));
        page_token = answer["nextPageToken"].as_str().expect("a text").to_owned();
        if page_token.is_empty() {
            break;
        }
        let other = json!({"namespace": "exact", "prefix": "c", "page_size": 2, "page_token": page_token});
        let (status, answer) = wire.post("ListCounters", &other.to_string()).await;
        assert_eq!((status, &answer["details"][0]["reason"]), (400, &json!("INVALID_PAGE_TOKEN")), "{answer}");
    }
    assert_eq!(seen, ["c0", "c1", "c2", "c3", "c4"]);
}
