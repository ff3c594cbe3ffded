//! Search by term: merges the rows of the shards, newest first.
//!
//! In a shard and epoch times grow with positions, so the partitions of a period are read one after the other. Epochs
//! of one period are merged, because a shard that was set back may have lived through the same time twice. Each read is
//! bounded; partitions with few rows are read ahead, several at once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::history::keys::{
    FoundChunk, message_from, period_of, position_from, stored_position, stored_queue, stored_term,
};
use crate::limits::{FOUND_CHUNKS_AHEAD_MAX, FOUND_PAGE_ROWS_MAX, FOUND_PAGE_ROWS_MIN, PARTITION_READS_AT_ONCE_MAX};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use tallystone_domain::history::{HistoryHit, HistoryTerm};
use tallystone_domain::queue::QueueId;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{QueueShards, StoreError};

const OP: &str = "search history";

/// A place in a partition: rows below it, by time and position, are wanted.
type RowBound = (i64, i64);

/// The question of a search, the same for every shard.
struct TermSearch<'a> {
    requests: &'a RequestRunner,
    queue: QueueId,
    term: String,
    before: Option<HistoryHit>,
    /// The rows of a page.
    page_rows: usize,
}

/// The rows of one shard, newest first, as far as they were read.
struct ShardSearch {
    shard: u32,
    /// The next partitions, newest first.
    chunks: VecDeque<FoundChunk>,
    /// Whether there are no more than those.
    is_last_page: bool,
    /// The rows of the current period, a run for each epoch.
    runs: Vec<EpochRun>,
    /// Pages that were read ahead.
    pages: BTreeMap<FoundChunk, Vec<HistoryHit>>,
    /// How many partitions to read ahead.
    ahead: usize,
}

/// The rows of one epoch in the current period.
struct EpochRun {
    /// The partitions that were not read yet.
    chunks: VecDeque<FoundChunk>,
    /// The rest of the last page.
    rows: VecDeque<HistoryHit>,
    /// The partition whose rest was not read, and where it begins.
    rest: Option<(FoundChunk, RowBound)>,
}

/// Finds rows with a term before a row, newest first.
pub async fn find(
    requests: &RequestRunner,
    queue: QueueShards,
    term: &HistoryTerm,
    before: Option<HistoryHit>,
    limit: usize,
) -> Result<Vec<HistoryHit>, StoreError> {
    let shards = usize::try_from(queue.shards).unwrap_or(usize::MAX).max(1);
    let page_rows = (limit / shards).saturating_add(1).clamp(FOUND_PAGE_ROWS_MIN, FOUND_PAGE_ROWS_MAX);
    let search = TermSearch { requests, queue: queue.queue, term: stored_term(term), before, page_rows };
    let opening = (0..queue.shards).map(|shard| search.open(shard));
    let opened = stream::iter(opening).buffer_unordered(PARTITION_READS_AT_ONCE_MAX);
    let mut shards: BTreeMap<u32, ShardSearch> = BTreeMap::new();
    let mut heads = BinaryHeap::new();
    for (shard, head) in opened.try_collect::<Vec<_>>().await? {
        heads.extend(head);
        shards.insert(shard.shard, shard);
    }
    let mut found = Vec::new();
    while found.len() < limit {
        let Some(head) = heads.pop() else { break };
        found.push(head);
        if let Some(shard) = shards.get_mut(&head.shard).filter(|_| found.len() < limit) {
            shard.take(head);
            heads.extend(search.head(shard).await?);
        }
    }
    Ok(found)
}

