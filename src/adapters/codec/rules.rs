//! Encodings of rules. The name is part of the key of each engine.

use std::num::NonZeroU64;

use prost::Message as _;

use super::{CorruptValue, decode, decode_key, encode_key};
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::rules::{
    CrossingClaim, FiredMessage, QueueHome, Rule, RuleCondition, RuleMessage, RuleName, RuleProgress, RuleSpec,
    RuleStamp,
};
use tallystone_domain::time::Timestamp;
use tallystone_proto::internal::v1::{StoredRule, StoredRuleClaim, StoredRulePair};

const FORMAT: u32 = 1;
const RULE: &str = "rule";

/// Encodes a rule without its name.
pub fn encode_rule(rule: &Rule) -> Vec<u8> {
    let Rule { spec, home, created, stamp, progress } = rule;
    let RuleSpec { name: _, namespace, counter, condition, queue, message, max_per_minute } = spec;
    let RuleMessage { payload, metadata, priority, kind, shard_key } = message;
    let (at, every) = match condition {
        RuleCondition::At(threshold) => (threshold.get(), 0),
        RuleCondition::Every(step) => (0, step.get()),
    };
    let pair = |(key, value): (&str, &str)| StoredRulePair { key: key.to_owned(), value: value.to_owned() };
    let claim_of = |CrossingClaim { from, through, time, is_refused }: &CrossingClaim| StoredRuleClaim {
        from: *from,
        through: *through,
        time: time.micros(),
        is_refused: *is_refused,
    };
    StoredRule {
        format: FORMAT,
        namespace: namespace.as_str().to_owned(),
        counter_name: counter.as_str().to_owned(),
        at,
        every,
        queue: queue.as_str().to_owned(),
        payload: payload.to_vec(),
        metadata: metadata.pairs().map(pair).collect(),
        priority: *priority,
        kind: kind.as_deref().map(str::to_owned),
        shard_key: shard_key.as_deref().map(str::to_owned),
        max_per_minute: *max_per_minute,
        home: home.0.to_vec(),
        created: created.micros(),
        born: stamp.born,
        version: stamp.version,
        generation: progress.generation,
        fired_through: progress.fired_through,
        pending: progress.pending.as_ref().map(claim_of),
        as_of: (progress.as_of > Timestamp::MIN).then(|| progress.as_of.micros()),
        clear: progress.clear.as_ref().map(encode_key),
        epoch: progress.epoch,
        last_claimed: progress.last_claimed.map(Timestamp::micros),
        last_message_id: progress.last_message.as_ref().map(|message| message.id.to_string()),
        last_fired: progress.last_message.as_ref().map_or(0, |message| message.time.micros()),
        uncertain: progress.uncertain,
        problem: progress.problem.as_deref().map(str::to_owned),
    }
    .encode_to_vec()
}

/// Decodes the rule of a name.
pub fn decode_rule(name: &str, bytes: &[u8]) -> Result<Rule, CorruptValue> {
    let stored: StoredRule = decode(RULE, bytes)?;
    if stored.format != FORMAT {
        return Err(CorruptValue::new(RULE, format!("format {}", stored.format)));
    }
    let home = stored.home.as_slice().try_into().map(QueueHome).map_err(|_| corrupt("a mark of another length"))?;
    let created = Timestamp::from_micros(stored.created);
    let stamp = RuleStamp { born: stored.born, version: stored.version };
    Ok(Rule { progress: progress_from(&stored)?, spec: spec_from(name, stored)?, home, created, stamp })
}

fn spec_from(name: &str, stored: StoredRule) -> Result<RuleSpec, CorruptValue> {
    let condition = match (NonZeroU64::new(stored.at), NonZeroU64::new(stored.every)) {
        (Some(threshold), None) => RuleCondition::At(threshold),
        (None, Some(step)) => RuleCondition::Every(step),
        (Some(_), Some(_)) | (None, None) => return Err(corrupt("not one threshold")),
    };
    let pairs = stored.metadata.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
    let message = RuleMessage {
        payload: stored.payload.into(),
        metadata: Metadata::new(pairs).map_err(|_| corrupt("metadata out of bounds"))?,
        priority: stored.priority,
        kind: stored.kind.map(String::into_boxed_str),
        shard_key: stored.shard_key.map(String::into_boxed_str),
    };
    Ok(RuleSpec {
        name: RuleName::new(name).map_err(|reject| corrupt(reject.message))?,
        namespace: NamespaceName::new(&stored.namespace).map_err(|reject| corrupt(reject.message))?,
        counter: CounterName::new(&stored.counter_name).map_err(|reject| corrupt(reject.message))?,
        condition,
        queue: QueueName::new(&stored.queue).map_err(|reject| corrupt(reject.message))?,
        message,
        max_per_minute: stored.max_per_minute,
    })
}

