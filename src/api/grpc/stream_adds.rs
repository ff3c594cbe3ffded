//! StreamAddCounts: a stream of adds, acknowledged in ranges.
//!
//! Items are numbered over the whole stream. Messages that have already arrived are combined into batches of the
//! engine, several of which are in flight; responses come in the order of the items. While enough batches are in
//! flight, or other calls go first, the stream is not read, and flow control slows the client down. Errors of a whole
//! message are found before its items are submitted and before the next message is read. So a stream that the server
//! ends with an error has acknowledged all applied items, and started none behind the error. Invariant: the engine owns
//! a submitted batch, so no connection loss leaves it half done. Items without an acknowledgement may have been
//! applied; the client sends them again with the same tokens.

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::errors::{self, ApiError};
use crate::grpc::{decode, encode};
use crate::time;
use tallystone_domain::access::{CallRights, CounterScope};
use tallystone_domain::call_limit::CallClass;
use tallystone_domain::limits::{BATCH_ITEMS_MAX, STREAM_BATCHES_AT_ONCE_MAX};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::call_limiter::StreamPlaces;
use tallystone_engine::counting::{Add, AddTarget, Counting, CountingError, SubmittedBatch, WriteOutcome, Written};
use tallystone_proto::counter::v1::{StreamAddCountsRequest, StreamAddCountsResponse, StreamException};

/// Answers a stream of adds. When `drain` is cancelled, it reads no more, answers all items it has read, and ends.
pub fn answers<S>(
    counting: Counting,
    (rights, places): (CallRights, StreamPlaces),
    requests: S,
    drain: CancellationToken,
) -> BoxStream<'static, Result<StreamAddCountsResponse, Status>>
where
    S: Stream<Item = Result<StreamAddCountsRequest, Status>> + Send + Unpin + 'static,
{
    let reader = AddStreamReader {
        counting: counting.clone(),
        rights,
        places,
        requests,
        drain,
        namespace: None,
        next_item: 1,
        next_message: None,
        ended: false,
    };
    let ranges = stream::unfold(reader, |mut reader| async move { reader.next().await.map(|range| (range, reader)) });
    ranges
        .map(move |range| {
            let counting = counting.clone();
            async move { Ok(answer(&counting, range?).await) }
        })
        .buffered(STREAM_BATCHES_AT_ONCE_MAX)
        .boxed()
}

/// Adjacent items of one namespace, at most one batch.
struct AddRange {
    namespace: CounterScope,
    target: AddTarget,
    first_item: u64,
    items: Vec<Result<Add, Reject>>,
}

/// A range in flight.
struct SubmittedRange {
    first_item: u64,
    last_item: u64,
    batch: SubmittedBatch,
}

struct AddStreamReader<S> {
    counting: Counting,
    rights: CallRights,
    places: StreamPlaces,
    requests: S,
    drain: CancellationToken,
    namespace: Option<CounterScope>,
    next_item: u64,
    /// The message after the last range, which does not belong to that range.
    next_message: Option<Result<StreamAddCountsRequest, Status>>,
    ended: bool,
}

impl<S: Stream<Item = Result<StreamAddCountsRequest, Status>> + Unpin> AddStreamReader<S> {
    /// Submits and returns the next range; none after an error or the end of the requests.
    async fn next(&mut self) -> Option<Result<SubmittedRange, Status>> {
        let range = self.read_range().await.transpose()?;
        self.ended |= range.is_err();
        let AddRange { target, first_item, items, .. } = match range {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        let last_item = first_item + items.len() as u64 - 1;
        // Until the batch is accepted: what is accepted is bounded by its dataset, and its answers wait for the client.
        let _place = self.places.wait(CallClass::Work).await;
        let mut batch = self.counting.submit_batch(target, items);
        batch.wait_accepted().await;
        Some(Ok(SubmittedRange { first_item, last_item, batch }))
    }

    async fn read_range(&mut self) -> Result<Option<AddRange>, Status> {
        let mut range = loop {
            let Some(message) = self.receive().await.transpose().map_err(errors::with_reason)? else { return Ok(None) };
            let first_item = self.next_item;
            let refused = |refusal: ApiError| refusal.with("first_item", first_item.to_string());
            if let Some(range) = self.begin_range(message).await.map_err(refused)? {
                break range;
            }
        };
        // Messages that have not arrived yet are not waited for: they begin the next range.
        while range.items.len() < BATCH_ITEMS_MAX
            && let Some(next) = self.requests.next().now_or_never()
        {
            match next {
                Some(Ok(message)) if range.takes(&message) => self.number(&mut range, message),
                None => {
                    self.ended = true;
                    break;
                }
                Some(next) => {
                    self.next_message = Some(next);
                    break;
                }
            }
        }
        Ok(Some(range))
    }

    async fn receive(&mut self) -> Option<Result<StreamAddCountsRequest, Status>> {
        if self.next_message.is_some() {
            return self.next_message.take();
        }
        if self.ended {
            return None;
        }
        tokio::select! {
            biased;
            () = self.drain.cancelled() => {
                let what = "the server is stopping and accepts no more items; unacknowledged items were not applied";
                Some(Err(ApiError::new(Reason::ShuttingDown, what).into()))
            }
            message = self.requests.next() => message,
        }
    }

    /// Validates a message and begins a range with its items; none for a message without items.
    async fn begin_range(&mut self, message: StreamAddCountsRequest) -> Result<Option<AddRange>, ApiError> {
        if !message.namespace.is_empty() {
            self.namespace = Some(decode::namespace(&self.rights, &message.namespace)?);
        }
        let Some(namespace) = self.namespace.clone() else {
            let what = "namespace is missing; send it in the first message of the stream";
            return Err(ApiError::new(Reason::InvalidNamespace, what));
        };
        if message.items.is_empty() {
            return Ok(None);
        }
        decode::batch_size("items", message.items.len())?;
        let target = self.counting.add_target(&namespace).await?;
        let items = Vec::with_capacity(message.items.len());
        let mut range = AddRange { namespace, target, first_item: self.next_item, items };
        self.number(&mut range, message);
        Ok(Some(range))
    }

    fn number(&mut self, range: &mut AddRange, message: StreamAddCountsRequest) {
        self.next_item += message.items.len() as u64;
        let AddRange { namespace, items, .. } = range;
        items.extend(message.items.into_iter().map(|item| decode::add_item(namespace, item)));
    }
}

impl AddRange {
    /// Whether a message can continue this range.
    fn takes(&self, message: &StreamAddCountsRequest) -> bool {
        (message.namespace.is_empty() || message.namespace == self.namespace.as_str())
            && self.items.len() + message.items.len() <= BATCH_ITEMS_MAX
    }
}

async fn answer(
    counting: &Counting,
    SubmittedRange { first_item, last_item, batch }: SubmittedRange,
) -> StreamAddCountsResponse {
    let answers = batch.answers().await;
    let exceptions = (first_item..).zip(answers).filter(|(_, answer)| is_exception(answer));
    StreamAddCountsResponse {
        first_item,
        last_item,
        exceptions: exceptions
            .map(|(item, answer)| StreamException { item, result: Some(encode::add_result(answer)) })
            .collect(),
        server_time: Some(time::write(counting.server_time())),
    }
}

fn is_exception(answer: &Result<Written, CountingError>) -> bool {
    !matches!(answer, Ok(Written { outcome: WriteOutcome::Applied, .. }))
}
