//! The laws of `RuleStore`.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use tallystone_domain::counter::{CounterName, EventId, EventKey};
use tallystone_domain::limits::RULES_MAX;
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::rules::{
    CrossingClaim, FiredMessage, QueueHome, Rule, RuleCondition, RuleMessage, RuleName, RuleProgress, RuleSpec,
    RuleStamp,
};
use tallystone_ports::{EffectOutcome, NewRule, RuleStore, StoreError, StoreErrorKind};
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{at, namespace_name};

fn name(text: &str) -> RuleName {
    RuleName::new(text).expect("a valid name")
}

/// A rule in which every field differs from its default.
fn new(text: &str) -> NewRule {
    let message = RuleMessage {
        payload: vec![0, 255, 7].into(),
        metadata: Metadata::new([("team", "a b"), ("é", "~%")]).expect("two pairs"),
        priority: Some(-7),
        kind: Some("alert".into()),
        shard_key: Some("key".into()),
    };
    let spec = RuleSpec {
        name: name(text),
        namespace: namespace_name("shop"),
        counter: CounterName::new("sold~x=1").expect("a valid name"),
        condition: RuleCondition::Every(NonZeroU64::new(u64::MAX).expect("above 0")),
        queue: QueueName::new("mail/eu").expect("a valid name"),
        message,
        max_per_minute: 7,
    };
    NewRule { spec, home: QueueHome([9; 12]), created: at(5) }
}

/// The rule with progress in which every field differs from its default.
fn moved(rule: Rule, fired_through: u64) -> Rule {
    let progress = RuleProgress {
        generation: rule.progress.generation + 1,
        fired_through,
        pending: Some(CrossingClaim { from: fired_through, through: fired_through + 3, time: at(7), is_refused: true }),
        as_of: at(6),
        clear: Some(EventKey { time: at(3), id: EventId::text("clear") }),
        epoch: 4,
        last_claimed: Some(at(7)),
        last_message: Some(FiredMessage { id: MessageId::new("rule-a-1-1").expect("an id"), time: at(4) }),
        uncertain: 2,
        problem: Some("QUEUE_FULL: no room".into()),
    };
    Rule { progress, ..rule }
}

fn is_conflict(error: &StoreError) -> bool {
    (error.kind, error.outcome) == (StoreErrorKind::Conflict, EffectOutcome::NotApplied)
}

async fn names(rules: &dyn RuleStore) -> Vec<String> {
    rules.list().await.expect("a read").iter().map(|rule| rule.spec.name.to_string()).collect()
}

