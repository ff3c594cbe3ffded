//! The ranges of a queue's settings. One table defines both the checks and their wording.
//!
//! Names are those of the fields of the protocol's `Queue`. `OF_SHARD` applies to the settings of a shard. `OF_QUEUE`
//! applies to callers in addition; it also excludes settings under which no message would be accepted.

use std::time::Duration;

use crate::limits::{
    ATTEMPTS_MAX, COUNT_BY_KEYS_MAX, COUNT_BY_VALUES_MAX, DEDUPE_SHARD_BYTES_MIN, DEDUPE_WINDOW_MAX, DEDUPE_WINDOW_MIN,
    DESCRIPTION_BYTES_MAX, INVISIBILITY_MAX, LEASE_MAX, LEASE_MIN, MESSAGE_TTL_MAX, METADATA_BYTES_MAX,
    METADATA_KEY_BYTES_MAX, PAYLOAD_BYTES_MAX, PRIORITY_CLASSES_MAX, PRIORITY_OFFSET_MAX, QUEUE_NAME_BYTES_MAX,
    QUEUE_SHARDS_MAX, SHAPES_MAX, VALUE_IN_FLIGHT_MAX,
};
use crate::queue::filter::ShapeKeys;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::name::QueueName;
use crate::queue::setup::queue_spec::QueueSpec;
use crate::queue::setup::settings::{PriorityClass, Settings};

/// The allowed range of one setting.
struct RangeRule<T: 'static> {
    setting: &'static str,
    /// Words that complete the phrase "allowed is".
    allowed: fn() -> String,
    fits: fn(&T) -> bool,
}

/// A setting that is out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedRange {
    /// The name of the setting.
    pub setting: &'static str,
    /// The allowed range in words.
    pub allowed: String,
}

const OF_SHARD: &[RangeRule<Settings>] = &[
    RangeRule {
        setting: "default_lease",
        allowed: || format!("{} to {}", time(LEASE_MIN), time(LEASE_MAX)),
        fits: |own| (LEASE_MIN..=LEASE_MAX).contains(&own.default_lease),
    },
    RangeRule {
        setting: "max_run_time",
        allowed: || "at least default_lease".to_owned(),
        fits: |own| own.max_run_time >= own.default_lease,
    },
    RangeRule {
        setting: "default_invisibility",
        allowed: || format!("up to {}", time(INVISIBILITY_MAX)),
        fits: |own| own.default_invisibility <= INVISIBILITY_MAX,
    },
    RangeRule {
        setting: "default_max_attempts",
        allowed: || format!("1 to {}", number(ATTEMPTS_MAX.into())),
        fits: |own| (1..=ATTEMPTS_MAX).contains(&own.default_attempts),
    },
    RangeRule {
        setting: "retry_policy.factor_percent",
        allowed: || "at least 100".to_owned(),
        fits: |own| own.retry.factor_percent >= 100,
    },
    RangeRule {
        setting: "retry_policy.max",
        allowed: || format!("up to {}", time(INVISIBILITY_MAX)),
        fits: |own| own.retry.max <= INVISIBILITY_MAX,
    },
    RangeRule {
        setting: "retry_policy.jitter_percent",
        allowed: || "0 to 100".to_owned(),
        fits: |own| own.retry.jitter_percent <= 100,
    },
    RangeRule {
        setting: "default_ttl",
        allowed: || format!("up to {}", time(MESSAGE_TTL_MAX)),
        fits: |own| own.default_ttl.is_none_or(|ttl| ttl <= MESSAGE_TTL_MAX),
    },
    RangeRule { setting: "dedupe_window", allowed: window, fits: |own| own.dedupe_window <= DEDUPE_WINDOW_MAX },
    RangeRule { setting: "retention.completed", allowed: kept, fits: |own| is_kept(own, own.retention.completed) },
    RangeRule { setting: "retention.canceled", allowed: kept, fits: |own| is_kept(own, own.retention.canceled) },
    RangeRule { setting: "retention.errored", allowed: kept, fits: |own| is_kept(own, own.retention.errored) },
    RangeRule {
        setting: "exclusivity_key",
        allowed: || format!("1 to {METADATA_KEY_BYTES_MAX} bytes"),
        fits: |own| own.exclusivity.as_ref().is_none_or(|rule| (1..=METADATA_KEY_BYTES_MAX).contains(&rule.key.len())),
    },
    RangeRule {
        setting: "max_in_flight_per_value",
        allowed: || format!("1 to {}", number(VALUE_IN_FLIGHT_MAX.into())),
        fits: |own| {
            let rule = own.exclusivity.as_ref();
            rule.is_none_or(|rule| (1..=VALUE_IN_FLIGHT_MAX).contains(&rule.max_in_flight_per_value))
        },
    },
    RangeRule {
        setting: "payload_max_bytes",
        allowed: || format!("up to {} bytes", number(PAYLOAD_BYTES_MAX.into())),
        fits: |own| own.payload_max_bytes <= PAYLOAD_BYTES_MAX,
    },
    RangeRule {
        setting: "metadata_max_bytes",
        allowed: || format!("up to {} bytes", number(METADATA_BYTES_MAX.into())),
        fits: |own| own.metadata_max_bytes <= METADATA_BYTES_MAX,
    },
    RangeRule {
        setting: "count_by",
        allowed: || format!("up to {COUNT_BY_KEYS_MAX} different keys of 1 to {METADATA_KEY_BYTES_MAX} bytes"),
        fits: fits_count_by,
    },
    RangeRule {
        setting: "count_by_values_max",
        allowed: || format!("1 to {}", number(COUNT_BY_VALUES_MAX.into())),
        fits: |own| (1..=COUNT_BY_VALUES_MAX).contains(&own.count_by_values_max),
    },
    RangeRule {
        setting: "filter_shapes",
        allowed: || format!("at most {SHAPES_MAX}, without duplicates"),
        fits: fits_shapes,
    },
];

