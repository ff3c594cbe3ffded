//! Commands that inspect messages and change their times.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use crate::arguments::{distinct, duration, message_state, pair};
use crate::message::payload_file::payload_of;
use crate::output::{CliResponse, Output, TableRows, full_name, time_cell, word};
use crate::pages::RowLimit;
use crate::queue::explanation_rows;
use crate::{ClientContext, Failure, pages};
use tallystone_api::time::write_duration;
use tallystone_proto::queue::v1 as pb;

#[derive(Debug, Args)]
pub struct MsgGetArgs {
    #[command(flatten)]
    which: MessageRefArgs,
    /// Print only the payload, as raw bytes.
    #[arg(long)]
    payload: bool,
}

/// A message.
#[derive(Debug, Args)]
pub struct MessageRefArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The message, by its id or key.
    #[arg(value_name = "MESSAGE")]
    message_id: String,
    /// The shard key or exclusivity value of the message, which limits the search for the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY")]
    shard_key: String,
}

#[derive(Debug, Args)]
pub struct PeekArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The maximum number of messages.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=100))]
    max: i32,
}

#[derive(Debug, Args)]
pub struct MsgLsArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    pub queue: String,
    /// The state to list: INVISIBLE, PENDING, RUNNING, COMPLETED, CANCELED or ERRORED.
    #[arg(long, default_value = "PENDING", value_parser = message_state)]
    pub state: pb::MessageState,
    #[command(flatten)]
    pub limit: RowLimit,
}

#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("change")
        .args(["priority", "invisibility", "payload", "payload_file", "meta", "clear_meta"])
        .required(true)
        .multiple(true)
))]
pub struct MsgUpdateArgs {
    #[command(flatten)]
    which: MessageRefArgs,
    /// The new priority; lower is served first. The default is the time at which the message became visible, in milliseconds,
    /// plus the offset of its class, so 100 goes before all such messages.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The new payload.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "payload_file")]
    payload: Option<String>,
    /// Read the new payload from a file; - reads stdin.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// A pair of the new metadata, which replace all of the old ones; may be repeated, up to 4.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "clear_meta")]
    meta: Vec<(String, String)>,
    /// Remove all metadata.
    #[arg(long)]
    clear_meta: bool,
    /// The time from now until the message is visible; 0s makes it visible now.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    invisibility: Option<Duration>,
    /// Apply the change only if the message is then served sooner.
    #[arg(long, requires = "invisibility")]
    only_if_sooner: bool,
    /// Only this version of the message, from `msg get`.
    #[arg(long, value_name = "N")]
    expected_version: Option<u64>,
}

#[derive(Debug, Args)]
pub struct MsgExplainArgs {
    #[command(flatten)]
    which: MessageRefArgs,
}

/// The columns of a list of messages. What messages of one state have stands behind the state.
macro_rules! listed {
    ($($of_state:literal),*) => {
        &[
            "message_id",
            "state",
            $($of_state,)*
            "priority",
            "attempt_number",
            "attempts_left",
            "enqueue_time",
            "metadata",
            "payload_bytes",
            "error",
        ]
    };
}

const LISTED: &[&str] = listed!();
/// The columns for messages of which some are leased.
const LEASED: &[&str] = listed!("worker", "lease_expire_time");
/// The columns for messages of which some are delayed.
const DELAYED: &[&str] = listed!("visible_time");
/// The columns for messages of which some are canceled.
const CANCELED: &[&str] = listed!("cancel_reason", "end_time");

impl ClientContext {
    pub(super) async fn get_message(&self, args: MsgGetArgs) -> Result<(), Failure> {
        let MessageRefArgs { queue, message_id, shard_key } = args.which;
        let request = pb::GetMessageRequest { queue, message_id, shard_key };
        let found = call!(ask self, queues.get_message, &request)?;
        let message = found.message.as_ref();
        let message = message.ok_or_else(|| Failure::other("the server returned no message"))?;
        if args.payload {
            return self.output.bytes(&message.payload);
        }
        let rows = TableRows { columns: &["field", "value"], cells: fields(message, self.output) };
        self.output.sentences(&CliResponse::one(&full_name("GetMessageResponse"), &found), &rows)
    }

