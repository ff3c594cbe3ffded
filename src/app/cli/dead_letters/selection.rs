//! Selects errored messages on the client, where the protocol cannot: no call selects messages without an error
//! signature. Messages are read first and then passed to one call each, so messages that fail later stay.

use crate::dead_letters::groups::signature_of;
use crate::operations::OperationFollower;
use crate::output::progress;
use crate::{ClientContext, Exit, Failure};
use tallystone_api::grpc::saturating_i64;
use tallystone_app::notices::print_notice;
use tallystone_app::units::messages;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_proto::queue::v1 as pb;

/// The messages that one command chooses. What is done to them takes them away, so a repeat comes to the others.
const SELECTION_PAGE: usize = 100_000;
/// How many messages are done between two tellings of how far it is.
const TELL_EVERY: usize = 1_000;

/// An action on messages that are passed one by one.
#[derive(Clone, Copy)]
pub(super) struct DeadLetterAction {
    /// The kind of operation, in the protocol's word.
    pub kind: &'static str,
    /// The action in the past tense.
    pub done: &'static str,
}

/// A message as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeadLetter {
    /// The key of the message.
    pub key: String,
    /// The version at reading: a message that was redriven and failed again has a higher one.
    pub version: u64,
}

/// The selected messages.
pub(super) struct SelectedDeadLetters {
    pub letters: Vec<DeadLetter>,
    /// Whether more messages match than one command takes.
    has_more: bool,
}

impl SelectedDeadLetters {
    /// Returns an error if more messages match than were selected.
    pub fn end(&self) -> Result<(), Failure> {
        if !self.has_more {
            return Ok(());
        }
        let what = format!("more than {SELECTION_PAGE} messages match, the maximum of one command");
        Err(Failure::new(Exit::Partial, what).hint("repeat the command for the others"))
    }
}

/// Reads all pages and selects the matching messages, up to a limit.
async fn select(
    limit: usize,
    is_meant: impl Fn(&pb::Message) -> bool,
    mut page: impl AsyncFnMut(String) -> Result<(Vec<pb::Message>, String), Failure>,
) -> Result<SelectedDeadLetters, Failure> {
    let (mut letters, mut token) = (Vec::new(), String::new());
    loop {
        let (found, next) = page(token).await?;
        let meant = found.into_iter().filter(|message| is_meant(message));
        letters.extend(meant.map(|message| DeadLetter { key: message.message_key, version: message.version }));
        if letters.len() > limit || next.is_empty() {
            break;
        }
        token = next;
    }
    let has_more = letters.len() > limit;
    letters.truncate(limit);
    Ok(SelectedDeadLetters { letters, has_more })
}

impl ClientContext {
    /// Selects errored messages with this metadata whose last error has no signature.
    pub(super) async fn select_unsigned(
        &self,
        queue: &str,
        meta: &[(String, String)],
    ) -> Result<SelectedDeadLetters, Failure> {
        let is_meant = |message: &pb::Message| {
            let has = |(key, value): &(String, String)| message.metadata.get(key) == Some(value);
            signature_of(message).is_empty() && meta.iter().all(has)
        };
        let rows = i32::try_from(PAGE_ROWS_MAX).unwrap_or(i32::MAX);
        select(SELECTION_PAGE, is_meant, async |token| self.errored_page(queue, rows, token).await).await
    }

