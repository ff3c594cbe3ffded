//! The newest events of one counter, in memory, ordered by key.
//!
//! Events arrive nearly in order and are removed at the old end. They lie in chunks of at most 128 events. Each chunk
//! keeps the sums of its own mutations and of all chunks before it. Costs: the sum above any time is O(log(chunks) +
//! one chunk), or O(chunks) with clears or totals. An insertion is one short move and one update for each later chunk.
//! A lookup is two binary searches. A page of a scan costs its result, even for a counter that takes 200,000 events a
//! second.

use crate::limits::TAIL_CHUNK_EVENTS_MAX;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Event, EventKey};
use tallystone_domain::rollup::{TailLookup as Answer, TailSum};
use tallystone_ports::{ScanOrder, ScanRange};

/// Events of one counter; each key occurs once.
#[derive(Default, Debug)]
pub struct EventTail {
    /// In key order; no chunk is empty.
    chunks: Vec<EventChunk>,
}

#[derive(Debug)]
struct EventChunk {
    events: Vec<Event>,
    sums: ChunkSums,
    /// Sums of all chunks before this one.
    prefix: PrefixSums,
}

/// Sum of the adds in all preceding chunks, and the number of preceding chunks that contain clears or totals.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct PrefixSums {
    mutations: u64,
    sum: i128,
    non_additive_chunks: u64,
}

/// Sums over the mutations of a chunk.
#[derive(Clone, Copy, Default, Debug)]
struct ChunkSums {
    mutations: u32,
    /// Sum of the adds above the newest clear of the chunk, or of all adds without a clear.
    sum: i128,
    /// Index of the newest clear.
    clear: Option<u32>,
    has_totals: bool,
    /// Times of the first and the last mutation.
    span: Option<(Timestamp, Timestamp)>,
}

impl EventTail {
    /// Returns whether the tail holds no event.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Inserts an event and returns the added bytes; an event with an existing key has no effect.
    pub fn insert(&mut self, event: Event) -> usize {
        let bytes = bytes_of(&event);
        let Some(at) = self.chunk_of(&event.key) else {
            self.chunks.reserve_exact(usize::from(self.chunks.is_empty()));
            self.chunks.push(EventChunk::of(event));
            return bytes;
        };
        let chunks = self.chunks.len();
        let is_last = at + 1 == chunks;
        let chunk = &mut self.chunks[at];
        let Err(place) = chunk.position_of(&event.key) else { return 0 };
        if chunk.events.len() < TAIL_CHUNK_EVENTS_MAX {
            chunk.insert(place, event);
        } else if is_last && place == chunk.events.len() {
            self.chunks.push(EventChunk::of(event));
        } else {
            let upper = chunk.split();
            let target = if place <= chunk.events.len() { (at, place) } else { (at + 1, place - chunk.events.len()) };
            self.chunks.insert(at + 1, upper);
            self.chunks[target.0].insert(target.1, event);
        }
        if !is_last || self.chunks.len() > chunks {
            self.refresh_prefixes_after(at);
        }
        bytes
    }

    /// Recomputes the prefix sums of all chunks after one. Cost: O(chunks after it).
    fn refresh_prefixes_after(&mut self, at: usize) {
        let Some((first, above)) = self.chunks.get_mut(at..).and_then(<[EventChunk]>::split_first_mut) else { return };
        let mut before = first.prefix_after();
        for chunk in above {
            chunk.prefix = before;
            before = chunk.prefix_after();
        }
    }

    pub fn find(&self, key: &EventKey) -> Option<&Event> {
        let chunk = &self.chunks[self.chunk_of(key)?];
        chunk.position_of(key).ok().map(|at| &chunk.events[at])
    }

    /// Sums all mutations above a time. Totals do not add up: the newest total of each source counts, whatever its
    /// position.
    pub fn sum_above(&self, after: Timestamp) -> Answer {
        let first = self.chunks.partition_point(|chunk| chunk.last() <= after);
        let Some(chunk) = self.chunks.get(first) else { return Answer::Empty };
        let begin = chunk.events.partition_point(|event| event.key.time <= after);
        let partial = if begin == 0 { chunk.sums } else { ChunkSums::of(&chunk.events, begin) };
        let (end, newest) = (chunk.prefix_after(), &self.chunks[self.chunks.len() - 1]);
        let last = newest.prefix_after();
        if partial.is_non_additive() || last.non_additive_chunks > end.non_additive_chunks {
            return self.sum_chunks_above(after);
        }
        let whole = &self.chunks[first + 1..];
        let first = partial.span.or_else(|| whole.iter().find_map(|chunk| chunk.sums.span));
        let last_span = whole.iter().rev().find_map(|chunk| chunk.sums.span).or(partial.span);
        let Some(((first, _), (_, last_time))) = first.zip(last_span) else { return Answer::Empty };
        Answer::Sum(TailSum {
            mutations: u64::from(partial.mutations) + (last.mutations - end.mutations),
            sum: partial.sum + (last.sum - end.sum),
            clear: None,
            first,
            last: last_time,
        })
    }

