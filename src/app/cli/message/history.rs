//! `msg trace` and `msg search`: what happened to a message, and which messages something happened to.

use clap::Args;

use crate::arguments::{TimeArg, distinct, message_state, named_error, pair, when};
use crate::message::inspect::{pairs_cell, state};
use crate::message::trace_text::{TraceText, transition_rows};
use crate::output::{CliResponse, Format, TableRows, time_cell};
use crate::pages::RowLimit;
use crate::{ClientContext, Failure, pages};
use tallystone_adapters::system::SystemClock;
use tallystone_app::notices::print_notice;
use tallystone_app::units::counted;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_domain::queue::messages::message_id::KEY_PREFIX;
use tallystone_ports::Clock as _;
use tallystone_proto::history::v1 as pb;
use tallystone_proto::history::v1::get_message_trace_request::Message;
use tallystone_proto::history::v1::search_messages_response::Completeness;
use tallystone_proto::queue::v1::MessageState;

/// The changes of a message if nothing else is asked for.
const CHANGES_SHOWN: usize = 1_000;

#[derive(Debug, Args)]
#[command(mut_arg("limit", |limit| limit.help("The maximum number of changes [default: 1000]")))]
pub struct MsgTraceArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The message, by its id or key. An id shows every message that had it, the newest first.
    #[arg(value_name = "MESSAGE")]
    message: String,
    #[command(flatten)]
    limit: RowLimit,
}

#[derive(Debug, Args)]
pub struct MsgSearchArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The state: INVISIBLE, PENDING, RUNNING, COMPLETED, CANCELED or ERRORED [default: any].
    #[arg(long, value_parser = message_state)]
    state: Option<MessageState>,
    /// Only messages with this metadata; may be repeated, up to 4. Keys in count_by of the queue are found by an index.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Only messages whose last error has this signature.
    #[arg(long, value_name = "SIGNATURE", value_parser = named_error)]
    error: Option<String>,
    /// Only changes at this time or later: a time, or 1h for one hour ago.
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    since: Option<TimeArg>,
    /// Only changes before this time.
    #[arg(long, value_name = "TIME", value_parser = when, allow_hyphen_values = true)]
    until: Option<TimeArg>,
    /// Also messages that met the conditions once and do not any more.
    #[arg(long)]
    ever: bool,
    #[command(flatten)]
    limit: RowLimit,
}

const FOUND: &[&str] =
    &["message_id", "message_key", "state", "entered_time", "attempt_number", "metadata", "error_signature"];

impl ClientContext {
    pub(super) async fn trace_message(&self, args: MsgTraceArgs) -> Result<(), Failure> {
        let trace = self.read_trace(&args).await?;
        let answer = CliResponse::many(&history_name("GetMessageTraceResponse"), &trace, "lives");
        match self.output.format() {
            Format::Table if trace.lives.is_empty() => {
                let queue = &args.queue;
                print_notice(&format!(
                    "the history knows no such message; check its id, and whether the history of queue {queue} goes \
                     back far enough"
                ));
            }
            Format::Table => self.output.bytes(TraceText::of(&trace).as_bytes())?,
            Format::Json => self.output.answer(&answer, &TableRows::default())?,
            Format::Jsonl | Format::Csv => self.output.answer(&answer, &transition_rows(&trace.lives))?,
        }
        args.limit.end(&trace.next_page_token, self.output)
    }

    /// Reads all pages up to the limit as one answer. A life that goes on over pages is one life.
    async fn read_trace(&self, args: &MsgTraceArgs) -> Result<pb::GetMessageTraceResponse, Failure> {
        let message = match args.message.starts_with(KEY_PREFIX) {
            true => Message::MessageKey(args.message.clone()),
            false => Message::MessageId(args.message.clone()),
        };
        let mut whole = pb::GetMessageTraceResponse::default();
        let mut left = args.limit.rows_or(CHANGES_SHOWN).max(1);
        loop {
            let request = pb::GetMessageTraceRequest {
                queue: args.queue.clone(),
                message: Some(message.clone()),
                page_size: i32::try_from(left.min(PAGE_ROWS_MAX)).unwrap_or(i32::MAX),
                page_token: std::mem::take(&mut whole.next_page_token),
            };
            let page = call!(ask self, history.get_message_trace, &request)?;
            let rows: usize = page.lives.iter().map(|life| life.transitions.len()).sum();
            page.lives.into_iter().for_each(|life| add_life(&mut whole.lives, life));
            (whole.gaps, whole.history_from) = (page.gaps, page.history_from);
            whole.next_page_token = page.next_page_token;
            left = left.saturating_sub(rows);
            if left == 0 || whole.next_page_token.is_empty() {
                return Ok(whole);
            }
        }
    }

    pub(super) async fn search_messages(&self, args: MsgSearchArgs) -> Result<(), Failure> {
        let now = SystemClock.now();
        let like = pb::SearchMessagesRequest {
            queue: args.queue,
            state: args.state.unwrap_or_default().into(),
            filter: distinct(&args.meta)?,
            error_signature: args.error.unwrap_or_default(),
            from: args.since.map(|time| time.to_proto(now)),
            to: args.until.map(|time| time.to_proto(now)),
            current_only: Some(!args.ever),
            ..Default::default()
        };
        let mut whole = pb::SearchMessagesResponse::default();
        let (messages, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let request = pb::SearchMessagesRequest { page_size, page_token, ..like.clone() };
            let page = call!(ask self, history.search_messages, &request)?;
            (whole.gaps, whole.history_from) = (page.gaps, page.history_from);
            Ok((page.messages, page.next_page_token))
        })
        .await?;
        // Every page was continued up to the limit, so nothing that matches is missing before its end.
        whole.set_completeness(Completeness::Complete);
        (whole.messages, whole.next_page_token) = (messages, next_page_token);
        if self.output.is_for_people() && !whole.gaps.is_empty() {
            print_notice(&format!(
                "{} missing from the history of this queue; messages may be missing here too",
                counted(i64::try_from(whole.gaps.len()).unwrap_or(i64::MAX), "part is", "parts are")
            ));
        }
        let rows = TableRows { columns: FOUND, cells: whole.messages.iter().map(found_cells).collect() };
        self.output.answer(&CliResponse::many(&history_name("SearchMessagesResponse"), &whole, "messages"), &rows)?;
        args.limit.end(&whole.next_page_token, self.output)
    }
}

/// Adds the part of a life on a page: to its parts on earlier pages, if there are any.
fn add_life(lives: &mut Vec<pb::MessageLife>, life: pb::MessageLife) {
    let Some(known) = lives.last_mut().filter(|known| known.message_key == life.message_key) else {
        lives.push(life);
        return;
    };
    known.transitions.extend(life.transitions);
    for attempt in life.attempts {
        let is_same = |known: &pb::MessageAttempt| {
            known.leased_time.is_some() && known.leased_time == attempt.leased_time && known.number == attempt.number
        };
        match known.attempts.iter_mut().find(|known| is_same(known)) {
            Some(known) => *known = attempt,
            None => known.attempts.push(attempt),
        }
    }
    known.complete = life.complete;
}

fn found_cells(found: &pb::FoundMessage) -> Vec<String> {
    vec![
        found.message_id.clone(),
        found.message_key.clone(),
        if found.state == 0 { "REMOVED".to_owned() } else { state(found.state) },
        time_cell(found.entered_time.as_ref()),
        found.attempt_number.to_string(),
        pairs_cell(&found.metadata),
        found.error_signature.clone(),
    ]
}

/// The full name of a message of the history service.
fn history_name(message: &str) -> String {
    format!("tallystone.history.v1.{message}")
}