#[tokio::test]
async fn rule_store_law_1_a_rule_is_created_once_under_a_name() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        assert_eq!(rules.get(&name("a")).await.expect("a read"), None);
        let made = rules.create(new("a")).await.expect("a free name");
        let NewRule { spec, home, created } = new("a");
        assert_eq!((made.spec.clone(), made.home, made.created), (spec, home, created));
        assert_eq!(made.stamp.version, 1);
        assert_eq!(made.progress, RuleProgress::new(made.stamp.born));
        assert!(is_conflict(&rules.create(new("a")).await.expect_err("the name is taken")));
        assert_eq!(rules.get(&name("a")).await.expect("a read"), Some(made));
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_1_a_rule_outlives_the_store_that_was_open() {
    on_every_durable_backend(async |bench, ending| {
        let made = bench.stores.rules.create(new("a")).await.expect("a free name");
        let kept = bench.stores.rules.update(moved(made, 8)).await.expect("the stamp is current");
        let gone = bench.stores.rules.create(new("b")).await.expect("a free name");
        let gone = bench.stores.rules.update(moved(gone, 0)).await.expect("the stamp is current");
        bench.stores.rules.remove(&name("b"), gone.stamp).await.expect("the stamp is current");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.stores.rules.list().await.expect("a read"), [kept]);
        let made = bench.stores.rules.create(new("b")).await.expect("a free name");
        assert!(made.stamp.born > gone.progress.generation, "law 2 holds over a restart");
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_3_an_update_may_give_a_rule_to_another_queue_store() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        let made = rules.create(new("a")).await.expect("a free name");
        let (before, home) = (moved(made, 8), QueueHome([4; 12]));
        let given = rules.update(before.clone().moved_to(home)).await.expect("the stamp is current");
        assert_eq!((given.home, given.progress.fired_through), (home, 8));
        assert_eq!(rules.get(&name("a")).await.expect("a read"), Some(given));
        assert!(is_conflict(&rules.update(before).await.expect_err("a server of the store before lost its stamp")));
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_2_generations_of_removed_rules_are_never_given_again() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        let first = rules.create(new("a")).await.expect("a free name");
        assert_eq!(first.stamp.born, 1);
        let first = rules.update(moved(first, 1)).await.expect("the stamp is current");
        let raised = rules.update(moved(first, 2)).await.expect("the stamp is current");
        rules.remove(&name("a"), raised.stamp).await.expect("the stamp is current");
        let second = rules.create(new("a")).await.expect("the name is free again");
        assert!(second.stamp.born > raised.progress.generation, "{second:?}");
        rules.remove(&name("a"), second.stamp).await.expect("the stamp is current");
        let other = rules.create(new("b")).await.expect("a free name");
        assert!(other.stamp.born > second.stamp.born, "{other:?}");
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_3_an_update_needs_the_present_stamp() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        let made = rules.create(new("a")).await.expect("a free name");
        let stale = moved(made.clone(), 9);
        let updated = rules.update(moved(made.clone(), 1)).await.expect("the stamp is current");
        assert_eq!(updated, moved(made, 1).next_version());
        assert!(is_conflict(&rules.update(stale.clone()).await.expect_err("the stamp is gone")));
        assert_eq!(rules.get(&name("a")).await.expect("a read"), Some(updated.clone()));
        rules.remove(&name("a"), updated.stamp).await.expect("the stamp is current");
        assert!(is_conflict(&rules.update(updated).await.expect_err("the rule is gone")));
        let again = rules.create(new("a")).await.expect("the name is free again");
        assert_eq!(again.stamp.version, stale.stamp.version, "only the generation tells the two apart");
        assert!(is_conflict(&rules.update(stale).await.expect_err("that was another rule")));
        assert_eq!(names(rules.as_ref()).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_3_of_concurrent_updates_of_one_stamp_one_succeeds() {
    on_every_backend(async |bench| {
        let mut rule = bench.stores.rules.create(new("a")).await.expect("a free name");
        for _ in 0..5 {
            let mut updates = JoinSet::new();
            for fired_through in 0..6 {
                let (rules, rule) = (Arc::clone(&bench.stores.rules), rule.clone());
                updates.spawn(async move { rules.update(moved(rule, fired_through)).await });
            }
            let answers = updates.join_all().await;
            let done: Vec<Rule> = answers.into_iter().flatten().collect();
            assert_eq!(done.len(), 1, "{done:?}");
            rule = bench.stores.rules.get(&name("a")).await.expect("a read").expect("the rule");
            assert_eq!(done, [rule.clone()]);
        }
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_4_a_removal_needs_the_present_stamp() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        let made = rules.create(new("a")).await.expect("a free name");
        let updated = rules.update(moved(made.clone(), 1)).await.expect("the stamp is current");
        let others = [made.stamp, RuleStamp { born: made.stamp.born + 1, ..updated.stamp }];
        for stamp in others {
            assert!(is_conflict(&rules.remove(&name("a"), stamp).await.expect_err("not its stamp")), "{stamp:?}");
        }
        assert_eq!(rules.get(&name("a")).await.expect("a read"), Some(updated.clone()));
        rules.remove(&name("a"), updated.stamp).await.expect("its stamp");
        assert_eq!(rules.get(&name("a")).await.expect("a read"), None);
        assert!(is_conflict(&rules.remove(&name("a"), updated.stamp).await.expect_err("it is gone")));
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_5_rules_are_listed_by_name_as_they_are() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        assert_eq!(names(rules.as_ref()).await, Vec::<String>::new());
        for text in ["b", "a/1", "a", "Z", "0"] {
            rules.create(new(text)).await.expect("a free name");
        }
        assert_eq!(names(rules.as_ref()).await, ["0", "Z", "a", "a/1", "b"]);
        let rule = rules.get(&name("a/1")).await.expect("a read").expect("the rule");
        let updated = rules.update(moved(rule, 3)).await.expect("the stamp is current");
        let listed = rules.list().await.expect("a read");
        assert_eq!(listed.iter().find(|rule| rule.spec.name == name("a/1")), Some(&updated));
        rules.remove(&name("a"), RuleStamp { born: 1, version: 1 }).await.expect("its stamp");
        assert_eq!(names(rules.as_ref()).await, ["0", "Z", "a/1", "b"]);
    })
    .await;
}

#[tokio::test]
async fn rule_store_law_6_a_store_keeps_so_many_rules() {
    on_every_backend(async |bench| {
        let rules = &bench.stores.rules;
        for number in 0..RULES_MAX {
            rules.create(new(&format!("r{number}"))).await.expect("room");
        }
        let refused = rules.create(new("one-more")).await.expect_err("no room");
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Busy, EffectOutcome::NotApplied));
        let one = rules.get(&name("r7")).await.expect("a read").expect("the rule");
        rules.remove(&name("r7"), one.stamp).await.expect("its stamp");
        rules.create(new("one-more")).await.expect("room again");
        let listed: BTreeSet<String> = names(rules.as_ref()).await.into_iter().collect();
        assert_eq!(listed.len(), RULES_MAX);
    })
    .await;
}
