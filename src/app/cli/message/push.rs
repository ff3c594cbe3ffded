//! `msg push`: enqueues messages. Each has one id for all retries, so it is enqueued once. If an enqueue finally fails
//! and may have been applied, the command shows the id.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::arguments::{distinct, duration, pair, time};
use crate::counter::all_or_partial;
use crate::message::inspect::state;
use crate::message::payload_file::{open, payload_of, unreadable};
use crate::output::{CliResponse, TableRows, full_name, progress};
use crate::{ClientContext, Exit, Failure};
use tallystone_api::grpc::saturating_i64;
use tallystone_api::time::write_duration;
use tallystone_app::notices::{print_notice, shell_quoted};
use tallystone_app::units::{self, counted};
use tallystone_domain::counter::uuid_v7;
use tallystone_domain::limits::{PAYLOAD_BYTES_MAX, QUEUE_BATCH_ITEMS_MAX, QUEUE_MESSAGE_BYTES_MAX};
use tallystone_domain::{Reason, Timestamp};
use tallystone_proto::queue::v1::{self as pb, MessageState};

#[derive(Debug, Args)]
pub struct PushArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The payload. After --, it may begin with a hyphen.
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_negative_numbers = true)]
    payload: Option<String>,
    /// Read the payload from a file; - reads stdin.
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Enqueue one message for each line of the file. A line ends with LF or CR LF, which are no part of it.
    #[arg(long, requires = "file", conflicts_with_all = ["id", "generation_time"])]
    lines: bool,
    /// The id of the message: a UUIDv7, or any 1 to 64 bytes [default: a new UUIDv7].
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The creation time of the message, for an id that is not a UUIDv7; repeats are recognised within the dedupe
    /// window.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "id")]
    generation_time: Option<Timestamp>,
    #[command(flatten)]
    message: MessageArgs,
}

/// What a message is sent with beside its payload.
#[derive(Debug, Args)]
#[command(next_help_heading = "Message")]
struct MessageArgs {
    /// The priority; lower is served first [default: the time at which it becomes visible, in milliseconds, plus the offset of
    /// its class]. So 100 goes before all messages with the default.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The name of a priority class of the queue.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME", conflicts_with = "priority")]
    class: String,
    /// A metadata pair, for filters and exclusivity; may be repeated, up to 4.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// The delay before the message is visible.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    invisibility: Option<Duration>,
    /// The time from which the message is visible, at most 10 years from now, as 2026-01-31T12:00:00Z. A time in the past
    /// means at once.
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "invisibility")]
    at: Option<Timestamp>,
    /// The lease duration for a dequeue without its own.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// The maximum number of attempts.
    #[arg(long, value_name = "N")]
    max_attempts: Option<i32>,
    /// The time after it becomes visible until the message is canceled unless it was leased; 0s for never, overriding the
    /// queue.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ttl: Option<Duration>,
    /// The key that selects the shard instead of the id.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "KEY")]
    shard_key: String,
    /// The type of the message.
    #[arg(
        long = "type",
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    kind: String,
}

const PUSHED: &[&str] = &["message_id", "state", "already_enqueued", "message_key"];

impl MessageArgs {
    fn message(self) -> Result<pb::Message, Failure> {
        Ok(pb::Message {
            priority: self.priority,
            priority_class: self.class,
            metadata: distinct(&self.meta)?,
            invisibility: self.invisibility.map(write_duration),
            visible_time: self.at.map(tallystone_api::time::write),
            lease_duration: self.lease.map(write_duration),
            max_attempts: self.max_attempts,
            ttl: self.ttl.map(write_duration),
            shard_key: self.shard_key,
            r#type: self.kind,
            ..Default::default()
        })
    }
}