impl TermSearch<'_> {
    /// Reads the newest row of a shard.
    async fn open(&self, shard: u32) -> Result<(ShardSearch, Option<HistoryHit>), StoreError> {
        let mut shard = ShardSearch {
            shard,
            chunks: VecDeque::new(),
            is_last_page: false,
            runs: Vec::new(),
            pages: BTreeMap::new(),
            ahead: 0,
        };
        self.read_chunks(&mut shard, self.first_chunk()).await?;
        let head = self.head(&mut shard).await?;
        Ok((shard, head))
    }

    /// The next row of a shard, without taking it.
    async fn head(&self, shard: &mut ShardSearch) -> Result<Option<HistoryHit>, StoreError> {
        loop {
            for index in 0..shard.runs.len() {
                self.refill(shard, index).await?;
            }
            shard.runs.retain(|run| !run.rows.is_empty());
            let newest = shard.runs.iter().filter_map(|run| run.rows.front()).max();
            if let Some(newest) = newest {
                return Ok(Some(*newest));
            }
            if !self.next_period(shard).await? {
                return Ok(None);
            }
        }
    }

    /// Begins the next older period with rows.
    async fn next_period(&self, shard: &mut ShardSearch) -> Result<bool, StoreError> {
        let period = loop {
            match (shard.chunks.front(), shard.chunks.back()) {
                (Some(first), Some(last)) if shard.is_last_page || last.period < first.period => break first.period,
                (_, Some(last)) => {
                    let last = *last;
                    self.read_chunks(shard, last).await?;
                }
                (_, None) => return Ok(false),
            }
        };
        while let Some(chunk) = shard.chunks.front().copied().filter(|chunk| chunk.period == period) {
            shard.chunks.pop_front();
            match shard.runs.last_mut().filter(|run| run.chunks.back().is_some_and(|last| last.epoch == chunk.epoch)) {
                Some(run) => run.chunks.push_back(chunk),
                None => shard.runs.push(EpochRun { chunks: [chunk].into(), rows: VecDeque::new(), rest: None }),
            }
        }
        Ok(true)
    }

    /// Reads further rows of a run that has none, unless it has ended.
    async fn refill(&self, shard: &mut ShardSearch, index: usize) -> Result<(), StoreError> {
        while shard.runs[index].rows.is_empty() {
            let run = &mut shard.runs[index];
            let (chunk, page) = if let Some((chunk, bound)) = run.rest.take() {
                (chunk, self.read_page(shard.shard, chunk, bound).await?)
            } else if let Some(chunk) = run.chunks.pop_front() {
                (chunk, self.first_page(shard, index, chunk).await?)
            } else {
                break;
            };
            let run = &mut shard.runs[index];
            if let Some(last) = page.last().filter(|_| page.len() >= self.page_rows) {
                run.rest = Some((chunk, (last.at.micros(), stored_position(last.position).1)));
            }
            run.rows = page.into();
        }
        Ok(())
    }

    /// The first page of a partition. While partitions have few rows, those that follow are read with it.
    async fn first_page(
        &self,
        shard: &mut ShardSearch,
        index: usize,
        chunk: FoundChunk,
    ) -> Result<Vec<HistoryHit>, StoreError> {
        if let Some(page) = shard.pages.remove(&chunk) {
            return Ok(page);
        }
        let following = shard.runs[index].chunks.iter().chain(&shard.chunks);
        let following = following.filter(|next| !shard.pages.contains_key(next)).take(shard.ahead);
        let chunks: Vec<FoundChunk> = [chunk].iter().chain(following).copied().collect();
        let reading =
            chunks.iter().map(|chunk| self.read_page(shard.shard, *chunk, self.bound_in(shard.shard, *chunk)));
        let mut pages = try_join_all(reading).await?;
        let has_few = pages.iter().all(|page| page.len() < self.page_rows);
        shard.ahead = if has_few { (shard.ahead * 2 + 1).min(FOUND_CHUNKS_AHEAD_MAX) } else { 0 };
        let ahead = pages.split_off(1);
        shard.pages.extend(chunks.into_iter().skip(1).zip(ahead));
        Ok(pages.pop().unwrap_or_default())
    }

    /// A place in the list of partitions, after which those with rows before the row begin.
    fn first_chunk(&self) -> FoundChunk {
        let period = self.before.map_or(i64::MAX, |before| period_of(before.at).saturating_add(1));
        FoundChunk { period, epoch: i64::MIN, chunk: i64::MIN }
    }

    /// The rows of a partition that lie before the row: those below this place.
    fn bound_in(&self, shard: u32, chunk: FoundChunk) -> RowBound {
        let Some(before) = self.before else { return (i64::MAX, i64::MAX) };
        let (epoch, position) = stored_position(before.position);
        let at = before.at.micros();
        match (shard, chunk.epoch).cmp(&(before.shard, epoch)) {
            Ordering::Less => (at, i64::MAX),
            Ordering::Equal => (at, position),
            Ordering::Greater => (at, i64::MIN),
        }
    }

    async fn read_chunks(&self, shard: &mut ShardSearch, after: FoundChunk) -> Result<(), StoreError> {
        let statement = self.requests.statement("list_chunks");
        let FoundChunk { period, epoch, chunk } = after;
        let most = i32::try_from(FOUND_PAGE_ROWS_MAX).unwrap_or(i32::MAX);
        let (queue, number) = (stored_queue(self.queue), i64::from(shard.shard));
        let values = (queue, self.term.as_str(), number, period, epoch, chunk, most);
        let rows: Vec<(i64, i64, i64)> = self.requests.rows(OP, statement, values).await?;
        shard.is_last_page = rows.len() < FOUND_PAGE_ROWS_MAX;
        shard.chunks.extend(rows.into_iter().map(|(period, epoch, chunk)| FoundChunk { period, epoch, chunk }));
        Ok(())
    }

    async fn read_page(&self, shard: u32, chunk: FoundChunk, bound: RowBound) -> Result<Vec<HistoryHit>, StoreError> {
        let statement = self.requests.statement("list_found");
        let FoundChunk { period, epoch, chunk: of_epoch } = chunk;
        let most = i32::try_from(self.page_rows).unwrap_or(i32::MAX);
        let (queue, number) = (stored_queue(self.queue), i64::from(shard));
        let values = (queue, self.term.as_str(), number, period, epoch, of_epoch, bound.0, bound.1, most);
        let rows: Vec<(i64, i64, i64, i64)> = self.requests.rows(OP, statement, values).await?;
        let found = rows.into_iter().map(|(at, position, message_epoch, message_sequence)| {
            Some(HistoryHit {
                at: Timestamp::from_micros(at),
                shard,
                position: position_from(epoch, position)?,
                message: message_from(shard, message_epoch, message_sequence)?,
            })
        });
        let found = found.collect::<Option<Vec<HistoryHit>>>();
        found.ok_or_else(|| RequestFailure::corrupt("a row of history_found has a number out of range").during(OP))
    }
}

impl ShardSearch {
    /// Takes the row that was the next one.
    fn take(&mut self, head: HistoryHit) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.rows.front() == Some(&head)) {
            run.rows.pop_front();
        }
    }
}
