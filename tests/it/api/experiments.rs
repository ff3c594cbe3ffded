//! Experiments through real sockets.

use serde_json::{Value, json};
use tallystone::client::{Client, RetryPolicy};
use tallystone::domain::Reason;
use tallystone::proto::experiment::v1::PlanExperimentRequest;
use tallystone::proto::experiment::v1::experiment_service_client::ExperimentServiceClient;

use super::{Wire, reason};

const EXPERIMENTS: &str = "/tallystone.experiment.v1.ExperimentService";

impl Wire {
    async fn experiment(&self, method: &str, body: &Value) -> (u16, Value) {
        let path = format!("{EXPERIMENTS}/{method}");
        let answer = self.http("POST", &path, &[("content-type", "application/json")], &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    }
}

#[tokio::test]
async fn a_plan_answers_the_published_sizes() {
    let server = Wire::start().await;
    let (status, plan) = server.experiment("PlanExperiment", &json!({"baseline": 0.2, "effect": 0.05})).await;
    assert_eq!(status, 200, "{plan}");
    assert_eq!(plan["fixedExposuresPerArm"], "1030");
    assert_eq!((&plan["fixedExposures"], &plan["alwaysValidExposures"]), (&json!("2060"), &json!("3918")));
    let width = plan["widthRatio"].as_f64().expect("a number");
    assert!((width - 1.5486).abs() < 0.000_05, "{plan}");
    let asked = PlanExperimentRequest { baseline: 0.2, effect: 0.05, arms: 4, ..Default::default() };
    let mut client = ExperimentServiceClient::new(server.channel().await);
    let four = client.plan_experiment(asked).await.expect("a plan").into_inner();
    assert!(four.fixed_exposures_per_arm > 1_030, "four arms share alpha: {four:?}");
    assert_eq!(four.fixed_exposures, 4 * four.fixed_exposures_per_arm);
}

#[tokio::test]
async fn a_plan_names_the_field_that_it_refuses() {
    let server = Wire::start().await;
    let cases = [
        (json!({"effect": 0.05}), "baseline"),
        (json!({"baseline": 0.2}), "effect"),
        (json!({"baseline": 0.2, "effect": 0.9}), "effect"),
        (json!({"baseline": 0.2, "effect": 0.05, "power": 1}), "power"),
        (json!({"baseline": 0.2, "effect": 0.05, "alpha": "NaN"}), "alpha"),
        (json!({"baseline": 0.2, "effect": 0.05, "alpha": 0.6}), "alpha"),
        (json!({"baseline": 0.2, "effect": 0.05, "arms": 1}), "arms"),
        (json!({"baseline": 0.2, "effect": 0.05, "arms": 9}), "arms"),
        (json!({"baseline": 0.2, "effect": 0.05, "arms": -1}), "arms"),
    ];
    for (body, field) in cases {
        let (status, answer) = server.experiment("PlanExperiment", &body).await;
        assert_eq!(status, 400, "{body}: {answer}");
        assert_eq!(answer["details"][0]["reason"], Reason::InvalidArgument.info().name, "{body}: {answer}");
        assert!(answer.to_string().contains(&format!("\"field\":\"{field}\"")), "{body}: {answer}");
    }
    let client = Client::new(&server.address.to_string(), RetryPolicy::default()).expect("a valid address");
    let asked = PlanExperimentRequest::default();
    let refused = client.experiments().plan_experiment(asked).await.expect_err("no baseline");
    assert_eq!(reason(&refused), "INVALID_ARGUMENT");
}

/// An experiment of two arms with the counters in a namespace.
fn checkout(namespace: &str) -> Value {
    json!({
        "name": "checkout",
        "namespace": namespace,
        "arms": [{"name": "A"}, {"name": "B"}],
        "metric": "bought",
        "secondary_metrics": ["opened"],
        "planned_exposures": "20000",
    })
}

impl Wire {
    /// Adds to counters of the experiment.
    async fn count(&self, namespace: &str, counts: &[(&str, i64)]) {
        for (counter, delta) in counts {
            let name = format!("exp/checkout/{counter}");
            let body = json!({"namespace": namespace, "counter_name": name, "delta": delta.to_string()});
            let (status, answer) = self.post("AddCount", &body.to_string()).await;
            assert_eq!(status, 200, "{answer}");
        }
    }

