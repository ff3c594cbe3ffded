//! `explain-error`: explains a refusal and its remedy, from the table that the service uses for answers.

use clap::Args;
use serde_json::json;

use crate::output::{DESCRIPTORS, Format, IncrementalPrinter, Layout, Output, TABLE_WIDTH, TableRows};
use crate::{Failure, GlobalFormat, OutputArgs, arguments};
use tallystone_domain::Reason;
use tallystone_domain::reason::{Code, Effect, Retry};

/// Explain the reason of an error.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone explain-error NOT_APPLIED")]
pub struct ExplainErrorArgs {
    /// The reason from the error message [default: list all reasons].
    #[arg(value_parser = arguments::reason)]
    reason: Option<Reason>,
    #[command(flatten)]
    output: OutputArgs,
}

impl ExplainErrorArgs {
    pub fn run(&self, given: &GlobalFormat) -> Result<(), Failure> {
        let output = self.output.or(given);
        match (output.format(), self.reason) {
            (Format::Table, Some(reason)) => output.bytes(text_of(reason).as_bytes()),
            (Format::Json, Some(reason)) => Output::new(Format::Jsonl).all(&[reason]),
            (Format::Table | Format::Json | Format::Jsonl | Format::Csv, reason) => {
                output.all(&reason.map_or_else(|| Reason::ALL.to_vec(), |reason| vec![reason]))
            }
        }
    }
}

impl Output {
    fn all(self, reasons: &[Reason]) -> Result<(), Failure> {
        let items: Vec<_> = reasons.iter().copied().map(json_of).collect();
        let rows = rows_of(reasons);
        let mut parts = IncrementalPrinter::list(self).with_layout(Layout::Within(TABLE_WIDTH));
        parts.print(&items, &rows)?;
        parts.end(rows.columns)
    }
}

fn text_of(reason: Reason) -> String {
    let info = reason.info();
    format!(
        "{}\n\n{}\n\n{}\n\ngRPC code:  {}\nHTTP:       {}\nRetry:      {}\nEffect:     {}\n",
        info.name,
        meaning(reason),
        info.help,
        code_text(info.code),
        info.http,
        retry_text(info.retry),
        effect_text(info.effect)
    )
}

fn rows_of(reasons: &[Reason]) -> TableRows {
    let cells = reasons.iter().map(|reason| {
        let info = reason.info();
        let code = code_text(info.code).to_owned();
        vec![info.name.to_owned(), code, info.http.to_string(), retry_text(info.retry).to_owned(), info.help.to_owned()]
    });
    TableRows { columns: &["reason", "grpc_code", "http", "retry", "help"], cells: cells.collect() }
}

fn json_of(reason: Reason) -> serde_json::Value {
    let info = reason.info();
    json!({
        "reason": info.name,
        "meaning": meaning(reason),
        "grpcCode": code_text(info.code),
        "http": info.http,
        "retry": retry_text(info.retry),
        "effect": effect_text(info.effect),
        "help": info.help,
    })
}

/// The meaning of a reason: its comment in the protocol.
fn meaning(reason: Reason) -> String {
    let word = DESCRIPTORS.get_enum_by_name("tallystone.error.v1.Reason").and_then(|reasons| {
        let name = format!("REASON_{}", reason.info().name);
        let found = reasons.values().position(|value| value.name() == name);
        found.map(|at| (reasons.parent_file(), i32::try_from(at).unwrap_or(i32::MAX)))
    });
    let (file, at) = word.expect("the protocol has every reason, as a test says");
    // Path of the comment: field 5 of a file is its enums, of which there is one; field 2 of an enum is its values.
    let place = [5, 0, 2, at];
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let comment = info.and_then(|info| info.location.iter().find(|location| location.path == place));
    let comment = comment.map(prost_types::source_code_info::Location::leading_comments).unwrap_or_default();
    comment.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A code in gRPC's spelling.
fn code_text(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

fn retry_text(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "not without changing the request",
        Retry::SameToken => "with the same token",
    }
}

fn effect_text(effect: Effect) -> &'static str {
    match effect {
        Effect::Nothing => "nothing was applied",
        Effect::Unknown => "it may have been applied",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_says_what_it_means_and_what_to_do() {
        for reason in Reason::ALL {
            let meaning = meaning(*reason);
            assert!(meaning.ends_with('.') && meaning.len() > 10, "{reason}: {meaning:?}");
            let text = text_of(*reason);
            assert!(text.contains(&meaning) && text.contains(reason.info().help), "{text}");
        }
    }
}
