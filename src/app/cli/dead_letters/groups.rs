//! `dlq ls`: lists causes of failures with their number and first time, or the messages themselves.
//!
//! An operator first needs to know whether all dead letters have one cause. So they are grouped by the signature of
//! their error, unless messages are requested. Only heads are read, and only the first ones of large queues.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;

use crate::output::{IncrementalPrinter, TableRows, time_cell};
use crate::pages::RowLimit;
use crate::{ClientContext, Failure, pages};
use tallystone_api::grpc::saturating_i64;
use tallystone_app::notices::print_notice;
use tallystone_app::units::messages;
use tallystone_proto::queue::v1 as pb;

/// The number of messages that are grouped, unless `--limit` is given.
const LOOKED_AT: usize = 100_000;
const COLUMNS: &[&str] = &["error_signature", "messages", "attempts", "first_time", "last_time", "example_id"];

#[derive(Debug, Args)]
#[command(mut_arg("limit", |limit| limit.help("The maximum number of messages to list [default: 100] or to group [default: 100000]")))]
pub struct DlqLsArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// List messages instead of groups, by shard and arrival order.
    #[arg(long)]
    messages: bool,
    /// List the messages whose last error has this signature; an empty one selects messages without a signature.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error_signature: Option<String>,
    #[command(flatten)]
    limit: RowLimit,
}

/// Messages with the same signature.
#[derive(Default)]
struct DeadLetterGroup {
    messages: u64,
    attempts: u64,
    first: Option<prost_types::Timestamp>,
    last: Option<prost_types::Timestamp>,
    /// The message that failed last.
    example: String,
}

impl DeadLetterGroup {
    fn add(&mut self, message: &pb::Message) {
        self.messages += 1;
        self.attempts += u64::try_from(message.attempt_number).unwrap_or(0);
        let order = |time: &prost_types::Timestamp| (time.seconds, time.nanos);
        let ended = message.end_time;
        if self.example.is_empty() || ended.as_ref().map(order) >= self.last.as_ref().map(order) {
            self.example.clone_from(&message.message_id);
        }
        self.last = [self.last, ended].into_iter().flatten().max_by_key(order);
        self.first = [self.first, ended].into_iter().flatten().min_by_key(order);
    }
}

impl ClientContext {
    pub(super) async fn dead_letters(&self, args: DlqLsArgs) -> Result<(), Failure> {
        match args.error_signature {
            Some(signature) => {
                let is_meant = |message: &pb::Message| signature_of(message) == signature;
                let (mut found, left) = self.errored(&args.queue, args.limit.rows_or(LOOKED_AT).max(LOOKED_AT)).await?;
                let examined = found.len();
                found.retain(is_meant);
                let is_cut = found.len() > args.limit.rows();
                found.truncate(args.limit.rows());
                let page = pb::ListMessagesResponse { messages: found, next_page_token: left };
                self.listed_messages(&page)?;
                match is_cut {
                    true => args.limit.end("more", self.output),
                    false => args.limit.end_with(
                        &page.next_page_token,
                        self.output,
                        &format!(
                            "only the first {} were examined; examine all with --all",
                            messages(saturating_i64(examined))
                        ),
                    ),
                }
            }
            None if args.messages => self.list_messages(args.queue, pb::MessageState::Errored, args.limit).await,
            None => self.dead_letter_groups(&args.queue, args.limit).await,
        }
    }

    async fn dead_letter_groups(&self, queue: &str, limit: RowLimit) -> Result<(), Failure> {
        let (found, left) = self.errored(queue, limit.rows_or(LOOKED_AT)).await?;
        let examined = messages(saturating_i64(found.len()));
        let mut groups: BTreeMap<String, DeadLetterGroup> = BTreeMap::new();
        found.iter().for_each(|message| groups.entry(signature_of(message)).or_default().add(message));
        let mut groups: Vec<(String, DeadLetterGroup)> = groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.messages));
        if self.output.is_for_people() && groups.iter().any(|(signature, _)| signature.is_empty()) {
            print_notice(
                "(none): messages without an error signature; select them with --error-signature '', also in `dlq \
                 redrive` and `dlq rm`",
            );
        }
        let items = groups.iter().map(|(signature, group)| {
            json!({
                "errorSignature": signature, "messages": group.messages.to_string(),
                "attempts": group.attempts.to_string(), "firstTime": group.first.as_ref().map(ToString::to_string),
                "lastTime": group.last.as_ref().map(ToString::to_string), "exampleId": group.example,
            })
        });
        let items: Vec<_> = items.collect();
        let cells = groups.into_iter().map(|(signature, group)| {
            let time = |time: Option<prost_types::Timestamp>| match self.output.is_for_people() {
                true => time_cell(time.map(|time| prost_types::Timestamp { nanos: 0, ..time }).as_ref()),
                false => time_cell(time.as_ref()),
            };
            let unsigned = self.output.is_for_people() && signature.is_empty();
            vec![
                if unsigned { "(none)".to_owned() } else { signature },
                group.messages.to_string(),
                group.attempts.to_string(),
                time(group.first),
                time(group.last),
                group.example,
            ]
        });
        let rows = TableRows { columns: COLUMNS, cells: cells.collect() };
        let mut parts = IncrementalPrinter::list(self.output);
        if !items.is_empty() {
            parts.print(&items, &rows)?;
        }
        parts.end(COLUMNS)?;
        limit.end_with(
            &left,
            self.output,
            &format!("only the first {examined} were examined; examine more with --limit N or --all"),
        )
    }

    /// Reads the heads of errored messages; also returns the page token of the rest.
    pub(super) async fn errored(&self, queue: &str, limit: usize) -> Result<(Vec<pb::Message>, String), Failure> {
        pages::rows(limit, async |page_size, page_token| self.errored_page(queue, page_size, page_token).await).await
    }

    /// Reads one page of the heads of errored messages; also returns the next page token.
    pub(super) async fn errored_page(
        &self,
        queue: &str,
        page_size: i32,
        page_token: String,
    ) -> Result<(Vec<pb::Message>, String), Failure> {
        let state = pb::MessageState::Errored.into();
        let (queue, without_payload) = (queue.to_owned(), true);
        let request = pb::ListMessagesRequest { queue, state, page_size, page_token, without_payload };
        let page = call!(ask self, queues.list_messages, &request)?;
        Ok((page.messages, page.next_page_token))
    }
}

/// Returns the signature of a message's last failure; empty if its last lease ended without an error or the error has
/// none.
pub(super) fn signature_of(message: &pb::Message) -> String {
    message.error.as_ref().map_or_else(String::new, |error| error.signature.clone())
}