    /// The same sum, chunk by chunk, for tails with clears or totals.
    fn sum_chunks_above(&self, after: Timestamp) -> Answer {
        let mut total: Option<TailSum> = None;
        for chunk in self.chunks.iter().rev() {
            if chunk.last() <= after {
                break;
            }
            let begin = chunk.events.partition_point(|event| event.key.time <= after);
            let sums = if begin == 0 { chunk.sums } else { ChunkSums::of(&chunk.events, begin) };
            if sums.has_totals {
                return Answer::Unknown;
            }
            if let Some((first, last)) = sums.span {
                let clear = sums.clear.map(|at| chunk.events[at as usize].key.clone());
                total = Some(prepend_sum(total, u64::from(sums.mutations), sums.sum, clear, first, last));
            }
        }
        total.map_or(Answer::Empty, Answer::Sum)
    }

    /// Returns the events of a range. Cost: O(log(events) + events returned).
    pub fn scan(&self, range: &ScanRange) -> Vec<Event> {
        let beyond = range.beyond.as_ref();
        match range.order {
            ScanOrder::OldestFirst => {
                let is_below =
                    |event: &Event| event.key.time <= range.after || beyond.is_some_and(|beyond| event.key <= *beyond);
                let (chunk, begin) = self.position_where(is_below);
                let chunks = self.chunks.iter().skip(chunk);
                let events = chunks.flat_map(|chunk| &chunk.events).skip(begin);
                events.take_while(|event| event.key.time <= range.to).take(range.limit).cloned().collect()
            }
            ScanOrder::NewestFirst => {
                let is_inside =
                    |event: &Event| event.key.time <= range.to && beyond.is_none_or(|beyond| event.key < *beyond);
                let (chunk, end) = self.position_where(is_inside);
                let newest = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.events[..end]);
                let older = self.chunks[..chunk].iter().rev().flat_map(|chunk| chunk.events.iter().rev());
                let events = newest.iter().rev().chain(older);
                events.take_while(|event| event.key.time > range.after).take(range.limit).cloned().collect()
            }
        }
    }

    /// Partition point: the position (chunk, index) of the first event for which `holds` is false. `holds` must be true
    /// for all events before it.
    fn position_where(&self, holds: impl Fn(&Event) -> bool) -> (usize, usize) {
        let chunk = self.chunks.partition_point(|chunk| holds(&chunk.events[chunk.events.len() - 1]));
        (chunk, self.chunks.get(chunk).map_or(0, |chunk| chunk.events.partition_point(holds)))
    }

    /// Time of the newest mutation.
    pub fn newest_mutation(&self) -> Option<Timestamp> {
        self.chunks.iter().rev().find_map(|chunk| chunk.sums.span).map(|(_, last)| last)
    }

    pub fn newest_clear(&self) -> Option<EventKey> {
        let with_clear = self.chunks.iter().rev().find_map(|chunk| Some((chunk, chunk.sums.clear?)));
        with_clear.map(|(chunk, at)| chunk.events[at as usize].key.clone())
    }

    /// Removes the events with `from <= time <= to`. Returns the newest removed time and the freed bytes.
    pub fn remove(&mut self, from: Timestamp, to: Timestamp) -> (Option<Timestamp>, usize) {
        let mut newest = None;
        let mut bytes = 0;
        let touched = |chunk: &EventChunk| chunk.first() <= to && chunk.last() >= from;
        if !self.chunks.iter().any(touched) {
            return (None, 0);
        }
        self.chunks.retain_mut(|chunk| {
            if !touched(chunk) {
                return true;
            }
            chunk.events.retain(|event| {
                let goes = from <= event.key.time && event.key.time <= to;
                if goes {
                    newest = newest.max(Some(event.key.time));
                    bytes += bytes_of(event);
                }
                !goes
            });
            chunk.sums = ChunkSums::of(&chunk.events, 0);
            !chunk.events.is_empty()
        });
        match self.chunks.first_mut() {
            Some(first) => first.prefix = PrefixSums::default(),
            None => self.chunks = Vec::new(),
        }
        self.refresh_prefixes_after(0);
        (newest, bytes)
    }

    /// Index of the chunk that contains the key or would contain it; `None` without chunks.
    fn chunk_of(&self, key: &EventKey) -> Option<usize> {
        // Nearly every key belongs to the newest chunk.
        let last = self.chunks.len().checked_sub(1)?;
        let newest = &self.chunks[last].events;
        // Check the last event first, because an insertion reads on from there.
        if newest[newest.len() - 1].key <= *key || newest[0].key <= *key {
            return Some(last);
        }
        Some(self.chunks.partition_point(|chunk| chunk.events[0].key <= *key).saturating_sub(1))
    }
}

