//! Experiments through real sockets.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::system::SystemClock;
use tallystone::client::{Client, RetryPolicy};
use tallystone::domain::Reason;
use tallystone::ports::Clock as _;
use tallystone::proto::experiment::v1::experiment_service_client::ExperimentServiceClient;
use tallystone::proto::experiment::v1::{CreateExperimentRequest, Experiment, ExperimentArm, PlanExperimentRequest};

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
    let asked = PlanExperimentRequest { baseline: 0.2, effect: 0.05, arms: Some(4), ..Default::default() };
    let mut client = ExperimentServiceClient::new(server.patient_channel().await);
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

fn has_banner(found: &Value, start: &str) -> bool {
    let banners = found["banners"].as_array().cloned().unwrap_or_default();
    banners.iter().any(|banner| banner.as_str().is_some_and(|banner| banner.starts_with(start)))
}

#[tokio::test]
async fn a_reader_is_told_what_the_numbers_do_not_show() {
    let server = Wire::start().await;
    let nothing = server.compared(&checkout("shop")).await;
    let named = "NOTHING COUNTED: exp/checkout/A/exposures, exp/checkout/B/exposures have no adds";
    assert!(has_banner(&nothing, named), "{nothing}");
    let counts = [("A/exposures", 100), ("B/exposures", 100), ("B/opened", 101), ("A/bought", -3)];
    server.count("shop", &counts).await;
    let found = server.compared(&checkout("shop")).await;
    assert!(!has_banner(&found, "NOTHING COUNTED"), "{found}");
    assert!(has_banner(&found, "NO RATE: B/opened happened more often"), "{found}");
    assert_eq!(found["doubts"][0]["kind"], "EXPERIMENT_DOUBT_KIND_NEGATIVE_COUNT", "{found}");
    assert!(found["doubts"][0]["text"].as_str().is_some_and(|text| text.contains("is -3")), "{found}");
}

#[tokio::test]
async fn an_experiment_that_begins_with_counts_says_so_at_each_look() {
    let server = Wire::start().await;
    let create = json!({"experiment": checkout("shop")});
    let compare = json!({"name": "checkout"});
    assert_eq!(server.experiment("CreateExperiment", &create).await.0, 200);
    let (_, first) = server.experiment("CompareExperiment", &compare).await;
    assert!(!has_banner(&first, "OLDER COUNTS"), "{first}");
    server.count("shop", &[("A/exposures", 70), ("B/exposures", 50), ("B/bought", 9)]).await;
    assert_eq!(server.experiment("DeleteExperiment", &json!({"name": "checkout"})).await.0, 200);
    let (status, made) = server.experiment("CreateExperiment", &create).await;
    assert_eq!(status, 200, "{made}");
    let (_, found) = server.experiment("CompareExperiment", &compare).await;
    assert!(has_banner(&found, "OLDER COUNTS: its counters held 120 exposures when it was created"), "{found}");
    let described = json!({"name": "checkout", "description": "the new button", "etag": made["experiment"]["etag"]});
    let (status, updated) = server.experiment("UpdateExperiment", &json!({"experiment": described})).await;
    assert_eq!(status, 200, "{updated}");
    let (_, found) = server.experiment("CompareExperiment", &compare).await;
    assert!(has_banner(&found, "OLDER COUNTS"), "a change does not forget it: {found}");

    assert!(has_banner(&server.compared(&checkout("shop")).await, "KEPT: `exp compare checkout`"));
    let mut other = checkout("shop");
    other["planned_exposures"] = json!("10");
    let judged = server.compared(&other).await;
    assert!(has_banner(&judged, "NOT THE KEPT ONE: an experiment checkout is kept"), "{judged}");
}

#[tokio::test]
async fn the_history_has_the_address_of_a_caller_that_names_no_actor() {
    let server = Wire::start().await;
    let mut client = ExperimentServiceClient::new(server.patient_channel().await);
    let arms = ["A", "B"].map(|name| ExperimentArm { name: name.to_owned(), weight: Some(1) });
    let experiment = Experiment {
        name: "checkout".to_owned(),
        namespace: "shop".to_owned(),
        arms: arms.into(),
        metric: "bought".to_owned(),
        planned_exposures: Some(10),
        ..Default::default()
    };
    let create = CreateExperimentRequest { experiment: Some(experiment), reason: String::new() };
    client.create_experiment(create).await.expect("it is created");
    let (_, history) = server.experiment("ListExperimentChanges", &json!({"name": "checkout"})).await;
    assert_eq!(history["changes"][0]["actor"], "127.0.0.1", "{history}");
}

