//! Queues for applications: typed messages in, workers that lease, renew and settle.
//!
//! An enqueue has a message id that never changes between attempts, so a repeat is the same message. A worker has a
//! session: its dequeues have a sequence and an attempt, so that a repeat gets the same leases. One heartbeat at a
//! third of the session's lease renews all of them. Payloads are JSON of the application's own type; `Worker::run`
//! passes them unparsed. `examples/worker.rs` shows it in use.

mod job;
mod leases;
mod message;
mod run;
mod session;
mod shutdown;
mod worker;

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::retry::CallKind;
use crate::{CallError, Client, Connection, MESSAGE_BYTES_MAX};
use tallystone_proto::error::v1::ItemError;
use tallystone_proto::queue::v1 as pb;
use tallystone_proto::queue::v1::queue_service_client::QueueServiceClient;

pub use job::{Job, Outcome, StopReason};
pub use message::{BadPayload, Message};
pub use shutdown::{Phase, Shutdown};
pub use worker::{WorkSummary, Worker, WorkerError, WorkerEvent};

/// The most messages of one call; the service accepts no more.
const BATCH_MESSAGES_MAX: usize = 100;

/// A queue whose payloads are values of one type, as JSON.
pub struct Queue<T> {
    client: Client,
    name: String,
    payload: PhantomData<fn(T) -> T>,
}

/// An enqueue that failed for good, with the id by which a repeat is recognized.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct EnqueueError {
    /// The id of the message: an enqueue with it and the same content is a repeat of this one.
    pub message_id: String,
    /// The error of the call.
    pub error: CallError,
}

/// The result of one message of a batch.
#[derive(Debug)]
pub enum Enqueued {
    /// It is in the queue.
    Taken(pb::EnqueueResult),
    /// It was refused.
    Refused {
        /// Its id.
        message_id: String,
        /// The error.
        error: ItemError,
    },
}

/// The queue service over a connection.
pub(super) fn queues_on(channel: Connection) -> QueueServiceClient<Connection> {
    QueueServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

impl Client {
    /// A queue whose payloads are values of this type, as JSON.
    pub fn queue<T>(&self, name: &str) -> Queue<T> {
        Queue { client: self.clone(), name: name.to_owned(), payload: PhantomData }
    }

    /// A worker of a queue. It begins with `Worker::run`.
    pub fn worker(&self, queue: &str) -> Worker {
        Worker::new(self.clone(), queue)
    }
}

impl<T> Queue<T> {
    /// Enqueues a message, with one id for all attempts. A message without an id gets one here.
    pub async fn send(&self, message: Message<T>) -> Result<pb::EnqueueResponse, EnqueueError> {
        let message = message.into_proto(|| self.client.message_id());
        let message_id = message.message_id.clone();
        let request = pb::EnqueueRequest { queue: self.name.clone(), message: Some(message) };
        let call = |channel, request| async move { queues_on(channel).enqueue(request).await };
        let answer = Box::pin(self.client.call_with_retries(CallKind::Change, &request, call)).await;
        answer.map_err(|error| EnqueueError { message_id, error })
    }

    /// Enqueues messages, in calls of up to 100, each with one id. The results have the order of the messages. An error
    /// says which messages may not have been sent: those from its id on.
    pub async fn send_all(&self, messages: Vec<Message<T>>) -> Result<Vec<Enqueued>, EnqueueError> {
        let messages: Vec<pb::Message> =
            messages.into_iter().map(|message| message.into_proto(|| self.client.message_id())).collect();
        let mut answered = Vec::with_capacity(messages.len());
        for part in messages.chunks(BATCH_MESSAGES_MAX) {
            let request = pb::BatchEnqueueRequest { queue: self.name.clone(), messages: part.to_vec() };
            let call = |channel, request| async move { queues_on(channel).batch_enqueue(request).await };
            let results = self.client.call_with_retries(CallKind::Change, &request, call).await;
            let results = results.map_err(|error| EnqueueError { message_id: part[0].message_id.clone(), error })?;
            answered.extend(results.results.into_iter().map(|mut result| match result.error.take() {
                None => Enqueued::Taken(result),
                Some(error) => Enqueued::Refused { message_id: result.message_id, error },
            }));
        }
        Ok(answered)
    }
}

impl<T: Serialize> Queue<T> {
    /// Enqueues a value with default settings.
    pub async fn enqueue(&self, value: &T) -> Result<pb::EnqueueResponse, EnqueueError> {
        match Message::new(value) {
            Ok(message) => self.send(message).await,
            Err(bad) => {
                let error = CallError::of_one(tonic::Status::invalid_argument(bad.to_string()));
                Err(EnqueueError { message_id: String::new(), error })
            }
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> Queue<T> {
    /// A worker of this queue. It begins with `Queue::run`.
    pub fn worker(&self) -> Worker {
        self.client.worker(&self.name)
    }

    /// Works on messages until the shutdown. Each value goes to `work` with its job, and the result settles the
    /// message. A payload that is not a value of the type fails its message.
    pub async fn run<F, W>(&self, worker: &Worker, work: F, shutdown: &Shutdown) -> Result<WorkSummary, WorkerError>
    where
        F: Fn(T, Job) -> W + Send + Sync + 'static,
        W: Future<Output = Outcome> + Send + 'static,
    {
        let work = std::sync::Arc::new(work);
        let typed = move |job: Job| {
            let work = std::sync::Arc::clone(&work);
            async move {
                match job.value::<T>() {
                    Ok(value) => work(value, job).await,
                    Err(bad) => Outcome::failed("bad payload", bad.to_string()),
                }
            }
        };
        worker.run(typed, shutdown).await
    }
}