const OF_QUEUE: &[RangeRule<QueueSpec>] = &[
    RangeRule {
        setting: "shards",
        allowed: || format!("a power of two, 1 to {QUEUE_SHARDS_MAX}"),
        fits: |own| (1..=QUEUE_SHARDS_MAX).contains(&own.shards) && own.shards.is_power_of_two(),
    },
    RangeRule {
        setting: "template_for",
        allowed: || format!("a valid beginning of a queue name, 1 to {QUEUE_NAME_BYTES_MAX} bytes"),
        fits: |own| own.template_for.as_ref().is_none_or(|prefix| QueueName::new(prefix).is_ok()),
    },
    RangeRule {
        setting: "retry_policy.max",
        allowed: || format!("retry_policy.initial to {}", time(INVISIBILITY_MAX)),
        fits: |own| (own.settings.retry.initial..=INVISIBILITY_MAX).contains(&own.settings.retry.max),
    },
    RangeRule {
        setting: "priority_classes",
        allowed: || {
            let most = number(PRIORITY_OFFSET_MAX.unsigned_abs());
            format!("at most {PRIORITY_CLASSES_MAX}, with distinct names and offset_ms -{most} to {most}")
        },
        fits: |own| {
            let classes = &own.settings.classes;
            let is_first =
                |(at, class): (usize, &PriorityClass)| classes[..at].iter().all(|one| one.name != class.name);
            let offsets = -PRIORITY_OFFSET_MAX..=PRIORITY_OFFSET_MAX;
            let in_reach = classes.iter().all(|class| offsets.contains(&class.offset_ms));
            classes.len() <= PRIORITY_CLASSES_MAX && in_reach && classes.iter().enumerate().all(is_first)
        },
    },
    RangeRule {
        setting: "metadata_max_bytes",
        allowed: || {
            let most = number(METADATA_BYTES_MAX.into());
            format!("up to {most} bytes; on an exclusive queue, more than the length of its exclusivity_key")
        },
        fits: |own| {
            let rule = own.settings.exclusivity.as_ref();
            let least = rule.map_or(0, |rule| rule.key.len() + 1); // a value has at least one byte
            (least..=METADATA_BYTES_MAX as usize).contains(&(own.settings.metadata_max_bytes as usize))
        },
    },
    RangeRule {
        setting: "count_by",
        allowed: || {
            let keys = format!("up to {COUNT_BY_KEYS_MAX} different keys of 1 to {METADATA_KEY_BYTES_MAX} bytes");
            format!("{keys}, each within metadata_max_bytes")
        },
        fits: |own| fits_count_by(&own.settings) && own.settings.count_by.iter().all(|key| is_key_in(own, [&**key])),
    },
    RangeRule {
        setting: "filter_shapes",
        allowed: || {
            format!("at most {SHAPES_MAX}, without duplicates, the keys of each together within metadata_max_bytes")
        },
        fits: |own| fits_shapes(&own.settings) && own.settings.shapes.iter().all(|keys| is_key_in(own, keys.iter())),
    },
    RangeRule {
        setting: "dedupe_window",
        allowed: window,
        fits: |own| (DEDUPE_WINDOW_MIN..=DEDUPE_WINDOW_MAX).contains(&own.settings.dedupe_window),
    },
    RangeRule {
        setting: "dedupe_max_bytes",
        allowed: || format!("at least {} for each shard", number(DEDUPE_SHARD_BYTES_MIN as u64)),
        fits: |own| own.settings.dedupe_max_bytes >= DEDUPE_SHARD_BYTES_MIN.saturating_mul(own.shards as usize),
    },
    RangeRule {
        setting: "quota_messages",
        allowed: || "at least 1 for each shard".to_owned(),
        fits: |own| own.settings.quota_messages >= u64::from(own.shards),
    },
    RangeRule { setting: "description", allowed: text, fits: |own| is_text(Some(&own.description)) },
    RangeRule { setting: "enqueue_blocked_reason", allowed: text, fits: |own| is_text(own.enqueue_blocked.as_deref()) },
    RangeRule { setting: "dequeue_blocked_reason", allowed: text, fits: |own| is_text(own.dequeue_blocked.as_deref()) },
];