    /// Whether a message still has the version that was read, so that it was not redriven since.
    pub(super) async fn is_unchanged(&self, queue: &str, letter: &DeadLetter) -> Result<bool, Failure> {
        let (queue, message_id) = (queue.to_owned(), letter.key.clone());
        let request = pb::GetMessageRequest { queue, message_id, ..Default::default() };
        match call!(ask self, queues.get_message, &request) {
            Ok(answer) => Ok(answer.message.is_some_and(|message| message.version == letter.version)),
            Err(failure) if failure.exit() == Exit::NotFound => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Prints the number of messages that would be affected.
    pub(super) fn print_dry_run(&self, verb: DeadLetterAction, queue: &str, count: i64) -> Result<(), Failure> {
        OperationFollower::new(self).print(pb::Operation { dry_run: true, ..done(verb, queue, count, count) })
    }

    /// Makes one call for each message, by its key, and combines the answers. A message that has changed is left alone
    /// and yields none. Ends early if no server answers.
    pub(super) async fn apply_to_each<T>(
        &self,
        verb: DeadLetterAction,
        queue: &str,
        which: &[T],
        name: impl Fn(&T) -> &str,
        mut call: impl AsyncFnMut(&T) -> Result<Option<pb::Operation>, Failure>,
    ) -> Result<(), Failure> {
        let (mut all, mut refused, mut changed) = (None::<pb::Operation>, Vec::new(), 0);
        for (at, one) in which.iter().enumerate() {
            match call(one).await {
                Ok(Some(one)) => {
                    let so_far = all.get_or_insert_with(|| pb::Operation { done: 0, ..one.clone() });
                    so_far.done += one.done;
                    so_far.end_time = one.end_time;
                }
                Ok(None) => changed += 1,
                Err(failure) => {
                    let is_over = failure.exit() == Exit::Unavailable;
                    refused.push((name(one), failure));
                    if is_over {
                        break;
                    }
                }
            }
            if (at + 1).is_multiple_of(TELL_EVERY) {
                progress(&format!("{}: {} of {}", verb.kind, at + 1, which.len()));
            }
        }
        if changed > 0 {
            print_notice(&format!("{} changed in the meantime: not {}", messages(changed), verb.done));
        }
        if all.is_none() && !refused.is_empty() {
            let (_, failure) = refused.swap_remove(0);
            return Err(failure);
        }
        let asked = saturating_i64(which.len()) - changed;
        let mut all = all.unwrap_or_else(|| done(verb, queue, 0, 0));
        all.total = asked;
        if which.len() > 1 {
            all.operation_id = String::new(); // each had one of its own
        }
        refused.iter().for_each(|(name, failure)| print_notice(&format!("{name}: {failure}")));
        let left = asked - all.done;
        OperationFollower::new(self).print(all)?;
        match refused.is_empty() {
            true => Ok(()),
            false => {
                let what = format!("{left} of {} could not be {}", messages(asked), verb.done);
                Err(Failure::new(Exit::Partial, what))
            }
        }
    }
}

/// Creates a finished operation.
fn done(verb: DeadLetterAction, queue: &str, done: i64, total: i64) -> pb::Operation {
    let state = pb::OperationState::Done.into();
    pb::Operation { queue: queue.to_owned(), kind: verb.kind.to_owned(), state, done, total, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Selects from ten pages of ten messages; the last two of each page match.
    async fn chosen(limit: usize) -> (Vec<u64>, bool) {
        let page = async |token: String| {
            let at: u64 = if token.is_empty() { 0 } else { token.parse().expect("a number") };
            let messages = (at * 10..at * 10 + 10).map(|version| pb::Message { version, ..Default::default() });
            Ok((messages.collect(), if at < 9 { (at + 1).to_string() } else { String::new() }))
        };
        let chosen = select(limit, |message| message.version % 10 > 7, page).await.expect("every page is served");
        assert_eq!(chosen.end().is_err(), chosen.has_more);
        (chosen.letters.iter().map(|letter| letter.version).collect(), chosen.has_more)
    }

    #[tokio::test]
    async fn all_pages_are_gone_through_and_what_is_past_the_bound_is_told() {
        let all: Vec<u64> = (0..10).flat_map(|page| [page * 10 + 8, page * 10 + 9]).collect();
        assert_eq!(chosen(100).await, (all.clone(), false));
        assert_eq!(chosen(20).await, (all.clone(), false));
        assert_eq!(chosen(19).await, (all[..19].to_vec(), true));
        assert_eq!(chosen(2).await, (all[..2].to_vec(), true));
    }
}
