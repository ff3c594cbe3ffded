//! A caller's draft of a queue, the settings that result from it, and the differences between two settings as text.
//!
//! A setting that the draft omits keeps its value on an existing queue and takes its default on a new one. The names
//! are those of the fields of the protocol's `Queue`. A setting missing from `settings_of` could change unnoticed, so
//! a test compares it.

use std::time::Duration;

use super::retry_draft::RetryPolicyDraft;
use crate::catalog::{ResetRow, SettingText, check_reset, differences_between, duration_text, reset_to, setting};
use tallystone_domain::access::{AccessDenial, AccessResource, AskedName, CallRights};
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::setup::queue_settings;
use tallystone_domain::queue::setup::setting_ranges::{self, AllowedRange};
use tallystone_domain::queue::setup::settings::{
    Exclusivity, HistoryKept, IdReuse, MessageRetryPolicy, PriorityClass, Settings,
};
use tallystone_domain::queue::{Durability, QueueName, QueueSpec};
use tallystone_domain::{Reason, Reject};

macro_rules! queue_draft {
    ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
        /// A caller's draft of a queue.
        #[derive(Clone, Debug)]
        pub struct QueueDraft {
            pub name: QueueName,
            pub description: Option<String>,
            /// Whether it is exclusive.
            pub exclusive: Option<bool>,
            /// The metadata key of the exclusivity value.
            pub exclusivity_key: Option<Box<str>>,
            /// The most messages of one value in flight.
            pub max_in_flight_per_value: Option<u32>,
            /// Whether messages of a value keep their order.
            pub strict_order_per_value: Option<bool>,
            /// The number of shards.
            pub shards: Option<u32>,
            /// The name prefix of the queues that this template creates.
            pub template_for: Option<Box<str>>,
            /// The durability that its store must offer.
            pub required_durability: Option<Durability>,
            $($(#[$doc])* pub $field: Option<$type>,)*
            /// The parts of the retry policy of failed messages.
            pub retry: RetryPolicyDraft,
            /// The TTL; 0 for none.
            pub default_ttl: Option<Duration>,
            /// The retention of completed, canceled and errored messages.
            pub retention: [Option<Duration>; 3],
            /// The priority classes; empty leaves them unchanged.
            pub classes: Vec<PriorityClass>,
            /// The metadata keys to count by; empty leaves them unchanged.
            pub count_by: Vec<Box<str>>,
            /// The rows that the history keeps.
            pub history: Option<HistoryKept>,
            /// When the id of a message that is over may come again.
            pub reuse_ids: Option<IdReuse>,
            /// The indexed filter shapes; empty leaves them unchanged.
            pub shapes: Vec<ShapeKeys>,
            /// Whether enqueues are blocked, and why.
            pub enqueue_blocked: Option<Option<Box<str>>>,
            /// Whether dequeues are blocked, and why.
            pub dequeue_blocked: Option<Option<Box<str>>>,
        }

        impl QueueDraft {
            /// A draft with nothing but the name.
            pub fn of(name: QueueName) -> Self {
                Self {
                    name,
                    description: None,
                    exclusive: None,
                    exclusivity_key: None,
                    max_in_flight_per_value: None,
                    strict_order_per_value: None,
                    shards: None,
                    template_for: None,
                    required_durability: None,
                    $($field: None,)*
                    retry: RetryPolicyDraft::default(),
                    default_ttl: None,
                    retention: [None; 3],
                    classes: Vec::new(),
                    count_by: Vec::new(),
                    history: None,
                    reuse_ids: None,
                    shapes: Vec::new(),
                    enqueue_blocked: None,
                    dequeue_blocked: None,
                }
            }

            fn set_plain(&self, settings: &mut Settings) {
                $(set(&mut settings.$field, self.$field);)*
            }
        }
    };
}
queue_settings!(all queue_draft);

fn set<T>(place: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *place = said;
    }
}

impl QueueDraft {
    /// The settings that result from the draft over those of an existing queue, or over the defaults. `reset` names
    /// settings that return to their defaults.
    pub fn resolve(self, live: Option<&QueueSpec>, reset: &[String]) -> Result<QueueSpec, Reject> {
        let spec = self.over(live, reset)?;
        checked(live, spec)
    }

    /// The settings that result from the draft over the defaults, for a queue that may exist. A setting that predates
    /// a rule is no fault of a caller that creates the queue again.
    pub fn resolve_new(self, known: Option<&QueueSpec>) -> Result<QueueSpec, Reject> {
        let spec = self.over(None, &[])?;
        checked(known, spec)
    }

