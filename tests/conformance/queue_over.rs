//! Messages that are over leave the memory of the embedded store, and nobody notices: every command is answered as by the core,
//! which keeps them, whatever it needs of them and however often the store is opened again.

use std::time::Duration;

use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::command::{BulkRequest, MessageUpdate};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::messages::message::{LeaseToken, MessageRef, Metadata};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::{IdReuse, Retention};
use tallystone_domain::queue::{Command, MessageState, Reply, Settings, Shard};
use tallystone_ports::{Clock as _, ShardCommand};

use crate::backends::Ending;
use crate::given::T0;
use crate::queue_given::{QueueBench, SHARD, configure, dequeue, enqueue, on_the_embedded_store, settings, settle};

const STEPS: u64 = 1_500;
const MINUTE: Duration = Duration::from_secs(60);

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn index(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).expect("a small number")
    }
}

fn by_id(id: &str) -> MessageRef {
    MessageRef::Id(MessageId::new(id).expect("a valid id"), None)
}

/// A store beside the core, with the tokens and the ids that were used.
struct Pair {
    bench: QueueBench,
    core: Shard,
    random: Random,
    tokens: Vec<LeaseToken>,
    version: u64,
}

impl Pair {
    fn enqueue(&mut self) -> ShardCommand {
        let number = self.random.below(60);
        let mut sent = enqueue(&format!("m-{number}"), 0, b"x");
        let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
        let back = Duration::from_secs(self.random.below(7_000));
        let time = self.bench.clock.now() - back;
        message.token_time = (self.random.below(3) > 0).then_some(time.floor_to(MINUTE));
        message.fingerprint += self.random.below(9) / 8;
        let zone = if number.is_multiple_of(2) { "a" } else { "b" };
        message.metadata = Metadata::new([("zone", zone)]).expect("valid pairs");
        message.max_attempts = (number.is_multiple_of(5)).then_some(1);
        sent
    }

    fn bulk(&mut self) -> BulkRequest {
        let states = [MessageState::Completed, MessageState::Canceled, MessageState::Pending];
        let zone = (self.random.below(2) == 0).then_some(("zone", "a"));
        BulkRequest {
            filter: Filter::new(zone).expect("valid pairs"),
            states: PurgedStates::new(states).expect("a purge covers them"),
            ended_by: (self.random.below(2) == 0).then(|| self.bench.clock.now() - MINUTE),
            through: self.core.sequence(),
            max: 1 + self.random.index(5),
            dry_run: self.random.below(4) == 0,
            ..BulkRequest::default()
        }
    }

    fn settings(&mut self) -> Settings {
        let minutes = |count: u64| MINUTE * u32::try_from(count).expect("small");
        let retention = Retention {
            completed: minutes(1 + self.random.below(60)),
            canceled: minutes(1 + self.random.below(60)),
            errored: minutes(1 + self.random.below(60)),
        };
        let shape = ShapeKeys::new(["zone"]).expect("valid keys");
        let shapes = if self.random.below(2) == 0 { vec![shape] } else { Vec::new() };
        Settings { retention, shapes, ..self.core.settings().clone() }
    }

    fn command(&mut self) -> ShardCommand {
        let message = by_id(&format!("m-{}", self.random.below(60)));
        let verbs = [SettleAction::Complete, SettleAction::Fail, SettleAction::Cancel, SettleAction::Complete];
        ShardCommand::of(match self.random.below(20) {
            0..=5 => return self.enqueue(),
            6..=8 => return dequeue(1 + self.random.index(4)),
            9..=12 => {
                // An old token is a repeat, or comes too late.
                let back = self.random.index(8);
                let token = self.tokens.len().checked_sub(1 + back).map(|at| self.tokens[at]);
                let verb = verbs[self.random.index(4)];
                return token.map_or_else(|| dequeue(1), |token| settle(token, verb));
            }
            13 => Command::Redrive { message },
            14 => Command::CancelMessage { message, reason: "asked".into() },
            15 => Command::Update { message, update: MessageUpdate { priority: Some(7), ..MessageUpdate::default() } },
            16 => match self.random.below(4) {
                0 => Command::Purge(self.bulk()),
                1 => Command::RedriveAll(self.bulk()),
                2 => Command::DiscardAll(self.bulk()),
                _ => Command::Discard { message }, // the number is below 4
            },
            17 if self.random.below(6) == 0 => {
                self.version += 1;
                let settings = self.settings();
                return configure(self.version, settings);
            }
            _ => Command::Sweep { max: 1 + self.random.index(4) },
        })
    }

