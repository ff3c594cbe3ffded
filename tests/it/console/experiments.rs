//! Experiments: the page says what the call says, trust first.

use std::time::Duration;

use serde_json::{Value, json};

use super::{get, text_of};
use crate::support::harness::{Launch, Server, eventually};

const EXPERIMENT: &str = "experiment?name=checkout&arms=A,B&metric=bought&planned=20000";

/// How soon an experiment has its first look on a busy machine.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(150);

/// A server with counts of two arms: exposures and conversions.
fn counted(data: &std::path::Path, arms: [(&str, i64, i64); 2]) -> Server {
    let server = Launch::dev(data).start();
    for (arm, exposures, conversions) in arms {
        for (metric, delta) in [("exposures", exposures), ("bought", conversions)] {
            let add =
                json!({"namespace": "default", "counterName": format!("exp/checkout/{arm}/{metric}"), "delta": delta});
            let added = server.post("/tallystone.counter.v1.CounterService/AddCount", &add.to_string());
            assert_eq!(added.status, 200, "{}", added.body);
        }
    }
    server
}

fn page(server: &Server) -> String {
    let answer = get(server, &format!("/console/{EXPERIMENT}"), &[]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// What the call says of the same experiment.
fn compared(server: &Server) -> Value {
    let experiment = json!({
        "name": "checkout", "namespace": "default", "arms": [{"name": "A", "weight": 1}, {"name": "B", "weight": 1}],
        "metric": "bought", "plannedExposures": "20000",
    });
    let path = "/tallystone.experiment.v1.ExperimentService/CompareExperiment";
    let answer = server.post(path, &json!({"experiment": experiment}).to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[test]
fn the_page_of_an_experiment_shows_what_the_call_answers() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = counted(data.path(), [("A", 10_000, 500), ("B", 10_000, 700)]);
    let (page, answer) = (page(&server), compared(&server));
    let percent = |value: &Value| format!("{:.2}", value.as_f64().expect("a number") * 100.0);
    for (arm, result) in [("A", &answer["arms"][0]), ("B", &answer["arms"][1])] {
        let row = page.split(&format!("data-testid=\"arm-row\" data-arm=\"{arm}\"")).nth(1).expect("a row of the arm");
        let metric = &result["metrics"][0];
        let interval = format!("{} to {} %", percent(&metric["lower"]), percent(&metric["upper"]));
        assert!(text_of(row, "arm-interval").starts_with(&interval), "{interval}: {row}");
        assert!(row.contains("10,000"), "{row}");
    }
    let contrast = &answer["contrasts"][0];
    assert_eq!(contrast["verdict"], json!("EXPERIMENT_VERDICT_HIGHER"), "{answer}");
    assert!(page.contains("data-verdict=\"HIGHER\""), "{page}");
    assert_eq!(text_of(&page, "verdict"), "Higher");
    let interval = format!("+{} to +{}", percent(&contrast["lower"]), percent(&contrast["upper"]));
    assert_eq!(text_of(&page, "contrast-interval"), interval);
    assert_eq!(text_of(&page, "sample-ratio"), "As declared");
    assert!(!page.contains("trust-banner"), "{page}");
    assert!(page.contains("tallystone exp compare checkout -n default --arm A=1 --arm B=1"), "{page}");
}

#[test]
fn a_result_that_is_not_trusted_says_so_before_its_numbers() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = counted(data.path(), [("A", 12_000, 600), ("B", 8_000, 600)]);
    let page = page(&server);
    assert!(text_of(&page, "trust-banner").starts_with("Not trusted: "), "{page}");
    assert!(page.contains("data-verdict=\"NOT_TRUSTED\""), "{page}");
    assert_eq!(text_of(&page, "sample-ratio"), "Mismatch");
    let at = |mark: &str| page.find(mark).unwrap_or_else(|| panic!("no {mark} in {page}"));
    assert!(
        at("trust-banner") < at("data-testid=\"verdict\"") && at("data-testid=\"verdict\"") < at("arm-row"),
        "{page}"
    );
}

#[test]
fn an_experiment_that_is_none_is_explained() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    for query in ["name=x&arms=A&metric=m&planned=10", "name=x&arms=A,B%3D0&metric=m&planned=10"] {
        let answer = get(&server, &format!("/console/experiment?{query}"), &[]);
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    let unknown = get(&server, "/console/experiment?name=x", &[]);
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    let empty = get(&server, "/console/experiment?name=x&arms=A,B&metric=m&planned=10", &[]);
    assert_eq!(empty.status, 200, "{}", empty.body);
    assert_eq!(text_of(&empty.body, "verdict"), "Too early to say");
}

#[test]
fn experiments_that_are_kept_are_listed_and_shown_by_their_names() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = counted(data.path(), [("A", 10_000, 500), ("B", 10_000, 700)]);
    let create = |name: &str, weight: u32| {
        let experiment = json!({
            "name": name, "namespace": "default", "arms": [{"name": "A"}, {"name": "B", "weight": weight}],
            "metric": "bought", "plannedExposures": "20000", "description": "<script>alert(1)</script>",
        });
        let path = "/tallystone.experiment.v1.ExperimentService/CreateExperiment";
        let created = server.post(path, &json!({"experiment": experiment}).to_string());
        assert_eq!(created.status, 200, "{}", created.body);
    };
    create("checkout", 1);
    create("uneven", 3);
    let list = get(&server, "/console/experiments", &[]).body;
    for shown in
        ["href=\"experiment?name=checkout\"", "href=\"experiment?name=uneven\"", "A=1, B=3", "20,000", "running"]
    {
        assert!(list.contains(shown), "{shown}: {list}");
    }
    let page = get(&server, "/console/experiment?name=checkout", &[]).body;
    assert_eq!(text_of(&page, "verdict"), "Higher");
    assert!(page.contains(&format!("tallystone exp compare checkout --server {}", server.address)), "{page}");
    // The first look is written within a minute.
    let is_drawn = || get(&server, "/console/experiment?name=checkout", &[]).body.contains("B − A over time");
    assert!(eventually(FIRST_LOOK_WITHIN, is_drawn), "{page}");
    assert!(page.contains("&lt;script&gt;") || page.contains("&#60;script"), "{page}");
    assert!(!page.contains("<script>alert"), "{page}");
}