    fn over(self, live: Option<&QueueSpec>, reset: &[String]) -> Result<QueueSpec, Reject> {
        let defaults = QueueSpec::with_defaults(self.name.clone());
        let mut spec = live.cloned().unwrap_or_else(|| defaults.clone());
        let rows = WITH_DEFAULT.concat();
        reset_to(&mut spec, &defaults, &rows, reset)?;
        set(&mut spec.description, self.description.clone());
        set(&mut spec.shards, self.shards);
        set(&mut spec.template_for, self.template_for.clone().map(Some));
        set(&mut spec.required_durability, self.required_durability.map(Some));
        set(&mut spec.enqueue_blocked, self.enqueue_blocked.clone());
        set(&mut spec.dequeue_blocked, self.dequeue_blocked.clone());
        self.resolve_exclusivity(&mut spec.settings)?;
        let settings = &mut spec.settings;
        self.set_plain(settings);
        self.retry.set(&mut settings.retry);
        set(&mut settings.default_ttl, self.default_ttl.map(|ttl| (!ttl.is_zero()).then_some(ttl)));
        let [completed, canceled, errored] = self.retention;
        // A longer window also keeps results longer, unless the caller sets the retention.
        let least = settings.dedupe_window;
        let kept = &mut settings.retention;
        for (place, said) in
            [(&mut kept.completed, completed), (&mut kept.canceled, canceled), (&mut kept.errored, errored)]
        {
            *place = said.unwrap_or((*place).max(least));
        }
        if !self.classes.is_empty() {
            settings.classes = self.classes;
        }
        if !self.count_by.is_empty() {
            settings.count_by = self.count_by;
        }
        set(&mut settings.history, self.history);
        set(&mut settings.reuse_ids, self.reuse_ids);
        if !self.shapes.is_empty() {
            settings.shapes = self.shapes;
        }
        check_reset(&spec, &defaults, &rows, &WITH_PARTS, reset)?;
        Ok(spec)
    }

    fn resolve_exclusivity(&self, settings: &mut Settings) -> Result<(), Reject> {
        let of_values = [
            ("exclusivity_key", self.exclusivity_key.is_some()),
            ("max_in_flight_per_value", self.max_in_flight_per_value.is_some()),
            ("strict_order_per_value", self.strict_order_per_value.is_some()),
        ];
        let of_values: Vec<_> = of_values.into_iter().filter(|(_, said)| *said).map(|(setting, _)| setting).collect();
        match (self.exclusive, settings.exclusivity.is_some()) {
            (Some(true), _) | (None, true) => {}
            (Some(false) | None, _) if !of_values.is_empty() => {
                let words =
                    |setting: &str| format!("{setting} requires type QUEUE_TYPE_EXCLUSIVE; this is a simple queue");
                let all: Vec<_> = of_values.iter().map(|setting| words(setting)).collect();
                let reject = Reject::new(Reason::InvalidSettings, all.join("; "));
                let named = of_values.iter().zip(all);
                return Err(named.fold(reject, |reject, (setting, what)| reject.at(format!("queue.{setting}"), what)));
            }
            (Some(false), _) => {
                settings.exclusivity = None;
                return Ok(());
            }
            (None, false) => return Ok(()),
        }
        let known = settings.exclusivity.take();
        let Some(key) = self.exclusivity_key.clone().or_else(|| known.as_ref().map(|known| known.key.clone())) else {
            let what = "an exclusive queue needs an exclusivity_key: the metadata key of the exclusivity value";
            return Err(Reject::new(Reason::InvalidSettings, what).at("queue.exclusivity_key", what));
        };
        let (limit, strict) =
            known.map_or((1, false), |known| (known.max_in_flight_per_value, known.strict_order_per_value));
        settings.exclusivity = Some(Exclusivity {
            key,
            max_in_flight_per_value: self.max_in_flight_per_value.unwrap_or(limit),
            strict_order_per_value: self.strict_order_per_value.unwrap_or(strict),
        });
        Ok(())
    }
}

/// Refuses settings with faults that the existing queue does not have.
fn checked(live: Option<&QueueSpec>, spec: QueueSpec) -> Result<QueueSpec, Reject> {
    let faults = new_faults(live, &spec);
    if faults.is_empty() { Ok(spec) } else { Err(out_of_range(&spec, &faults)) }
}

/// The settings that never change on a live queue.
const FIXED: [&str; 2] = ["shards", "template_for"];

/// Settings that have a default, and how each returns to it.
type ResetRows = &'static [ResetRow<QueueSpec>];

macro_rules! reset_rows {
    ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
        &[$((stringify!($name), |own, base| own.settings.$field = base.settings.$field),)*]
    };
}

