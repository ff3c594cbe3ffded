//! Searches: a walk over the rows with one term, newest first, in bounded steps. Each hit is judged by its message's
//! later rows.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, stream};

use crate::history::{HistoryExtent, HistoryReader, shards_of};
use crate::queues::{HistorySource, QueueError};
use tallystone_domain::history::search::{HistoryMatch, HistoryQuery, QueryTime};
use tallystone_domain::history::{HistoryHit, HistoryTerm};
use tallystone_domain::limits::{PAGE_ROWS_MAX, SEARCH_JUDGED_AT_ONCE_MAX, SEARCH_ROWS_MAX, SEARCH_STEP_ROWS_MAX};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition, Transition};
use tallystone_domain::time::Timestamp;

/// The rows that the first read of a message returns. Most messages have fewer after a hit.
const FIRST_ROWS: usize = 32;

/// A page of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchedPage {
    /// The matches, by the time of the hit, newest first.
    pub found: Vec<HistoryMatch>,
    /// Whether the bound of rows ended the call before the page was full.
    pub is_partial: bool,
    pub extent: HistoryExtent,
    /// The last hit that was looked at, if more may follow.
    pub next: Option<HistoryHit>,
}

/// A walk of one call.
struct SearchWalk<'a> {
    source: &'a HistorySource,
    query: &'a HistoryQuery,
    term: HistoryTerm,
    /// The last hit that was looked at.
    before: Option<HistoryHit>,
    /// The rows looked at.
    looked_at: usize,
    /// The messages that a newer hit of this call has judged.
    judged: HashSet<MessageKey>,
    found: Vec<HistoryMatch>,
}

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepEnd {
    /// All its hits were looked at, and more may follow.
    More,
    /// The page is full.
    Full,
    /// No hit follows.
    Exhausted,
}

/// A hit after it was judged.
struct JudgedHit {
    hit: HistoryHit,
    found: Option<HistoryMatch>,
    /// The rows read for it.
    rows: usize,
}

impl HistoryReader {
    /// Searches the messages of a queue, after the last hit of the page before. Looks at `SEARCH_ROWS_MAX` rows at
    /// most, rounded up to whole steps.
    pub async fn search(
        &self,
        name: &QueueName,
        query: &HistoryQuery,
        after: Option<HistoryHit>,
        limit: usize,
    ) -> Result<SearchedPage, QueueError> {
        let source = self.queues.inspect.history_source(name).await?;
        let extent = self.extent(shards_of(&source)).await?;
        let mut walk = SearchWalk {
            source: &source,
            query,
            term: query.term(&source.counted_keys),
            before: after.or(query.to.map(first_row_at)),
            looked_at: 0,
            judged: HashSet::new(),
            found: Vec::new(),
        };
        let end = loop {
            let end = self.step(&mut walk, limit).await?;
            if end != StepEnd::More || walk.looked_at >= SEARCH_ROWS_MAX {
                break end;
            }
        };
        let next = walk.before.filter(|_| end != StepEnd::Exhausted);
        Ok(SearchedPage { found: walk.found, is_partial: end == StepEnd::More, extent, next })
    }

    async fn step(&self, walk: &mut SearchWalk<'_>, limit: usize) -> Result<StepEnd, QueueError> {
        let size = SEARCH_STEP_ROWS_MAX.min(SEARCH_ROWS_MAX.saturating_sub(walk.looked_at)).max(1);
        let shards = shards_of(walk.source);
        let mut hits = self.store.find(shards, &walk.term, walk.before, size).await?;
        let was_last = hits.len() < size;
        let until = hits.iter().position(|hit| walk.query.from.is_some_and(|from| hit.at < from));
        hits.truncate(until.unwrap_or(hits.len()));
        let last_rows = self.last_rows(walk, &hits).await?;
        let hits = hits.into_iter().map(|hit| {
            // In a search of the present, the newest hit of a message has decided.
            let is_new = walk.judged.insert(hit.message) || walk.query.when == QueryTime::Ever;
            (hit, last_rows.get(&hit.message).filter(|_| is_new).cloned())
        });
        let hits: Vec<(HistoryHit, Option<HistoryRow>)> = hits.collect();
        let (source, query, term) = (walk.source, walk.query, walk.term.clone());
        let judging = hits.into_iter().map(|(hit, last)| self.judge(source, (query, &term), hit, last));
        let mut judging = stream::iter(judging).buffered(SEARCH_JUDGED_AT_ONCE_MAX);
        while let Some(judged) = judging.next().await {
            let JudgedHit { hit, found, rows } = judged?;
            walk.before = Some(hit);
            walk.looked_at += 1 + rows;
            walk.found.extend(found);
            if walk.found.len() >= limit {
                return Ok(StepEnd::Full);
            }
        }
        Ok(if was_last || until.is_some() { StepEnd::Exhausted } else { StepEnd::More })
    }

