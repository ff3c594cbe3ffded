//! `apply`: creates and changes namespaces from documents.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::output::{CliResponse, TableRows, list_cell, word};
use crate::{ClientArgs, Failure, GlobalArgs};
use tallystone_app::notices::print_notice;
use tallystone_app::units;
use tallystone_domain::limits::BODY_BYTES_MAX;
use tallystone_proto::admin::v1::{ApplyAction, ApplyNamespaceRequest, ApplyNamespaceResponse};

/// Create or change namespaces from a document.
///
/// Reads TOML or JSON in the Tallystone form, and control-plane documents in the form that Netflix published.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone apply -f views.toml --dry-run")]
pub struct ApplyArgs {
    /// The document, a file name; - reads stdin.
    #[arg(short, long)]
    file: PathBuf,
    /// The namespace, for a document without a name.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Show what would change; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The reason, recorded in the history.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    reason: String,
    #[command(flatten)]
    client: ClientArgs,
}

impl ApplyArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let request = ApplyNamespaceRequest {
            document: read(&self.file)?,
            namespace: self.namespace.unwrap_or_default(),
            dry_run: self.dry_run,
            reason: self.reason,
        };
        let session = self.client.open(global)?;
        let response = call!(session, namespaces.apply_namespace, &request)?;
        for applied in &response.results {
            let name = applied.namespace.as_ref().map_or("", |namespace| namespace.name.as_str());
            for unmapped in &applied.unmapped {
                print_notice(&format!("{name}: not mapped: {unmapped}"));
            }
        }
        if self.dry_run {
            print_notice("dry run: nothing was changed");
        }
        let answer = CliResponse::many("tallystone.admin.v1.ApplyNamespaceResponse", &response, "results");
        let rows = match session.output.is_for_people() {
            true => lines_of(&response),
            false => rows_of(&response),
        };
        session.output.answer(&answer, &rows)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let fail = |error: std::io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    let limit = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX);
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
    } else {
        std::fs::File::open(path).map_err(fail)?.take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
    }
    if bytes.len() > BODY_BYTES_MAX {
        return Err(Failure::usage(format!("{} is larger than {BODY_BYTES_MAX} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{} is not valid UTF-8", path.display())))
}

/// The table for people: each difference has a line of its own, with units.
fn lines_of(response: &ApplyNamespaceResponse) -> TableRows {
    let mut rows = rows_of(response);
    let applied = std::mem::take(&mut rows.cells).into_iter().zip(&response.results);
    for (cells, applied) in applied {
        let mut differences = applied.differences.iter().map(|line| units::change(line));
        let [name, action, version, _] = <[String; 4]>::try_from(cells).unwrap_or_default();
        rows.cells.push(vec![name, action, version, differences.next().unwrap_or_default()]);
        let blank = String::new;
        rows.cells.extend(differences.map(|line| vec![blank(), blank(), blank(), line]));
    }
    rows
}

fn rows_of(response: &ApplyNamespaceResponse) -> TableRows {
    let cells = response.results.iter().map(|applied| {
        let namespace = applied.namespace.as_ref();
        let action = word::<ApplyAction>(applied.action, "APPLY_ACTION_", ApplyAction::as_str_name);
        vec![
            namespace.map(|namespace| namespace.name.clone()).unwrap_or_default(),
            action.to_lowercase(),
            namespace.map(|namespace| namespace.version.to_string()).unwrap_or_default(),
            list_cell(&applied.differences),
        ]
    });
    TableRows { columns: &["namespace", "action", "version", "differences"], cells: cells.collect() }
}
