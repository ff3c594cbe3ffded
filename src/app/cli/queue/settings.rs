//! The settings of a queue, on the command line and in a table.

use clap::{Args, ValueEnum};

use crate::arguments::{bytes, duration, pair};
use crate::output::{Output, list_cell, time_cell, word};
use tallystone_api::time::write_duration;
use tallystone_domain::queue::setup::queue_settings;
use tallystone_proto::queue::v1 as pb;

/// The order in which a queue serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum QueueTypeArg {
    /// By priority alone.
    #[value(alias = "QUEUE_TYPE_SIMPLE", alias = "SIMPLE")]
    Simple,
    /// By priority, with a bounded number of leases for each exclusivity value.
    #[value(alias = "QUEUE_TYPE_EXCLUSIVE", alias = "EXCLUSIVE")]
    Exclusive,
}

/// What the store of a queue has to offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum DurabilityArg {
    /// Acknowledged calls survive a kill of the server; a power cut may lose the last second.
    #[value(alias = "DURABILITY_FAST", alias = "FAST")]
    Fast,
    /// Acknowledged calls also survive a power cut.
    #[value(alias = "DURABILITY_SAFE", alias = "SAFE")]
    Safe,
    /// Acknowledged calls also survive the loss of a machine.
    #[value(alias = "DURABILITY_REPLICATED", alias = "REPLICATED")]
    Replicated,
}

/// The rows of a queue that the history keeps.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum HistoryArg {
    /// Every change of every message.
    #[value(alias = "HISTORY_ALL", alias = "ALL")]
    All,
    /// Nothing.
    #[value(alias = "HISTORY_NONE", alias = "NONE")]
    None,
}

/// When the id of a message may be that of a new one.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReuseIdsArg {
    /// Once the message is gone; an id with a time never.
    #[value(alias = "REUSE_IDS_AFTER_WINDOW", alias = "AFTER_WINDOW")]
    AfterWindow,
    /// Once the message is completed or canceled. The same push within a minute is a repeat all the same.
    #[value(alias = "REUSE_IDS_WHEN_OVER", alias = "WHEN_OVER")]
    WhenOver,
}

