//! `ns`: lists, describes, follows and deletes namespaces, and configures their hot counters. `apply` creates and
//! changes them.

use std::io::{BufRead, IsTerminal};

use clap::{Args, Subcommand};
use tonic::Code;

use crate::output::{CliResponse, Output, TableRows, time_cell, word};
use crate::pages::RowLimit;
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, pages};
use tallystone_app::notices::{print_notice, print_prompt};
use tallystone_client::CallError;
use tallystone_domain::limits::{CATALOG_ATTEMPTS_MAX, NS_DELETE_COUNTED_MAX};
use tallystone_domain::namespace::namespace_settings;
use tallystone_proto::admin::v1 as pb;
use tallystone_proto::counter::v1::ListCountersRequest;

/// List, describe and delete namespaces.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone ns ls")]
pub struct NsArgs {
    #[command(subcommand)]
    command: NsCommand,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum NsCommand {
    /// List namespaces by name.
    #[command(visible_alias = "list", after_help = "Example:\n  tallystone ns ls -o csv")]
    Ls,
    /// Show all settings of a namespace; the JSON output is a document for `apply`.
    #[command(after_help = "Example:\n  tallystone ns describe default")]
    Describe {
        /// The namespace.
        name: String,
    },
    /// Show the changes of a namespace with author and time, newest first.
    #[command(after_help = "Example:\n  tallystone ns history default")]
    History {
        /// The namespace; a deleted one is allowed.
        name: String,
        #[command(flatten)]
        limit: RowLimit,
    },
    /// Set or reset the number of event buckets of one counter, effective from the next new slice.
    #[command(after_help = "Example:\n  tallystone ns hot views front-page --buckets-per-id 16")]
    Hot(HotArgs),
    /// Delete a namespace with all its counters.
    #[command(after_help = "Example:\n  tallystone ns rm views --yes")]
    Rm(NsRmArgs),
}

#[derive(Debug, Args)]
struct HotArgs {
    /// The namespace.
    name: String,
    /// The counter; it does not have to exist yet.
    counter_name: String,
    /// The number of event buckets, 1 to 256. `tallystone plan` and the log warning for a hot counter suggest a value.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "rm")]
    buckets_per_id: Option<u32>,
    /// Reset the counter to the setting of its namespace.
    #[arg(long, conflicts_with = "buckets_per_id")]
    rm: bool,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

#[derive(Debug, Args)]
struct NsRmArgs {
    /// The namespace.
    name: String,
    /// Skip the confirmation.
    #[arg(long)]
    yes: bool,
    /// Show what would be deleted; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only this version: the etag from `ns describe`.
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
}

impl NsArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        match self.command {
            NsCommand::Ls => session.list().await,
            NsCommand::Describe { name } => session.describe(name).await,
            NsCommand::History { name, limit } => session.history(name, limit).await,
            NsCommand::Hot(args) => session.make_hot(args).await,
            NsCommand::Rm(args) => session.remove(args).await,
        }
    }
}

impl ClientContext {
    async fn list(&self) -> Result<(), Failure> {
        let (namespaces, next_page_token) = pages::rows(usize::MAX, async |page_size, page_token| {
            let request = pb::ListNamespacesRequest { page_size, page_token };
            let page = call!(ask self, namespaces.list_namespaces, &request)?;
            Ok((page.namespaces, page.next_page_token))
        })
        .await?;
        let response = pb::ListNamespacesResponse { namespaces, next_page_token };
        let cells = response.namespaces.iter().map(|namespace| {
            vec![
                namespace.name.clone(),
                counter_type(namespace.counter_type),
                temporality(namespace.temporality),
                cardinality(namespace.counter_cardinality),
                namespace.storage.as_ref().map(|storage| storage.dataset.clone()).unwrap_or_default(),
                namespace.version.to_string(),
                time_cell(namespace.update_time.as_ref()),
            ]
        });
        let columns =
            &["name", "counter_type", "temporality", "counter_cardinality", "dataset", "version", "update_time"];
        let rows = TableRows { columns, cells: cells.collect() };
        self.output
            .answer(&CliResponse::many("tallystone.admin.v1.ListNamespacesResponse", &response, "namespaces"), &rows)
    }