impl ClientContext {
    pub(super) async fn push(&self, args: PushArgs) -> Result<(), Failure> {
        let like = args.message.message()?;
        if let (true, Some(file)) = (args.lines, &args.file) {
            return self.push_lines(&args.queue, &like, file).await;
        }
        let payload = match (args.payload, &args.file) {
            (Some(payload), _) => payload.into_bytes(),
            (None, Some(file)) => payload_of(file)?,
            (None, None) => return Err(Failure::usage("a payload is missing; pass it as an argument, or use --file")),
        };
        let is_own_id = args.id.is_some();
        let message = pb::Message {
            message_id: args.id.unwrap_or_else(|| self.client.message_id()),
            generation_time: args.generation_time.map(tallystone_api::time::write),
            payload,
            ..like
        };
        let request = pb::EnqueueRequest { queue: args.queue, message: Some(message) };
        let pushed = self.client.retried(&request, |request| {
            let mut client = self.client.queues();
            async move { client.enqueue(request).await }
        });
        let pushed = pushed.await.map_err(|error| {
            let id = request.message.as_ref().map_or("", |message| message.message_id.as_str());
            let failure = self.failed(&error);
            match error.may_be_applied {
                true => failure
                    .hint(format!("the message may be in the queue; its id is {id}"))
                    .hint(format!("to retry without a duplicate, push it again with --id {}", shell_quoted(id))),
                false => failure,
            }
        })?;
        let cells = vec![cells(&pushed.message_id, pushed.state, pushed.already_enqueued, &pushed.message_key)];
        let rows = TableRows { columns: PUSHED, cells };
        self.output.answer(&CliResponse::one(&full_name("EnqueueResponse"), &pushed), &rows)?;
        match is_own_id && pushed.already_enqueued {
            true => self.refuse_over(&request, &pushed).await,
            false => Ok(()), // only a retry of this command can have met the message
        }
    }

    /// Fails if the id is that of a message that is over or gone: the push enqueued nothing, and nothing runs again.
    async fn refuse_over(&self, request: &pb::EnqueueRequest, pushed: &pb::EnqueueResponse) -> Result<(), Failure> {
        match pushed.state() {
            MessageState::Completed | MessageState::Canceled | MessageState::Errored => Err(over(request, pushed)),
            // The state of a message that is gone is that of the first answer.
            _ if self.is_gone(request, pushed).await => Err(gone(pushed)),
            _ => Ok(()), // in any other state it is there and may run
        }
    }

    /// Whether the queue has no message of this key any more. If that cannot be known, it is taken to have it.
    async fn is_gone(&self, request: &pb::EnqueueRequest, pushed: &pb::EnqueueResponse) -> bool {
        let (queue, message_id) = (request.queue.clone(), pushed.message_key.clone());
        let request = pb::GetMessageRequest { queue, message_id, shard_key: String::new() };
        let found = self.client.retried(&request, |request| {
            let mut client = self.client.queues();
            async move { client.get_message(request).await }
        });
        found.await.is_err_and(|error| error.reason().as_deref() == Some(Reason::MessageNotFound.info().name))
    }

    /// Pushes the lines in batches, each line with an id of its own.
    async fn push_lines(&self, queue: &str, like: &pb::Message, file: &Path) -> Result<(), Failure> {
        let mut lines = lines_of(file)?;
        let mut response = pb::BatchEnqueueResponse::default();
        loop {
            let mut messages = Vec::with_capacity(QUEUE_BATCH_ITEMS_MAX);
            while messages.len() < QUEUE_BATCH_ITEMS_MAX {
                let Some(payload) = next_line(&mut lines).map_err(|failure| so_far(failure, response.results.len()))?
                else {
                    break;
                };
                messages.push(pb::Message { message_id: self.client.message_id(), payload, ..like.clone() });
            }
            if messages.is_empty() {
                break;
            }
            let request = pb::BatchEnqueueRequest { queue: queue.to_owned(), messages };
            let done = response.results.len();
            let answer = call!(self, queues.batch_enqueue, &request);
            response.results.extend(answer.map_err(|failure| so_far(failure, done))?.results);
            progress(&units::messages(i64::try_from(response.results.len()).unwrap_or(i64::MAX)));
        }
        let mut refused = Vec::new();
        let mut rows = TableRows { columns: PUSHED, cells: Vec::new() };
        for (line, result) in response.results.iter().enumerate() {
            match &result.error {
                Some(error) => {
                    print_notice(&format!("line {}: {} ({})", line + 1, error.message, error.reason));
                    refused.push(error);
                }
                None => rows.cells.push(cells(
                    &result.message_id,
                    result.state,
                    result.already_enqueued,
                    &result.message_key,
                )),
            }
        }
        self.output.answer(&CliResponse::many(&full_name("BatchEnqueueResponse"), &response, "results"), &rows)?;
        all_or_partial(&refused, response.results.len(), "messages were refused")
    }
}