/// The settings of a queue; an omitted one keeps its value, or takes the default in a new queue.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings")]
pub struct QueueSettingsArgs {
    /// The order of service [default: simple]. Changes only while the queue is empty.
    #[arg(long = "type", value_enum)]
    kind: Option<QueueTypeArg>,
    /// The metadata key of the exclusivity value, on exclusive queues.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY")]
    exclusivity_key: String,
    /// The maximum number of leased messages per exclusivity value [default: 1].
    #[arg(long, value_name = "N")]
    max_in_flight_per_value: Option<i32>,
    /// Whether an invisible or running message delays the later messages of its value [default: false].
    #[arg(long, value_name = "true|false")]
    strict_order_per_value: Option<bool>,
    /// The description.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    description: Option<String>,
    /// The number of shards, a power of two [default: 1]; fixed after creation.
    #[arg(long, value_name = "N")]
    shards: Option<i32>,
    /// Makes it a template: an enqueue to a missing queue with this name prefix creates it with these settings.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "PREFIX")]
    template_for: String,
    /// The required durability; a server whose store offers less refuses the queue [default: any].
    #[arg(long, value_enum, value_name = "TIER")]
    required_durability: Option<DurabilityArg>,
    /// The lease duration of a message without its own [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    default_lease: Option<prost_types::Duration>,
    /// The maximum total duration of a lease, extensions included [default: 12h].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    max_run_time: Option<prost_types::Duration>,
    /// The invisibility of a message without its own [default: 0s].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    default_invisibility: Option<prost_types::Duration>,
    /// The maximum number of attempts of a message without its own [default: 3].
    #[arg(long = "max-attempts", value_name = "N")]
    default_max_attempts: Option<i32>,
    /// The time until a message is canceled unless it is leased, from when it becomes visible [default: never].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    default_ttl: Option<prost_types::Duration>,
    /// The delays between attempts: first delay, growth in percent, longest delay, jitter in percent [default:
    /// 1s,200,5m,20].
    #[arg(long, value_name = "TIME,PERCENT,TIME,PERCENT", value_parser = retry_policy)]
    retry: Option<pb::RetryPolicy>,
    /// The retention of completed messages [default: 1h].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    keep_completed: Option<prost_types::Duration>,
    /// The retention of canceled messages [default: 1h].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    keep_canceled: Option<prost_types::Duration>,
    /// The retention of errored messages [default: 14d].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    keep_errored: Option<prost_types::Duration>,
    /// The dedupe window: how long a repeated enqueue is recognised, 60s to 24h [default: 1h].
    #[arg(long, value_name = "TIME", value_parser = wire_duration)]
    dedupe_window: Option<prost_types::Duration>,
    /// The maximum size of the dedupe records, at least 64KiB per shard; beyond it the dedupe window is shortened
    /// [default: 4GiB].
    #[arg(long, value_name = "SIZE", value_parser = bytes::<i64>)]
    dedupe_max_bytes: Option<i64>,
    /// The maximum number of messages, finished ones included, at least 1 for each shard [default: 100000000].
    #[arg(long, value_name = "N")]
    quota_messages: Option<i64>,
    /// The maximum size of all payloads together [default: 64GiB].
    #[arg(long, value_name = "SIZE", value_parser = bytes::<i64>)]
    quota_bytes: Option<i64>,
    /// The maximum payload of a message [default: 32KiB, the highest value].
    #[arg(long, value_name = "SIZE", value_parser = bytes::<i32>)]
    payload_max_bytes: Option<i32>,
    /// The maximum total size of the metadata keys and values of a message [default: 1.25KiB, the highest value].
    #[arg(long, value_name = "SIZE", value_parser = bytes::<i32>)]
    metadata_max_bytes: Option<i32>,
    /// A metadata key whose values get counters of their own. May be repeated up to 4 times; an update replaces the whole
    /// list.
    #[arg(long, value_name = "KEY")]
    count_by: Vec<String>,
    /// The maximum number of values with counters of their own, per key and shard [default: 1000].
    #[arg(long, value_name = "N")]
    count_by_values_max: Option<i32>,
    /// The rows that the history of messages keeps [default: all].
    #[arg(long, value_enum)]
    history: Option<HistoryArg>,
    /// When the id of a message may be that of a new one [default: after-window].
    #[arg(long, value_enum)]
    reuse_ids: Option<ReuseIdsArg>,
    /// A priority class: a named offset from the time at which a message becomes visible. With a metadata pair, messages with that pair get the class. May be
    /// repeated; an update replaces the whole list.
    #[arg(long, value_name = "NAME=MS[,KEY=VALUE]", value_parser = priority_class, allow_hyphen_values = true)]
    priority_class: Vec<pb::PriorityClass>,
    /// A set of metadata keys to index for filters. May be repeated; an update replaces the whole list.
    #[arg(long, value_name = "KEY[,KEY...]", value_parser = filter_shape)]
    filter_shape: Vec<pb::FilterShape>,
}