#[tokio::test]
async fn an_experiment_whose_counters_nobody_may_add_to_is_refused() {
    let server = Wire::start().await;
    let create = json!({"experiment": checkout("tallystone.experiments")});
    let (status, refused) = server.experiment("CreateExperiment", &create).await;
    assert_eq!(refused["details"][0]["reason"], "NAMESPACE_READ_ONLY", "{status} {refused}");
}

#[tokio::test]
async fn a_kept_experiment_is_compared_by_its_name() {
    let server = Wire::start().await;
    let create = json!({"experiment": checkout("shop"), "reason": "the new button"});
    let (status, made) = server.experiment("CreateExperiment", &create).await;
    assert_eq!(status, 200, "{made}");
    let made = &made["experiment"];
    assert_eq!((&made["state"], &made["version"]), (&json!("EXPERIMENT_STATE_RUNNING"), &json!("1")));
    let (status, again) = server.experiment("CreateExperiment", &create).await;
    assert_eq!((status, &again["experiment"]), (200, made), "a repeat answers the same experiment");
    let counts = [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)];
    server.count("shop", &counts).await;
    let (status, named) = server.experiment("CompareExperiment", &json!({"name": "checkout"})).await;
    assert_eq!(status, 200, "{named}");
    let sent = server.compared(&checkout("shop")).await;
    assert_eq!((&named["arms"], &named["contrasts"]), (&sent["arms"], &sent["contrasts"]));
    assert_eq!(named["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_HIGHER", "{named}");
    let both = json!({"name": "checkout", "experiment": checkout("shop")});
    assert_eq!(server.experiment("CompareExperiment", &both).await.0, 400);
    let (status, stopped) = server.experiment("StopExperiment", &json!({"name": "checkout"})).await;
    assert_eq!((status, &stopped["experiment"]["state"]), (200, &json!("EXPERIMENT_STATE_STOPPED")), "{stopped}");
    let (_, repeated) = server.experiment("StopExperiment", &json!({"name": "checkout"})).await;
    assert_eq!(repeated, stopped, "it was stopped once");
    let (_, named) = server.experiment("CompareExperiment", &json!({"name": "checkout"})).await;
    assert!(named["banners"][0].as_str().is_some_and(|banner| banner.starts_with("STOPPED at ")), "{named}");
    let (status, answer) = server.experiment("CreateExperiment", &create).await;
    assert_eq!(status, 409, "a stopped experiment does not begin again: {answer}");
    assert_eq!(answer["details"][0]["reason"], "EXPERIMENT_EXISTS", "{answer}");
}

#[tokio::test]
async fn what_an_experiment_rests_on_is_fixed_and_its_history_says_what_changed() {
    let server = Wire::start().await;
    let (_, made) = server.experiment("CreateExperiment", &json!({"experiment": checkout("shop")})).await;
    let mut begun = made["experiment"].clone();
    for set_by_service in ["state", "createTime", "updateTime", "stopTime", "version"] {
        begun.as_object_mut().expect("an object").remove(set_by_service);
    }
    let update = |field: &str, value: Value| {
        let mut experiment = begun.clone();
        experiment[field] = value;
        json!({"experiment": experiment, "reason": "tried"})
    };
    let fixed = [
        ("arms", json!([{"name": "A", "weight": 9}, {"name": "B", "weight": 1}])),
        ("metric", json!("sold")),
        ("plannedExposures", json!("20001")),
        ("alpha", json!(0.01)),
        ("mode", json!("EXPERIMENT_MODE_FIXED")),
        ("unit", json!("EXPERIMENT_UNIT_EVENT")),
        ("namespace", json!("exact")),
    ];
    for (field, value) in fixed {
        let (status, answer) = server.experiment("UpdateExperiment", &update(field, value)).await;
        assert_eq!(status, 412, "{field}: {answer}");
        assert_eq!(answer["details"][0]["reason"], "SETTING_IS_FIXED", "{field}: {answer}");
    }
    let described = update("description", json!("the new button"));
    let (status, after) = server.experiment("UpdateExperiment", &described).await;
    assert_eq!((status, &after["experiment"]["version"]), (200, &json!("2")), "{after}");
    let (status, answer) = server.experiment("UpdateExperiment", &update("description", json!("late"))).await;
    assert_eq!(answer["details"][0]["reason"], "ETAG_MISMATCH", "{status}: {answer}");
    let stale = json!({"name": "checkout", "etag": begun["etag"]});
    assert_eq!(server.experiment("StopExperiment", &stale).await.1["details"][0]["reason"], "ETAG_MISMATCH");
    let remove = json!({"name": "checkout", "etag": after["experiment"]["etag"], "reason": "done"});
    assert_eq!(server.experiment("DeleteExperiment", &remove).await.0, 200);
    let (status, answer) = server.experiment("GetExperiment", &json!({"name": "checkout"})).await;
    assert_eq!((status, &answer["details"][0]["reason"]), (404, &json!("EXPERIMENT_NOT_FOUND")), "{answer}");
    let first = json!({"name": "checkout", "page_size": 2});
    let (_, newest) = server.experiment("ListExperimentChanges", &first).await;
    let differences = |page: &Value, at: usize| page["changes"][at]["differences"][0].as_str().map(str::to_owned);
    assert_eq!(differences(&newest, 0).as_deref(), Some("the experiment was deleted"), "{newest}");
    assert_eq!(differences(&newest, 1).as_deref(), Some("description:  -> the new button"), "{newest}");
    assert_eq!(newest["changes"][0]["reason"], "done", "{newest}");
    let next = json!({"name": "checkout", "page_size": 2, "page_token": newest["nextPageToken"]});
    let (_, oldest) = server.experiment("ListExperimentChanges", &next).await;
    assert_eq!(oldest["changes"].as_array().map(Vec::len), Some(1), "{oldest}");
    assert_eq!(oldest["changes"][0]["version"], "1", "{oldest}");
}