const WITH_DEFAULT: [ResetRows; 5] = [
    &[
        ("description", |own, base| own.description.clone_from(&base.description)),
        ("required_durability", |own, base| own.required_durability = base.required_durability),
    ],
    queue_settings!(of_messages reset_rows),
    &[
        ("retry_policy", |own, base| own.settings.retry = base.settings.retry),
        ("default_ttl", |own, base| own.settings.default_ttl = base.settings.default_ttl),
        ("retention", |own, base| own.settings.retention = base.settings.retention),
    ],
    queue_settings!(of_queue reset_rows),
    &[
        ("count_by", |own, base| own.settings.count_by.clone_from(&base.settings.count_by)),
        ("history", |own, base| own.settings.history = base.settings.history),
        ("reuse_ids", |own, base| own.settings.reuse_ids = base.settings.reuse_ids),
        ("filter_shapes", |own, base| own.settings.shapes.clone_from(&base.settings.shapes)),
        ("priority_classes", |own, base| own.settings.classes.clone_from(&base.settings.classes)),
    ],
];

/// The settings of `WITH_DEFAULT` that have parts.
const WITH_PARTS: [&str; 2] = ["retry_policy", "retention"];

/// The faults that a change introduces. A setting of an existing queue that predates a rule stays valid until it is
/// changed. A fault that shards refuse is a fault in any case.
fn new_faults(live: Option<&QueueSpec>, spec: &QueueSpec) -> Vec<AllowedRange> {
    let mut faults = setting_ranges::faults_of_queue(spec);
    let Some(live) = live.filter(|_| !faults.is_empty()) else { return faults };
    let (old, of_shard) = (setting_ranges::faults_of_queue(live), setting_ranges::faults_of_shard(&spec.settings));
    let values = [settings_of(live), settings_of(spec)];
    faults.retain(|fault| {
        let is_of = |other: &AllowedRange| other.setting == fault.setting;
        let [before, after] = values.each_ref().map(|values| value_of(values, fault.setting));
        of_shard.iter().any(is_of) || !old.iter().any(is_of) || before != after
    });
    faults
}

/// The value of a setting, or of the setting that it is a part or the reason of.
fn value_of<'a>(values: &'a [SettingText], setting: &str) -> Option<&'a str> {
    let whole = setting.strip_suffix("_reason").unwrap_or(setting);
    let whole = if whole.starts_with("retry_policy.") { "retry_policy" } else { whole };
    values.iter().find(|value| value.path == whole).map(|setting| &*setting.value)
}

/// The longest value of a setting shown in a refusal, in characters.
const VALUE_SHOWN_CHARS: usize = 40;

/// Refuses settings; shows each value, if it is short, and the allowed range.
fn out_of_range(spec: &QueueSpec, faults: &[AllowedRange]) -> Reject {
    let values = settings_of(spec);
    let words = |AllowedRange { setting, allowed }: &AllowedRange| {
        let whole = || values.iter().find(|value| value.path == *setting).map(|setting| setting.value.clone());
        let value = part_of(&spec.settings.retry, setting).or_else(whole);
        match (value.filter(|value| value.chars().count() <= VALUE_SHOWN_CHARS), count_of(&spec.settings, setting)) {
            (Some(value), _) => format!("{setting} is {value}, allowed is {allowed}"),
            (None, Some(count)) => format!("{setting} has {count}, allowed is {allowed}"),
            (None, None) => format!("{setting} does not fit, allowed is {allowed}"),
        }
    };
    let all: Vec<_> = faults.iter().map(words).collect();
    let reject = Reject::new(Reason::InvalidSettings, format!("queue {}: {}", spec.name, all.join("; ")));
    let fields = faults.iter().map(|fault| format!("queue.{}", fault.setting));
    fields.zip(all).fold(reject, |reject, (field, words)| reject.at(field, words))
}

/// The number of elements of a list setting.
fn count_of(settings: &Settings, setting: &str) -> Option<usize> {
    match setting {
        "count_by" => Some(settings.count_by.len()),
        "filter_shapes" => Some(settings.shapes.len()),
        "priority_classes" => Some(settings.classes.len()),
        _ => None, // every other setting is a single value
    }
}

/// The value of a setting that is part of the retry policy.
fn part_of(retry: &MessageRetryPolicy, setting: &str) -> Option<String> {
    match setting.strip_prefix("retry_policy.")? {
        "factor_percent" => Some(format!("{} %", retry.factor_percent)),
        "max" => Some(duration_text(retry.max)),
        "jitter_percent" => Some(format!("{} %", retry.jitter_percent)),
        _ => None,
    }
}

