//! What a request leaves out stays as it is, or has its default; what it says counts, also if it is 0 or empty.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::Wire;
use super::queues::violations;

const NAMESPACES: &str = "tallystone.admin.v1.NamespaceService";
const EXPERIMENTS: &str = "tallystone.experiment.v1.ExperimentService";
const QUEUES: &str = "tallystone.queue.v1.QueueService";

impl Wire {
    async fn taken_by(&self, service: &str, method: &str, body: Value) -> Value {
        let (status, answer) = self.tell(service, method, &body).await;
        assert_eq!(status, 200, "{method} {body}: {answer}");
        answer
    }

    /// The fields at fault of a call that is refused.
    async fn faults(&self, service: &str, method: &str, body: Value, reason: Reason) -> Vec<String> {
        let (status, answer) = self.tell(service, method, &body).await;
        assert_eq!(answer["details"][0]["reason"], reason.info().name, "{method} {body}: {status} {answer}");
        violations(&answer).into_iter().map(str::to_owned).collect()
    }

    async fn tell(&self, service: &str, method: &str, body: &Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let answer = self.http("POST", &format!("/{service}/{method}"), &headers, &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    }
}

#[tokio::test]
async fn one_part_of_a_retry_policy_leaves_the_others_as_they_are() {
    let server = Wire::start().await;
    let part = |part: Value| json!({"queue": {"name": "mail", "retry_policy": part}});
    let made = server.taken_by(QUEUES, "CreateQueue", part(json!({"jitter_percent": 0}))).await;
    let expected = json!({"initial": "1s", "factorPercent": 200, "max": "300s", "jitterPercent": 0});
    assert_eq!(made["queue"]["retryPolicy"], expected, "the defaults");
    let changed = server.taken_by(QUEUES, "UpdateQueue", part(json!({"max": "60s"}))).await;
    let expected = json!({"initial": "1s", "factorPercent": 200, "max": "60s", "jitterPercent": 0});
    assert_eq!(changed["queue"]["retryPolicy"], expected);
    let faults = server.faults(QUEUES, "UpdateQueue", part(json!({"factor_percent": 0})), Reason::InvalidSettings);
    assert_eq!(faults.await, ["queue.retry_policy.factor_percent"], "0 is no default");
    let none = json!({"queue": {"name": "none", "shards": 0}});
    assert_eq!(server.faults(QUEUES, "CreateQueue", none, Reason::InvalidSettings).await, ["queue.shards"]);
    let described =
        server.taken_by(QUEUES, "UpdateQueue", json!({"queue": {"name": "mail", "description": "letters"}})).await;
    assert_eq!(described["queue"]["retryPolicy"], expected);
    let empty = server.taken_by(QUEUES, "UpdateQueue", json!({"queue": {"name": "mail", "description": ""}})).await;
    assert_eq!(empty["queue"]["description"], "", "an empty text is no absent one");
}

#[tokio::test]
async fn an_update_of_a_namespace_changes_what_it_says_and_nothing_else() {
    let server = Wire::start().await;
    let made = json!({"namespace": {
        "name": "visits", "description": "visits of pages", "ttl": "3600s", "counter_type": "ACCURATE",
        "counter_cardinality": "HIGH", "series": [{"step": "60s", "keep": "86400s"}],
        "rollup": {"coalesce_ms": 500}, "time_partition": {"buckets_per_id": 9},
        "hot_counters": [{"counter_name": "front", "buckets_per_id": 16}]}});
    let mut expected = server.taken_by(NAMESPACES, "CreateNamespace", made).await["namespace"].clone();
    let update = |part: Value| {
        let mut namespace = part;
        namespace["name"] = json!("visits");
        json!({"namespace": namespace})
    };
    let settings = |answer: &Value| {
        let mut namespace = answer["namespace"].clone();
        for changing in ["etag", "version", "updateTime"] {
            namespace.as_object_mut().expect("an object").remove(changing);
        }
        namespace
    };
    let changed = server.taken_by(NAMESPACES, "UpdateNamespace", update(json!({"rollup": {"num_queues": 4}}))).await;
    expected["rollup"]["numQueues"] = json!(4);
    assert_eq!(settings(&changed), settings(&json!({"namespace": expected})));
    let faults = update(json!({"rollup": {"num_queues": 0}}));
    server.faults(NAMESPACES, "UpdateNamespace", faults, Reason::InvalidSettings).await;
    let mut without = update(json!({"ttl": "0s", "description": ""}));
    without["reset"] = json!(["series", "hot_counters", "rollup"]);
    let bare = server.taken_by(NAMESPACES, "UpdateNamespace", without).await["namespace"].clone();
    assert_eq!((&bare["description"], &bare["series"], &bare["hotCounters"]), (&json!(""), &json!([]), &json!([])));
    assert_eq!((bare.get("ttl").filter(|ttl| !ttl.is_null()), &bare["rollup"]["coalesceMs"]), (None, &json!(10_000)));
    assert_eq!(bare["timePartition"]["bucketsPerId"], 9, "nobody named it");
    let mut unknown = update(json!({}));
    unknown["reset"] = json!(["temporality"]);
    let faults = server.faults(NAMESPACES, "UpdateNamespace", unknown, Reason::InvalidSettings);
    assert_eq!(faults.await, ["reset"]);
}

#[tokio::test]
async fn a_setting_is_reset_or_set_and_a_call_that_does_both_is_refused() {
    let server = Wire::start().await;
    const QUEUES: &str = "tallystone.queue.v1.QueueService";
    let queue = json!({"name": "mail", "description": "of the shop", "default_max_attempts": 9});
    server.taken_by(QUEUES, "CreateQueue", json!({"queue": queue})).await;
    server
        .taken_by(NAMESPACES, "CreateNamespace", json!({"namespace": {"name": "visits", "description": "old"}}))
        .await;
    let experiment = checkout(json!([{"name": "A"}, {"name": "B"}]));
    server.taken_by(EXPERIMENTS, "CreateExperiment", json!({"experiment": experiment})).await;
    let both = [
        (
            QUEUES,
            "UpdateQueue",
            json!({"queue": {"name": "mail", "default_max_attempts": 7}, "reset": ["default_max_attempts"]}),
        ),
        (
            NAMESPACES,
            "UpdateNamespace",
            json!({"namespace": {"name": "visits", "description": "new"}, "reset": ["description"]}),
        ),
        (
            EXPERIMENTS,
            "UpdateExperiment",
            json!({"experiment": {"name": "checkout", "description": "new"}, "reset": ["description"]}),
        ),
    ];
    for (service, method, body) in both {
        let reason = if service == EXPERIMENTS { Reason::InvalidArgument } else { Reason::InvalidSettings };
        assert_eq!(server.faults(service, method, body, reason).await, ["reset"], "{method}");
    }
    // A part of what is reset is set on top of the defaults, and other settings are none of a reset's business.
    let part = json!({"queue": {"name": "mail", "retry_policy": {"jitter_percent": 3}, "default_max_attempts": 8},
                      "reset": ["retry_policy", "description"]});
    let changed = server.taken_by(QUEUES, "UpdateQueue", part).await["queue"].clone();
    let found = (&changed["retryPolicy"]["jitterPercent"], &changed["defaultMaxAttempts"], &changed["description"]);
    assert_eq!(found, (&json!(3), &json!(8), &json!("")));
}

fn checkout(arms: Value) -> Value {
    json!({"name": "checkout", "namespace": "shop", "arms": arms, "metric": "bought", "secondary_metrics": ["opened"],
           "planned_exposures": "20000", "description": "the new button"})
}

#[tokio::test]
async fn a_weight_of_0_is_refused_and_an_absent_one_is_1() {
    let server = Wire::start().await;
    let arms = json!([{"name": "A", "weight": 50}, {"name": "B", "weight": 50}, {"name": "C", "weight": 0}]);
    for (method, body) in [
        ("CreateExperiment", json!({"experiment": checkout(arms.clone())})),
        ("CompareExperiment", json!({"experiment": checkout(arms.clone())})),
    ] {
        assert_eq!(server.faults(EXPERIMENTS, method, body, Reason::InvalidArgument).await, ["experiment.arms"]);
    }
    let mut no_level = checkout(json!([{"name": "A"}, {"name": "B"}]));
    no_level["alpha"] = json!(0);
    let faults =
        server.faults(EXPERIMENTS, "CreateExperiment", json!({"experiment": no_level}), Reason::InvalidArgument);
    assert_eq!(faults.await, ["experiment.alpha"]);
    for field in ["alpha", "power", "arms"] {
        let mut plan = json!({"baseline": 0.2, "effect": 0.05});
        plan[field] = json!(0);
        let faults = server.faults(EXPERIMENTS, "PlanExperiment", plan, Reason::InvalidArgument).await;
        assert_eq!(faults, [field]);
    }
    let experiment = checkout(json!([{"name": "A"}, {"name": "B", "weight": 3}]));
    let made = server.taken_by(EXPERIMENTS, "CreateExperiment", json!({"experiment": experiment})).await;
    assert_eq!(made["experiment"]["arms"], json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 3}]));
}