#[tokio::test]
async fn experiments_are_listed_by_name_in_pages() {
    let server = Wire::start().await;
    for name in ["menu", "checkout-2", "checkout-1", "checkout-3"] {
        let mut experiment = checkout("shop");
        experiment["name"] = json!(name);
        let (status, answer) = server.experiment("CreateExperiment", &json!({ "experiment": experiment })).await;
        assert_eq!(status, 200, "{answer}");
    }
    let names = |page: &Value| -> Vec<String> {
        let listed = page["experiments"].as_array().cloned().unwrap_or_default();
        listed.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect()
    };
    let (_, page) = server.experiment("ListExperiments", &json!({"prefix": "check", "page_size": 2})).await;
    assert_eq!(names(&page), ["checkout-1", "checkout-2"], "{page}");
    let token = &page["nextPageToken"];
    let next = json!({"prefix": "check", "page_size": 2, "page_token": token});
    assert_eq!(names(&server.experiment("ListExperiments", &next).await.1), ["checkout-3"]);
    let other = json!({"prefix": "menu", "page_size": 2, "page_token": token});
    assert_eq!(server.experiment("ListExperiments", &other).await.0, 400, "a token of another list");
    let mut nowhere = checkout("nowhere");
    nowhere["name"] = json!("lost");
    let (status, answer) = server.experiment("CreateExperiment", &json!({ "experiment": nowhere })).await;
    assert_eq!(status, 404, "{answer}");
}

