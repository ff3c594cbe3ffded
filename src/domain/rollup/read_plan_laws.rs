//! Laws of the plan of a read, tested against the naive sum of all events.
//!
//! A small server performs the steps. Between any two of them events arrive, the limit moves and another server rolls
//! the counter up. Its cache is always right, or holds a copy of an older row. Its log keeps sums, or only events.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::checkpoint::{Checkpoint, clamp_count};
use super::fold::{FoldResult, TailLookup, fold};
use super::fold_laws::{History, config, counted, history, on_new_epoch, reports, tail_of};
use super::read_plan::{FoldedTail, ReadPlan, ReadRules, ReadStep, StateBefore};
use super::reading::{CountReading, Exactness, ReadOptions};
use super::rollup_row::{CachedCount, RollupRow};
use super::slice_rules::FoldRules;
use crate::counter::{Change, Event};
use crate::fleet::ProtocolRules;
use crate::namespace::Temporality;
use crate::time::Timestamp;

const FIRST_MILLIS: i64 = -60_000;
const END_MILLIS: i64 = 240_000;
const FOLDED_AT_ONCE: usize = 8;
/// A read needs no more steps than this.
const STEPS_OF_A_READ: usize = 17;

/// Something that others do between two steps.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Arrive,
    MoveLimit(Timestamp),
    Roll,
    Repair,
}

/// The knowledge of one server and its store about one counter.
#[derive(Clone, Debug)]
struct Server {
    temporality: Temporality,
    /// The acknowledged events.
    log: History,
    /// Events that may still be sent, in this order.
    unsent: Vec<Event>,
    limit: Timestamp,
    watermark: Timestamp,
    checkpoint: Option<Checkpoint>,
    just_repaired: bool,
    cache: CacheKind,
    /// Whether the log knows the sum of a tail.
    keeps_sums: bool,
    /// Whether rolls succeed.
    can_roll: bool,
    /// The highest served `as_of`, if other servers share the store. Only then are there repairs.
    floor: Option<Timestamp>,
    leased: bool,
    meanwhile: Vec<Meanwhile>,
}

#[derive(Clone, Debug)]
enum CacheKind {
    /// It gives the present row.
    Coherent,
    /// It gives a copy, if it has one.
    Copy(Option<CachedCount>),
}

/// One read and its steps.
struct Read {
    reading: CountReading,
    steps: Vec<ReadStep>,
    /// The log at the beginning, and after each arrival.
    logs: Vec<History>,
    limits: Vec<Timestamp>,
    /// Whether the read found a repaired row that was not rolled up since.
    is_repaired: bool,
}

impl Server {
    fn row(&self) -> RollupRow {
        let last = self.log.last_mutation(Timestamp::MAX);
        let is_exact = matches!(self.cache, CacheKind::Coherent) || self.keeps_sums;
        let end_of_step = |time: Timestamp| time.floor_to(Duration::from_secs(10)) + Duration::from_secs(10);
        RollupRow {
            checkpoint: self.checkpoint.clone(),
            clear: self.log.newest_clear(Timestamp::MAX),
            last_write_time: if is_exact { last } else { last.map(end_of_step) },
            just_repaired: self.just_repaired,
        }
    }

    fn cached(&self) -> Option<CachedCount> {
        match &self.cache {
            CacheKind::Coherent => Some(CachedCount { checked_at: None, ..self.row().to_cached(self.limit) }),
            CacheKind::Copy(copy) => copy.clone(),
        }
    }

    fn fill(&mut self, value: CachedCount) {
        if let CacheKind::Copy(held) = &mut self.cache
            && self.leased
            && held.as_ref().is_none_or(|held| held.as_of <= value.as_of)
        {
            *held = Some(value);
        }
    }

    fn roll(&mut self) {
        let base = self.row().base(self.watermark);
        if !self.can_roll || base.as_of >= self.limit {
            return;
        }
        let events = self.log.between(base.as_of, self.limit);
        if !events.is_empty() {
            let FoldResult { checkpoint, .. } = fold(base, &events, self.limit, &self.log.rules);
            self.checkpoint = Some(checkpoint);
            self.just_repaired = false;
        }
    }