#[tokio::test]
async fn an_update_of_an_experiment_changes_what_it_says_and_nothing_else() {
    let server = Wire::start().await;
    let experiment = checkout(json!([{"name": "A"}, {"name": "B", "weight": 3}]));
    let made = server.taken_by(EXPERIMENTS, "CreateExperiment", json!({"experiment": experiment})).await;
    let update = json!({"experiment": {"name": "checkout", "secondary_metrics": ["opened", "left"]}});
    let after = server.taken_by(EXPERIMENTS, "UpdateExperiment", update).await["experiment"].clone();
    assert_eq!(after["secondaryMetrics"], json!(["opened", "left"]));
    for kept in ["description", "arms", "metric", "alpha", "plannedExposures", "namespace"] {
        assert_eq!(after[kept], made["experiment"][kept], "{kept}");
    }
    let empty = json!({"experiment": {"name": "checkout"}, "reset": ["secondary_metrics", "description"]});
    let after = server.taken_by(EXPERIMENTS, "UpdateExperiment", empty).await["experiment"].clone();
    assert_eq!((&after["secondaryMetrics"], &after["description"]), (&json!([]), &json!("")));
    let fixed = json!({"experiment": {"name": "checkout", "metric": "sold"}});
    server.faults(EXPERIMENTS, "UpdateExperiment", fixed, Reason::SettingIsFixed).await;
}

