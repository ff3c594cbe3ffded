//! Queues between the wire and the domain.
//!
//! For a setting that may not be zero or empty, zero and empty mean absent. For one that may, the field is optional.
//! All errors of a message are reported together.

use std::fmt::Display;
use std::time::Duration;

use crate::errors::ApiError;
use crate::grpc::saturating_i64;
use crate::time::{read_duration, write, write_duration};
use tallystone_domain::access::{Asked, CallRights, Permitted};
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::setup::settings::{HistoryKept, IdReuse, MessageRetryPolicy, PriorityClass, Retention};
use tallystone_domain::queue::setup::{queue_settings, setting_ranges};
use tallystone_domain::queue::{CatalogQueue, Durability, QueueName, QueueSpec};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::queues::{PastQueueChange, QueueDraft, QueueEtag, RetryPolicyDraft};
use tallystone_proto::queue::v1 as wire;

/// The default reason of a block.
const BLOCKED_WITHOUT_REASON: &str = "no reason was given";

/// Decodes a queue that the caller may touch, and the etag of the version that it was based on.
pub fn draft_of(
    rights: &CallRights,
    sent: Option<wire::Queue>,
) -> Result<(Permitted<QueueDraft>, Option<QueueEtag>), ApiError> {
    let (draft, etag) = asked_draft(sent)?;
    Ok((rights.permit(Asked::new(draft))?, etag))
}

fn asked_draft(sent: Option<wire::Queue>) -> Result<(QueueDraft, Option<QueueEtag>), Reject> {
    let sent = sent.ok_or_else(|| Reject::new(Reason::InvalidQueueName, "queue is missing; send at least its name"))?;
    let mut draft = QueueDraft::of(QueueName::new(&sent.name)?);
    let etag = (!sent.etag.is_empty()).then(|| sent.etag.parse()).transpose()?;
    let mut faults = QueueFieldErrors(Vec::new());
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    draft.description = sent.description;
    draft.exclusive = faults.exclusive(sent.r#type);
    draft.exclusivity_key = text(&sent.exclusivity_key).map(Into::into);
    draft.max_in_flight_per_value = faults.number("max_in_flight_per_value", sent.max_in_flight_per_value);
    draft.strict_order_per_value = sent.strict_order_per_value;
    draft.shards = faults.number("shards", sent.shards);
    draft.template_for = text(&sent.template_for).map(Into::into);
    draft.required_durability = faults.durability(sent.required_durability);
    macro_rules! read_plain {
        ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
            $(draft.$field = WireSetting::read(&mut faults, stringify!($name), sent.$name);)*
        };
    }
    queue_settings!(of_messages read_plain);
    draft.retry = sent.retry_policy.map(|policy| faults.retry(policy)).unwrap_or_default();
    draft.default_ttl = faults.duration("default_ttl", sent.default_ttl);
    if let Some(kept) = sent.retention {
        draft.retention = [
            faults.duration("retention.completed", kept.completed),
            faults.duration("retention.canceled", kept.canceled),
            faults.duration("retention.errored", kept.errored),
        ];
    }
    queue_settings!(of_queue read_plain);
    draft.classes = sent.priority_classes.into_iter().filter_map(|class| faults.class(class)).collect();
    draft.count_by = sent.count_by.into_iter().map(Into::into).collect();
    draft.history = faults.history(sent.history);
    draft.reuse_ids = faults.reuse_ids(sent.reuse_ids);
    draft.shapes = sent.filter_shapes.iter().filter_map(|shape| faults.shape(&shape.keys)).collect();
    draft.enqueue_blocked = faults.blocked("enqueue_blocked", sent.enqueue_blocked, &sent.enqueue_blocked_reason);
    draft.dequeue_blocked = faults.blocked("dequeue_blocked", sent.dequeue_blocked, &sent.dequeue_blocked_reason);
    match faults.0.is_empty() {
        true => Ok((draft, etag)),
        false => Err(faults.reject()),
    }
}