    /// The newest rows of the messages of these hits that no newer hit has judged.
    async fn last_rows(
        &self,
        walk: &SearchWalk<'_>,
        hits: &[HistoryHit],
    ) -> Result<HashMap<MessageKey, HistoryRow>, QueueError> {
        let is_open = |key: &MessageKey| walk.query.when == QueryTime::Ever || !walk.judged.contains(key);
        let keys: HashSet<MessageKey> = hits.iter().map(|hit| hit.message).filter(is_open).collect();
        let keys: Vec<MessageKey> = keys.into_iter().collect();
        let rows = self.store.last(walk.source.id, keys.clone()).await?;
        Ok(keys.into_iter().zip(rows).filter_map(|(key, row)| Some((key, row?))).collect())
    }

    async fn judge(
        &self,
        source: &HistorySource,
        (query, term): (&HistoryQuery, &HistoryTerm),
        hit: HistoryHit,
        last: Option<HistoryRow>,
    ) -> Result<JudgedHit, QueueError> {
        let mut judged = JudgedHit { hit, found: None, rows: 0 };
        let Some(last) = last.filter(|last| query.may_match(&last.transition)) else { return Ok(judged) };
        let first = self.store.trace(source.id, hit.message, None, 1).await?.pop();
        let enqueued = first.and_then(|row| row.enqueued);
        judged.rows += 1;
        if !query.filter_matches(enqueued.as_ref().map(|message| &message.metadata)) {
            return Ok(judged);
        }
        let last = last.transition;
        let is_of_enqueue = matches!(term, HistoryTerm::Enqueued | HistoryTerm::Value { .. });
        let rows = if last.detail.position == hit.position || (is_of_enqueue && last.from != last.to) {
            vec![last]
        } else {
            let rows = self.rows_from(source, hit).await?;
            judged.rows += rows.len();
            rows
        };
        judged.found = query.judge(term, &rows).map(|found| HistoryMatch { enqueued, ..found });
        Ok(judged)
    }

    /// The rows of a message from a hit on, at most `SEARCH_ROWS_MAX`. Nothing if the hit has left the history.
    async fn rows_from(&self, source: &HistorySource, hit: HistoryHit) -> Result<Vec<Transition>, QueueError> {
        let (mut rows, mut size) = (Vec::new(), FIRST_ROWS);
        let mut after = RowPosition { position: hit.position.position.saturating_sub(1), ..hit.position };
        while rows.len() < SEARCH_ROWS_MAX {
            let read = self.store.trace(source.id, hit.message, Some(after), size).await?;
            let is_end = read.len() < size;
            after = read.last().map_or(after, HistoryRow::position);
            rows.extend(read.into_iter().map(|row| row.transition));
            if is_end {
                break;
            }
            size = PAGE_ROWS_MAX;
        }
        let is_there = rows.first().is_some_and(|row: &Transition| row.detail.position == hit.position);
        Ok(if is_there { rows } else { Vec::new() })
    }
}

/// Before every row at a time, and after those at earlier times.
fn first_row_at(at: Timestamp) -> HistoryHit {
    let message = MessageKey { shard: 0, epoch: 0, sequence: 0 };
    HistoryHit { at, shard: 0, position: RowPosition::default(), message }
}