    async fn describe(&self, name: String) -> Result<(), Failure> {
        let namespace = self.namespace(name).await?;
        let rows = TableRows { columns: &["setting", "value"], cells: settings(&namespace, self.output) };
        let response = pb::GetNamespaceResponse { namespace: Some(namespace) };
        self.output.sentences(&CliResponse::one("tallystone.admin.v1.GetNamespaceResponse", &response), &rows)
    }

    async fn history(&self, name: String, limit: RowLimit) -> Result<(), Failure> {
        let (changes, next_page_token) = pages::rows(limit.rows(), async |page_size, page_token| {
            let request = pb::ListNamespaceChangesRequest { name: name.clone(), page_size, page_token };
            let page = call!(ask self, namespaces.list_namespace_changes, &request)?;
            Ok((page.changes, page.next_page_token))
        })
        .await?;
        let response = pb::ListNamespaceChangesResponse { changes, next_page_token };
        let cells = response.changes.iter().map(|change| {
            vec![
                change.version.to_string(),
                time_cell(change.change_time.as_ref()),
                change.actor.clone(),
                change.reason.clone(),
                match change.version {
                    1 => "created".to_owned(),
                    _ => self.output.changes_cell(&change.differences), // later versions differ from the one before
                },
            ]
        });
        let rows = TableRows {
            columns: &["version", "change_time", "actor", "reason", "differences"],
            cells: cells.collect(),
        };
        let answer = CliResponse::many("tallystone.admin.v1.ListNamespaceChangesResponse", &response, "changes");
        self.output.answer(&answer, &rows)?;
        limit.end(&response.next_page_token, self.output)
    }