    async fn compared(&self, experiment: &Value) -> Value {
        let (status, answer) = self.experiment("CompareExperiment", &json!({ "experiment": experiment })).await;
        assert_eq!(status, 200, "{experiment}: {answer}");
        answer
    }
}

#[tokio::test]
async fn a_comparison_reads_what_was_just_added() {
    let server = Wire::start().await;
    let before = server.compared(&checkout("shop")).await;
    assert_eq!(before["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_TOO_EARLY", "{before}");
    assert_eq!(before["contrasts"][0].get("lower"), None, "no interval before there is a rate: {before}");
    let counts =
        [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700), ("B/opened", 900)];
    server.count("shop", &counts).await;
    let found = server.compared(&checkout("shop")).await;
    let contrast = &found["contrasts"][0];
    assert_eq!((&contrast["arm"], &contrast["control"]), (&json!("B"), &json!("A")));
    assert_eq!(contrast["verdict"], "EXPERIMENT_VERDICT_HIGHER", "{found}");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number: {found}"));
    assert!((number(&contrast["difference"]) - 0.02).abs() < 1e-12, "{found}");
    // By hand: sqrt(0.05 * 0.95 / 10,000 + 0.07 * 0.93 / 10,000) is 0.003356, 3.0352 times that is 0.010186.
    assert!((number(&contrast["lower"]) - 0.009_814).abs() < 5e-6, "{found}");
    assert!((number(&contrast["upper"]) - 0.030_186).abs() < 5e-6, "{found}");
    let opened = &found["arms"][1]["metrics"][1];
    assert_eq!((&opened["metric"], &opened["conversions"]), (&json!("opened"), &json!("900")));
    assert!(found["doubts"].as_array().is_none_or(Vec::is_empty), "{found}");
    let mut fixed = checkout("shop");
    fixed["mode"] = json!("EXPERIMENT_MODE_FIXED");
    fixed["planned_exposures"] = json!("20001");
    let early = server.compared(&fixed).await;
    assert_eq!(early["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_TOO_EARLY", "{early}");
}

#[tokio::test]
async fn a_doubt_withholds_the_verdict_and_names_its_counter() {
    let server = Wire::start().await;
    let good = [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)];
    let kind =
        |found: &Value| found["doubts"][0]["kind"].as_str().unwrap_or_default().replace("EXPERIMENT_DOUBT_KIND_", "");
    server.count("fast", &good).await;
    let found = server.compared(&checkout("fast")).await;
    assert_eq!(kind(&found), "UNWATCHED_ESTIMATES", "{found}");
    assert_eq!(found["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_NOT_TRUSTED", "{found}");
    assert!(found["banners"][0].as_str().is_some_and(|banner| banner.starts_with("ESTIMATE")), "{found}");
    server.count("shop", &good).await;
    server.count("shop", &[("B/exposures", 900)]).await;
    let found = server.compared(&checkout("shop")).await;
    assert_eq!(kind(&found), "SAMPLE_RATIO_MISMATCH", "{found}");
    let text = found["doubts"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("split 47.8 : 52.2, declared 50.0 : 50.0; p "), "{found}");
    server.count("exact", &good).await;
    server.count("exact", &[("B/bought", 9_301)]).await;
    let found = server.compared(&checkout("exact")).await;
    assert_eq!(kind(&found), "CONVERSIONS_ABOVE_EXPOSURES", "{found}");
    assert_eq!(found["doubts"][0]["counterName"], "exp/checkout/B/bought");
    server.count("exact", &[("A/opened", 5), ("B/bought", -20_000)]).await;
    let found = server.compared(&checkout("exact")).await;
    assert_eq!(kind(&found), "NEGATIVE_COUNT", "{found}");
}

#[tokio::test]
async fn an_experiment_with_a_fault_is_refused_with_its_field() {
    let server = Wire::start().await;
    let cases = [
        ("name", json!("a/b"), 400),
        ("arms", json!([{"name": "A"}]), 400),
        ("arms", json!([{"name": "A"}, {"name": "A"}]), 400),
        ("metric", json!("exposures"), 400),
        ("planned_exposures", json!("0"), 400),
        ("alpha", json!(0.7), 400),
        ("mode", json!(7), 400),
        ("unit", json!(7), 400),
        ("namespace", json!("nowhere"), 404),
    ];
    for (field, value, expected) in cases {
        let mut experiment = checkout("shop");
        experiment[field] = value;
        let (status, answer) = server.experiment("CompareExperiment", &json!({ "experiment": experiment })).await;
        assert_eq!(status, expected, "{field}: {answer}");
    }
    let (status, answer) = server.experiment("CompareExperiment", &json!({})).await;
    assert_eq!(status, 400, "{answer}");
}

#[tokio::test]
async fn a_reader_is_told_that_units_repeat() {
    let server = Wire::start().await;
    let mut experiment = checkout("shop");
    experiment["unit"] = json!("EXPERIMENT_UNIT_EVENT");
    let found = server.compared(&experiment).await;
    assert!(found["banners"][0].as_str().is_some_and(|banner| banner.starts_with("UNITS REPEAT")), "{found}");
}