/// Encodes a queue.
pub fn queue_message(queue: &CatalogQueue) -> wire::Queue {
    wire::Queue {
        id: queue.id.to_string(),
        etag: QueueEtag::of(queue).to_string(),
        version: queue.version,
        create_time: Some(write(queue.created)),
        update_time: Some(write(queue.updated)),
        ..settings_message(&queue.spec)
    }
}

/// Encodes a change of a queue.
pub fn change_message(change: PastQueueChange) -> wire::QueueChange {
    let queue = change.spec.as_ref().map(|spec| wire::Queue {
        id: change.id.to_string(),
        etag: QueueEtag::of_version(change.id, change.version).to_string(),
        version: change.version,
        update_time: Some(write(change.time)),
        ..settings_message(spec)
    });
    wire::QueueChange {
        version: change.version,
        change_time: Some(write(change.time)),
        actor: change.actor,
        reason: change.reason,
        differences: change.differences,
        queue,
    }
}

fn settings_message(spec: &QueueSpec) -> wire::Queue {
    let settings = &spec.settings;
    let exclusivity = settings.exclusivity.as_ref();
    let kind = if exclusivity.is_some() { wire::QueueType::Exclusive } else { wire::QueueType::Simple };
    let class = |class: &PriorityClass| wire::PriorityClass {
        name: class.name.to_string(),
        offset_ms: class.offset_ms,
        tag_key: class.tag.as_ref().map_or_else(String::new, |(key, _)| key.to_string()),
        tag_value: class.tag.as_ref().map_or_else(String::new, |(_, value)| value.to_string()),
    };
    let shape = |keys: &ShapeKeys| wire::FilterShape { keys: keys.iter().map(str::to_owned).collect() };
    let why = |blocked: &Option<Box<str>>| blocked.as_deref().unwrap_or_default().to_owned();
    let mut message = wire::Queue {
        name: spec.name.to_string(),
        r#type: kind.into(),
        exclusivity_key: exclusivity.map_or_else(String::new, |own| own.key.to_string()),
        max_in_flight_per_value: exclusivity.map(|own| signed(own.max_in_flight_per_value)),
        strict_order_per_value: exclusivity.map(|own| own.strict_order_per_value),
        description: Some(spec.description.clone()),
        shards: Some(signed(spec.shards)),
        template_for: spec.template_for.as_deref().unwrap_or_default().to_owned(),
        required_durability: durability_message(spec.required_durability).into(),
        retry_policy: Some(retry_message(&settings.retry)),
        default_ttl: settings.default_ttl.map(write_duration),
        retention: Some(retention_message(&settings.retention)),
        priority_classes: settings.classes.iter().map(class).collect(),
        count_by: settings.count_by.iter().map(ToString::to_string).collect(),
        history: history_message(settings.history).into(),
        reuse_ids: reuse_message(settings.reuse_ids).into(),
        filter_shapes: settings.shapes.iter().map(shape).collect(),
        enqueue_blocked: Some(spec.enqueue_blocked.is_some()),
        enqueue_blocked_reason: why(&spec.enqueue_blocked),
        dequeue_blocked: Some(spec.dequeue_blocked.is_some()),
        dequeue_blocked_reason: why(&spec.dequeue_blocked),
        ..wire::Queue::default()
    };
    macro_rules! write_plain {
        ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
            $(message.$name = Some(WireSetting::write(settings.$field));)*
        };
    }
    queue_settings!(all write_plain);
    message
}

fn durability_message(durability: Option<Durability>) -> wire::Durability {
    match durability {
        None => wire::Durability::Unspecified,
        Some(Durability::Fast) => wire::Durability::Fast,
        Some(Durability::Safe) => wire::Durability::Safe,
        Some(Durability::Replicated) => wire::Durability::Replicated,
    }
}

fn history_message(history: HistoryKept) -> wire::History {
    match history {
        HistoryKept::All => wire::History::All,
        HistoryKept::Nothing => wire::History::None,
    }
}

