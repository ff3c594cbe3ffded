//! The counters of queues: what a queue did is in the namespace `tallystone.queues`, exactly, whatever was killed, deleted or
//! out of reach meanwhile.
//!
//! Each test keeps a ledger of its own calls. It waits until `reported_to` has passed the time of the last call, and then
//! the counters must equal the ledger and `GetDepth`.

mod adopt;
mod clocks;
mod deleted;
mod every_fault;
mod full_disk;
mod histories;
mod kills;
mod ledger;
mod load;
mod memcached_away;
mod on_cassandra;
mod on_redis;
mod redis_clocks;
mod traces;
mod values;

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::time::{Duration, Instant, SystemTime};

use prost_types::Timestamp;
use serde_json::{Value, json};

use crate::support::beside;
use crate::support::harness::{HttpAnswer, Server, eventually};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const COUNTERS: &str = "/tallystone.counter.v1.CounterService";
const NAMESPACE: &str = "tallystone.queues";
const QUEUE: &str = "orders";

/// The limit for a change of a queue to reach its counters.
const WITHIN: Duration = Duration::from_secs(3);
/// The limit for counters by attempt, time and error, which follow every 10 s.
const SLOW_WITHIN: Duration = Duration::from_secs(14);
/// The limit for a server that has to catch up, on a busy machine.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

/// The time after which a value that gave way reads 0.
const GIVEN_WAY_WITHIN: Duration = Duration::from_secs(6);

const STATES: [&str; 6] = ["invisible", "pending", "running", "completed", "canceled", "errored"];

/// The counts of a queue, by the name of the counter without the queue.
type Counts = BTreeMap<String, i64>;

/// Sends a call with a JSON body.
fn answer(server: &Server, service: &str, method: &str, body: &Value) -> HttpAnswer {
    server.post(&format!("{service}/{method}"), &body.to_string())
}

/// Calls a method; the call must be taken.
fn call(server: &Server, service: &str, method: &str, body: &Value) -> Value {
    let answer = answer(server, service, method, body);
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
    answer.json()
}

fn queue_call(server: &Server, method: &str, body: Value) -> Value {
    call(server, QUEUES, method, &body)
}

fn number(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("a number: {value}"))
}

fn create(server: &Server, settings: Value) {
    let mut queue = json!({"name": QUEUE, "default_lease": "3600s"});
    queue.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    queue_call(server, "CreateQueue", json!({"queue": queue}));
}

/// Enqueues messages; each must be new.
fn enqueue(server: &Server, messages: &[Value]) {
    for some in messages.chunks(100) {
        let answer = queue_call(server, "BatchEnqueue", json!({"queue": QUEUE, "messages": some}));
        let results = answer["results"].as_array().expect("results");
        assert_eq!(results.len(), some.len());
        let is_taken = |result: &Value| result["error"].is_null() && result["alreadyEnqueued"] == json!(false);
        assert!(results.iter().all(is_taken), "{answer}");
    }
}

/// Leases all messages that are pending; answers the lease tokens by message id.
fn lease_all(server: &Server) -> BTreeMap<String, String> {
    let mut leases = BTreeMap::new();
    loop {
        let answer = queue_call(server, "Dequeue", json!({"queue": QUEUE, "max_messages": 100}));
        let given = answer["leases"].as_array().expect("leases");
        for lease in given {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            leases.insert(text(&lease["message"]["messageId"]), text(&lease["leaseToken"]));
        }
        if given.is_empty() && answer["completeness"] == json!("COMPLETE") {
            return leases;
        }
    }
}

/// Settles leases in one way.
fn settle<'a>(server: &Server, tokens: impl IntoIterator<Item = &'a String>, how: &Value) {
    let item = |token: &String| {
        let mut item = how.clone();
        item["lease_token"] = json!(token);
        item
    };
    let items: Vec<Value> = tokens.into_iter().map(item).collect();
    for some in items.chunks(100) {
        let answer = queue_call(server, "SettleMessages", json!({"queue": QUEUE, "items": some}));
        let results = answer["results"].as_array().expect("results");
        assert!(results.iter().all(|result| result["error"].is_null()), "{answer}");
    }
}