fn progress_from(stored: &StoredRule) -> Result<RuleProgress, CorruptValue> {
    let claim_from = |claim: &StoredRuleClaim| CrossingClaim {
        from: claim.from,
        through: claim.through,
        time: Timestamp::from_micros(claim.time),
        is_refused: claim.is_refused,
    };
    let fired = |id: &String| {
        let id = MessageId::new(id).map_err(|_| corrupt("a message id out of bounds"))?;
        Ok(FiredMessage { id, time: Timestamp::from_micros(stored.last_fired) })
    };
    Ok(RuleProgress {
        generation: stored.generation,
        fired_through: stored.fired_through,
        pending: stored.pending.as_ref().map(claim_from),
        as_of: stored.as_of.map_or(Timestamp::MIN, Timestamp::from_micros),
        clear: stored.clear.as_deref().map(decode_key).transpose()?,
        epoch: stored.epoch,
        last_claimed: stored.last_claimed.map(Timestamp::from_micros),
        last_message: stored.last_message_id.as_ref().map(fired).transpose()?,
        uncertain: stored.uncertain,
        problem: stored.problem.as_deref().map(Into::into),
    })
}

fn corrupt(detail: impl Into<String>) -> CorruptValue {
    CorruptValue::new(RULE, detail)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tallystone_domain::counter::{EventId, EventKey};

    fn name(text: &str) -> RuleName {
        RuleName::new(text).expect("a name")
    }

    fn condition() -> impl Strategy<Value = RuleCondition> {
        let number = (1..=u64::MAX).prop_map(|number| NonZeroU64::new(number).expect("above 0"));
        prop_oneof![number.clone().prop_map(RuleCondition::At), number.prop_map(RuleCondition::Every)]
    }

    fn message() -> impl Strategy<Value = RuleMessage> {
        let text = || prop::option::of("[a-z]{1,9}".prop_map(String::into_boxed_str));
        let parts = (prop::collection::vec(any::<u8>(), 0..40), any::<bool>(), any::<Option<i64>>(), text(), text());
        parts.prop_map(|(payload, has_pair, priority, kind, shard_key)| {
            let metadata = Metadata::new(has_pair.then_some(("team", "a b"))).expect("a pair");
            RuleMessage { payload: payload.into(), metadata, priority, kind, shard_key }
        })
    }

    fn progress() -> impl Strategy<Value = RuleProgress> {
        let time = || any::<i32>().prop_map(|seconds| Timestamp::from_secs(i64::from(seconds)));
        let claim = (any::<u64>(), any::<u64>(), time(), any::<bool>());
        let claim =
            claim.prop_map(|(from, through, time, is_refused)| CrossingClaim { from, through, time, is_refused });
        let clear = (time(), "[a-z]{1,9}").prop_map(|(time, id)| EventKey { time, id: EventId::text(&id) });
        let fired = ("[a-z]{1,9}", time())
            .prop_map(|(id, time)| FiredMessage { id: MessageId::new(&id).expect("an id"), time });
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        let optional = (
            prop::option::of(claim),
            prop::option::of(time()),
            prop::option::of(clear),
            prop::option::of(time()),
            prop::option::of(fired),
            prop::option::of("[a-z]{1,9}"),
        );
        (numbers, optional).prop_map(|((generation, fired_through, epoch, uncertain), optional)| {
            let (pending, as_of, clear, last_claimed, last_message, problem) = optional;
            RuleProgress {
                generation,
                fired_through,
                pending,
                as_of: as_of.unwrap_or(Timestamp::MIN),
                clear,
                epoch,
                last_claimed,
                last_message,
                uncertain,
                problem: problem.map(String::into_boxed_str),
            }
        })
    }

    proptest! {
        #[test]
        fn a_rule_comes_back_as_it_was(
            condition in condition(),
            message in message(),
            progress in progress(),
            born in any::<u32>(),
            version in any::<u64>(),
        ) {
            let spec = RuleSpec {
                name: name("orders/100"),
                namespace: NamespaceName::new("default").expect("a name"),
                counter: CounterName::new("sold").expect("a name"),
                condition,
                queue: QueueName::new("mail").expect("a name"),
                message,
                max_per_minute: 60,
            };
            let (home, created, stamp) = (QueueHome([7; 12]), Timestamp::from_secs(5), RuleStamp { born, version });
            let rule = Rule { spec, home, created, stamp, progress };
            prop_assert_eq!(decode_rule("orders/100", &encode_rule(&rule)), Ok(rule));
        }

        #[test]
        fn any_bytes_are_a_rule_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_rule("a", &bytes);
        }
    }

    #[test]
    fn a_rule_of_another_format_or_without_a_threshold_is_damaged() {
        for stored in [StoredRule::default(), StoredRule { format: 2, at: 1, ..StoredRule::default() }] {
            assert!(decode_rule("a", &stored.encode_to_vec()).is_err());
        }
    }
}
