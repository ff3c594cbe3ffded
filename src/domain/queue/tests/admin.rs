//! Dequeue by id, bulk operations, new settings, deletion.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::queue::command::{BulkRequest, FailureReport, MessageUpdate};
use crate::queue::filter::Filter;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::AttemptError;
use crate::queue::messages::settlement::SettleAction;

fn errored(bench: &mut Bench, id: &str, pairs: &[(&str, &str)]) -> u64 {
    let sequence = bench.put(NewMessage { max_attempts: Some(1), ..message(id, pairs) });
    let token = bench.take(Dequeue { message: Some(by_key(sequence)), ..up_to(1) })[0].token;
    let settled = bench.apply(Command::Settle { token, verb: SettleAction::Fail, failure: FailureReport::default() });
    assert!(settled.is_ok(), "{settled:?}");
    sequence
}

#[test]
fn a_dequeue_by_id_takes_that_message_whatever_lies_ahead() {
    let mut bench = Bench::new(settings());
    let first = bench.put(message("first", &[]));
    let second = bench.put(message("second", &[]));
    let by_id = MessageRef::Id(MessageId::new("second").expect("a legal id"), None);
    let taken = bench.take(Dequeue { message: Some(by_id.clone()), ..up_to(100) });
    assert_eq!(taken.iter().map(|leased| leased.token.key.sequence).collect::<Vec<_>>(), [second]);
    assert_eq!(bench.state(first), Some(MessageState::Pending));
    let again = bench.apply(Command::Dequeue(Dequeue { message: Some(by_id), ..up_to(1) }));
    assert_eq!(again, Err(Refusal::WrongState(MessageState::Running)));
    let unknown = bench.apply(Command::Dequeue(Dequeue { message: Some(by_key(9)), ..up_to(1) }));
    assert_eq!(unknown, Err(Refusal::NotFound));
    let hidden = bench.put(NewMessage { invisibility: Some(SECOND), ..message("hidden", &[]) });
    let early = Command::Dequeue(Dequeue { message: Some(by_key(hidden)), ..up_to(1) });
    assert_eq!(bench.apply(early.clone()), Err(Refusal::WrongState(MessageState::Invisible)));
    bench.now = bench.now + SECOND;
    assert!(bench.apply(early).is_ok(), "its window is over");
}

#[test]
fn a_ttl_of_nothing_is_none_whatever_the_queue_says() {
    let mut bench = Bench::new(Settings { default_ttl: Some(SECOND), ..settings() });
    let never = bench.put(NewMessage { ttl: Some(Duration::ZERO), ..message("never", &[]) });
    let as_the_queue_says = bench.put(message("soon", &[]));
    assert_eq!(bench.state(never), Some(MessageState::Pending), "it is not over at once");
    bench.now = bench.now + 3_600 * SECOND;
    assert!(bench.apply(Command::Sweep { max: 256 }).is_ok());
    assert_eq!(
        [never, as_the_queue_says].map(|message| bench.state(message)),
        [Some(MessageState::Pending), Some(MessageState::Canceled)]
    );
}

#[test]
fn the_first_lease_ends_a_ttl_and_a_redrive_finds_none() {
    let mut bench = Bench::new(Settings { default_ttl: Some(SECOND), ..settings() });
    let dead = errored(&mut bench, "dead", &[]);
    bench.now = bench.now + 2 * SECOND;
    let bulk = BulkRequest { through: dead, max: 9, ..BulkRequest::default() };
    assert_eq!(bench.apply(Command::RedriveAll(bulk)), Ok(Reply::Walked { count: 1, next: None }));
    bench.now = bench.now + 3_600 * SECOND;
    assert!(bench.apply(Command::Sweep { max: 256 }).is_ok());
    assert_eq!(bench.state(dead), Some(MessageState::Pending));
}