/// Moves the clock in small steps, and lets every task come to rest after each.
async fn second_passes(clock: &ManualClock) {
    for _ in 0..10 {
        clock.advance(Duration::from_millis(100));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

impl Wire {
    /// Calls a method until its answer is as it should be, or three minutes of the clock have passed.
    async fn experiment_where(
        &self,
        clock: &ManualClock,
        (method, body): (&str, &Value),
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut answer = Value::Null;
        for _ in 0..180 {
            answer = self.experiment(method, body).await.1;
            if is_so(&answer) {
                return answer;
            }
            second_passes(clock).await;
        }
        panic!("{method} within three minutes: {answer}");
    }
}

#[tokio::test]
async fn a_counter_that_fell_withholds_the_verdict_for_good_and_names_itself() {
    let clock = ManualClock::at(SystemClock.now());
    let server = Wire::with_clock(&clock).await;
    let (status, made) = server.experiment("CreateExperiment", &json!({"experiment": checkout("fast")})).await;
    assert_eq!(status, 200, "{made}");
    let counts = [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)];
    server.count("fast", &counts).await;
    let named = json!({"name": "checkout"});
    let kind =
        |found: &Value| found["doubts"][0]["kind"].as_str().map(|kind| kind.replace("EXPERIMENT_DOUBT_KIND_", ""));
    let (_, found) = server.experiment("CompareExperiment", &named).await;
    assert_eq!(kind(&found).as_deref(), Some("UNWATCHED_ESTIMATES"), "no total was written yet: {found}");
    // The totals of the first minute may be from before the adds.
    let sees_all = |looks: &Value| {
        let last = looks["looks"].as_array().and_then(|looks| looks.last());
        last.is_some_and(|look| look["arms"][1]["exposures"] == "10000")
    };
    server.experiment_where(&clock, ("ListExperimentLooks", &named), sees_all).await;
    let (_, watched) = server.experiment("CompareExperiment", &named).await;
    assert_eq!(watched["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_HIGHER", "{watched}");
    assert!(watched["banners"][0].as_str().is_some_and(|banner| banner.starts_with("ESTIMATE")), "{watched}");
    let clear = json!({"namespace": "fast", "counter_name": "exp/checkout/B/exposures"});
    let (status, answer) = server.post("ClearCount", &clear.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    server.count("fast", &[("B/exposures", 1_888)]).await;
    let (_, fell) = server.experiment("CompareExperiment", &named).await;
    assert_eq!(kind(&fell).as_deref(), Some("COUNTER_FELL"), "{fell}");
    assert_eq!(fell["doubts"][0]["counterName"], "B/exposures", "{fell}");
    let text = fell["doubts"][0]["text"].as_str().unwrap_or_default();
    let at = text.strip_prefix("B/exposures fell by 8112 at ").map(str::parse::<prost_types::Timestamp>);
    // The clock has stood since the counter was cleared.
    assert_eq!(at.map(|at| at.map(|at| at.seconds)), Some(Ok(clock.now().micros() / 1_000_000)), "{fell}");
    let is_noted = |changes: &Value| changes["changes"][0]["differences"][0] == "B/exposures fell by 8112";
    let noted = server.experiment_where(&clock, ("ListExperimentChanges", &named), is_noted).await;
    assert_eq!(noted["changes"][0]["actor"], "tallystone", "{noted}");
    server.count("fast", &[("B/exposures", 8_112)]).await;
    let (_, grown) = server.experiment("CompareExperiment", &named).await;
    assert_eq!(
        grown["contrasts"][0]["verdict"], "EXPERIMENT_VERDICT_NOT_TRUSTED",
        "it is back, and not the same: {grown}"
    );
    assert_eq!(grown["doubts"].as_array().map(Vec::len), Some(1), "{grown}");
    let (_, again) = server.experiment("CreateExperiment", &json!({"experiment": checkout("fast")})).await;
    assert_eq!(again["experiment"]["version"], "2", "what was noted is no other setting: {again}");
}

#[tokio::test]
async fn looks_are_listed_minute_by_minute_in_pages() {
    let clock = ManualClock::at(SystemClock.now());
    let server = Wire::with_clock(&clock).await;
    server.experiment("CreateExperiment", &json!({"experiment": checkout("shop")})).await;
    server.count("shop", &[("A/exposures", 5_000), ("A/bought", 250), ("B/exposures", 5_000), ("B/bought", 300)]).await;
    let named = json!({"name": "checkout"});
    let three = |looks: &Value| {
        let listed = looks["looks"].as_array().map(Vec::as_slice).unwrap_or_default();
        listed.iter().filter(|look| look["arms"][0]["exposures"] == "5000").count() >= 2
    };
    let whole = server.experiment_where(&clock, ("ListExperimentLooks", &named), three).await;
    assert_eq!(whole["step"], "60s", "{whole}");
    let looks = whole["looks"].as_array().expect("looks").clone();
    let last = looks.last().expect("a look");
    assert_eq!((&last["arms"][1]["arm"], &last["arms"][1]["conversions"]), (&json!("B"), &json!("300")), "{whole}");
    assert!(last["contrasts"][0]["difference"].as_f64().is_some_and(|difference| (difference - 0.01).abs() < 1e-9));
    let (_, page) = server.experiment("ListExperimentLooks", &json!({"name": "checkout", "page_size": 1})).await;
    assert_eq!(page["looks"], json!([looks[0]]), "{page}");
    let next = json!({"name": "checkout", "page_size": 1, "page_token": page["nextPageToken"]});
    assert_eq!(server.experiment("ListExperimentLooks", &next).await.1["looks"], json!([looks[1]]));
    let (status, answer) = server.experiment("ListExperimentLooks", &json!({"name": "checkout", "step": "1s"})).await;
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = server.experiment("ListExperimentLooks", &json!({"name": "nothing"})).await;
    assert_eq!(status, 404, "{answer}");
}
