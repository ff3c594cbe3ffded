//! Errored messages that are chosen here, because the protocol cannot say which: a redrive takes no error signature, and no
//! call takes the absence of one. They are read first; then each is named in a call of its own, so what fails later stays.

use crate::api::grpc::whole;
use crate::app::cli::dead_letters::groups::{LOOKED_AT, signature_of};
use crate::app::cli::operations::Following;
use crate::app::cli::output::progress;
use crate::app::cli::queue::messages;
use crate::app::cli::{Exit, Failure, Session};
use crate::app::notices::note;
use crate::proto::queue::v1 as pb;

/// How many messages are done between two tellings of how far it is.
const TELL_EVERY: usize = 1_000;

/// What is done to messages that are named one by one.
#[derive(Clone, Copy)]
pub(super) struct Verb {
    /// As operations are called.
    pub kind: &'static str,
    /// What was done.
    pub done: &'static str,
}

impl Session {
    /// The keys of errored messages whose last error has this signature, or none if it is empty, and that have this metadata.
    pub(super) async fn errored_keys(
        &self,
        queue: &str,
        signature: &str,
        meta: &[(String, String)],
    ) -> Result<Vec<String>, Failure> {
        let (found, left) = self.errored(queue, LOOKED_AT).await?;
        if !left.is_empty() {
            note(&format!("only the first {LOOKED_AT} messages were looked at; repeat the command for the others"));
        }
        let is_meant = |message: &pb::Message| {
            let has = |(key, value): &(String, String)| message.metadata.get(key) == Some(value);
            signature_of(message) == signature && meta.iter().all(has)
        };
        Ok(found.into_iter().filter(is_meant).map(|message| message.message_key).collect())
    }

    /// Says what would be done to so many messages.
    pub(super) fn would(&self, verb: Verb, queue: &str, count: i64) -> Result<(), Failure> {
        Following::new(self).print(pb::Operation { dry_run: true, ..done(verb, queue, count, count) })
    }

    /// One call for each message; the answer is of all together. It ends early where no server answers.
    pub(super) async fn one_by_one(
        &self,
        verb: Verb,
        queue: &str,
        ids: &[String],
        mut call: impl AsyncFnMut(&str) -> Result<pb::Operation, Failure>,
    ) -> Result<(), Failure> {
        let asked = whole(ids.len());
        let (mut all, mut refused) = (None::<pb::Operation>, Vec::new());
        for (at, id) in ids.iter().enumerate() {
            match call(id).await {
                Ok(one) => {
                    let so_far = all.get_or_insert_with(|| pb::Operation { done: 0, total: asked, ..one.clone() });
                    so_far.done += one.done;
                    so_far.end_time = one.end_time;
                }
                Err(failure) => {
                    let is_over = failure.exit() == Exit::Unavailable;
                    refused.push((id, failure));
                    if is_over {
                        break;
                    }
                }
            }
            if (at + 1).is_multiple_of(TELL_EVERY) {
                progress(&format!("{}: {} of {asked}", verb.kind, at + 1));
            }
        }
        if all.is_none() && !refused.is_empty() {
            let (_, failure) = refused.swap_remove(0);
            return Err(failure);
        }
        let mut all = all.unwrap_or_else(|| done(verb, queue, 0, 0));
        if ids.len() > 1 {
            all.operation_id = String::new(); // each had one of its own
        }
        refused.iter().for_each(|(id, failure)| note(&format!("{id}: {failure}")));
        let left = asked - all.done;
        Following::new(self).print(all)?;
        match refused.is_empty() {
            true => Ok(()),
            false => {
                let what = format!("{left} of {} could not be {}", messages(asked), verb.done);
                Err(Failure::new(Exit::Partial, what))
            }
        }
    }
}

/// An operation that is over.
fn done(verb: Verb, queue: &str, done: i64, total: i64) -> pb::Operation {
    let state = pb::OperationState::Done.into();
    pb::Operation { queue: queue.to_owned(), kind: verb.kind.to_owned(), state, done, total, ..Default::default() }
}