    /// A repair moves a checkpoint back.
    fn repair(&mut self) {
        if let (Some(_), Some(checkpoint)) = (self.floor, &self.checkpoint) {
            let as_of = Timestamp::from_millis((FIRST_MILLIS + checkpoint.as_of.millis()) / 2);
            let repairs = checkpoint.repairs + 1;
            let empty = Checkpoint { repairs, ..Checkpoint::empty(Timestamp::MIN) };
            self.checkpoint =
                Some(fold(empty, &self.log.between(Timestamp::MIN, as_of), as_of, &self.log.rules).checkpoint);
            self.just_repaired = true;
        }
    }

    fn arrive(&mut self) {
        let Some(event) = self.unsent.pop() else { return };
        // An event at or below the limit is refused.
        if event.key.time <= self.limit {
            return;
        }
        if event.change == Change::Clear
            && let CacheKind::Copy(copy) = &mut self.cache
        {
            *copy = None;
            self.leased = false;
        }
        self.log.events.insert(event.key.clone(), event);
    }

    fn meanwhile(&mut self) {
        match self.meanwhile.pop().unwrap_or(Meanwhile::Nothing) {
            Meanwhile::Nothing => {}
            Meanwhile::Arrive => self.arrive(),
            Meanwhile::MoveLimit(to) => self.limit = self.limit.max(to),
            Meanwhile::Roll => {
                self.roll();
                if !self.just_repaired && self.log.between(self.checkpoint_as_of(), self.limit).is_empty() {
                    self.watermark = self.limit;
                }
            }
            Meanwhile::Repair => self.repair(),
        }
    }

    fn checkpoint_as_of(&self) -> Timestamp {
        self.checkpoint.as_ref().map_or(Timestamp::MIN, |checkpoint| checkpoint.as_of)
    }

    fn before(&self) -> StateBefore {
        let first_time = Timestamp::from_millis(FIRST_MILLIS).just_before();
        StateBefore {
            as_of_floor: self.floor.unwrap_or(Timestamp::MIN),
            watermark: self.watermark,
            limit: self.limit,
            least_as_of: first_time,
        }
    }

    fn tail(&self, after: Timestamp) -> TailLookup {
        if !self.keeps_sums || self.temporality == Temporality::Cumulative {
            return TailLookup::Unknown;
        }
        tail_of(&self.log.between(after, Timestamp::MAX)).map_or(TailLookup::Empty, TailLookup::Sum)
    }

    fn fold_tail(&self, row: &RollupRow, watermark: Timestamp) -> FoldedTail {
        let base = row.base(watermark);
        let (as_of, mut events) = (base.as_of, self.log.between(base.as_of, Timestamp::MAX));
        let more = events.len() > FOLDED_AT_ONCE;
        events.truncate(FOLDED_AT_ONCE);
        let to = events.last().map_or(as_of, |last| last.key.time);
        let first = events.iter().find(|event| event.change.is_mutation()).map(|event| event.key.time);
        let Checkpoint { count, last_event_time, .. } = fold(base, &events, to, &self.log.rules).checkpoint;
        FoldedTail { count, last_event_time, first, more }
    }

    /// Performs a read.
    fn read(&mut self, options: ReadOptions, is_up_to_date: bool) -> Read {
        let fold = self.log.rules.clone();
        let protocol = ProtocolRules::default();
        let rules = ReadRules { fold: &fold, temporality: self.temporality, is_up_to_date, protocol };
        let mut plan = ReadPlan::new(rules, options);
        let mut found: Option<(RollupRow, Timestamp)> = None;
        let mut is_repaired = false;
        let (mut steps, mut logs, mut limits) = (Vec::new(), vec![self.log.clone()], vec![self.limit]);
        loop {
            let step = plan.next(|| self.limit + Duration::from_secs(3));
            steps.push(step.clone());
            assert!(steps.len() <= STEPS_OF_A_READ, "a read ends: {steps:?}");
            let before = self.before();
            if matches!(step, ReadStep::ReadRow) {
                self.leased = true;
            }
            self.meanwhile();
            logs.push(self.log.clone());
            limits.extend([before.limit, self.limit]);
            match step {
                ReadStep::ReadCache => {
                    let _used = plan.read_cache(self.cached(), before);
                }
                ReadStep::ReadRow => {
                    plan.read_row(&self.row(), self.limit, before);
                    found = Some((self.row(), before.watermark));
                    is_repaired |= self.just_repaired;
                }
                ReadStep::LookAtTail(after) => plan.look_at_tail(self.tail(after)),
                ReadStep::FindFirst(after) => {
                    let mutations = |event: &Event| event.change.is_mutation().then_some(event.key.time);
                    plan.find_first(self.log.between(after, Timestamp::MAX).iter().find_map(mutations));
                }
                ReadStep::FoldTail => {
                    let (row, watermark) = found.take().unwrap_or_else(|| (self.row(), before.watermark));
                    plan.fold_tail(self.fold_tail(&row, watermark));
                }
                ReadStep::FillCache(value) => self.fill(value),
                ReadStep::MoveLimit(wanted) => {
                    self.limit = self.limit.max(wanted.min(self.limit + Duration::from_secs(20)));
                    plan.move_limit(self.limit);
                }
                ReadStep::Roll => {
                    self.roll();
                    plan.roll();
                }
                ReadStep::Answer(answer) => {
                    self.floor = self.floor.map(|floor| floor.max(answer.reading.as_of));
                    return Read { reading: answer.reading, steps, logs, limits, is_repaired };
                }
            }
        }
    }
}