/// The differences between two settings of a queue: `setting: before -> after`, one line a setting.
pub fn differences(before: &QueueSpec, after: &QueueSpec) -> Vec<String> {
    differences_between(settings_of(before), settings_of(after))
}

/// The differences that an existing queue does not allow, whether or not it is empty.
pub fn fixed_differences(before: &QueueSpec, after: &QueueSpec) -> Vec<String> {
    let fixed = |spec| settings_of(spec).into_iter().filter(|setting| FIXED.contains(&setting.path)).collect();
    differences_between(fixed(before), fixed(after))
}

fn settings_of(spec: &QueueSpec) -> Vec<SettingText> {
    let QueueSpec {
        name: _,
        description,
        template_for,
        shards,
        required_durability,
        settings,
        enqueue_blocked,
        dequeue_blocked,
    } = spec;
    let retry = &settings.retry;
    let list = |all: Vec<String>| if all.is_empty() { "none".to_owned() } else { all.join(", ") };
    let shape = |keys: &ShapeKeys| keys.iter().collect::<Vec<_>>().join("+");
    let exclusivity = settings.exclusivity.as_ref();
    let mut values = vec![
        setting("description", format!("{description:?}")),
        setting("type", if exclusivity.is_some() { "EXCLUSIVE" } else { "SIMPLE" }),
        setting("exclusivity_key", exclusivity.map(|exclusivity| &*exclusivity.key)),
        setting("max_in_flight_per_value", exclusivity.map(|own| own.max_in_flight_per_value)),
        setting("strict_order_per_value", exclusivity.map(|own| own.strict_order_per_value)),
        setting("shards", *shards),
        setting("template_for", template_for.as_deref()),
        setting("required_durability", required_durability.map(|tier| tier.to_string())),
    ];
    macro_rules! plain {
        ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
            values.extend([$(setting(stringify!($name), settings.$field),)*])
        };
    }
    queue_settings!(of_messages plain);
    let [initial, max] = [retry.initial, retry.max].map(duration_text);
    values.extend([
        setting("retry_policy", format!("{initial} x{}% up to {max} +{}%", retry.factor_percent, retry.jitter_percent)),
        setting("default_ttl", settings.default_ttl),
        setting("retention.completed", settings.retention.completed),
        setting("retention.canceled", settings.retention.canceled),
        setting("retention.errored", settings.retention.errored),
    ]);
    queue_settings!(of_queue plain);
    values.extend([
        setting("priority_classes", list(settings.classes.iter().map(class_text).collect())),
        setting("count_by", list(settings.count_by.iter().map(ToString::to_string).collect())),
        setting("history", settings.history.to_string()),
        setting("reuse_ids", settings.reuse_ids.to_string()),
        setting("filter_shapes", list(settings.shapes.iter().map(shape).collect())),
        setting("enqueue_blocked", enqueue_blocked.as_deref()),
        setting("dequeue_blocked", dequeue_blocked.as_deref()),
    ]);
    values
}

/// A priority class in the syntax of the command line, with the unit of its offset.
fn class_text(class: &PriorityClass) -> String {
    let tag = class.tag.as_ref().map_or_else(String::new, |(key, value)| format!(" for {key}={value}"));
    format!("{}={}ms{tag}", class.name, class.offset_ms)
}