fn complete_all(server: &Server) -> i64 {
    let leases = lease_all(server);
    settle(server, leases.values(), &json!({"verb": "VERB_COMPLETE"}));
    i64::try_from(leases.len()).expect("few")
}

/// The question for one counter of the queue.
fn question(counter: &str) -> Value {
    json!({"namespace": NAMESPACE, "counter_name": format!("{QUEUE}~{counter}")})
}

/// A reading of one counter of the queue; none while its store does not answer.
fn reading(server: &Server, counter: &str) -> Option<Value> {
    let answer = server.post_briefly(&format!("{COUNTERS}/GetCount"), &question(counter).to_string());
    (answer.status == 200).then(|| answer.json())
}

/// A reading of one counter of the queue, whose store answers, however long a busy machine takes.
fn sure_reading(server: &Server, counter: &str) -> Value {
    call(server, COUNTERS, "GetCount", &question(counter))
}

fn count(server: &Server, counter: &str) -> i64 {
    number(&sure_reading(server, counter)["count"])
}

/// How far the queues are reported, as an answer says.
fn reported_to(reading: &Value) -> Option<SystemTime> {
    let time = Timestamp::from_str(reading["reportedTo"].as_str()?).expect("a time");
    Some(SystemTime::try_from(time).expect("after 1970"))
}

/// Waits until it is so. A look that begins after the limit must find it, on a machine that keeps nothing from the server.
fn comes_within(server: &Server, limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    beside(server).comes(Instant::now(), limit, what, is_so);
}

/// Waits until everything that was answered before this call is reported.
fn wait_until_reported(server: &Server, within: Duration) {
    let now = SystemTime::now();
    let is_reported = || reading(server, "enqueued").is_some_and(|reading| reported_to(&reading) >= Some(now));
    comes_within(server, within, "what was answered is reported", is_reported);
}

/// The counts of these counters.
fn counts_of<'a>(server: &Server, counters: impl IntoIterator<Item = &'a str>) -> Counts {
    let names: Vec<&str> = counters.into_iter().collect();
    let mut counts = Counts::new();
    for some in names.chunks(1_000) {
        let full: Vec<String> = some.iter().map(|name| format!("{QUEUE}~{name}")).collect();
        let body = json!({"namespace": NAMESPACE, "counter_names": full});
        let answer = call(server, COUNTERS, "BatchGetCounts", &body);
        for (name, result) in some.iter().zip(answer["results"].as_array().expect("results")) {
            counts.insert((*name).to_owned(), number(&result["reading"]["count"]));
        }
    }
    counts
}

/// The names of the queue's counters with a prefix, as far as they are rolled up.
fn names(server: &Server, prefix: &str) -> Vec<String> {
    let (mut names, mut page) = (Vec::new(), Value::default());
    loop {
        let prefix = format!("{QUEUE}~{prefix}");
        let body = json!({"namespace": NAMESPACE, "prefix": prefix, "page_size": 1_000, "page_token": page});
        let answer = call(server, COUNTERS, "ListCounters", &body);
        let some = answer["counters"].as_array().expect("counters");
        names.extend(some.iter().map(|counter| {
            let name = counter["counterName"].as_str().expect("a name");
            name.strip_prefix(&format!("{QUEUE}~")).expect("a counter of the queue").to_owned()
        }));
        page = answer["nextPageToken"].clone();
        if page.as_str().is_none_or(str::is_empty) {
            return names;
        }
    }
}

/// The counts of all of the queue's counters with a prefix that are not 0.
fn counts(server: &Server, prefix: &str) -> Counts {
    let names = names(server, prefix);
    let mut counts = counts_of(server, names.iter().map(String::as_str));
    counts.retain(|_, count| *count != 0);
    counts
}

fn sum(server: &Server, prefix: &str) -> i64 {
    counts(server, prefix).values().sum()
}

/// The sums over all values of a key, each with the counter of the queue.
fn sums(server: &Server, key: &str) -> BTreeMap<&'static str, (i64, i64)> {
    let of = ["depth.pending", "depth.running", "depth.errored", "enqueued", "dequeued", "completed", "errored"];
    of.map(|counter| (counter, (sum(server, &format!("{counter}~{key}")), count(server, counter)))).into()
}