#[test]
fn a_ttl_counts_from_the_visible_time_and_moves_with_it() {
    let mut bench = Bench::new(Settings { default_ttl: Some(SECOND), ..settings() });
    let delayed = bench.put(NewMessage { invisibility: Some(60 * SECOND), ..message("delayed", &[]) });
    let moved = bench.put(message("moved", &[]));
    let update = MessageUpdate { invisibility: Some(60 * SECOND), ..MessageUpdate::default() };
    assert!(bench.apply(Command::Update { message: by_key(moved), update }).is_ok());
    let states = |bench: &mut Bench, after: Duration| {
        bench.now = bench.now + after;
        assert!(bench.apply(Command::Sweep { max: 256 }).is_ok());
        [delayed, moved].map(|sequence| bench.state(sequence))
    };
    assert_eq!(states(&mut bench, 59 * SECOND), [Some(MessageState::Invisible); 2]);
    assert_eq!(states(&mut bench, SECOND * 3 / 2), [Some(MessageState::Pending); 2]);
    assert_eq!(states(&mut bench, SECOND), [Some(MessageState::Canceled); 2], "60 s and a TTL of one");
}

#[test]
fn a_change_of_priority_keeps_the_age_of_a_ready_message() {
    let mut bench = Bench::new(settings());
    let waits = bench.put(message("waits", &[]));
    bench.now = bench.now + 60 * SECOND;
    for update in [
        MessageUpdate { priority: Some(5), ..MessageUpdate::default() },
        MessageUpdate { invisibility: Some(Duration::ZERO), ..MessageUpdate::default() },
    ] {
        assert!(bench.apply(Command::Update { message: by_key(waits), update }).is_ok());
        assert_eq!(bench.shard.ready_for(bench.now), Some(60 * SECOND));
    }
}

#[test]
fn a_redrive_touches_what_meets_its_filter_once() {
    let mut bench = Bench::new(settings());
    let red: Vec<u64> = (0..3).map(|n| errored(&mut bench, &format!("r{n}"), &[("team", "red")])).collect();
    let blue = errored(&mut bench, "b", &[("team", "blue")]);
    let filter = Filter::new([("team", "red")]).expect("a legal filter");
    let bulk = BulkRequest { filter, through: blue, max: 2, dry_run: true, ..BulkRequest::default() };
    let counted = bench.apply(Command::RedriveAll(BulkRequest { max: 256, ..bulk.clone() }));
    assert_eq!(counted, Ok(Reply::Walked { count: 3, next: None }));
    assert_eq!(bench.state(red[0]), Some(MessageState::Errored), "a dry run changes nothing");
    let bulk = BulkRequest { dry_run: false, ..bulk };
    let first = bench.apply(Command::RedriveAll(bulk.clone()));
    assert_eq!(first, Ok(Reply::Walked { count: 2, next: Some(red[1]) }));
    // A message that becomes errored again meanwhile lies behind the cursor.
    let token = bench.take(up_to(1))[0].token;
    let failed = bench.apply(Command::Settle { token, verb: SettleAction::Fail, failure: FailureReport::default() });
    assert!(failed.is_ok(), "{failed:?}");
    assert_eq!(bench.state(red[0]), Some(MessageState::Errored));
    let second = bench.apply(Command::RedriveAll(BulkRequest { after: red[1], ..bulk }));
    assert_eq!(second, Ok(Reply::Walked { count: 1, next: None }));
    assert_eq!(
        [red[0], red[2], blue].map(|sequence| bench.state(sequence)),
        [Some(MessageState::Errored), Some(MessageState::Pending), Some(MessageState::Errored)]
    );
}