impl Settings {
    /// Checks every range, and that the retention is not shorter than the dedupe window.
    pub fn check(&self) -> Result<(), InvalidCommandPart> {
        if faults_of_shard(self).is_empty() { Ok(()) } else { Err(InvalidCommandPart::Settings) }
    }
}

/// Returns the settings of a shard that are out of range. O(shapes squared).
pub fn faults_of_shard(settings: &Settings) -> Vec<AllowedRange> {
    violations(OF_SHARD, settings)
}

/// Returns the settings of a queue that are out of range, each once.
pub fn faults_of_queue(spec: &QueueSpec) -> Vec<AllowedRange> {
    deduplicate(violations(OF_QUEUE, spec), faults_of_shard(&spec.settings))
}

/// Returns the allowed range of every setting that has one.
pub fn all() -> Vec<AllowedRange> {
    deduplicate(OF_QUEUE.iter().map(fault).collect(), OF_SHARD.iter().map(fault).collect())
}

/// Drops ranges of the shard for settings that also have a range of the queue, because the latter is stricter.
fn deduplicate(mut of_queue: Vec<AllowedRange>, of_shard: Vec<AllowedRange>) -> Vec<AllowedRange> {
    for fault in of_shard {
        if of_queue.iter().all(|other| other.setting != fault.setting) {
            of_queue.push(fault);
        }
    }
    of_queue
}

fn violations<T>(ranges: &[RangeRule<T>], own: &T) -> Vec<AllowedRange> {
    ranges.iter().filter(|range| !(range.fits)(own)).map(fault).collect()
}

fn fault<T>(range: &RangeRule<T>) -> AllowedRange {
    AllowedRange { setting: range.setting, allowed: (range.allowed)() }
}