// ---- The oracle ----

/// The sum of all events of a log up to a time, as a reader sees it at another time.
fn naive(log: &History, temporality: Temporality, to: Timestamp) -> i128 {
    match temporality {
        Temporality::Delta => log.count(to),
        Temporality::Cumulative => {
            counted(log.up_to(to).filter(|event| event.change.is_mutation()), log.rules.on_new_epoch())
        }
    }
}

fn naive_as_of(log: &History, temporality: Temporality, as_of: Timestamp) -> i128 {
    match temporality {
        Temporality::Delta => log.seen(as_of),
        Temporality::Cumulative => naive(log, temporality, as_of),
    }
}

/// Whether an up-to-date or partial count is that of one of the logs. A silence is judged by one of the limits.
fn is_count_of(read: &Read, temporality: Temporality, log: &History, to: Timestamp) -> bool {
    let CountReading { count, saturated, last_write_time, .. } = read.reading;
    let ttl_micros = |limit| log.rules.at(limit).ttl.map(|ttl| i64::try_from(ttl.as_micros()).expect("a short TTL"));
    let is_silent = |limit: Timestamp| {
        let last = last_write_time.zip(ttl_micros(limit));
        last.is_some_and(|(last, ttl)| limit.micros() - last.micros() > ttl)
    };
    read.limits.iter().any(|limit| {
        let exact = if is_silent(*limit) { 0 } else { naive(log, temporality, to) };
        clamp_count(exact) == (count, saturated)
    })
}

/// Whether the answer of a read is right. `end` is the log after all events have arrived.
fn is_right(read: &Read, temporality: Temporality, end: &History) -> bool {
    let CountReading { count, saturated, as_of, exactness, .. } = read.reading;
    match exactness {
        Exactness::ExactAsOf => {
            // No count holds an add from below a clear that was acknowledged before the read began.
            let is_cleared = read.logs[0].newest_clear(Timestamp::MAX).is_some_and(|clear| clear.time > as_of);
            clamp_count(naive_as_of(end, temporality, as_of)) == (count, saturated) && (count == 0 || !is_cleared)
        }
        Exactness::UpToDate => read.logs.iter().any(|log| is_count_of(read, temporality, log, Timestamp::MAX)),
        Exactness::Estimate => count == 0 && end.newest_clear(Timestamp::MAX).is_some(),
        Exactness::Partial => read.logs.iter().any(|log| {
            log.events.len() > FOLDED_AT_ONCE
                && log.events.values().any(|last| {
                    // The oldest events after the row: a prefix in the order of keys.
                    let prefix = log.events.range(..=last.key.clone()).map(|(key, event)| (key.clone(), event.clone()));
                    let prefix = History { events: prefix.collect(), ..log.clone() };
                    is_count_of(read, temporality, &prefix, Timestamp::MAX)
                })
        }),
    }
}

// ---- Generating servers ----

fn near() -> impl Strategy<Value = Timestamp> {
    (FIRST_MILLIS / 5_000..END_MILLIS / 5_000, -1_i64..=1)
        .prop_map(|(fives, off)| Timestamp::from_millis((fives * 5_000 + off).max(FIRST_MILLIS)))
}

