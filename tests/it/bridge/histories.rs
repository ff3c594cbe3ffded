//! The history of the queue as a stranger reads it: all messages by pages of a search, then the trace of each of them.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{QUEUE, call, number, queue_call};
use crate::support::harness::{Server, eventually};

const HISTORY: &str = "/tallystone.history.v1.HistoryService";
/// Traces that are read at once.
const READERS: usize = 4;
/// The limit for a full check of the most messages that a test has.
const CHECKED_WITHIN: Duration = Duration::from_secs(600);

/// The place of a row: its shard, epoch and position.
pub type Place = (u64, u64, u64);

/// One row of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedRow {
    /// What caused the change, as `ENQUEUE`.
    pub trigger: String,
    /// The states before and after, as the API names them.
    pub from: String,
    pub to: String,
    message_key: String,
}

/// The traces of all messages of the queue, and the gaps that the answers show.
#[derive(Debug)]
pub struct Histories {
    /// The keys of all messages.
    pub messages: Vec<String>,
    pub rows: BTreeMap<Place, TracedRow>,
    /// The missing rows: shard and epoch, first and last position.
    pub gaps: Vec<(u64, u64, u64, u64)>,
}

pub fn history_call(server: &Server, method: &str, body: &Value) -> Value {
    call(server, HISTORY, method, body)
}

/// The items of all pages of a call.
fn pages(server: &Server, method: &str, mut body: Value, mut take: impl FnMut(&Value)) {
    loop {
        let page = history_call(server, method, &body);
        take(&page);
        body["page_token"] = page["nextPageToken"].clone();
        if page["nextPageToken"] == json!("") {
            return;
        }
    }
}

/// The keys of the messages that a search finds.
pub fn found(server: &Server, mut conditions: Value) -> Vec<String> {
    conditions["queue"] = json!(QUEUE);
    let mut keys = Vec::new();
    pages(server, "SearchMessages", conditions, |page| {
        let messages = page["messages"].as_array().expect("messages");
        keys.extend(messages.iter().map(|message| text(&message["messageKey"])));
    });
    keys
}

impl Histories {
    /// Reads everything, by pages of so many rows. No row may be there twice.
    pub fn read(server: &Server, page_size: usize) -> Self {
        let messages = found(server, json!({"current_only": false, "page_size": page_size}));
        let (rows, gaps) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
        let read = |keys: &[String]| {
            for key in keys {
                let body = json!({"queue": QUEUE, "message_key": key, "page_size": page_size});
                pages(server, "GetMessageTrace", body, |page| {
                    for (place, row) in rows_of(key, page) {
                        let other = rows.lock().insert(place, row.clone());
                        assert_eq!(other, None, "{place:?} is there twice: {row:?}");
                    }
                    *gaps.lock() = gaps_of(page);
                });
            }
        };
        let (read, share) = (&read, messages.len().div_ceil(READERS).max(1));
        thread::scope(|scope| messages.chunks(share).for_each(|keys| drop(scope.spawn(move || read(keys)))));
        Self { rows: rows.into_inner(), gaps: gaps.into_inner(), messages }
    }

    /// How many rows a trigger caused.
    pub fn count(&self, trigger: &str) -> i64 {
        let rows = self.rows.values().filter(|row| row.trigger == trigger).count();
        i64::try_from(rows).expect("few")
    }

    /// The rows of a shard by position.
    pub fn of_shard(&self, shard: u64) -> BTreeMap<u64, &TracedRow> {
        let rows = self.rows.iter().filter(|((of, _, _), _)| *of == shard);
        rows.map(|((_, _, position), row)| (*position, row)).collect()
    }

    /// Every position from the first to the last row of a shard must be a row or lie in a gap, and never both.
    pub fn check(&self) {
        let mut expected: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let places = self.rows.keys().copied();
        let in_gaps = || {
            let of = |&(shard, epoch, from, to): &(u64, u64, u64, u64)| (from..=to).map(move |at| (shard, epoch, at));
            self.gaps.iter().flat_map(of)
        };
        for (shard, epoch, position) in places.chain(in_gaps()) {
            let last = expected.entry((shard, epoch)).or_default();
            *last = position.max(*last);
        }
        let both: Vec<Place> = in_gaps().filter(|place| self.rows.contains_key(place)).collect();
        assert!(both.is_empty(), "gaps with rows: {both:?}");
        let missing = |((shard, epoch), last): (&(u64, u64), &u64)| {
            let holes = (1..=*last).map(|position| (*shard, *epoch, position));
            let is_marked = |&(shard, epoch, position): &Place| {
                self.gaps.iter().any(|gap| (gap.0, gap.1) == (shard, epoch) && (gap.2..=gap.3).contains(&position))
            };
            holes.filter(|place| !self.rows.contains_key(place) && !is_marked(place)).collect::<Vec<_>>()
        };
        let unmarked: Vec<Place> = expected.iter().flat_map(missing).collect();
        assert!(unmarked.is_empty(), "rows that are missing without a gap: {unmarked:?}, gaps {:?}", self.gaps);
    }
}

fn rows_of(key: &str, page: &Value) -> Vec<(Place, TracedRow)> {
    let shard = key.split('.').nth(1).and_then(|shard| shard.parse().ok()).expect("a key names its shard");
    let lives = page["lives"].as_array().expect("lives");
    assert!(lives.iter().all(|life| life["messageKey"] == json!(key)), "{page}");
    let row = |row: &Value| {
        let epoch = row["epoch"].as_u64().expect("an epoch");
        let place = (shard, epoch, number(&row["position"]).unsigned_abs());
        let trigger = text(&row["trigger"]).trim_start_matches("TRANSITION_TRIGGER_").to_owned();
        (place, TracedRow { trigger, from: text(&row["from"]), to: text(&row["to"]), message_key: key.to_owned() })
    };
    lives.iter().flat_map(|life| life["transitions"].as_array().expect("transitions").iter().map(row)).collect()
}

fn gaps_of(page: &Value) -> Vec<(u64, u64, u64, u64)> {
    let place = |gap: &Value, field: &str| number(&gap[field]).unsigned_abs();
    let gap = |gap: &Value| {
        let (shard, epoch) = (gap["shard"].as_u64().expect("a shard"), gap["epoch"].as_u64().expect("an epoch"));
        (shard, epoch, place(gap, "fromPosition"), place(gap, "toPosition"))
    };
    page["gaps"].as_array().expect("gaps").iter().map(gap).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// A full check must find nothing.
pub fn check_finds_nothing(server: &Server) {
    let begun = history_call(server, "CheckQueues", &json!({"queue": QUEUE, "full": true}));
    let id = &begun["operation"]["operationId"];
    let state = || queue_call(server, "GetOperation", json!({"operation_id": id}))["operation"]["state"].clone();
    assert!(eventually(CHECKED_WITHIN, || state() != json!("OPERATION_STATE_RUNNING")), "it ends");
    assert_eq!(state(), json!("OPERATION_STATE_DONE"));
    let found = history_call(server, "ListFindings", &json!({"operation_id": id}));
    assert_eq!(found["findings"], json!([]), "{}", server.printed());
}