#[test]
fn a_discard_lets_go_of_what_is_errored_of_a_signature_and_of_before() {
    let mut bench = Bench::new(Settings { default_attempts: 1, ..settings() });
    let fail = |bench: &mut Bench, id: &str, signature: &str| {
        let sequence = bench.put(message(id, &[]));
        let token = bench.take(up_to(1))[0].token;
        let error = Some(AttemptError { signature: signature.into(), text: "no route".into() });
        let failure = FailureReport { error, ..FailureReport::default() };
        assert!(bench.apply(Command::Settle { token, verb: SettleAction::Fail, failure }).is_ok());
        sequence
    };
    let [io, smtp] = ["io", "smtp"].map(|signature| fail(&mut bench, signature, signature));
    let began = bench.now;
    bench.now = bench.now + SECOND;
    let later = fail(&mut bench, "later", "io");
    let waits = bench.put(message("waits", &[]));
    let refused = bench.apply(Command::Discard { message: by_key(waits) });
    assert_eq!(refused, Err(Refusal::WrongState(MessageState::Pending)), "what may be served is not thrown away");
    let bulk = BulkRequest {
        signature: Some("io".into()),
        ended_by: Some(began),
        through: waits,
        max: 256,
        ..BulkRequest::default()
    };
    let counted = bench.apply(Command::DiscardAll(BulkRequest { dry_run: true, ..bulk.clone() }));
    assert_eq!(counted, Ok(Reply::Walked { count: 1, next: None }));
    assert_eq!(bench.state(io), Some(MessageState::Errored), "a dry run changes nothing");
    assert_eq!(bench.apply(Command::DiscardAll(bulk)), Ok(Reply::Walked { count: 1, next: None }));
    let left = [io, smtp, later, waits].map(|sequence| bench.state(sequence));
    assert_eq!(left, [None, Some(MessageState::Errored), Some(MessageState::Errored), Some(MessageState::Pending)]);
    assert_eq!(bench.shard.totals().all().messages, 3);
    let one = Command::Discard { message: by_key(smtp) };
    assert_eq!(bench.apply(one.clone()), Ok(Reply::Walked { count: 1, next: None }));
    assert_eq!(bench.apply(one), Err(Refusal::NotFound), "it is gone");
}

#[test]
fn a_bulk_step_looks_at_1_to_256_messages() {
    let mut bench = Bench::new(settings());
    for max in [0, 257] {
        let bulk = BulkRequest { max, ..BulkRequest::default() };
        assert_eq!(bench.apply(Command::Purge(bulk.clone())), Err(InvalidCommandPart::Count.into()));
        assert_eq!(bench.apply(Command::RedriveAll(bulk.clone())), Err(InvalidCommandPart::Count.into()));
        assert_eq!(bench.apply(Command::DiscardAll(bulk)), Err(InvalidCommandPart::Count.into()));
    }
}

#[test]
fn new_settings_hold_for_what_comes() {
    let mut bench = Bench::new(settings());
    let before = bench.put(message("before", &[]));
    let longer = Settings { default_attempts: 7, ..settings() };
    assert_eq!(bench.configure(longer), Ok(Reply::Configured));
    let after = bench.put(message("after", &[]));
    let attempts = |sequence| bench.shard.get(&by_key(sequence)).map(|message| message.max_attempts);
    assert_eq!([attempts(before), attempts(after)], [Some(3), Some(7)]);
    let contradicting = Settings { max_run_time: Duration::ZERO, ..settings() };
    assert_eq!(bench.configure(contradicting), Err(InvalidCommandPart::Settings.into()));
}

#[test]
fn a_token_that_was_refused_for_its_age_stays_refused_when_the_window_grows() {
    let mut bench = Bench::new(settings());
    let old = NewMessage { token_time: Some(START - 3 * SECOND), ..message("old", &[]) };
    let enqueue = Command::Enqueue(Box::new(old));
    assert_eq!(bench.apply(enqueue.clone()), Err(Refusal::TokenExpired), "the window is 2 s");
    let retention = crate::queue::setup::settings::Retention {
        completed: 10 * SECOND,
        canceled: 10 * SECOND,
        errored: 10 * SECOND,
    };
    let longer = Settings { dedupe_window: 10 * SECOND, retention, ..settings() };
    assert_eq!(bench.configure(longer), Ok(Reply::Configured));
    assert_eq!(bench.apply(enqueue), Err(Refusal::TokenExpired));
}