fn fits_count_by(own: &Settings) -> bool {
    let keys = own.count_by.iter().map(|key| &**key);
    let is_first = |(at, key): (usize, &str)| !own.count_by[..at].iter().any(|other| **other == *key);
    own.count_by.len() <= COUNT_BY_KEYS_MAX
        && keys.clone().all(|key| (1..=METADATA_KEY_BYTES_MAX).contains(&key.len()))
        && keys.enumerate().all(is_first)
}

fn fits_shapes(own: &Settings) -> bool {
    let is_first = |(at, keys): (usize, &ShapeKeys)| !own.shapes[..at].contains(keys);
    own.shapes.len() <= SHAPES_MAX && own.shapes.iter().enumerate().all(is_first)
}

/// Whether a message of the queue may have all these metadata keys. A value may be empty, but for that of the
/// exclusivity key.
fn is_key_in<'a>(own: &QueueSpec, keys: impl IntoIterator<Item = &'a str>) -> bool {
    let keys: Vec<&str> = keys.into_iter().collect();
    let rule = own.settings.exclusivity.as_ref().map(|rule| &*rule.key);
    let exclusivity = rule.map_or(0, |key| 1 + if keys.contains(&key) { 0 } else { key.len() });
    let bytes = keys.iter().map(|key| key.len()).sum::<usize>() + exclusivity;
    bytes <= own.settings.metadata_max_bytes as usize
}

fn is_kept(own: &Settings, kept: Duration) -> bool {
    (own.dedupe_window..=MESSAGE_TTL_MAX).contains(&kept)
}

fn kept() -> String {
    format!("dedupe_window to {}", time(MESSAGE_TTL_MAX))
}

fn window() -> String {
    format!("{} to {}", time(DEDUPE_WINDOW_MIN), time(DEDUPE_WINDOW_MAX))
}

fn is_text(text: Option<&str>) -> bool {
    text.is_none_or(|text| text.len() <= DESCRIPTION_BYTES_MAX)
}

fn text() -> String {
    format!("at most {} bytes", number(DESCRIPTION_BYTES_MAX as u64))
}

/// Formats a bound in time for readers; bounds are whole seconds.
fn time(bound: Duration) -> String {
    const HOUR: u64 = 3_600;
    const YEAR: u64 = 365 * 24 * HOUR;
    let seconds = bound.as_secs();
    match seconds {
        _ if seconds >= YEAR => format!("{} years", seconds / YEAR),
        _ if seconds >= HOUR && seconds.is_multiple_of(HOUR) => format!("{} h", seconds / HOUR),
        _ => format!("{seconds} s"),
    }
}