fn over(request: &pb::EnqueueRequest, pushed: &pb::EnqueueResponse) -> Failure {
    let (id, queue, state) = (&pushed.message_id, &request.queue, state(pushed.state).to_lowercase());
    let text = format!("message {id} is {state} already and does not run again; nothing was enqueued");
    let failure = Failure::new(Exit::Over, text);
    if pushed.state() == MessageState::Errored {
        return failure.hint(format!("to run it again: tallystone dlq redrive -q {queue} {}", shell_quoted(id)));
    }
    match has_time(request, pushed) {
        true => failure.hint("an id with a time never becomes free; to repeat the work, push it with another id"),
        false => failure
            .hint("to repeat the work, push it with another id")
            .hint(format!(
                "the id becomes free when the retention of the message ends, or at once with: tallystone queue purge \
                 {queue} --state {state} (which removes all {state} messages)"
            ))
            .hint(format!(
                "where ids of {queue} come again as soon as their messages are over (tallystone queue update {queue} \
                 --reuse-ids when-over), it is free 60 s after the message was enqueued: until then the same push is a repeat"
            )),
    }
}

fn gone(pushed: &pb::EnqueueResponse) -> Failure {
    let text = format!(
        "message {} was enqueued before and is gone; nothing was enqueued, and nothing runs",
        pushed.message_id
    );
    Failure::new(Exit::Over, text).hint("to repeat the work, push it with another id")
}

/// Whether the id has a time, by which the queue knows that it was used for ever.
fn has_time(request: &pb::EnqueueRequest, pushed: &pb::EnqueueResponse) -> bool {
    let has_own = request.message.as_ref().is_some_and(|message| message.generation_time.is_some());
    has_own || uuid_v7(&pushed.message_id).is_some()
}

fn cells(id: &str, number: i32, already_enqueued: bool, key: &str) -> Vec<String> {
    vec![id.to_owned(), state(number), already_enqueued.to_string(), key.to_owned()]
}

/// Adds the progress of a push of lines to a failure.
fn so_far(failure: Failure, done: usize) -> Failure {
    failure.hint(format!(
        "{} pushed before the failure; continue with line {}",
        counted(saturating_i64(done), "line was", "lines were"),
        done + 1
    ))
}

/// The lines of a file, read on demand.
struct NumberedLines<'a> {
    file: &'a Path,
    reader: BufReader<Box<dyn Read>>,
    /// The number of lines read.
    number: usize,
}

fn lines_of(file: &Path) -> Result<NumberedLines<'_>, Failure> {
    Ok(NumberedLines { file, reader: BufReader::new(open(file)?), number: 0 })
}

fn next_line(lines: &mut NumberedLines) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    let most = u64::try_from(QUEUE_MESSAGE_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bounded = lines.reader.by_ref().take(most);
    let read = bounded.read_until(b'\n', &mut line).map_err(|error| unreadable(lines.file, &error))?;
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|last| *last == b'\r'); // a file of Windows
    } else if read == QUEUE_MESSAGE_BYTES_MAX {
        let (number, bytes) = (lines.number + 1, read + rest_of_line(lines)?);
        let what = format!("line {number} has {bytes} bytes; the payload of a message has at most {PAYLOAD_BYTES_MAX}");
        return Err(Failure::new(Exit::Usage, what));
    }
    lines.number += 1;
    Ok((read > 0).then_some(line))
}

/// Skips the rest of a line; returns its bytes.
fn rest_of_line(lines: &mut NumberedLines) -> Result<usize, Failure> {
    let mut passed = 0;
    loop {
        let buffer = lines.reader.fill_buf().map_err(|error| unreadable(lines.file, &error))?;
        let (here, is_end) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        lines.reader.consume(here);
        passed += here;
        if is_end {
            return Ok(passed);
        }
    }
}