impl EventChunk {
    fn of(event: Event) -> Self {
        let events = vec![event];
        Self { sums: ChunkSums::of(&events, 0), events, prefix: PrefixSums::default() }
    }

    fn prefix_after(&self) -> PrefixSums {
        PrefixSums {
            mutations: self.prefix.mutations + u64::from(self.sums.mutations),
            sum: self.prefix.sum + self.sums.sum,
            non_additive_chunks: self.prefix.non_additive_chunks + u64::from(self.sums.is_non_additive()),
        }
    }

    fn first(&self) -> Timestamp {
        self.events[0].key.time
    }

    fn last(&self) -> Timestamp {
        self.events[self.events.len() - 1].key.time
    }

    fn position_of(&self, key: &EventKey) -> Result<usize, usize> {
        match self.events.last() {
            Some(last) if last.key < *key => Err(self.events.len()),
            Some(_) | None => self.events.binary_search_by(|event| event.key.cmp(key)),
        }
    }

    fn insert(&mut self, place: usize, event: Event) {
        let change = event.change;
        let time = event.key.time;
        self.events.insert(place, event);
        match change {
            Change::Clear => self.sums = ChunkSums::of(&self.events, 0),
            Change::Add(_) | Change::Total(_) | Change::Void => self.sums.add(place, time, change),
        }
    }

    /// Keeps the lower half and returns the upper half.
    fn split(&mut self) -> Self {
        let upper = self.events.split_off(TAIL_CHUNK_EVENTS_MAX / 2);
        self.sums = ChunkSums::of(&self.events, 0);
        Self { sums: ChunkSums::of(&upper, 0), events: upper, prefix: PrefixSums::default() }
    }
}

impl ChunkSums {
    /// Whether the chunk has a clear or a total, so that the sum of its adds is not enough.
    fn is_non_additive(&self) -> bool {
        self.clear.is_some() || self.has_totals
    }

    fn of(events: &[Event], begin: usize) -> Self {
        let mut sums = Self::default();
        for (at, event) in events.iter().enumerate().skip(begin) {
            if event.change == Change::Clear {
                sums.sum = 0;
                sums.clear = Some(at as u32);
            }
            sums.add(at, event.key.time, event.change);
        }
        sums
    }

    /// Adds an inserted event to the sums; for a clear, `clear` must already hold its index.
    fn add(&mut self, place: usize, time: Timestamp, change: Change) {
        let place = place as u32;
        self.has_totals |= matches!(change, Change::Total(_));
        match &mut self.clear {
            Some(clear) if place < *clear || (place == *clear && change != Change::Clear) => *clear += 1,
            Some(_) | None => {
                if let Change::Add(delta) = change {
                    self.sum += i128::from(delta);
                }
            }
        }
        if change.is_mutation() {
            self.mutations += 1;
            let (first, last) = self.span.unwrap_or((time, time));
            self.span = Some((first.min(time), last.max(time)));
        }
    }
}

/// Prepends the sums of an older part to the sums of the newer parts.
fn prepend_sum(
    newer: Option<TailSum>,
    mutations: u64,
    sum: i128,
    clear: Option<EventKey>,
    first: Timestamp,
    last: Timestamp,
) -> TailSum {
    match newer {
        None => TailSum { mutations, sum, clear, first, last },
        Some(newer) => TailSum {
            mutations: newer.mutations + mutations,
            sum: if newer.clear.is_some() { newer.sum } else { newer.sum + sum },
            clear: newer.clear.or(clear),
            first,
            last: newer.last,
        },
    }
}