/// Formats a bound with separators between thousands.
fn number(bound: u64) -> String {
    let digits = bound.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::setup::settings::Exclusivity;

    fn spec() -> QueueSpec {
        QueueSpec::with_defaults(QueueName::new("mail").expect("a valid name"))
    }

    #[test]
    fn each_setting_that_leaves_its_range_is_named_with_it() {
        assert_eq!(faults_of_queue(&spec()), [], "the defaults fit");
        let mut bad = spec();
        bad.shards = 3;
        bad.settings.default_lease = Duration::from_millis(500);
        bad.settings.default_attempts = 10_001;
        bad.settings.default_invisibility = INVISIBILITY_MAX + Duration::from_secs(1);
        bad.settings.retention.canceled = Duration::ZERO;
        let told: Vec<_> =
            faults_of_queue(&bad).into_iter().map(|fault| format!("{}: {}", fault.setting, fault.allowed)).collect();
        let expected = [
            "shards: a power of two, 1 to 256",
            "default_lease: 1 s to 12 h",
            "default_invisibility: up to 10 years",
            "default_max_attempts: 1 to 10,000",
            "retention.canceled: dedupe_window to 10 years",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_would_let_nothing_in_is_refused() {
        let mut bad = spec();
        bad.shards = 4;
        (bad.settings.dedupe_window, bad.settings.quota_messages) = (Duration::from_secs(59), 0);
        bad.settings.dedupe_max_bytes = 4 * DEDUPE_SHARD_BYTES_MIN - 1;
        let names = |spec: &QueueSpec| faults_of_queue(spec).iter().map(|fault| fault.setting).collect::<Vec<_>>();
        assert_eq!(names(&bad), ["dedupe_window", "dedupe_max_bytes", "quota_messages"]);
        (bad.settings.dedupe_window, bad.settings.quota_messages) = (Duration::from_secs(60), 3);
        bad.settings.dedupe_max_bytes += 1;
        assert_eq!(names(&bad), ["quota_messages"], "a shard's part would be less than a message");
        bad.settings.quota_messages = 4;
        assert_eq!(names(&bad), [""; 0]);
    }

    #[test]
    fn what_no_message_or_queue_can_meet_is_refused() {
        let check = |change: fn(&mut QueueSpec), expected: Option<&str>| {
            let mut spec = spec();
            change(&mut spec);
            assert_eq!(faults_of_queue(&spec).iter().map(|fault| fault.setting).next(), expected);
        };
        fn exclusive(spec: &mut QueueSpec, metadata_max_bytes: u32) {
            let rule = Exclusivity { key: "title".into(), max_in_flight_per_value: 1, strict_order_per_value: false };
            spec.settings.exclusivity = Some(rule);
            spec.settings.metadata_max_bytes = metadata_max_bytes;
        }
        fn classes(spec: &mut QueueSpec, names: [&str; 2]) {
            let class = |name: &str| PriorityClass { name: name.into(), offset_ms: 0, tag: None };
            spec.settings.classes = names.map(class).into();
        }
        check(|spec| exclusive(spec, 5), Some("metadata_max_bytes"));
        check(|spec| exclusive(spec, 6), None);
        check(|spec| spec.settings.metadata_max_bytes = 0, None);
        check(|spec| spec.settings.metadata_max_bytes = METADATA_BYTES_MAX + 1, Some("metadata_max_bytes"));
        check(|spec| classes(spec, ["fast", "fast"]), Some("priority_classes"));
        check(|spec| classes(spec, ["fast", "Fast"]), None);
        fn offset(spec: &mut QueueSpec, offset_ms: i64) {
            spec.settings.classes = [PriorityClass { name: "fast".into(), offset_ms, tag: None }].into();
        }
        check(|spec| offset(spec, PRIORITY_OFFSET_MAX), None);
        check(|spec| offset(spec, -PRIORITY_OFFSET_MAX), None);
        check(|spec| offset(spec, PRIORITY_OFFSET_MAX + 1), Some("priority_classes"));
        check(|spec| offset(spec, i64::MIN), Some("priority_classes"));
        fn counted(spec: &mut QueueSpec, metadata_max_bytes: u32) {
            spec.settings.count_by = vec!["team".into()];
            spec.settings.metadata_max_bytes = metadata_max_bytes;
        }
        fn shaped(spec: &mut QueueSpec, metadata_max_bytes: u32) {
            exclusive(spec, metadata_max_bytes);
            spec.settings.shapes = vec![ShapeKeys::new(["team", "title"]).expect("legal keys")];
        }
        check(|spec| counted(spec, 3), Some("count_by"));
        check(|spec| counted(spec, 4), None);
        check(|spec| shaped(spec, 9), Some("filter_shapes"));
        check(|spec| shaped(spec, 10), None);
        check(|spec| spec.settings.retry.initial = spec.settings.retry.max, None);
        check(
            |spec| spec.settings.retry.initial = spec.settings.retry.max + Duration::from_nanos(1),
            Some("retry_policy.max"),
        );
        for (prefix, expected) in [("mail/", None), ("/mail", Some("template_for")), ("mail ", Some("template_for"))] {
            let spec = QueueSpec { template_for: Some(prefix.into()), ..spec() };
            assert_eq!(faults_of_queue(&spec).iter().map(|fault| fault.setting).next(), expected, "{prefix:?}");
        }
    }

    #[test]
    fn a_setting_stands_once_in_the_list() {
        let mut names: Vec<_> = all().into_iter().map(|range| range.setting).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