impl QueueSettingsArgs {
    /// Builds the queue message of the request.
    pub fn queue(self, name: String) -> pb::Queue {
        let (completed, canceled, errored) = (self.keep_completed, self.keep_canceled, self.keep_errored);
        let kept = pb::Retention { completed, canceled, errored };
        let kind = match self.kind {
            None => pb::QueueType::Unspecified,
            Some(QueueTypeArg::Simple) => pb::QueueType::Simple,
            Some(QueueTypeArg::Exclusive) => pb::QueueType::Exclusive,
        };
        let tier = match self.required_durability {
            None => pb::Durability::Unspecified,
            Some(DurabilityArg::Fast) => pb::Durability::Fast,
            Some(DurabilityArg::Safe) => pb::Durability::Safe,
            Some(DurabilityArg::Replicated) => pb::Durability::Replicated,
        };
        let mut queue = pb::Queue {
            name,
            r#type: kind.into(),
            exclusivity_key: self.exclusivity_key,
            max_in_flight_per_value: self.max_in_flight_per_value,
            strict_order_per_value: self.strict_order_per_value,
            description: self.description,
            shards: self.shards,
            template_for: self.template_for,
            required_durability: tier.into(),
            retry_policy: self.retry,
            default_ttl: self.default_ttl,
            retention: (kept != pb::Retention::default()).then_some(kept),
            priority_classes: self.priority_class,
            filter_shapes: self.filter_shape,
            count_by: self.count_by,
            history: match self.history {
                None => pb::History::Unspecified,
                Some(HistoryArg::All) => pb::History::All,
                Some(HistoryArg::None) => pb::History::None,
            }
            .into(),
            reuse_ids: match self.reuse_ids {
                None => pb::ReuseIds::Unspecified,
                Some(ReuseIdsArg::AfterWindow) => pb::ReuseIds::AfterWindow,
                Some(ReuseIdsArg::WhenOver) => pb::ReuseIds::WhenOver,
            }
            .into(),
            ..Default::default()
        };
        macro_rules! plain {
            ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
                $(queue.$name = self.$name;)*
            };
        }
        queue_settings!(all plain);
        queue
    }
}

/// Parses a duration of the command line for a request.
fn wire_duration(text: &str) -> Result<prost_types::Duration, String> {
    duration(text).map(write_duration)
}

/// Parses `1s,200,5m,20`.
fn retry_policy(text: &str) -> Result<pb::RetryPolicy, String> {
    let what = "write it as FIRST,PERCENT,LONGEST,PERCENT, like 1s,200,5m,20";
    let parts: Vec<_> = text.split(',').collect();
    let [initial, factor, max, jitter] = parts.as_slice() else { return Err(what.to_owned()) };
    let percent = |text: &str| text.parse::<i32>().map_err(|_| what.to_owned());
    Ok(pb::RetryPolicy {
        initial: Some(wire_duration(initial)?),
        factor_percent: Some(percent(factor)?),
        max: Some(wire_duration(max)?),
        jitter_percent: Some(percent(jitter)?),
    })
}

/// Parses `NAME=MS` or `NAME=MS,KEY=VALUE`.
fn priority_class(text: &str) -> Result<pb::PriorityClass, String> {
    let what = "write it as NAME=MS or NAME=MS,KEY=VALUE";
    let (class, tag) = text.split_once(',').map_or((text, None), |(class, tag)| (class, Some(tag)));
    let (name, offset) = class.split_once('=').ok_or(what)?;
    let offset_ms = offset.parse().map_err(|_| format!("{offset:?} is not a whole number of milliseconds; {what}"))?;
    let (tag_key, tag_value) = tag.map(pair).transpose()?.unwrap_or_default();
    Ok(pb::PriorityClass { name: name.to_owned(), offset_ms, tag_key, tag_value })
}

/// Parses `KEY,KEY`.
fn filter_shape(text: &str) -> Result<pb::FilterShape, String> {
    match text.split(',').any(str::is_empty) {
        true => Err("a key is empty; write it as KEY or KEY,KEY".to_owned()),
        false => Ok(pb::FilterShape { keys: text.split(',').map(str::to_owned).collect() }),
    }
}