#[tokio::test]
async fn an_add_without_a_delta_is_refused_and_0_adds_nothing() {
    let server = Wire::start().await;
    const COUNTERS: &str = "tallystone.counter.v1.CounterService";
    let add = json!({"namespace": "shop", "counter_name": "views"});
    for method in ["AddCount", "AddAndGetCount"] {
        assert_eq!(server.faults(COUNTERS, method, add.clone(), Reason::InvalidArgument).await, ["delta"], "{method}");
    }
    let items = json!([{"counter_name": "views"}, {"counter_name": "views", "delta": "0"}, {"counter_name": "views", "delta": 3}]);
    let done = server.taken_by(COUNTERS, "BatchAddCounts", json!({"namespace": "shop", "items": items})).await;
    assert_eq!(done["results"][0]["error"]["reason"], "INVALID_ARGUMENT", "{done}");
    assert_eq!(done["results"][1]["outcome"], "OUTCOME_APPLIED", "{done}");
    assert_eq!(done["results"][2]["outcome"], "OUTCOME_APPLIED", "{done}");
    let rounded = json!({"namespace": "shop", "counter_name": "views"}).to_string();
    for number in ["9007199254740993.0", "9007199254740992.5", "1.5"] {
        let body = rounded.replace('}', &format!(", \"delta\": {number}}}"));
        let path = format!("/{COUNTERS}/AddCount");
        let answer = server.http("POST", &path, &[("content-type", "application/json")], &body).await;
        assert_eq!(answer.status, 400, "{number}: {}", answer.body);
        assert!(answer.body.contains("a whole number of 64 bits"), "{number}: {}", answer.body);
    }
}
