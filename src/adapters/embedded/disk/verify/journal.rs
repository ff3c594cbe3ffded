//! Reads the journal of the store library (fjall 3.1) without changing it.
//!
//! ```text
//! batch   1 | items u32 | seqno u64 | item ... | 3 | checksum u64 | "FJL" 3
//! item    2 | type u8 | compression u8 | keyspace u64 | key u16 | value u32 | stored u32 | key | stored value
//! clear   4 | keyspace u64
//! ```
//! Numbers are little endian. The checksum covers the items, not the head. The items and the trailer after them verify
//! the count. The seqno is verified by its growth from batch to batch; one that is wrong within these bounds changes no
//! result. A new journal is filled with zeros in advance, so zeros up to its end are a clean end.

use xxhash_rust::xxh3::xxh3_64;

use super::byte_reader::ByteReader;
use crate::disk::meta;
use crate::disk::writer::{CommitRow, NewestRows};

const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// The commits of consecutive journals.
pub struct CommitChain {
    meta: u64,
    /// Number of the last commit read.
    pub last: Option<u64>,
    /// Sequence number of the last commit.
    seqno: u64,
    /// Number of the first commit, and the newest rows before it where they are listed.
    pub begin: Option<(u64, Option<NewestRows>)>,
}

/// Bound on the step between two batches. The sequence number grows by one for each commit, flush, compaction and
/// keyspace.
const SEQNO_STEP_MAX: u64 = 1 << 20;
/// Bound on sequence numbers, far beyond any store.
const SEQNO_MAX: u64 = 1 << 56;

/// How the readable part of a journal ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalEnd {
    /// At its last byte, or with zeros only.
    Clean,
    /// With bytes at this offset that are no batch.
    Broken { at: usize },
    /// With a complete batch that is not the next one.
    Gap { at: usize, expected: u64, found: u64 },
}

impl CommitChain {
    /// Starts before the first journal. `meta` is the number of the keyspace that holds the commit row.
    pub fn new(meta: u64) -> Self {
        Self { meta, last: None, seqno: 0, begin: None }
    }

    /// Reads the batches of the next journal.
    pub fn walk(&mut self, journal: &[u8]) -> JournalEnd {
        let mut rest = journal;
        while !rest.is_empty() {
            let at = journal.len() - rest.len();
            let next = batch(rest, self.meta).filter(|batch| self.may_follow(batch.seqno));
            let Some(JournalBatch { commit, newest_rows, seqno, length }) = next else {
                return if rest.iter().all(|byte| *byte == 0) { JournalEnd::Clean } else { JournalEnd::Broken { at } };
            };
            match self.last {
                Some(last) if commit.number != last + 1 => {
                    return JournalEnd::Gap { at, expected: last + 1, found: commit.number };
                }
                Some(_) | None => self.last = Some(commit.number),
            }
            self.seqno = seqno;
            let (first, listed) = self.begin.get_or_insert((commit.number, None));
            if let Some(rows) = newest_rows.filter(|rows| rows.first == *first) {
                *listed = Some(rows);
            }
            rest = &rest[length..];
        }
        JournalEnd::Clean
    }

    fn may_follow(&self, seqno: u64) -> bool {
        match self.last {
            Some(_) => seqno > self.seqno && seqno - self.seqno <= SEQNO_STEP_MAX,
            None => seqno < SEQNO_MAX,
        }
    }

    /// Finds the last complete batch anywhere in bytes that begin with something else.
    pub fn last_batch_in(&self, bytes: &[u8]) -> Option<CommitRow> {
        let mut found = None;
        let mut at = 1;
        while at < bytes.len() {
            match batch(&bytes[at..], self.meta) {
                Some(batch) => {
                    found = Some(batch.commit);
                    at += batch.length;
                }
                None => at += 1,
            }
        }
        found
    }
}

/// One complete batch.
struct JournalBatch {
    commit: CommitRow,
    newest_rows: Option<NewestRows>,
    seqno: u64,
    length: usize,
}

fn batch(bytes: &[u8], meta: u64) -> Option<JournalBatch> {
    let mut rest = ByteReader { rest: bytes };
    if rest.u8()? != 1 {
        return None;
    }
    let count = rest.u32()?;
    let seqno = rest.u64()?;
    let items = rest.rest;
    let (mut commit, mut newest_rows) = (None, None);
    for _ in 0..count {
        let item = item(&mut rest)?;
        if item.keyspace == meta && item.key == meta::COMMIT {
            commit = CommitRow::from_bytes(item.value);
        }
        if item.keyspace == meta && item.key == meta::NEWEST_ROWS {
            newest_rows = NewestRows::from_bytes(item.value);
        }
    }
    let items = &items[..items.len() - rest.rest.len()];
    let is_whole = rest.u8()? == 3 && rest.u64()? == xxh3_64(items) && rest.take(4)? == TRAILER;
    let commit = commit.filter(|_| is_whole)?;
    Some(JournalBatch { commit, newest_rows, seqno, length: bytes.len() - rest.rest.len() })
}

/// One item of a batch; a clear has no key.
struct JournalItem<'a> {
    keyspace: u64,
    key: &'a [u8],
    value: &'a [u8],
}