    /// One to three commands, which the store applies in one commit.
    async fn step(&mut self, step: u64) {
        let commands = (0..=self.random.below(3)).map(|_| self.command()).collect();
        self.apply(step, commands).await;
    }

    async fn apply(&mut self, step: u64, commands: Vec<ShardCommand>) {
        let is_deleted = commands.iter().any(|sent| matches!(sent.command, Command::Delete));
        let answers = self.bench.apply(SHARD, commands.clone()).await;
        let mut last = None;
        for (sent, answer) in commands.into_iter().zip(answers) {
            let answer = answer.expect("the store takes the command");
            let mut applied = self.core.apply(sent.command.clone(), answer.at);
            // The bodies of leases are read once they are committed. If the deletion was quicker, there is nothing to work on.
            if let (true, Ok(Reply::Leases { leases, .. }), Ok(Reply::Leases { leases: told, .. })) =
                (is_deleted, &mut applied.reply, &answer.reply)
            {
                leases.retain(|lease| told.contains(lease));
            }
            let told = (&answer.reply, &answer.transitions);
            assert_eq!(told, (&applied.reply, &applied.transitions), "step {step}: {:?}", sent.command);
            last = Some((answer.view.next_event_in, answer.at));
            if let Ok(Reply::Leases { leases, .. }) = &answer.reply {
                self.tokens.extend(leases.iter().map(|lease| lease.token));
            }
        }
        // Each answer has the view after the last command.
        let next_event_in = last.map(|(_, at)| self.core.next_event_in(at));
        assert_eq!(last.map(|(told, _)| told), next_event_in, "step {step}");
    }

    /// Opens the store again. It commits removals by itself after a queue was deleted, and a copy of a store that commits is no
    /// copy of one moment: these requests wait behind the removals.
    async fn reopen(mut self, ending: Ending) -> Self {
        for _ in 0..4 {
            self.bench.stores.shards.queues().await.expect("a list");
        }
        self.bench = self.bench.reopen(ending).await;
        self
    }

    /// Compares everything that a reader sees.
    async fn compare(&self, step: u64) {
        let reader = &self.bench.stores.reader;
        assert_eq!(reader.totals(SHARD).await.expect("totals").totals, *self.core.totals(), "step {step}");
        for state in MessageState::ALL {
            let listed = reader.list(SHARD, state, 0, 2_000).await.expect("a read").messages;
            let heads: Vec<_> = listed.iter().map(|message| message.head.clone()).collect();
            assert_eq!(heads, self.core.list(state, 0).cloned().collect::<Vec<_>>(), "step {step}: {state}");
        }
        let zone = Filter::new([("zone", "a")]).expect("valid pairs");
        let depth = reader.depth(SHARD, zone.clone()).await.expect("a depth");
        assert_eq!(depth, self.core.depth(&zone), "step {step}");
        for number in 0..60 {
            let message = by_id(&format!("m-{number}"));
            let found = reader.get(SHARD, message.clone()).await.expect("a read");
            assert_eq!(found.map(|(found, _)| found.head), self.core.get(&message).cloned(), "step {step}: m-{number}");
            let (causes, at) = reader.explain(SHARD, message.clone()).await.expect("causes");
            assert_eq!(causes, self.core.explain(&message, at), "step {step}: m-{number}");
        }
    }
}

async fn answers_as_the_core_does(bench: QueueBench, ending: Ending, settings: Settings, seed: u64) {
    let core = Shard::new(0, 1, crate::queue_given::settings()).expect("valid settings");
    let mut pair = Pair { bench, core, random: Random(seed), tokens: Vec::new(), version: 1 };
    let first = configure(1, settings);
    let answer = pair.bench.one(SHARD, first.clone()).await;
    pair.core.apply(first.command, answer.at);
    for step in 0..STEPS {
        if step % 125 == 124 {
            pair = pair.reopen(ending).await;
            pair.compare(step).await;
        }
        let pause = [0, 1, 20, 400][pair.random.index(4)];
        pair.bench.clock.advance(Duration::from_secs(pause));
        pair.step(step).await;
    }
    pair.compare(STEPS).await;
    let mut commands: Vec<_> = (0..6).map(|_| pair.command()).collect();
    commands.push(ShardCommand::of(Command::Delete));
    pair.apply(STEPS, commands).await;
    for step in STEPS..STEPS + 200 {
        if step % 100 == 50 {
            pair = pair.reopen(ending).await;
        }
        pair.step(step).await;
    }
}

