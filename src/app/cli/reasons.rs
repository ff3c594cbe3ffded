//! `explain-error`: explains a refusal and its remedy, from the table that the service uses for answers. It explains
//! the other words too that people read where something is wrong: why a queue needs attention, and what the log and
//! `status` say of a store.

use clap::Args;
use serde_json::{Value, json};

use crate::output::{DESCRIPTORS, Format, IncrementalPrinter, Layout, Output, TABLE_WIDTH, TableRows};
use crate::{Failure, GlobalFormat, OutputArgs, arguments};
use tallystone_domain::Reason;
use tallystone_domain::queue::activity::AttentionReason;
use tallystone_domain::reason::{Code, Effect, Retry};

/// Words of the log, of `status` and of /readyz, with the refusal whose explanation has them.
const OTHER_WORDS: [(&str, Reason); 1] = [("STORE_LOST", Reason::StoreUnavailable)];

/// Explain the reason of an error.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone explain-error NOT_APPLIED")]
pub struct ExplainErrorArgs {
    /// The reason from the error message, or why a queue needs attention [default: list the reasons of errors].
    #[arg(value_parser = explained)]
    reason: Option<Explained>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A word that is explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Explained {
    Refusal(Reason),
    Attention(AttentionReason),
}

/// Parses a word that is explained.
fn explained(text: &str) -> Result<Explained, String> {
    if let Some(reason) = AttentionReason::from_name(text).filter(|_| Reason::from_name(text).is_none()) {
        return Ok(Explained::Attention(reason));
    }
    let other = OTHER_WORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    other.map_or_else(|| arguments::reason(text), |(_, reason)| Ok(*reason)).map(Explained::Refusal)
}

impl ExplainErrorArgs {
    pub fn run(&self, given: &GlobalFormat) -> Result<(), Failure> {
        let output = self.output.or(given);
        match (output.format(), self.reason) {
            (Format::Table, Some(reason)) => output.bytes(text_of(reason).as_bytes()),
            (Format::Json, Some(reason)) => Output::new(Format::Jsonl).one(reason),
            (Format::Jsonl | Format::Csv, Some(reason)) => output.one(reason),
            (Format::Table | Format::Json | Format::Jsonl | Format::Csv, None) => output.all(Reason::ALL),
        }
    }
}

impl Output {
    fn one(self, explained: Explained) -> Result<(), Failure> {
        match explained {
            Explained::Refusal(reason) => self.all(&[reason]),
            Explained::Attention(reason) => {
                let cells = vec![reason.name().to_owned(), meaning_of_attention(reason), reason.runbook().to_owned()];
                let rows = TableRows { columns: &["reason", "meaning", "runbook"], cells: vec![cells] };
                self.listed(&[json_of_attention(reason)], &rows)
            }
        }
    }

    fn all(self, reasons: &[Reason]) -> Result<(), Failure> {
        let items: Vec<_> = reasons.iter().copied().map(json_of).collect();
        self.listed(&items, &rows_of(reasons))
    }

    fn listed(self, items: &[Value], rows: &TableRows) -> Result<(), Failure> {
        let mut parts = IncrementalPrinter::list(self).with_layout(Layout::Within(TABLE_WIDTH));
        parts.print(items, rows)?;
        parts.end(rows.columns)
    }
}

fn text_of(explained: Explained) -> String {
    match explained {
        Explained::Attention(reason) => text_of_attention(reason),
        // A few words are both.
        Explained::Refusal(reason) => match AttentionReason::from_name(reason.info().name) {
            Some(same) => format!("{}\n{}", text_of_refusal(reason), why_attention(same)),
            None => text_of_refusal(reason),
        },
    }
}

/// The meaning of a word as the reason why a queue needs attention.
fn why_attention(reason: AttentionReason) -> String {
    let (meaning, page) = (meaning_of_attention(reason), reason.runbook());
    format!("As the reason why a queue needs attention: {meaning}\n\nRunbook:    {page}\n")
}

fn text_of_attention(reason: AttentionReason) -> String {
    let (name, meaning, page) = (reason.name(), meaning_of_attention(reason), reason.runbook());
    format!(
        "{name}\n\n{meaning}\n\nNo call is refused with this word. It says why a queue needs attention: `tallystone queue activity \
         NAME` shows it.\n\nRunbook:    {page}\n"
    )
}

fn json_of_attention(reason: AttentionReason) -> Value {
    json!({"reason": reason.name(), "meaning": meaning_of_attention(reason), "runbook": reason.runbook()})
}

fn text_of_refusal(reason: Reason) -> String {
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
    let comment = comment_of("tallystone.error.v1.Reason", &format!("REASON_{}", reason.info().name));
    comment.expect("the protocol has every reason, as a test says")
}

/// The same of a reason why a queue needs attention.
fn meaning_of_attention(reason: AttentionReason) -> String {
    let comment = comment_of("tallystone.queue.v1.AttentionReason", &format!("ATTENTION_REASON_{}", reason.name()));
    comment.expect("the protocol has every reason, as a test says")
}

/// The comment of a value of an enum in the protocol.
fn comment_of(of: &str, value: &str) -> Option<String> {
    let words = DESCRIPTORS.get_enum_by_name(of)?;
    let at = words.values().position(|known| known.name() == value)?;
    let file = words.parent_file();
    let file = file.file_descriptor_proto();
    let number = file.enum_type.iter().position(|known| known.name() == words.name())?;
    // Path of the comment: field 5 of a file is its enums; field 2 of an enum is its values.
    let place = [5, i32::try_from(number).ok()?, 2, i32::try_from(at).ok()?];
    let location = file.source_code_info.as_ref()?.location.iter().find(|location| location.path == place)?;
    Some(location.leading_comments().split_whitespace().collect::<Vec<_>>().join(" "))
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
            let text = text_of(Explained::Refusal(*reason));
            assert!(text.contains(&meaning) && text.contains(reason.info().help), "{text}");
        }
    }

    #[test]
    fn words_that_people_read_elsewhere_are_explained_too() {
        for reason in AttentionReason::ALL {
            let word = explained(&reason.name().to_lowercase()).expect("a word that is explained");
            let refusal = arguments::reason(reason.name()).map(Explained::Refusal);
            assert_eq!(word, refusal.unwrap_or(Explained::Attention(reason)));
            let text = text_of(word);
            assert!(text.contains(&meaning_of_attention(reason)) && text.contains(reason.runbook()), "{text}");
            assert!(meaning_of_attention(reason).ends_with('.'), "{text}");
        }
        for (word, reason) in OTHER_WORDS {
            assert_eq!(explained(word), Ok(Explained::Refusal(reason)));
            assert!(reason.info().help.contains(word), "{reason} says what {word} is");
        }
        assert!(explained("WORK_LOSS").expect_err("mistyped").contains("did you mean WORK_LOST?"));
        assert_eq!(explained("TOO_OLD"), Ok(Explained::Refusal(Reason::TooOld)));
    }
}