#[test]
fn a_deleted_shard_refuses_all_but_repeats() {
    let mut bench = Bench::new(settings());
    let sent = NewMessage { token_time: Some(START), ..message("known", &[]) };
    let sequence = bench.put(sent.clone());
    bench.put(message("other", &[]));
    assert_eq!(bench.apply(Command::Delete), Ok(Reply::Deleted { messages: 2 }));
    assert_eq!(bench.apply(Command::Delete), Ok(Reply::Deleted { messages: 2 }), "as the first");
    assert_eq!(bench.shard.totals().all().messages, 0);
    let again = bench.apply(Command::Enqueue(Box::new(sent)));
    assert!(matches!(again, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{again:?}");
    let refused = [
        Command::Enqueue(Box::new(message("new", &[]))),
        Command::Dequeue(up_to(1)),
        Command::Redrive { message: by_key(sequence) },
        configured(1, settings()),
        Command::Purge(BulkRequest { max: 1, ..BulkRequest::default() }),
        Command::Sweep { max: 1 },
    ];
    for command in refused {
        assert_eq!(bench.apply(command.clone()), Err(Refusal::Deleted), "{command:?}");
    }
}

#[test]
fn an_older_or_equal_version_of_the_settings_changes_nothing_and_is_answered_as_if_it_had() {
    let mut bench = Bench::new(settings());
    let version = |version, attempts| configured(version, Settings { default_attempts: attempts, ..settings() });
    assert_eq!(bench.apply(version(3, 30)), Ok(Reply::Configured));
    let before = bench.shard.clone();
    let invalid = Settings { max_run_time: Duration::ZERO, ..settings() };
    for old in [version(2, 20), version(3, 31), version(0, 1), configured(1, invalid)] {
        let applied = bench.shard.apply(old.clone(), bench.now + SECOND);
        assert_eq!((applied.reply, applied.changes.settings), (Ok(Reply::Configured), None), "{old:?}");
        assert_eq!(bench.shard, before, "{old:?}");
    }
    assert_eq!(bench.apply(version(4, 40)), Ok(Reply::Configured));
    assert_eq!((bench.shard.settings().default_attempts, bench.shard.settings_version()), (40, 4));
}

#[test]
fn a_refused_version_of_the_settings_may_come_again() {
    let mut bench = Bench::new(settings());
    bench.put(message("1", &[]));
    let exclusive = configured(2, exclusive(1, Order::Loose));
    assert_eq!(bench.apply(exclusive.clone()), Err(Refusal::NotEmpty));
    assert_eq!(bench.shard.settings_version(), 0);
    let all = BulkRequest { max: 9, through: 9, ..BulkRequest::default() };
    assert_eq!(bench.apply(Command::Purge(all)), Ok(Reply::Walked { count: 1, next: None }));
    bench.now = bench.now + 3_600 * SECOND;
    assert!(bench.apply(Command::Sweep { max: 9 }).is_ok());
    assert_eq!(bench.apply(exclusive), Ok(Reply::Configured));
}

proptest! {
    #[test]
    fn in_any_order_of_versions_the_newest_stays(versions in vec((0_u64..20, any::<bool>()), 1..40)) {
        let mut bench = Bench::new(settings());
        let mut newest = 0;
        for (version, blocks) in versions {
            let attempts = 1 + u32::try_from(version).expect("a small number");
            let sent = ShardSettings {
                version,
                settings: Settings { default_attempts: attempts, ..settings() },
                enqueue_blocked: blocks.then(|| format!("block {version}").into()),
                dequeue_blocked: None,
            };
            let in_force = (bench.shard.settings().default_attempts, bench.shard.header().enqueue_blocked);
            let expected = if version > newest { (attempts, sent.enqueue_blocked.clone()) } else { in_force };
            newest = newest.max(version);
            prop_assert_eq!(bench.apply(Command::Configure(Box::new(sent))), Ok(Reply::Configured));
            let header = bench.shard.header();
            prop_assert_eq!((bench.shard.settings().default_attempts, header.enqueue_blocked), expected);
            prop_assert_eq!(bench.shard.settings_version(), newest);
        }
    }
}