/// Returns all settings of a queue as table rows: with units for people, as in the protocol for programs.
pub fn rows(queue: &pb::Queue, output: Output) -> Vec<Vec<String>> {
    let retry = queue.retry_policy.unwrap_or_default();
    let kept = queue.retention.unwrap_or_default();
    let span = |time: Option<&prost_types::Duration>| output.span_cell(time);
    let never = |time: Option<&prost_types::Duration>| if time.is_none() { "never".to_owned() } else { span(time) };
    let mut rows = vec![
        ("name", queue.name.clone()),
        ("id", queue.id.clone()),
        ("etag", queue.etag.clone()),
        ("version", queue.version.to_string()),
        ("description", queue.description().to_owned()),
        ("type", kind(queue.r#type)),
        ("exclusivity_key", queue.exclusivity_key.clone()),
        ("max_in_flight_per_value", number(queue.max_in_flight_per_value)),
        ("strict_order_per_value", number(queue.strict_order_per_value)),
        ("shards", queue.shards().to_string()),
        ("template_for", queue.template_for.clone()),
        ("required_durability", durability(queue.required_durability)),
    ];
    macro_rules! plain {
        ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
            rows.extend([$((stringify!($name), output.setting_cell(stringify!($name), queue.$name)),)*])
        };
    }
    queue_settings!(of_messages plain);
    rows.extend([
        ("default_ttl", never(queue.default_ttl.as_ref())),
        ("retry_policy.initial", span(retry.initial.as_ref())),
        ("retry_policy.factor_percent", retry.factor_percent().to_string()),
        ("retry_policy.max", span(retry.max.as_ref())),
        ("retry_policy.jitter_percent", retry.jitter_percent().to_string()),
        ("retention.completed", span(kept.completed.as_ref())),
        ("retention.canceled", span(kept.canceled.as_ref())),
        ("retention.errored", span(kept.errored.as_ref())),
    ]);
    queue_settings!(of_queue plain);
    rows.extend([
        ("priority_classes", list_cell(&queue.priority_classes.iter().map(class_cell).collect::<Vec<_>>())),
        ("count_by", list_cell(&queue.count_by)),
        ("history", word::<pb::History>(queue.history, "HISTORY_", pb::History::as_str_name)),
        ("reuse_ids", word::<pb::ReuseIds>(queue.reuse_ids, "REUSE_IDS_", pb::ReuseIds::as_str_name)),
        ("filter_shapes", list_cell(&queue.filter_shapes.iter().map(|shape| shape.keys.join(",")).collect::<Vec<_>>())),
        ("enqueue_blocked", blocked(queue.enqueue_blocked, &queue.enqueue_blocked_reason)),
        ("dequeue_blocked", blocked(queue.dequeue_blocked, &queue.dequeue_blocked_reason)),
        ("create_time", time_cell(queue.create_time.as_ref())),
        ("update_time", time_cell(queue.update_time.as_ref())),
    ]);
    rows.into_iter().map(|(setting, value)| vec![setting.to_owned(), value]).collect()
}

/// Returns the type of a queue as a word.
pub fn kind(number: i32) -> String {
    word::<pb::QueueType>(number, "QUEUE_TYPE_", pb::QueueType::as_str_name)
}

/// The durability of a queue as a word.
fn durability(number: i32) -> String {
    match number {
        0 => "any".to_owned(),
        number => word::<pb::Durability>(number, "DURABILITY_", pb::Durability::as_str_name),
    }
}

/// Describes a block and its reason.
pub fn blocked(is_blocked: Option<bool>, reason: &str) -> String {
    match (is_blocked.unwrap_or_default(), reason) {
        (false, _) => "no".to_owned(),
        (true, "") => "yes".to_owned(),
        (true, reason) => format!("yes: {reason}"),
    }
}

fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn class_cell(class: &pb::PriorityClass) -> String {
    let tag = if class.tag_key.is_empty() { String::new() } else { format!(",{}={}", class.tag_key, class.tag_value) };
    format!("{}={}{tag}", class.name, class.offset_ms)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_class_is_read_as_it_is_shown() {
        for text in ["urgent=-60000", "studio=5,studio=main", "x=0,k=a=b"] {
            assert_eq!(class_cell(&priority_class(text).expect("a valid class")), text);
        }
        for text in ["", "urgent", "urgent=soon", "urgent=1,k"] {
            assert!(priority_class(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_retry_policy_has_four_parts() {
        let policy = retry_policy("1s,200,5m,20").expect("a valid policy");
        assert_eq!((policy.factor_percent, policy.jitter_percent), (Some(200), Some(20)));
        assert_eq!(policy.max, Some(write_duration(Duration::from_secs(300))));
        for text in ["", "1s", "1s,200,5m", "1s,200,5m,20,1", "1,200,5m,20", "1s,much,5m,20"] {
            assert!(retry_policy(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_left_out_is_not_sent() {
        let queue = QueueSettingsArgs::default().queue("emails".to_owned());
        assert_eq!(queue, pb::Queue { name: "emails".to_owned(), ..Default::default() });
    }
}