fn meanwhile() -> impl Strategy<Value = Meanwhile> {
    prop_oneof![
        4 => Just(Meanwhile::Nothing),
        3 => Just(Meanwhile::Arrive),
        2 => near().prop_map(Meanwhile::MoveLimit),
        2 => Just(Meanwhile::Roll),
        1 => Just(Meanwhile::Repair),
    ]
}

fn events() -> impl Strategy<Value = (Temporality, History)> {
    let rules = FoldRules::constant(Duration::from_secs(10), None, Vec::new());
    prop_oneof![
        3 => history().prop_map(|history| (Temporality::Delta, history)),
        1 => (reports(), on_new_epoch()).prop_map(move |(events, on_new_epoch)| {
            let rules = rules.clone().with_epochs(on_new_epoch);
            (Temporality::Cumulative, History { rules, events })
        }),
    ]
}

/// A server whose checkpoint, watermark and copy were made at three earlier limits.
fn server() -> impl Strategy<Value = Server> {
    let times = (near(), near(), near(), near());
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>(), 0_u8..4);
    (events(), times, kinds, vec(any::<Index>(), 40), vec(meanwhile(), 0..24)).prop_map(
        |(
            (temporality, all),
            (limit, rolled, copied, seen),
            (keeps_sums, can_roll, rolls, cache),
            picks,
            meanwhile,
        )| {
            let (rolled, copied) = (rolled.min(limit), copied.min(rolled).min(limit));
            let mut server = Server {
                temporality,
                log: History { rules: all.rules.clone(), events: Default::default() },
                unsent: Vec::new(),
                limit,
                watermark: Timestamp::MIN,
                checkpoint: None,
                just_repaired: false,
                cache: if cache == 0 { CacheKind::Coherent } else { CacheKind::Copy(None) },
                keeps_sums,
                can_roll: true,
                floor: (cache > 1).then_some(Timestamp::MIN),
                leased: true,
                meanwhile,
            };
            for (event, pick) in all.events.into_values().zip(&picks) {
                if event.key.time <= limit || pick.index(2) == 0 {
                    server.log.events.insert(event.key.clone(), event);
                } else {
                    server.unsent.insert(pick.index(server.unsent.len() + 1), event);
                }
            }
            server.copy_at(copied, seen);
            if rolls {
                server.limit = rolled;
                server.roll();
                server.watermark = rolled;
            }
            server.limit = limit;
            Server { can_roll, ..server }
        },
    )
}

impl Server {
    /// Rolls up to a time and puts a copy into the cache that knows the last write only up to another time.
    fn copy_at(&mut self, time: Timestamp, seen: Timestamp) {
        self.limit = time;
        self.roll();
        self.watermark = time;
        let row = self.row();
        if self.checkpoint.is_some() {
            let last_event_time = row.checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_event_time);
            let last_write_time = self.log.last_mutation(seen).max(last_event_time);
            self.fill(CachedCount { last_write_time, ..row.to_cached(time) });
        }
    }
}

fn options() -> impl Strategy<Value = (ReadOptions, bool)> {
    let staleness = proptest::option::weighted(0.3, (0_u64..30).prop_map(Duration::from_secs));
    let least = proptest::option::weighted(0.4, near());
    (staleness, least, any::<bool>()).prop_map(|(max_staleness, at_least_as_of, is_up_to_date)| {
        (ReadOptions { max_staleness, at_least_as_of, ..ReadOptions::default() }, is_up_to_date)
    })
}

proptest! {
    #![proptest_config(config())]

    /// The count of every answer is the naive sum, `as_of` never goes back, and no fact is asked for twice.
    #[test]
    fn every_read_answers_the_naive_sum(server in server(), reads in vec(options(), 1..5)) {
        let mut server = server;
        let mut answers: Vec<Read> = Vec::new();
        for (options, is_up_to_date) in reads {
            let read = server.read(options, is_up_to_date);
            if let Some(last) = answers.last()
                && !read.is_repaired
            {
                prop_assert!(last.reading.as_of <= read.reading.as_of, "as_of goes back: {:?}", read.steps);
            }
            let is_behind = options.at_least_as_of.is_some_and(|wanted| wanted > read.reading.as_of);
            prop_assert!(read.reading.behind || !is_behind, "a wish that is not met is told");
            prop_assert_eq!(read.reading.exactness == Exactness::ExactAsOf && is_up_to_date, false);
            answers.push(read);
        }
        while !server.unsent.is_empty() {
            server.arrive();
        }
        for read in &answers {
            prop_assert!(is_right(read, server.temporality, &server.log), "{:?} after {:?}", read.reading, read.steps);
            prop_assert!(asks_once(&read.steps), "{:?}", read.steps);
        }
    }
}

