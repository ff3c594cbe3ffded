//! ReportTotals: a source states totals; repeats, restarts and rewinds of a source cannot miscount.

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::counting::error::ChangeText;
use crate::counting::submit::Submission;
use crate::counting::{Counting, CountingError, Report, WriteOutcome, Written, refuse_reserved};
use crate::scopes::NamespaceScope;
use tallystone_domain::counter::{
    Change, Counter, CounterName, Event, EventId, EventKey, IdempotencyToken, NamespaceName, Provenance,
};
use tallystone_domain::limits::SOURCES_MAX;
use tallystone_domain::namespace::{OnNewEpoch, Temporality};
use tallystone_domain::rollup::{SourceTotal, SourceTotals};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::NewEvent;

impl Counting {
    /// Accepts the totals of a source.
    pub async fn report_totals(
        &self,
        namespace: &NamespaceName,
        report: Report,
        items: Vec<Result<(CounterName, i64), Reject>>,
    ) -> Result<Vec<Result<Written, CountingError>>, CountingError> {
        refuse_reserved(namespace)?;
        self.report_own_totals(namespace, report, items).await
    }

    /// The same for a namespace of the service itself. No API leads here.
    pub async fn report_own_totals(
        &self,
        namespace: &NamespaceName,
        report: Report,
        items: Vec<Result<(CounterName, i64), Reject>>,
    ) -> Result<Vec<Result<Written, CountingError>>, CountingError> {
        let scope = self.durable_scope(namespace, "ReportTotals").await?;
        if scope.namespace.spec.temporality != Temporality::Cumulative {
            let message = format!("namespace {namespace} accepts deltas: use AddCount, not ReportTotals");
            return Err(Reject::new(Reason::WrongTemporality, message).into());
        }
        // One report of a source at a time, because the next is compared with what this one wrote.
        let stripe = xxh3_64(report.source.as_str().as_bytes()) as usize % self.reports.len();
        let turn =
            Arc::clone(&self.reports[stripe]).acquire_owned().await.map_err(|_closed| CountingError::ShuttingDown)?;
        let mut own = self.reserve_server_tokens(&scope, 1);
        let token = self.next_server_token(&mut own);
        let mut answers = Vec::with_capacity(items.len());
        let mut submissions = Vec::with_capacity(items.len());
        for item in items {
            let answer = match item {
                Err(reject) => Err(reject.into()),
                Ok((name, total)) => self.check_total(&scope, &report, scope.counter(name), total).await.map(|known| {
                    let write = |counter| {
                        let event = event_of(key_of(&report, token.key.time), counter, total);
                        submissions.push(Submission { event, server_made: true });
                        None
                    };
                    known.map_or_else(write, Some)
                }),
            };
            answers.push(answer);
        }
        let mut outcomes = self.submit(&scope, submissions, Some(own), Some(turn)).await.into_iter();
        let server_time = self.context.now();
        let answer_of = |answer: Result<Option<SourceTotal>, CountingError>| {
            let (outcome, time) = match answer? {
                Some(known) => (WriteOutcome::AlreadyApplied, known.time),
                None => (outcomes.next().unwrap_or(Err(CountingError::ShuttingDown))?, token.key.time),
            };
            let key = key_of(&report, time);
            Ok(Written { outcome, token: IdempotencyToken { key, idempotent: true }, server_time, visible_at: None })
        };
        Ok(answers.into_iter().map(answer_of).collect())
    }

    /// Compares a total with the newest known one of its source: the counter if it has to be written, or the repeated
    /// total.
    async fn check_total(
        &self,
        scope: &Arc<NamespaceScope>,
        report: &Report,
        counter: Counter,
        total: i64,
    ) -> Result<Result<SourceTotal, Counter>, CountingError> {
        let known = self.newest_totals(scope, &counter).await?;
        let newest = known.get(report.source.as_str()).map(|totals| totals.newest);
        if scope.rules.on_new_epoch() == OnNewEpoch::Add {
            refuse_fall(report, newest, total)?;
        }
        let Some(newest) = newest else {
            if known.len() >= SOURCES_MAX {
                let message = format!(
                    "the counter already has {SOURCES_MAX} sources, the maximum; report as one of these sources with \
                     a higher epoch, or to another counter"
                );
                return Err(Reject::new(Reason::TooManySources, message).into());
            }
            return Ok(Err(counter));
        };
        let asked = (report.epoch, report.serial);
        let held = (newest.epoch, newest.serial);
        if asked > held {
            return Ok(Err(counter));
        }
        if asked < held {
            return Err(CountingError::SerialBack {
                epoch: report.epoch,
                serial: report.serial,
                known_epoch: newest.epoch,
                known_serial: newest.serial,
            });
        }
        if newest.total == total {
            self.context.stats.writes_repeated.increment();
            return Ok(Ok(newest));
        }
        let (found, asked) = (ChangeText(Change::Total(newest.total)), ChangeText(Change::Total(total)));
        Err(CountingError::AlreadyExists { found, asked })
    }

    /// Returns the newest totals of each source, as this server knows them: from the checkpoint and the log after it.
    async fn newest_totals(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
    ) -> Result<BTreeMap<Box<str>, SourceTotals>, CountingError> {
        Ok(self.fold_whole_tail(scope, counter).await?.sources)
    }
}

/// Refuses a total below the one before it in its epoch, or below 0. It is for sources whose epochs are added: each
/// epoch begins at 0 and only rises. A serial that goes back, or that repeats, has a refusal of its own.
fn refuse_fall(report: &Report, newest: Option<SourceTotal>, total: i64) -> Result<(), CountingError> {
    let before = newest.filter(|newest| newest.epoch == report.epoch && newest.serial < report.serial);
    let least = before.map_or(0, |newest| newest.total);
    if total >= least {
        return Ok(());
    }
    Err(CountingError::TotalBack { total, least, epoch: report.epoch })
}

fn key_of(report: &Report, time: Timestamp) -> EventKey {
    EventKey { time, id: EventId::total(report.source.as_str(), report.epoch, report.serial) }
}

fn event_of(key: EventKey, counter: Counter, total: i64) -> NewEvent {
    NewEvent { counter, event: Event { key, change: Change::Total(total), provenance: Provenance::default() } }
}
