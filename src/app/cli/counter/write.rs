//! Commands that change counters. Each change has one token for all retries. If a change fails, the command shows its
//! token, so that its outcome can be looked up.

use std::time::Duration;

use clap::Args;

use crate::arguments::{freshness, time, total};
use crate::counter::{CounterContext, full_name};
use crate::failure::exit_of;
use crate::namespaces::{Confirmation, confirm};
use crate::output::{CliResponse, TableRows, time_cell, word};
use crate::{Exit, Failure};
use tallystone_app::notices::{print_notice, shell_quoted};
use tallystone_client::WriteError;
use tallystone_domain::{Reason, Timestamp};
use tallystone_proto::counter::v1 as pb;
use tallystone_proto::error::v1::ItemError;

/// The time that a failed change may spend looking up the namespace's type, which only its advice needs.
const LOOKED_UP_WITHIN: Duration = Duration::from_millis(500);

/// The token of a change.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The token of this change: a UUIDv7, or any 1 to 64 bytes with --generation-time [default: a new UUIDv7].
    #[arg(long)]
    token: Option<String>,
    /// The time of the change; required for a token that is not a UUIDv7.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "token")]
    generation_time: Option<Timestamp>,
}

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct AddArgs {
    /// The counter.
    name: String,
    /// The number to add; may be negative or 0. An add of 0 succeeds and writes nothing.
    #[arg(default_value_t = 1)]
    delta: i64,
    #[command(flatten)]
    token: TokenArgs,
    /// Who or what made the change; shown by `counter events`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    provenance: String,
    /// Also read the count after the change.
    #[arg(long)]
    get: bool,
    /// The required freshness of the count: ROLLED_UP or UP_TO_DATE.
    #[arg(long, value_parser = freshness, requires = "get", conflicts_with = "fresh")]
    freshness: Option<pb::Freshness>,
    /// The same as --freshness UP_TO_DATE.
    #[arg(long, requires = "get")]
    fresh: bool,
}

#[derive(Debug, Args)]
pub struct ClearArgs {
    /// The counter.
    name: String,
    #[command(flatten)]
    token: TokenArgs,
    /// Who or what made the change; shown by `counter events`.
    #[arg(
        long,
        visible_alias = "reason",
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    provenance: String,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Show the count that would be cleared; change nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct ReportArgs {
    /// Totals of counters, each NAME=TOTAL.
    #[arg(required = true, value_name = "NAME=TOTAL", value_parser = total)]
    totals: Vec<(String, i64)>,
    /// The name of the source.
    #[arg(long)]
    source: String,
    /// The epoch of the source; raise it at each restart of the source.
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// The serial of the report; raise it with each report of an epoch.
    #[arg(long)]
    serial: u64,
}

impl TokenArgs {
    fn token(self) -> Option<pb::IdempotencyToken> {
        let generation_time = self.generation_time.map(tallystone_api::time::write);
        self.token.map(|token| pb::IdempotencyToken { token, generation_time })
    }
}

const WRITTEN: &[&str] = &["counter_name", "outcome", "token", "event_time"];
const WRITTEN_AND_READ: &[&str] =
    &["counter_name", "outcome", "token", "event_time", "count", "exactness", "as_of", "saturated"];

impl CounterContext {
    pub(super) async fn add(&self, args: AddArgs) -> Result<(), Failure> {
        match args.get {
            true => self.add_and_get(args).await,
            false => self.add_only(args).await,
        }
    }

    async fn add_only(&self, args: AddArgs) -> Result<(), Failure> {
        let request = pb::AddCountRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name.clone(),
            delta: Some(args.delta),
            idempotency_token: args.token.token(),
            provenance: args.provenance,
        };
        let added = match self.session.client.add_count(request).await {
            Ok(added) => added,
            Err(error) => return Err(self.failed_write(&args.name, &error).await),
        };
        let cells = written(&args.name, added.outcome, added.idempotency_token.as_ref(), added.event_time.as_ref());
        let rows = TableRows { columns: WRITTEN, cells: vec![cells] };
        self.session.output.answer(&CliResponse::one(&full_name("AddCountResponse"), &added), &rows)
    }