    async fn make_hot(&self, args: HotArgs) -> Result<(), Failure> {
        for _ in 0..CATALOG_ATTEMPTS_MAX {
            let namespace = self.namespace(args.name.clone()).await?;
            let changed = with_hot_counter(namespace.clone(), &args.counter_name, args.buckets_per_id);
            if changed == namespace {
                return self.show_hot(namespace);
            }
            // An empty list would leave the counters as they are.
            let reset = changed.hot_counters.is_empty().then(|| "hot_counters".to_owned()).into_iter().collect();
            let reason = args.reason.clone();
            let request = pb::UpdateNamespaceRequest { namespace: Some(settable(changed)), reason, reset };
            let client = self.client.namespaces();
            let updated = self.client.retried(&request, |request| {
                let mut client = client.clone();
                async move { client.update_namespace(request).await }
            });
            match updated.await {
                Ok(answer) => return self.show_hot(answer.namespace.unwrap_or_default()),
                // Another client changed the namespace, or an attempt whose answer was lost did; the current state
                // shows which.
                Err(error) if error.reason().as_deref() == Some("ETAG_MISMATCH") => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Err(Failure::other(format!(
            "namespace {} kept changing during the call; nothing was changed: try again",
            args.name
        )))
    }

    fn show_hot(&self, namespace: pb::Namespace) -> Result<(), Failure> {
        let hot = namespace.hot_counters.iter();
        let cells = hot.map(|hot| vec![hot.counter_name.clone(), hot.buckets_per_id.to_string()]).collect();
        let rows = TableRows { columns: &["counter_name", "buckets_per_id"], cells };
        let response = pb::UpdateNamespaceResponse { namespace: Some(namespace) };
        self.output.answer(&CliResponse::one("tallystone.admin.v1.UpdateNamespaceResponse", &response), &rows)
    }

    async fn remove(&self, args: NsRmArgs) -> Result<(), Failure> {
        let namespace = self.namespace(args.name.clone()).await?;
        let what = format!("namespace {} with {}", args.name, self.count_of_counters(&args.name, &namespace).await?);
        if args.dry_run {
            print_notice(&format!("would delete {what}; nothing was changed"));
            return Ok(());
        }
        if confirm(args.yes, &format!("permanently delete {what}"))? == Confirmation::No {
            return Ok(());
        }
        // Deletes only the namespace that was shown: a retry cannot delete a namespace created since.
        let etag = if args.etag.is_empty() { namespace.etag } else { args.etag };
        let request = pb::DeleteNamespaceRequest { name: args.name, etag, reason: args.reason };
        let client = self.client.namespaces();
        let deleted = self.client.retried(&request, |request| {
            let mut client = client.clone();
            async move { client.delete_namespace(request).await }
        });
        match deleted.await {
            Ok(_) => {}
            Err(error) if was_deleted_before(&error) => {}
            Err(error) => return Err(self.failed(&error)),
        }
        print_notice(&format!("deleted {what}"));
        Ok(())
    }

    async fn namespace(&self, name: String) -> Result<pb::Namespace, Failure> {
        let request = pb::GetNamespaceRequest { name };
        let found = call!(ask self, namespaces.get_namespace, &request)?;
        found.namespace.ok_or_else(|| Failure::other("the server returned no namespace"))
    }

    /// Describes the number of counters in a namespace.
    async fn count_of_counters(&self, name: &str, namespace: &pb::Namespace) -> Result<String, Failure> {
        if namespace.counter_type() == pb::CounterType::BestEffort {
            return Ok("its best-effort counters".to_owned());
        }
        let mut request = ListCountersRequest { namespace: name.to_owned(), page_size: i32::MAX, ..Default::default() };
        let mut count = 0;
        while count < NS_DELETE_COUNTED_MAX {
            let page = call!(ask self, counters.list_counters, &request)?;
            count += page.counters.len();
            if page.next_page_token.is_empty() {
                return Ok(if count == 1 { "1 counter".to_owned() } else { format!("{count} counters") });
            }
            request.page_token = page.next_page_token;
        }
        Ok(format!("more than {NS_DELETE_COUNTED_MAX} counters"))
    }
}

/// Sets a counter's own number of event buckets, or removes it.
fn with_hot_counter(mut namespace: pb::Namespace, counter_name: &str, buckets_per_id: Option<u32>) -> pb::Namespace {
    let hot = |buckets_per_id| pb::HotCounter { counter_name: counter_name.to_owned(), buckets_per_id };
    namespace.hot_counters.retain(|hot| hot.counter_name != counter_name);
    namespace.hot_counters.extend(buckets_per_id.map(hot));
    // Sorted as stored, so that a change that is already in place is recognised.
    namespace.hot_counters.sort_by(|a, b| a.counter_name.cmp(&b.counter_name));
    namespace
}

/// A namespace as a request may have it: without what only the service sets.
fn settable(namespace: pb::Namespace) -> pb::Namespace {
    pb::Namespace { id: 0, version: 0, create_time: None, update_time: None, ..namespace }
}

/// Whether an earlier attempt deleted the namespace and its answer was lost.
pub fn was_deleted_before(error: &CallError) -> bool {
    error.may_be_applied && error.status.code() == Code::NotFound
}

/// The answer to a confirmation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confirmation {
    /// Continue.
    Yes,
    /// Change nothing; the caller has been notified.
    No,
}

/// Asks for confirmation before data is destroyed, in a command that has `--dry-run`. Without a terminal, `--yes` is
/// required.
pub fn confirm(yes: bool, what: &str) -> Result<Confirmation, Failure> {
    confirm_or(yes, what, ", or preview with --dry-run")
}

/// The same for a command without `--dry-run`.
pub fn confirm_unseen(yes: bool, what: &str) -> Result<Confirmation, Failure> {
    confirm_or(yes, what, "")
}

fn confirm_or(yes: bool, what: &str, else_what: &str) -> Result<Confirmation, Failure> {
    if yes {
        return Ok(Confirmation::Yes);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("this would {what}; confirm with --yes{else_what}")));
    }
    print_prompt(&format!("{what}? [y/N]"));
    match is_yes(std::io::stdin().lock())? {
        true => Ok(Confirmation::Yes),
        false => {
            print_notice("nothing was changed");
            Ok(Confirmation::No)
        }
    }
}