    pub(super) async fn peek(&self, args: PeekArgs) -> Result<(), Failure> {
        let request = pb::PeekMessagesRequest { queue: args.queue, max_messages: args.max };
        let next = call!(ask self, queues.peek_messages, &request)?;
        let rows = TableRows { columns: LISTED, cells: self.listed(&next.messages) };
        self.output.answer(&CliResponse::many(&full_name("PeekMessagesResponse"), &next, "messages"), &rows)
    }

    pub(crate) async fn list_messages(
        &self,
        queue: String,
        state: pb::MessageState,
        limit: RowLimit,
    ) -> Result<(), Failure> {
        let (messages, next_page_token) = pages::rows(limit.rows(), async |page_size, page_token| {
            let (queue, state, without_payload) = (queue.clone(), state.into(), self.output.is_for_people());
            let request = pb::ListMessagesRequest { queue, state, page_size, page_token, without_payload };
            let page = call!(ask self, queues.list_messages, &request)?;
            Ok((page.messages, page.next_page_token))
        })
        .await?;
        let page = pb::ListMessagesResponse { messages, next_page_token };
        self.listed_messages(&page)?;
        limit.end(&page.next_page_token, self.output)
    }

    /// Prints the messages of a list, with what messages of their state have: workers and lease ends, the end of a
    /// delay, or the reason and the time of a cancel.
    pub(crate) fn listed_messages(&self, page: &pb::ListMessagesResponse) -> Result<(), Failure> {
        let has = |state| page.messages.iter().any(|message| message.state() == state);
        let (columns, of_state): (_, fn(&pb::Message) -> Vec<String>) = if has(pb::MessageState::Running) {
            (LEASED, |message| vec![worker_cell(message), time_cell(message.lease_expire_time.as_ref())])
        } else if has(pb::MessageState::Invisible) {
            (DELAYED, |message| vec![time_cell(message.visible_time.as_ref())])
        } else if has(pb::MessageState::Canceled) {
            (CANCELED, |message| vec![message.cancel_reason.clone(), time_cell(message.end_time.as_ref())])
        } else {
            (LISTED, |_| Vec::new())
        };
        let mut rows = TableRows { columns, cells: self.listed(&page.messages) };
        for (cells, message) in rows.cells.iter_mut().zip(&page.messages) {
            cells.splice(2..2, of_state(message));
        }
        self.output.answer(&CliResponse::many(&full_name("ListMessagesResponse"), page, "messages"), &rows)
    }

    /// The rows of messages; tables show only the beginning of long errors.
    fn listed(&self, messages: &[pb::Message]) -> Vec<Vec<String>> {
        let error = |message: &pb::Message| match self.output.is_for_people() {
            true => shortened(error_cell(message)),
            false => error_cell(message),
        };
        messages.iter().map(|message| cells(message, error(message))).collect()
    }

    pub(super) async fn update_message(&self, args: MsgUpdateArgs) -> Result<(), Failure> {
        let MessageRefArgs { queue, message_id, shard_key } = args.which;
        let payload = match (args.payload, &args.payload_file) {
            (Some(payload), _) => Some(payload.into_bytes()),
            (None, Some(file)) => Some(payload_of(file)?),
            (None, None) => None,
        };
        let request = pb::UpdateMessageRequest {
            queue,
            message_id: message_id.clone(),
            shard_key,
            priority: args.priority,
            invisibility: args.invisibility.map(write_duration),
            only_if_sooner: args.only_if_sooner,
            expected_version: args.expected_version,
            payload,
            metadata: distinct(&args.meta)?,
            clear_metadata: args.clear_meta,
            request_token: self.client.message_id(),
            ..Default::default()
        };
        let updated = call!(self, queues.update_message, &request)?;
        let cells = vec![vec![message_id, state(updated.state), updated.version.to_string()]];
        let rows = TableRows { columns: &["message_id", "state", "version"], cells };
        self.output.answer(&CliResponse::one(&full_name("UpdateMessageResponse"), &updated), &rows)
    }