fn item<'a>(rest: &mut ByteReader<'a>) -> Option<JournalItem<'a>> {
    match rest.u8()? {
        2 => {
            // The library interprets type and compression; the checksum covers them.
            rest.take(2)?;
            let keyspace = rest.u64()?;
            let key_length = usize::from(rest.u16()?);
            rest.take(4)?;
            let stored_length = rest.u32()? as usize;
            Some(JournalItem { keyspace, key: rest.take(key_length)?, value: rest.take(stored_length)? })
        }
        4 => Some(JournalItem { keyspace: rest.u64()?, key: &[], value: &[] }),
        // No other tag begins an item.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: u64 = 5;

    /// A batch with a row of a counter and a commit row.
    fn bytes_of(number: u64, synced: u64) -> Vec<u8> {
        with_row(number, synced, b"k", b"v")
    }

    fn with_row(number: u64, synced: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
        let seqno = number + 10;
        let commit = CommitRow { number, synced };
        let mut items = Vec::new();
        for (keyspace, key, value) in [(META, key, value), (META, meta::COMMIT, &commit.to_bytes()[..])] {
            items.extend_from_slice(&[2, 0, 0]);
            items.extend_from_slice(&keyspace.to_le_bytes());
            items.extend_from_slice(&(key.len() as u16).to_le_bytes());
            items.extend_from_slice(&(value.len() as u32).to_le_bytes());
            items.extend_from_slice(&(value.len() as u32).to_le_bytes());
            items.extend_from_slice(key);
            items.extend_from_slice(value);
        }
        let mut bytes = vec![1];
        bytes.extend_from_slice(&2_u32.to_le_bytes());
        bytes.extend_from_slice(&seqno.to_le_bytes());
        bytes.extend_from_slice(&items);
        bytes.push(3);
        bytes.extend_from_slice(&xxh3_64(&items).to_le_bytes());
        bytes.extend_from_slice(&TRAILER);
        bytes
    }

    fn walk(journal: &[u8]) -> (JournalEnd, Option<u64>) {
        let mut chain = CommitChain::new(META);
        (chain.walk(journal), chain.last)
    }

    #[test]
    fn commits_are_followed_over_journals() {
        let mut chain = CommitChain::new(META);
        assert_eq!(chain.walk(&[bytes_of(7, 6), bytes_of(8, 7), vec![0; 40]].concat()), JournalEnd::Clean);
        assert_eq!(chain.walk(&bytes_of(9, 8)), JournalEnd::Clean);
        assert_eq!(chain.last, Some(9));
        assert_eq!(chain.walk(&bytes_of(11, 10)), JournalEnd::Gap { at: 0, expected: 10, found: 11 });
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let first = bytes_of(1, 0);
        let whole = [first.clone(), bytes_of(2, 1)].concat();
        for at in first.len()..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let seqno = first.len() + 5..first.len() + 13;
                if seqno.contains(&at) {
                    assert_seqno_is_bounded(&flipped, seqno.start);
                    continue;
                }
                assert_eq!(walk(&flipped), (JournalEnd::Broken { at: first.len() }, Some(1)), "bit {bit} of byte {at}");
            }
            let expected = if at == first.len() { JournalEnd::Clean } else { JournalEnd::Broken { at: first.len() } };
            assert_eq!(walk(&whole[..at]), (expected, Some(1)), "cut at {at}");
        }
    }

    /// A changed sequence number either breaks the growth or stays within the harmless bounds.
    fn assert_seqno_is_bounded(flipped: &[u8], at: usize) {
        let seqno = u64::from_le_bytes(flipped[at..at + 8].try_into().expect("8 bytes"));
        let follows = seqno > 11 && seqno <= 11 + SEQNO_STEP_MAX;
        assert_eq!(walk(flipped).0 == JournalEnd::Clean, follows, "{seqno}");
    }

    #[test]
    fn the_newest_rows_before_the_first_journal_are_found_in_its_second_batch() {
        let rows = NewestRows { first: 7, rows: vec![(3, 12), (4, 9)] };
        assert_eq!(NewestRows::from_bytes(&rows.to_bytes()), Some(rows.clone()));
        let mut chain = CommitChain::new(META);
        chain.walk(&[bytes_of(7, 6), with_row(8, 7, meta::NEWEST_ROWS, &rows.to_bytes())].concat());
        chain.walk(&with_row(9, 8, meta::NEWEST_ROWS, &NewestRows { first: 9, rows: Vec::new() }.to_bytes()));
        assert_eq!(chain.begin, Some((7, Some(rows))));
    }

    #[test]
    fn a_whole_batch_behind_a_broken_one_is_found() {
        let first = bytes_of(1, 0).len();
        let mut journal = [bytes_of(1, 0), bytes_of(2, 1), bytes_of(3, 2)].concat();
        journal[first + 20] ^= 1;
        let mut chain = CommitChain::new(META);
        assert_eq!(chain.walk(&journal), JournalEnd::Broken { at: first });
        assert_eq!(chain.last_batch_in(&journal[first..]).map(|commit| commit.synced), Some(2));
        assert_eq!(chain.last_batch_in(&journal[first..first + 60]), None);
    }
}