    async fn add_and_get(&self, args: AddArgs) -> Result<(), Failure> {
        let freshness = match args.fresh {
            true => pb::Freshness::UpToDate,
            false => args.freshness.unwrap_or_default(),
        };
        let request = pb::AddAndGetCountRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name.clone(),
            delta: Some(args.delta),
            idempotency_token: args.token.token(),
            provenance: args.provenance,
            freshness: freshness.into(),
        };
        let added = match self.session.client.add_and_get_count(request).await {
            Ok(added) => added,
            Err(error) => return Err(self.failed_write(&args.name, &error).await),
        };
        let mut cells = written(&args.name, added.outcome, added.idempotency_token.as_ref(), added.event_time.as_ref());
        cells.push(added.count.to_string());
        cells.push(word::<pb::Exactness>(added.exactness, "EXACTNESS_", pb::Exactness::as_str_name));
        cells.push(time_cell(added.as_of.as_ref()));
        cells.push(added.saturated.to_string());
        let rows = TableRows { columns: WRITTEN_AND_READ, cells: vec![cells] };
        self.session.output.answer(&CliResponse::one(&full_name("AddAndGetCountResponse"), &added), &rows)
    }

    pub(super) async fn clear(&self, args: ClearArgs) -> Result<(), Failure> {
        if args.dry_run || !args.yes {
            let count = self.reading(&args.name, pb::Freshness::UpToDate).await?.count;
            let what = format!("counter {} of namespace {}, now at {count}", args.name, self.namespace);
            if args.dry_run {
                print_notice(&format!("would clear {what}; nothing was changed"));
                return Ok(());
            }
            if confirm(args.yes, &format!("clear {what}"))? == Confirmation::No {
                return Ok(());
            }
        }
        let request = pb::ClearCountRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name.clone(),
            idempotency_token: args.token.token(),
            provenance: args.provenance,
        };
        let cleared = match self.session.client.clear_count(request).await {
            Ok(cleared) => cleared,
            Err(error) => return Err(self.failed_write(&args.name, &error).await),
        };
        if let Some(visible_at) = &cleared.visible_at {
            print_notice(&format!("a cache did not answer; all readers see the clear from {visible_at} on"));
        }
        let cells =
            written(&args.name, cleared.outcome, cleared.idempotency_token.as_ref(), cleared.event_time.as_ref());
        let rows = TableRows { columns: WRITTEN, cells: vec![cells] };
        self.session.output.answer(&CliResponse::one(&full_name("ClearCountResponse"), &cleared), &rows)
    }

    pub(super) async fn report(&self, args: ReportArgs) -> Result<(), Failure> {
        let items =
            args.totals.iter().map(|(name, total)| pb::TotalItem { counter_name: name.clone(), total: Some(*total) });
        let request = pb::ReportTotalsRequest {
            namespace: self.namespace.clone(),
            source: args.source,
            epoch: args.epoch,
            serial: args.serial,
            items: items.collect(),
        };
        // A report is identified by source, epoch and serial, so a retry cannot count twice.
        let reported = call!(self.session, counters.report_totals, &request)?;
        let mut refused = Vec::new();
        let mut cells = Vec::with_capacity(reported.results.len());
        for ((name, total), result) in args.totals.iter().zip(&reported.results) {
            let outcome = match &result.error {
                Some(error) => {
                    print_notice(&format!("{name}: {}", error.message));
                    refused.push(error);
                    error.reason.clone()
                }
                None => outcome(result.outcome),
            };
            cells.push(vec![name.clone(), total.to_string(), outcome, time_cell(result.event_time.as_ref())]);
        }
        let rows = TableRows { columns: &["counter_name", "total", "outcome", "event_time"], cells };
        let answer = CliResponse::many(&full_name("ReportTotalsResponse"), &reported, "results");
        let answer = answer.about(args.totals.iter().map(|(name, _)| name.clone()));
        self.session.output.answer(&answer, &rows)?;
        all_or_partial(&refused, args.totals.len(), "totals were refused")
    }

    /// Builds the failure of a write, with its token and advice.
    async fn failed_write(&self, name: &str, error: &WriteError) -> Failure {
        let token = &error.token;
        let failure = self.session.failed(&error.error);
        // The outcome of a token below the oldest slice can no longer be looked up.
        let is_answerable = error.error.reason().is_none_or(|reason| reason != Reason::TooOld.info().name);
        if error.error.may_be_applied && is_answerable {
            let namespace = &self.namespace;
            let look_up = self.session.client.recognises_repeats(namespace);
            let recognised = tokio::time::timeout(LOOKED_UP_WITHIN.min(self.session.timeout), look_up).await;
            if recognised == Ok(Some(false)) {
                return failure
                    .hint(format!(
                        "the change may have been applied; namespace {namespace} is BEST_EFFORT and keeps no tokens"
                    ))
                    .hint(format!("check the count before you retry: tallystone counter get -n {namespace} {name}"));
            }
            let known = failure.hint(format!("the change may have been applied; its token is {}", token.token));
            let settle = settling(namespace, name, token);
            return known.hint(match recognised {
                Ok(Some(_)) => format!("check it with: {settle}"),
                Ok(None) | Err(_) => format!(
                    "check it with: {settle} (if namespace {namespace} is BEST_EFFORT, it keeps no tokens: then check \
                     the count before you retry)"
                ),
            });
        }
        match failure.exit() {
            Exit::Unavailable => failure.hint(format!("nothing was applied with the token {}; retry", token.token)),
            Exit::Ok
            | Exit::Failure
            | Exit::Usage
            | Exit::NotFound
            | Exit::Precondition
            | Exit::Partial
            | Exit::Over => failure,
        }
    }
}