impl AskedName for QueueDraft {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        self.name.check_rights(rights)?;
        // A template says what queues with its prefix are like, so whoever makes one may make them.
        match &self.template_for {
            Some(prefix) => rights.require(AccessResource::Queue(prefix), || {
                rights.lack(format!("queues whose names begin with {prefix}"))
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> QueueDraft {
        QueueDraft::of(QueueName::new("mail").expect("a valid name"))
    }

    #[test]
    fn what_is_left_out_stays_and_is_the_default_at_first() {
        let made = named().resolve(None, &[]).expect("a queue");
        assert_eq!(made, QueueSpec::with_defaults(made.name.clone()));
        let changed = QueueDraft { default_attempts: Some(5), ..named() }.resolve(Some(&made), &[]).expect("a queue");
        assert_eq!(differences(&made, &changed), ["default_max_attempts: 3 -> 5"]);
        let blocked = QueueDraft { dequeue_blocked: Some(Some("night".into())), ..named() };
        let blocked = blocked.resolve(Some(&changed), &[]).expect("a queue");
        assert_eq!(differences(&changed, &blocked), ["dequeue_blocked: none -> night"]);
        let reset = named().resolve(Some(&blocked), &["default_max_attempts".to_owned()]).expect("a queue");
        assert_eq!(reset.settings.default_attempts, 3);
        let refused = named().resolve(Some(&made), &["shards".to_owned()]).expect_err("fixed");
        assert_eq!(refused.reason, Reason::InvalidSettings);
    }

    #[test]
    fn a_longer_window_keeps_results_as_long() {
        let day = Duration::from_secs(86_400);
        let made = QueueDraft { dedupe_window: Some(day), ..named() }.resolve(None, &[]).expect("a queue");
        assert_eq!((made.settings.retention.completed, made.settings.retention.canceled), (day, day));
        let short = QueueDraft { retention: [Some(Duration::from_secs(60)), None, None], ..named() };
        assert!(short.resolve(None, &[]).expect_err("shorter than the window").message.contains("dedupe_window"));
    }

    #[test]
    fn a_refusal_names_each_setting_with_its_value_and_its_range() {
        let bad = QueueDraft {
            default_lease: Some(Duration::from_millis(500)),
            default_attempts: Some(0),
            description: Some("x".repeat(1_025)),
            retry: RetryPolicyDraft { factor_percent: Some(50), ..RetryPolicyDraft::default() },
            ..named()
        };
        let refused = bad.resolve(None, &[]).expect_err("out of range");
        let expected = "queue mail: description does not fit, allowed is at most 1,024 bytes; default_lease is 0.5s, allowed is \
                        1 s to 12 h; default_max_attempts is 0, allowed is 1 to 10,000; retry_policy.factor_percent is \
                        50 %, allowed is at least 100";
        assert_eq!(refused.message, expected);
        let fields: Vec<_> = refused.fields.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields[..3], ["queue.description", "queue.default_lease", "queue.default_max_attempts"]);
        assert_eq!(fields[3..], ["queue.retry_policy.factor_percent"]);
        assert_eq!(refused.fields[1].1, "default_lease is 0.5s, allowed is 1 s to 12 h");
    }

    #[test]
    fn what_a_live_queue_has_from_before_a_rule_stays_until_it_is_changed() {
        let mut old = named().resolve(None, &[]).expect("a queue");
        old.settings.quota_messages = 0;
        old.settings.retry.initial = old.settings.retry.max + Duration::from_secs(1);
        let more = QueueDraft { default_attempts: Some(5), ..named() };
        let changed = more.clone().resolve(Some(&old), &[]).expect("the faults predate the change");
        assert_eq!(differences(&old, &changed), ["default_max_attempts: 3 -> 5"]);
        assert!(more.resolve(None, &[]).is_ok(), "a new queue has none");
        let again = QueueDraft { quota_messages: Some(0), retry: old.settings.retry.into(), ..named() };
        assert_eq!(again.clone().resolve_new(Some(&old)).expect("it is there"), old, "who makes sure of it finds it");
        assert!(again.resolve_new(None).is_err());
        let still_bad = MessageRetryPolicy { jitter_percent: 1, ..old.settings.retry };
        for (draft, field) in [
            (QueueDraft { retry: still_bad.into(), ..named() }, "queue.retry_policy.max"),
            (QueueDraft { dedupe_window: Some(Duration::ZERO), ..named() }, "queue.dedupe_window"),
        ] {
            let refused = draft.resolve(Some(&old), &[]).expect_err("changed, and no better");
            assert_eq!(refused.fields.iter().map(|(field, _)| field.as_str()).collect::<Vec<_>>(), [field]);
        }
        let mended = QueueDraft { quota_messages: Some(1), ..named() }.resolve(Some(&old), &[]).expect("mended");
        let back = QueueDraft { quota_messages: Some(0), ..named() };
        assert!(back.resolve(Some(&mended), &[]).is_err(), "what is mended does not come back");
    }

    #[test]
    fn exclusive_queues_need_their_key_and_simple_ones_refuse_it() {
        let exclusive = QueueDraft { exclusive: Some(true), ..named() };
        assert!(exclusive.clone().resolve(None, &[]).is_err());
        let made =
            QueueDraft { exclusivity_key: Some("title".into()), ..exclusive }.resolve(None, &[]).expect("a queue");
        assert_eq!(made.settings.exclusivity.as_ref().map(|own| own.max_in_flight_per_value), Some(1));
        let raised = QueueDraft { max_in_flight_per_value: Some(3), ..named() };
        let raised = raised.clone().resolve(Some(&made), &[]).expect("it is exclusive already");
        assert_eq!(
            raised.settings.exclusivity.map(|own| (own.key, own.max_in_flight_per_value)),
            Some(("title".into(), 3))
        );
        let simple = QueueDraft { exclusivity_key: Some("title".into()), ..named() };
        assert!(simple.resolve(None, &[]).is_err());
    }
}