/// The sums over all values of these keys must equal the counters of the queue.
fn check_sums(server: &Server, keys: &[&str]) {
    for key in keys {
        let equal = || sums(server, key).values().all(|(sum, whole)| sum == whole);
        comes_within(server, GIVEN_WAY_WITHIN, &format!("the sums of {key} are whole"), equal);
    }
}

/// What `GetDepth` says, under the names of the counters.
fn depths(server: &Server) -> Counts {
    let answer = queue_call(server, "GetDepth", json!({"queue": QUEUE}));
    let mut depths: Counts = STATES.map(|state| (format!("depth.{state}"), number(&answer[state]))).into();
    depths.insert("bytes".to_owned(), number(&answer["payloadBytes"]));
    depths
}

/// The levels must equal `GetDepth`, and the flows the levels. Answers the levels.
fn check_levels(server: &Server) -> Counts {
    let found = depths(server);
    let counted = counts_of(server, found.keys().map(String::as_str));
    assert_eq!(counted, found, "the counters are those of GetDepth");
    let messages: i64 = STATES.iter().map(|state| found[&format!("depth.{state}")]).sum();
    let (enqueued, expired) = (count(server, "enqueued"), count(server, "expired"));
    assert_eq!(enqueued, messages + expired, "enqueued = the six depths + expired");
    found
}

/// The sums of the steps of 10 s of a counter, over the last hour.
fn steps(server: &Server, counter: &str) -> Vec<i64> {
    let now = SystemTime::now();
    let time = |time: SystemTime| Timestamp::from(time).to_string();
    let body = json!({"namespace": NAMESPACE, "counter_name": format!("{QUEUE}~{counter}"), "step": "10s",
        "from": time(now - Duration::from_secs(3_600)), "to": time(now + Duration::from_secs(20))});
    let answer = call(server, COUNTERS, "GetCountSeries", &body);
    answer["rows"].as_array().expect("rows").iter().map(|row| number(&row["sum"])).collect()
}

/// Waits until the steps of a flow add up to its count. No step may be counted twice: the sum never exceeds the count.
fn check_series(server: &Server, flow: &str) {
    let expected = count(server, flow);
    let mut rows = Vec::new();
    let has_all = eventually(CAUGHT_UP_WITHIN, || {
        rows = steps(server, flow);
        assert!(rows.iter().all(|step| *step >= 0), "a flow never falls: {rows:?}");
        let sum: i64 = rows.iter().sum();
        assert!(sum <= expected, "a step of {flow} is counted twice: {rows:?}, count {expected}");
        sum == expected
    });
    assert!(has_all, "the series of {flow} lacks something: {rows:?}, count {expected}");
}

/// A total of a counter in the log, of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Report {
    shard: u64,
    /// The positions that it covers, as `p=<first>..<last>` says.
    first: u64,
    last: u64,
    total: i64,
}

/// All totals of a counter in the log, for each shard in the order of their positions.
fn reports(server: &Server, counter: &str) -> Vec<Report> {
    let now = SystemTime::now();
    let time = |time: SystemTime| Timestamp::from(time).to_string();
    let hour = Duration::from_secs(3_600);
    let mut body = json!({"namespace": NAMESPACE, "counter_name": format!("{QUEUE}~{counter}"), "page_size": 1_000,
        "from": time(now - hour), "to": time(now + hour)});
    let mut reports = Vec::new();
    loop {
        let answer = call(server, COUNTERS, "ListCountEvents", &body);
        let events = answer["events"].as_array().expect("events").iter();
        reports.extend(events.map(|event| report(event).unwrap_or_else(|| panic!("a total with positions: {event}"))));
        body["page_token"] = answer["nextPageToken"].clone();
        if answer["nextPageToken"] == json!("") {
            break;
        }
    }
    reports.sort_by_key(|report| (report.shard, report.last));
    reports
}

fn report(event: &Value) -> Option<Report> {
    let (first, last) = event["provenance"].as_str()?.strip_prefix("p=")?.split_once("..")?;
    let (source, _) = event["token"].as_str()?.split_once('/')?;
    let shard = source.strip_prefix('s')?.parse().ok()?;
    Some(Report { shard, first: first.parse().ok()?, last: last.parse().ok()?, total: number(&event["delta"]) })
}