/// Estimated memory of an event, in bytes.
fn bytes_of(event: &Event) -> usize {
    let id = match &event.key.id {
        tallystone_domain::counter::EventId::Uuid(_) => 0,
        tallystone_domain::counter::EventId::Tagged(bytes) => bytes.len() + 16,
    };
    size_of::<Event>() + id + event.provenance.as_str().len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use tallystone_domain::counter::{EventId, Provenance};

    /// Most generated events belong to counters without totals, so that the comparison of sums is meaningful.
    fn event(totals: u32, clears: u32) -> impl Strategy<Value = Event> {
        let change = prop_oneof![
            400 => (-9..9_i64).prop_map(Change::Add),
            totals => (-9..9_i64).prop_map(Change::Total),
            clears => Just(Change::Clear),
            50 => Just(Change::Void),
        ];
        (0..600_i64, 0..3_u8, change).prop_map(|(micros, id, change)| Event {
            key: EventKey { time: Timestamp::from_micros(micros), id: EventId::Uuid([id; 16]) },
            change,
            provenance: Provenance::default(),
        })
    }

    /// The reference implementation of the sum.
    fn naive_sum(events: &BTreeMap<EventKey, Event>, after: Timestamp) -> Answer {
        let tail: Vec<&Event> =
            events.values().filter(|event| event.key.time > after && event.change.is_mutation()).collect();
        if tail.iter().any(|event| matches!(event.change, Change::Total(_))) {
            return Answer::Unknown;
        }
        let (Some(first), Some(last)) = (tail.first(), tail.last()) else { return Answer::Empty };
        let clear = tail.iter().rev().find(|event| event.change == Change::Clear).map(|event| event.key.clone());
        let adds = tail.iter().filter(|event| clear.as_ref().is_none_or(|clear| event.key > *clear));
        let sum = adds.map(|event| if let Change::Add(delta) = event.change { i128::from(delta) } else { 0 }).sum();
        Answer::Sum(TailSum { mutations: tail.len() as u64, sum, clear, first: first.key.time, last: last.key.time })
    }

    fn naive_scan(events: &BTreeMap<EventKey, Event>, range: &ScanRange) -> Vec<Event> {
        let mut found: Vec<Event> = events.values().cloned().collect();
        if range.order == ScanOrder::NewestFirst {
            found.reverse();
        }
        found.retain(|event| {
            let beyond = match (&range.beyond, range.order) {
                (None, _) => true,
                (Some(key), ScanOrder::OldestFirst) => event.key > *key,
                (Some(key), ScanOrder::NewestFirst) => event.key < *key,
            };
            beyond && event.key.time > range.after && event.key.time <= range.to
        });
        found.truncate(range.limit);
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_tail_answers_as_a_plain_map_does(
            events in prop_oneof![3 => Just((0_u32, 0_u32)), 2 => Just((0, 20)), 1 => Just((1, 20))].prop_flat_map(
                |(totals, clears)| proptest::collection::vec(event(totals, clears), 0..1_500)
            ),
            cut in -1..600_i64,
            gap in (0..600_i64, 0..60_i64),
            after in -1..600_i64,
            to in 0..600_i64,
            limit in 0..400_usize,
            beyond in proptest::option::of(event(1, 20)),
        ) {
            let mut tail = EventTail::default();
            let mut naive: BTreeMap<EventKey, Event> = BTreeMap::new();
            let mut bytes = 0;
            for event in events {
                bytes += tail.insert(event.clone());
                naive.entry(event.key.clone()).or_insert(event);
            }
            let at = Timestamp::from_micros;
            for (from, to) in [(Timestamp::MIN, at(cut)), (at(gap.0), at(gap.0 + gap.1))] {
                let (newest, freed) = tail.remove(from, to);
                bytes -= freed;
                let gone = naive.keys().map(|key| key.time).filter(|time| from <= *time && *time <= to).max();
                prop_assert_eq!(newest, gone);
                naive.retain(|key, _| key.time < from || key.time > to);
            }
            prop_assert_eq!(bytes, naive.values().map(bytes_of).sum::<usize>());
            prop_assert_eq!(tail.is_empty(), naive.is_empty());
            prop_assert_eq!(tail.sum_above(at(after)), naive_sum(&naive, at(after)));
            let newest = |is: fn(Change) -> bool| naive.values().rev().find(|event| is(event.change)).map(|e| &e.key);
            prop_assert_eq!(tail.newest_mutation(), newest(Change::is_mutation).map(|key| key.time));
            prop_assert_eq!(tail.newest_clear(), newest(|change| change == Change::Clear).cloned());
            for key in naive.keys().chain(beyond.iter().map(|event| &event.key)) {
                prop_assert_eq!(tail.find(key), naive.get(key));
            }
            for order in [ScanOrder::OldestFirst, ScanOrder::NewestFirst] {
                let beyond = beyond.clone().map(|event| event.key);
                let range = ScanRange { after: at(after), to: at(to), order, beyond, limit };
                prop_assert_eq!(tail.scan(&range), naive_scan(&naive, &range));
            }
        }
    }
}
