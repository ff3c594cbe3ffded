//! Reports of counts: the header with the counts of the shard, and the values that changed, in pages.
//!
//! A page has the values that changed first, from a position on. A value that changes while pages are read comes again
//! on a later one. So together they are the values at the position of the last call. A value that yields to a new one
//! leaves no entry, but `~gone` changes with it; then the pages are read again.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::counts::{read_counts, read_signatures, read_values, value_changed_at};
use super::functions::RedisQueues;
use super::limits::REDIS_REPORT_PAGES_MAX;
use super::packed::PackedBytes;
use super::replies::{ReadStatus, ReplyParts};
use super::stored_shard::{StoredShardHeader, read_header};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::name::ShardId;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_ports::{ShardReport, StoreError, StoreErrorKind};

pub(super) const REPORT: &str = "read counts of queue";
/// The field with the flows of the values that gave way.
const GONE: &[u8] = b"~gone";

/// The answer of one call.
struct ReportPage {
    status: ReadStatus,
    header: StoredShardHeader,
    counts: Bytes,
    signatures: Vec<Bytes>,
    /// Of each counted key, in the order of their numbers: its name, whether more values changed, and fields with
    /// counts.
    keys: Vec<(String, bool, Vec<Bytes>)>,
}

/// The values of several calls.
struct ValuePages {
    since: Option<u64>,
    /// The position of the first call.
    began: Option<u64>,
    /// From where each key is read on.
    from: Vec<u64>,
    values: BTreeMap<(usize, Bytes), Bytes>,
}

/// The state of the report after a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PagesState {
    Complete,
    More,
    /// A value gave way, and may be among those that were read.
    Outdated,
}

impl ReportPage {
    fn of(status: ReadStatus, mut parts: ReplyParts) -> Result<Self, CorruptValue> {
        let header = read_header(&parts.bytes()?)?;
        let header = header.ok_or_else(|| CorruptValue::new("header of a shard", "it is a tombstone"))?;
        let (counts, signatures) = (parts.bytes()?, parts.list()?);
        let mut names: Vec<(usize, String)> = Vec::new();
        for pair in parts.list()?.chunks(2) {
            let [name, number] = [0, 1].map(|at| pair.get(at).and_then(|text| std::str::from_utf8(text).ok()));
            let number = number.and_then(|number| number.parse().ok());
            let known = number.zip(name.map(str::to_owned));
            names.push(known.ok_or_else(|| CorruptValue::new("counted keys", "no number of a name"))?);
        }
        names.sort_unstable();
        let mut keys = Vec::with_capacity(names.len());
        for (_, name) in names {
            let mut page = parts.list()?;
            if page.is_empty() {
                return Err(CorruptValue::new("values", "a page without its first part"));
            }
            let has_more = page.remove(0) == "1";
            keys.push((name, has_more, page));
        }
        Ok(Self { status, header, counts, signatures, keys })
    }
}

impl ValuePages {
    fn new(since: Option<u64>) -> Self {
        Self { since, began: None, from: Vec::new(), values: BTreeMap::new() }
    }

    /// The position after which values are wanted, before every position for all of them; then from where each key goes
    /// on.
    fn request(&self) -> Vec<Vec<u8>> {
        let since = self.since.map_or(-1, |since| i64::try_from(since).unwrap_or(i64::MAX));
        let from = self.from.iter().map(|from| PackedBytes::default().whole(*from).0);
        [PackedBytes::default().signed(since).0].into_iter().chain(from).collect()
    }

    fn take(&mut self, page: &ReportPage) -> Result<PagesState, CorruptValue> {
        let began = *self.began.get_or_insert(page.header.position);
        let mut state = PagesState::Complete;
        for (number, (_, has_more, fields)) in page.keys.iter().enumerate() {
            if self.from.len() == number {
                self.from.push(self.since.map_or(0, |since| since.saturating_add(1)));
            }
            for pair in fields.chunks(2) {
                let [field, counts] = pair else { return Err(CorruptValue::new("values", "a field without a value")) };
                let changed_at = value_changed_at(counts)?;
                if field == GONE && changed_at > began {
                    return Ok(PagesState::Outdated);
                }
                self.from[number] = self.from[number].max(changed_at);
                self.values.insert((number, field.clone()), counts.clone());
            }
            if *has_more {
                state = PagesState::More;
            }
        }
        Ok(state)
    }
}

impl RedisQueues {
    /// Reads a report; none if a value gave way meanwhile.
    pub(super) async fn read_report(
        &self,
        shard: ShardId,
        since: Option<u64>,
    ) -> Result<Option<ShardReport>, StoreError> {
        let corrupt = |fault: CorruptValue| fault.into_store_error(REPORT);
        let mut pages = ValuePages::new(since);
        for _ in 0..REDIS_REPORT_PAGES_MAX {
            let (status, parts) = self.see((shard, REPORT), "report", pages.request()).await?;
            let page = ReportPage::of(status, parts).map_err(corrupt)?;
            match pages.take(&page).map_err(corrupt)? {
                PagesState::More => {}
                PagesState::Outdated => return Ok(None),
                PagesState::Complete => return report_of(page, &pages).map(Some).map_err(corrupt),
            }
        }
        let busy = StoreError::not_applied(StoreErrorKind::Busy, REPORT);
        Err(busy.with_source("counted values change faster than they are read"))
    }
}

/// The report at the position of the last page.
fn report_of(page: ReportPage, pages: &ValuePages) -> Result<ShardReport, CorruptValue> {
    let ReportPage { status, header, counts, signatures, keys } = page;
    let mut values = Vec::new();
    for (number, (name, ..)) in keys.iter().enumerate() {
        let own = pages.values.iter().filter(|((of, _), _)| *of == number);
        let fields: Vec<Bytes> = own.flat_map(|((_, field), counts)| [field.clone(), counts.clone()]).collect();
        values.append(&mut read_values(name, &fields, pages.since)?);
    }
    values.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let position = RowPosition { epoch: status.epoch, position: header.position };
    Ok(ShardReport {
        position,
        at: status.at,
        totals: header.totals,
        counts: Box::new(read_counts(&counts, header.position)),
        values,
        signatures: read_signatures(&signatures, pages.since)?,
    })
}