fn reuse_message(reuse: IdReuse) -> wire::ReuseIds {
    match reuse {
        IdReuse::AfterWindow => wire::ReuseIds::AfterWindow,
        IdReuse::WhenOver => wire::ReuseIds::WhenOver,
    }
}

fn retry_message(retry: &MessageRetryPolicy) -> wire::RetryPolicy {
    wire::RetryPolicy {
        initial: Some(write_duration(retry.initial)),
        factor_percent: Some(signed(retry.factor_percent)),
        max: Some(write_duration(retry.max)),
        jitter_percent: Some(signed(retry.jitter_percent)),
    }
}

fn retention_message(retention: &Retention) -> wire::Retention {
    wire::Retention {
        completed: Some(write_duration(retention.completed)),
        canceled: Some(write_duration(retention.canceled)),
        errored: Some(write_duration(retention.errored)),
    }
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A plain setting, by its types on the wire and in the domain.
trait WireSetting<W>: Sized {
    fn read(faults: &mut QueueFieldErrors, field: &'static str, sent: Option<W>) -> Option<Self>;
    fn write(self) -> W;
}

impl WireSetting<prost_types::Duration> for Duration {
    fn read(faults: &mut QueueFieldErrors, field: &'static str, sent: Option<prost_types::Duration>) -> Option<Self> {
        faults.duration(field, sent)
    }

    fn write(self) -> prost_types::Duration {
        write_duration(self)
    }
}

macro_rules! wire_numbers {
    ($($type:ty as $wire:ty, $write:path;)*) => {
        $(impl WireSetting<$wire> for $type {
            fn read(faults: &mut QueueFieldErrors, field: &'static str, sent: Option<$wire>) -> Option<Self> {
                faults.number(field, sent)
            }

            fn write(self) -> $wire {
                $write(self)
            }
        })*
    };
}
wire_numbers! { u32 as i32, signed; u64 as i64, saturating_i64; usize as i64, saturating_i64; }

/// All errors of a message, each with its field.
struct QueueFieldErrors(Vec<(&'static str, String)>);

impl QueueFieldErrors {
    /// Combines all errors into one refusal.
    fn reject(self) -> Reject {
        let all: Vec<_> = self.0.iter().map(|(_, what)| what.as_str()).collect();
        let reject = Reject::new(Reason::InvalidSettings, all.join("; "));
        self.0.into_iter().fold(reject, |reject, (field, what)| reject.at(format!("queue.{field}"), what))
    }

    fn number<S: Copy + Display, T: TryFrom<S>>(&mut self, field: &'static str, sent: Option<S>) -> Option<T> {
        let read = T::try_from(sent?);
        if read.is_err() {
            let range = setting_ranges::all().into_iter().find(|range| range.setting == field);
            let allowed = range.map_or_else(|| "0 or more".to_owned(), |range| range.allowed);
            self.0.push((field, format!("{field} is {}, allowed is {allowed}", sent?)));
        }
        read.ok()
    }

    fn duration(&mut self, field: &'static str, sent: Option<prost_types::Duration>) -> Option<Duration> {
        match read_duration(field, &sent?) {
            Ok(duration) => Some(duration),
            Err(reject) => {
                self.0.push((field, reject.message));
                None
            }
        }
    }

    fn exclusive(&mut self, sent: i32) -> Option<bool> {
        match wire::QueueType::try_from(sent) {
            Ok(wire::QueueType::Unspecified) => None,
            Ok(wire::QueueType::Simple) => Some(false),
            Ok(wire::QueueType::Exclusive) => Some(true),
            Err(_unknown) => {
                self.0.push(("type", format!("type {sent} does not exist; send SIMPLE or EXCLUSIVE")));
                None
            }
        }
    }

    fn durability(&mut self, sent: i32) -> Option<Durability> {
        match wire::Durability::try_from(sent) {
            Ok(wire::Durability::Unspecified) => None,
            Ok(wire::Durability::Fast) => Some(Durability::Fast),
            Ok(wire::Durability::Safe) => Some(Durability::Safe),
            Ok(wire::Durability::Replicated) => Some(Durability::Replicated),
            Err(_unknown) => {
                let what = format!("required_durability {sent} does not exist; send FAST, SAFE or REPLICATED");
                self.0.push(("required_durability", what));
                None
            }
        }
    }

    fn history(&mut self, sent: i32) -> Option<HistoryKept> {
        match wire::History::try_from(sent) {
            Ok(wire::History::Unspecified) => None,
            Ok(wire::History::All) => Some(HistoryKept::All),
            Ok(wire::History::None) => Some(HistoryKept::Nothing),
            Err(_unknown) => {
                self.0.push(("history", format!("history {sent} does not exist; send HISTORY_ALL or HISTORY_NONE")));
                None
            }
        }
    }

    fn reuse_ids(&mut self, sent: i32) -> Option<IdReuse> {
        match wire::ReuseIds::try_from(sent) {
            Ok(wire::ReuseIds::Unspecified) => None,
            Ok(wire::ReuseIds::AfterWindow) => Some(IdReuse::AfterWindow),
            Ok(wire::ReuseIds::WhenOver) => Some(IdReuse::WhenOver),
            Err(_unknown) => {
                let what = "does not exist; send REUSE_IDS_AFTER_WINDOW or REUSE_IDS_WHEN_OVER";
                self.0.push(("reuse_ids", format!("reuse_ids {sent} {what}")));
                None
            }
        }
    }

    fn retry(&mut self, sent: wire::RetryPolicy) -> RetryPolicyDraft {
        RetryPolicyDraft {
            initial: self.duration("retry_policy.initial", sent.initial),
            factor_percent: self.number("retry_policy.factor_percent", sent.factor_percent),
            max: self.duration("retry_policy.max", sent.max),
            jitter_percent: self.number("retry_policy.jitter_percent", sent.jitter_percent),
        }
    }

    fn class(&mut self, sent: wire::PriorityClass) -> Option<PriorityClass> {
        let fits = |text: &str, most: usize| text.len() <= most;
        if !(1..=64).contains(&sent.name.len()) || !fits(&sent.tag_key, 64) || !fits(&sent.tag_value, 256) {
            let what = "a priority class has a name of 1 to 64 bytes and a tag of up to 64 and 256";
            self.0.push(("priority_classes", what.to_owned()));
            return None;
        }
        if sent.tag_key.is_empty() && !sent.tag_value.is_empty() {
            let what = format!("priority class {:?} has a tag_value without a tag_key; send both", sent.name);
            self.0.push(("priority_classes", what));
            return None;
        }
        let tag = (!sent.tag_key.is_empty()).then(|| (sent.tag_key.into(), sent.tag_value.into()));
        Some(PriorityClass { name: sent.name.into(), offset_ms: sent.offset_ms, tag })
    }

    fn shape(&mut self, keys: &[String]) -> Option<ShapeKeys> {
        let shape = ShapeKeys::new(keys.iter().map(String::as_str));
        if shape.is_err() {
            self.0.push(("filter_shapes", "a filter shape has 1 to 4 different keys of 1 to 64 bytes".to_owned()));
        }
        shape.ok()
    }

    fn blocked(&mut self, field: &'static str, sent: Option<bool>, reason: &str) -> Option<Option<Box<str>>> {
        match (sent, reason) {
            (Some(true), "") => Some(Some(BLOCKED_WITHOUT_REASON.into())),
            (Some(true), reason) => Some(Some(reason.into())),
            (Some(false) | None, "") => sent.map(|_| None),
            (Some(false), _) => Some(None),
            (None, _) => {
                self.0.push((field, format!("{field}_reason is set without {field}; send both")));
                None
            }
        }
    }
}