fn is_yes(mut input: impl BufRead) -> Result<bool, Failure> {
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    read.map_err(|error| Failure::other(format!("cannot read the answer, nothing was changed: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

fn settings(namespace: &pb::Namespace, output: Output) -> Vec<Vec<String>> {
    let span = |time: Option<&prost_types::Duration>| output.span_cell(time);
    let mut rows = vec![
        ("name", namespace.name.clone()),
        ("id", namespace.id.to_string()),
        ("etag", namespace.etag.clone()),
        ("version", namespace.version.to_string()),
        ("description", namespace.description().to_owned()),
        ("counter_type", counter_type(namespace.counter_type)),
        ("temporality", temporality(namespace.temporality)),
        ("on_new_epoch", on_new_epoch(namespace.on_new_epoch)),
        ("ttl", namespace.ttl.as_ref().map_or_else(|| "none".to_owned(), |ttl| span(Some(ttl)))),
        ("counter_cardinality", cardinality(namespace.counter_cardinality)),
    ];
    let storage = namespace.storage.clone().unwrap_or_default();
    let dataset = namespace.dataset.unwrap_or_default();
    rows.extend([
        ("storage.cache_cluster", storage.cache_cluster),
        ("storage.rollup_cluster", storage.rollup_cluster),
        ("storage.event_cluster", storage.event_cluster),
        ("storage.dataset", storage.dataset),
        ("dataset.slice_width", span(dataset.slice_width.as_ref())),
        ("dataset.close_after", span(dataset.close_after.as_ref())),
        ("dataset.delete_after", span(dataset.delete_after.as_ref())),
        ("dataset.accept_limit", span(dataset.accept_limit.as_ref())),
        ("dataset.future_limit", span(dataset.future_limit.as_ref())),
        ("dataset.export_before_drop", dataset.export_before_drop().to_string()),
    ]);
    macro_rules! plain {
        ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
            rows.extend([$((
                concat!(stringify!($path), ".", stringify!($field)),
                output.setting_cell(stringify!($field), namespace.$path.unwrap_or_default().$field),
            ),)*])
        };
    }
    namespace_settings!(partition plain);
    namespace_settings!(rollup plain);
    let hot = namespace.hot_counters.iter().map(|hot| format!("{} {}", hot.counter_name, hot.buckets_per_id));
    let hot: Vec<_> = hot.collect();
    rows.push(("hot_counters", if hot.is_empty() { "none".to_owned() } else { hot.join(", ") }));
    let series = namespace
        .series
        .iter()
        .map(|series| format!("{} kept {}", span(series.step.as_ref()), span(series.keep.as_ref())));
    let series: Vec<_> = series.collect();
    rows.push(("series", if series.is_empty() { "none".to_owned() } else { series.join(", ") }));
    rows.push(("create_time", time_cell(namespace.create_time.as_ref())));
    rows.push(("update_time", time_cell(namespace.update_time.as_ref())));
    rows.into_iter().map(|(setting, value)| vec![setting.to_owned(), value]).collect()
}

fn counter_type(number: i32) -> String {
    word::<pb::CounterType>(number, "COUNTER_TYPE_", pb::CounterType::as_str_name)
}

fn temporality(number: i32) -> String {
    word::<pb::Temporality>(number, "TEMPORALITY_", pb::Temporality::as_str_name)
}

/// A namespace of deltas has no sources, so nothing is said there.
fn on_new_epoch(number: i32) -> String {
    match number {
        0 => "none".to_owned(),
        _ => word::<pb::OnNewEpoch>(number, "ON_NEW_EPOCH_", pb::OnNewEpoch::as_str_name),
    }
}

fn cardinality(number: i32) -> String {
    word::<pb::Cardinality>(number, "CARDINALITY_", pb::Cardinality::as_str_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_gone_is_deleted_only_if_an_attempt_of_ours_may_have_done_it() {
        let error = |status, may_be_applied| CallError { status: Box::new(status), attempts: 2, may_be_applied };
        assert!(was_deleted_before(&error(tonic::Status::not_found("gone"), true)));
        assert!(!was_deleted_before(&error(tonic::Status::not_found("gone"), false)), "every attempt was refused");
        assert!(!was_deleted_before(&error(tonic::Status::unavailable("lost"), true)));
    }

    #[test]
    fn only_a_clear_yes_destroys() {
        let is_yes = |typed: &[u8]| super::is_yes(typed);
        for typed in ["y\n", "Yes", " YES \n"] {
            assert!(is_yes(typed.as_bytes()).expect("no read error"), "{typed:?}");
        }
        for typed in ["", "\n", "n\n", "yess\n", "no\nyes\n"] {
            assert!(!is_yes(typed.as_bytes()).expect("no read error"), "{typed:?}");
        }
        let failure = is_yes(&[0xff, b'\n']).expect_err("no text");
        assert!(failure.to_string().starts_with("cannot read the answer, nothing was changed"), "{failure}");
    }
}
