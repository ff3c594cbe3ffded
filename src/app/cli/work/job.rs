//! The work on one message: the command runs, the lease is renewed beside it, and the way it ends settles the lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::api::time::write_duration;
use crate::app::cli::Session;
use crate::app::cli::work::child::{Child, Ended};
use crate::app::notices::note;
use crate::client::CallError;
use crate::domain::limits::ERROR_TEXT_BYTES_MAX;
use crate::proto::queue::v1 as pb;

/// What became of a message, as far as its worker knows.
pub enum Outcome {
    /// It is completed.
    Completed,
    /// The command failed.
    Failed,
    /// The lease was lost, released or canceled, or could not be settled.
    GivenUp,
    /// The command cannot be run at all.
    CannotRun(String),
}

/// One message and its command.
pub struct Job {
    session: Arc<Session>,
    queue: String,
    exec: String,
    lease: pb::Lease,
    /// How long the lease lasts each time.
    lease_time: Duration,
    ending: watch::Receiver<bool>,
}

/// Why a command is over.
enum Over {
    /// It ended by itself.
    Ended(Ended),
    /// Its lease is not ours any more.
    Lost,
    /// Somebody wants the message canceled.
    CancelRequested,
    /// The worker was told to end what runs.
    Stopped,
}

impl Job {
    /// Prepares the work on a message; `ending` says that it has to be given back.
    pub fn new(
        session: Arc<Session>,
        queue: &str,
        exec: &str,
        lease: pb::Lease,
        ending: watch::Receiver<bool>,
    ) -> Self {
        let lasts = lease.lease_expires_in.and_then(|time| Duration::try_from(time).ok());
        let lease_time = lasts.unwrap_or(Duration::from_secs(1)).max(Duration::from_secs(1));
        Self { session, queue: queue.to_owned(), exec: exec.to_owned(), lease, lease_time, ending }
    }

    /// Runs the command and settles.
    pub async fn run(mut self) -> Outcome {
        let mut child = match Child::start(&self.exec, &self.queue, &self.session.server, &self.lease) {
            Ok(child) => child,
            Err(error) => {
                let why = format!("cannot start sh: {error}");
                return self.settled(pb::Verb::Release, None, Outcome::CannotRun(why)).await;
            }
        };
        match self.until_over(&mut child).await {
            Over::Ended(ended) => self.ended(ended).await,
            Over::Lost => {
                note(&format!("{}: the lease is lost; ending its command", self.id()));
                child.end().await;
                Outcome::GivenUp
            }
            Over::CancelRequested => {
                note(&format!("{}: is to be canceled; ending its command", self.id()));
                child.end().await;
                self.settled(pb::Verb::Cancel, None, Outcome::GivenUp).await
            }
            Over::Stopped => {
                child.end().await;
                self.settled(pb::Verb::Release, None, Outcome::GivenUp).await
            }
        }
    }

    /// Renews the lease at a third of its time until the command is over or must be.
    async fn until_over(&mut self, child: &mut Child) -> Over {
        let mut ending = self.ending.clone();
        let mut pause = self.lease_time / 3;
        let mut lease_over = Box::pin(tokio::time::sleep(self.lease_time));
        let mut renewal = Box::pin(self.renewed_after(pause));
        loop {
            tokio::select! {
                ended = child.ended() => return Over::Ended(ended),
                // A sender that is gone cannot tell to go on either.
                _ = ending.wait_for(|must_end| *must_end) => return Over::Stopped,
                () = &mut lease_over => return Over::Lost,
                answer = &mut renewal => {
                    match answer {
                        Ok(renewed) if renewed.cancel_requested => return Over::CancelRequested,
                        Ok(renewed) => {
                            let lasts = renewed.lease_expires_in.and_then(|time| Duration::try_from(time).ok());
                            let lasts = lasts.unwrap_or_default();
                            pause = lasts / 3;
                            lease_over = Box::pin(tokio::time::sleep(lasts));
                        }
                        // A refusal is final; what got no answer is asked again while the lease lasts.
                        Err(error) if error.reason().is_some() && !error.may_be_applied => return Over::Lost,
                        Err(_unknown) => pause = self.lease_time / 10,
                    }
                    renewal = Box::pin(self.renewed_after(pause));
                }
            }
        }
    }

    fn renewed_after(
        &self,
        pause: Duration,
    ) -> impl Future<Output = Result<pb::ExtendLeaseResponse, CallError>> + Send + use<> {
        let request = pb::ExtendLeaseRequest {
            queue: self.queue.clone(),
            lease_token: self.lease.lease_token.clone(),
            lease_duration: Some(write_duration(self.lease_time)),
        };
        let session = Arc::clone(&self.session);
        async move {
            tokio::time::sleep(pause).await;
            let answer = session.client.retried(&request, |request| {
                let mut client = session.client.queues();
                async move { client.extend_lease(request).await }
            });
            answer.await
        }
    }

    async fn ended(self, ended: Ended) -> Outcome {
        match ended.code {
            Some(0) => self.settled(pb::Verb::Complete, None, Outcome::Completed).await,
            Some(code @ (126 | 127)) => {
                let why = format!("the command cannot be run (exit code {code}): {}", ended.last_line);
                self.settled(pb::Verb::Release, None, Outcome::CannotRun(why)).await
            }
            Some(_) | None => {
                let error = pb::WorkerError { signature: ended.signature(), text: cut(&ended.last_line) };
                note(&format!("{}: {}: {}", self.id(), error.signature, error.text));
                self.settled(pb::Verb::Fail, Some(error), Outcome::Failed).await
            }
        }
    }

    /// Settles the lease, again and again within the time for a call; a repeat answers as the first.
    async fn settled(self, verb: pb::Verb, error: Option<pb::WorkerError>, outcome: Outcome) -> Outcome {
        let item = pb::Settlement {
            lease_token: self.lease.lease_token.clone(),
            verb: verb.into(),
            error,
            ..Default::default()
        };
        let request = pb::SettleMessagesRequest { queue: self.queue.clone(), items: vec![item] };
        let answer = self.session.client.retried(&request, |request| {
            let mut client = self.session.client.queues();
            async move { client.settle_messages(request).await }
        });
        let refused = match answer.await {
            Ok(answer) => answer.results.into_iter().find_map(|result| result.error).map(|error| error.message),
            Err(error) => Some(self.session.failed(&error).to_string()),
        };
        match (refused, outcome) {
            (None, outcome) => outcome,
            (Some(why), outcome) => {
                note(&format!("{}: could not be settled, and comes back when its lease ends: {why}", self.id()));
                match outcome {
                    Outcome::CannotRun(why) => Outcome::CannotRun(why),
                    Outcome::Completed | Outcome::Failed | Outcome::GivenUp => Outcome::GivenUp,
                }
            }
        }
    }

    fn id(&self) -> &str {
        self.lease.message.as_ref().map_or("", |message| message.message_id.as_str())
    }
}

/// As much of a text as an error may carry.
fn cut(text: &str) -> String {
    let mut end = text.len().min(ERROR_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "é".repeat(ERROR_TEXT_BYTES_MAX);
        let kept = cut(&format!("x{long}"));
        assert!(kept.len() >= ERROR_TEXT_BYTES_MAX - 1 && kept.len() <= ERROR_TEXT_BYTES_MAX);
    }
}