    pub(super) async fn explain_message(&self, args: MsgExplainArgs) -> Result<(), Failure> {
        let MessageRefArgs { queue, message_id, shard_key } = args.which;
        let request = pb::ExplainMessageRequest { queue, message_id, shard_key };
        let explained = call!(ask self, queues.explain_message, &request)?;
        let rows = explanation_rows(&explained.explanations);
        self.output
            .sentences(&CliResponse::many(&full_name("ExplainMessageResponse"), &explained, "explanations"), &rows)
    }
}

/// Returns the state of a message as a word.
pub fn state(number: i32) -> String {
    word::<pb::MessageState>(number, "MESSAGE_STATE_", pb::MessageState::as_str_name)
}

/// Formats a payload for a cell: as text if it is text.
pub fn payload_cell(payload: &[u8]) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) => text.to_owned(),
        Err(_binary) => format!("({} bytes)", payload.len()),
    }
}

/// The worker of a message: the label of its session, else the session's id, if there is one.
fn worker_cell(message: &pb::Message) -> String {
    match (message.worker_label.as_str(), message.session_ref.as_str()) {
        ("", "") => String::new(),
        ("", session) => format!("session {session}"),
        (label, _) => label.to_owned(),
    }
}

/// Metadata in a cell, in the order of the keys.
pub fn pairs_cell(metadata: &HashMap<String, String>) -> String {
    let mut pairs: Vec<_> = metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    pairs.join(" ")
}

fn error_cell(message: &pb::Message) -> String {
    let error = message.error.clone().unwrap_or_default();
    match (error.signature.as_str(), error.text.as_str()) {
        (signature, "") => signature.to_owned(),
        ("", text) => text.to_owned(),
        (signature, text) => format!("{signature}: {text}"),
    }
}

fn cells(message: &pb::Message, error: String) -> Vec<String> {
    vec![
        message.message_id.clone(),
        state(message.state),
        message.priority().to_string(),
        message.attempt_number.to_string(),
        message.attempts_left.to_string(),
        time_cell(message.enqueue_time.as_ref()),
        pairs_cell(&message.metadata),
        message.payload_bytes.to_string(),
        error,
    ]
}

/// The greatest length of an error in a table, in characters; `msg get` shows all of it.
const ERROR_CHARS: usize = 60;

fn shortened(error: String) -> String {
    match error.char_indices().nth(ERROR_CHARS) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error,
    }
}

/// All fields of a message, without absent ones.
fn fields(message: &pb::Message, output: Output) -> Vec<Vec<String>> {
    let rows = [
        ("message_id", message.message_id.clone()),
        ("message_key", message.message_key.clone()),
        ("state", state(message.state)),
        ("version", message.version.to_string()),
        ("priority", message.priority().to_string()),
        ("metadata", pairs_cell(&message.metadata)),
        ("shard_key", message.shard_key.clone()),
        ("type", message.r#type.clone()),
        ("attempt_number", message.attempt_number.to_string()),
        ("attempts_left", message.attempts_left.to_string()),
        ("lease_duration", output.span_cell(message.lease_duration.as_ref())),
        ("ttl_left", output.left_cell(message.ttl_left.as_ref())),
        ("enqueue_time", time_cell(message.enqueue_time.as_ref())),
        ("visible_time", time_cell(message.visible_time.as_ref())),
        ("first_lease_time", time_cell(message.first_lease_time.as_ref())),
        ("worker", worker_cell(message)),
        ("lease_start_time", time_cell(message.lease_start_time.as_ref())),
        ("lease_expire_time", time_cell(message.lease_expire_time.as_ref())),
        ("end_time", time_cell(message.end_time.as_ref())),
        ("cancel_requested", if message.cancel_requested { "true".to_owned() } else { String::new() }),
        ("cancel_reason", message.cancel_reason.clone()),
        ("error", error_cell(message)),
        ("payload_bytes", message.payload_bytes.to_string()),
        ("payload", payload_cell(&message.payload)),
    ];
    let known = rows.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(field, value)| vec![field.to_owned(), value]).collect()
}