async fn law(settings: Settings, seed: u64) {
    on_the_embedded_store(async |bench, ending| {
        Box::pin(answers_as_the_core_does(bench, ending, settings.clone(), seed)).await;
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_what_is_over_and_leaves_no_trace_is_answered_as_by_the_core() {
    law(settings(), 1).await;
}

#[tokio::test]
async fn queue_store_law_2_what_is_over_and_counted_by_value_is_answered_as_by_the_core() {
    law(Settings { count_by: vec!["zone".into()], count_by_values_max: 2, ..settings() }, 2).await;
}

#[tokio::test]
async fn queue_store_law_2_what_is_over_and_gives_its_id_away_is_answered_as_by_the_core() {
    law(Settings { reuse_ids: IdReuse::WhenOver, ..settings() }, 3).await;
}

#[tokio::test]
async fn a_page_of_what_is_over_is_written_once_its_last_message_is_over_and_after_a_while_otherwise() {
    on_the_embedded_store(async |mut bench, ending| {
        // T0 is the time of the first token; 200 messages fill three pages and a part of a fourth.
        for number in 0..200 {
            let mut sent = enqueue(&format!("m-{number}"), number, b"x");
            let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
            message.token_time = Some(T0);
            bench.one(SHARD, sent).await;
        }
        for _ in 0..199 {
            let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
            bench.one(SHARD, settle(lease.token, SettleAction::Complete)).await;
        }
        for round in 0..3 {
            bench = bench.reopen(ending).await;
            let totals = bench.stores.reader.totals(SHARD).await.expect("totals").totals;
            let over = totals.of(MessageState::Completed).messages;
            assert_eq!((over, totals.all().messages), (199, 200), "round {round}");
            let repeat = bench.one(SHARD, enqueue("m-7", 7, b"x")).await.reply.expect("it is a repeat");
            let Reply::Enqueued { state, already_enqueued, .. } = repeat else { panic!("an enqueue: {repeat:?}") };
            assert_eq!((state, already_enqueued), (MessageState::Completed, true));
            bench.clock.advance(MINUTE);
            bench.one(SHARD, enqueue(&format!("other-{round}"), 999, b"x")).await;
            bench
                .one(
                    SHARD,
                    ShardCommand::of(Command::CancelMessage {
                        message: by_id(&format!("other-{round}")),
                        reason: "".into(),
                    }),
                )
                .await;
            let gone = bench.one(SHARD, ShardCommand::of(Command::Discard { message: by_id("m-0") })).await;
            assert!(gone.reply.is_err(), "a completed message is not discarded");
            bench.one(SHARD, ShardCommand::of(Command::Sweep { max: 1 })).await;
            // Removed again, so that the totals of each round are the same.
            let purge = BulkRequest {
                states: PurgedStates::new([MessageState::Canceled]).expect("a state"),
                through: u64::MAX,
                max: 256,
                ..BulkRequest::default()
            };
            bench.one(SHARD, ShardCommand::of(Command::Purge(purge))).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_list_of_what_is_over_goes_on_to_the_last_message_while_others_are_purged() {
    const ALL: u64 = 900;
    const PURGED: u64 = 600;
    on_the_embedded_store(async |bench, _| {
        for hundred in 0..ALL / 100 {
            let sent = (0..100).map(|number| enqueue(&format!("m-{hundred}-{number}"), 0, b"x")).collect();
            bench.apply(SHARD, sent).await;
            let leases = bench.dequeue(SHARD, 100).await;
            let done = leases.iter().map(|(lease, _)| settle(lease.token, SettleAction::Complete)).collect();
            bench.apply(SHARD, done).await;
        }
        let list = async {
            let (mut listed, mut after) = (Vec::new(), 0);
            loop {
                let page = bench.stores.reader.list(SHARD, MessageState::Completed, after, 20).await.expect("a list");
                listed.extend(page.messages.iter().map(|message| message.head.key.sequence));
                match page.messages.last() {
                    Some(last) if page.messages.len() == 20 => after = last.head.key.sequence,
                    Some(_) | None => break listed,
                }
            }
        };
        let purge = async {
            for through in (1..=PURGED / 10).map(|tenth| tenth * 10) {
                let states = PurgedStates::new([MessageState::Completed]).expect("a state");
                let bulk = BulkRequest { states, through, max: 10, ..BulkRequest::default() };
                bench.one(SHARD, ShardCommand::of(Command::Purge(bulk))).await;
            }
        };
        let (listed, ()) = tokio::join!(list, purge);
        assert!(listed.is_sorted() && (PURGED + 1..=ALL).all(|stays| listed.binary_search(&stays).is_ok()));
    })
    .await;
}