/// One look at the tail for each look at the row, and one look at the row before the limit moves, before a roll and
/// after.
fn asks_once(steps: &[ReadStep]) -> bool {
    let is_look = |step: &ReadStep| matches!(step, ReadStep::ReadCache | ReadStep::ReadRow);
    let is_turn = |step: &ReadStep| matches!(step, ReadStep::MoveLimit(_) | ReadStep::Roll);
    let is_scan = |step: &ReadStep| matches!(step, ReadStep::FindFirst(_) | ReadStep::FoldTail);
    let most = |steps: &[ReadStep], of: &dyn Fn(&ReadStep) -> bool| steps.iter().filter(|step| of(step)).count() <= 1;
    let looks = steps.split(|step| is_look(step));
    let is_row = |step: &ReadStep| *step == ReadStep::ReadRow;
    let is_sum = |step: &ReadStep| matches!(step, ReadStep::LookAtTail(_));
    looks.into_iter().all(|looks| most(looks, &is_scan) && most(looks, &is_sum))
        && steps.split(|step| is_turn(step)).all(|part| most(part, &is_row))
        && most(steps, &|step| matches!(step, ReadStep::MoveLimit(_)))
        && most(steps, &|step| matches!(step, ReadStep::Roll))
}

/// A copy is as of an earlier time. If its counter has fallen silent since, only the row shows it.
#[test]
fn a_copy_whose_counter_may_have_fallen_silent_is_not_used() {
    let ttl = Duration::from_secs(10);
    let fold = FoldRules::constant(Duration::from_secs(10), Some(ttl), Vec::new());
    let protocol = ProtocolRules::default();
    let rules = ReadRules { fold: &fold, temporality: Temporality::Delta, is_up_to_date: false, protocol };
    let written = Timestamp::from_secs(100);
    let copy = CachedCount {
        count: 5,
        as_of: written + Duration::from_secs(1),
        last_event_time: Some(written),
        clear: None,
        last_write_time: Some(written),
        checked_at: Some(written + Duration::from_secs(1)),
    };
    for (limit, is_used) in [(written + ttl, true), ((written + ttl).just_after(), false)] {
        let (as_of_floor, watermark, least_as_of) = (Timestamp::MIN, Timestamp::MIN, Timestamp::MIN);
        let before = StateBefore { as_of_floor, watermark, limit, least_as_of };
        let mut plan = ReadPlan::new(rules, ReadOptions::default());
        assert_eq!(plan.next(|| limit), ReadStep::ReadCache);
        assert_eq!(plan.read_cache(Some(copy.clone()), before), is_used);
        assert_eq!(plan.next(|| limit) == ReadStep::ReadRow, !is_used);
    }
}

/// A cached value is the answer if nothing is unrolled.
#[test]
fn a_rolled_up_counter_in_the_cache_needs_no_other_step() {
    let fold = FoldRules::constant(Duration::from_secs(10), None, Vec::new());
    let protocol = ProtocolRules::default();
    let rules = ReadRules { fold: &fold, temporality: Temporality::Delta, is_up_to_date: false, protocol };
    let (as_of, limit) = (Timestamp::from_secs(100), Timestamp::from_secs(130));
    let value = CachedCount {
        count: 5,
        as_of,
        last_event_time: Some(as_of),
        clear: None,
        last_write_time: Some(as_of),
        checked_at: None,
    };
    for (checked_at, exact_to) in [(None, limit), (Some(as_of), as_of)] {
        let (as_of_floor, watermark, least_as_of) = (Timestamp::MIN, Timestamp::MIN, Timestamp::MIN);
        let before = StateBefore { as_of_floor, watermark, limit, least_as_of };
        let mut plan = ReadPlan::new(rules, ReadOptions::default());
        assert_eq!(plan.next(|| limit), ReadStep::ReadCache);
        assert!(plan.read_cache(Some(CachedCount { checked_at, ..value.clone() }), before));
        let ReadStep::Answer(answer) = plan.next(|| limit) else { panic!("a cached value is the answer") };
        assert_eq!((answer.reading.count, answer.reading.as_of, answer.signal), (5, exact_to, None));
    }
}