/// The command that looks up the outcome of a token.
fn settling(namespace: &str, name: &str, token: &pb::IdempotencyToken) -> String {
    let time = token.generation_time.map(|time| format!("--generation-time {time} ")).unwrap_or_default();
    // Names begin with a letter or digit; a token may look like an option.
    let end_of_options = if token.token.starts_with('-') { "-- " } else { "" };
    let token = shell_quoted(&token.token);
    format!("tallystone counter check-token -n {namespace} {time}{end_of_options}{name} {token}")
}

/// Fails if any item was refused: with the code for partial success, or with the refusal's code if nothing was done.
pub fn all_or_partial(refused: &[&ItemError], of: usize, what: &str) -> Result<(), Failure> {
    match refused.first() {
        None => Ok(()),
        Some(first) if refused.len() == of => {
            Err(Failure::new(exit_of(first.code.into()), format!("{of} of {of} {what}")))
        }
        Some(_) => Err(Failure::new(Exit::Partial, format!("{} of {of} {what}", refused.len()))),
    }
}

fn written(
    name: &str,
    number: i32,
    token: Option<&pb::IdempotencyToken>,
    event_time: Option<&prost_types::Timestamp>,
) -> Vec<String> {
    let token = token.map(|token| token.token.clone()).unwrap_or_default();
    vec![name.to_owned(), outcome(number), token, time_cell(event_time)]
}

fn outcome(number: i32) -> String {
    word::<pb::Outcome>(number, "OUTCOME_", pb::Outcome::as_str_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_settles_a_token_is_one_for_a_shell() {
        let settling = |token: &str, seconds: Option<i64>| {
            let generation_time = seconds.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 });
            super::settling("shop", "views", &pb::IdempotencyToken { token: token.to_owned(), generation_time })
        };
        let begin = "tallystone counter check-token -n shop";
        assert_eq!(settling("0192f5a0-1c2b", None), format!("{begin} views 0192f5a0-1c2b"));
        assert_eq!(
            settling("order 17", Some(0)),
            format!("{begin} --generation-time 1970-01-01T00:00:00Z views 'order 17'")
        );
        assert_eq!(settling("-x", Some(0)), format!("{begin} --generation-time 1970-01-01T00:00:00Z -- views -x"));
    }
}
