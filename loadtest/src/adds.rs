//! Ways to add: one call for each, batches, streams.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use tallystone_client::proto::counter::v1::{
    AddCountRequest, BatchAddCountsRequest, StreamAddCountsRequest, StreamAddCountsResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::client::{Connections, Counters, add_item, counter_name, new_token, reason_of};
use crate::load::{Call, Dice, Span};
use crate::report::Report;

/// Which counters of which namespace are hit.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// The namespace.
    pub namespace: &'static str,
    /// Counters are numbered from here.
    pub first: u64,
    /// How many, all hit alike.
    pub counters: u64,
}

/// One AddCount at a time.
pub struct Unary {
    client: Counters,
    aim: Aim,
    dice: Dice,
}

impl Unary {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, aim: Aim, count: usize) -> Vec<Self> {
        let worker = |number| Self { client: connections.counters(number), aim, dice: Dice::new(number as u64 + 1) };
        (0..count).map(worker).collect()
    }
}

impl Call for Unary {
    async fn call(&mut self) -> Result<u64, String> {
        let request = AddCountRequest {
            namespace: self.aim.namespace.to_owned(),
            counter_name: counter_name(self.aim.first + self.dice.below(self.aim.counters)),
            delta: Some(1),
            idempotency_token: Some(new_token()),
            provenance: String::new(),
        };
        self.client.add_count(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

/// One BatchAddCounts at a time.
pub struct Batch {
    client: Counters,
    aim: Aim,
    items: usize,
    dice: Dice,
}

impl Batch {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, aim: Aim, items: usize, count: usize) -> Vec<Self> {
        let worker =
            |number| Self { client: connections.counters(number), aim, items, dice: Dice::new(number as u64 + 1) };
        (0..count).map(worker).collect()
    }
}

impl Call for Batch {
    async fn call(&mut self) -> Result<u64, String> {
        let items = (0..self.items).map(|_| add_item(self.aim.first + self.dice.below(self.aim.counters), 1)).collect();
        let request = BatchAddCountsRequest { namespace: self.aim.namespace.to_owned(), items };
        let answer = self.client.batch_add_counts(request).await.map_err(|status| reason_of(&status))?.into_inner();
        match answer.results.iter().find_map(|result| result.error.as_ref()) {
            Some(error) => Err(error.reason.clone()),
            None => Ok(answer.results.len() as u64),
        }
    }
}

/// How streams are driven.
#[derive(Clone, Copy, Debug)]
pub struct StreamShape {
    /// Streams at once.
    pub streams: usize,
    /// Items in a message.
    pub items: usize,
    /// Messages of a stream that wait for their acknowledgement.
    pub window: usize,
}

/// Runs streams as fast as they are acknowledged.
pub async fn stream(connections: &Connections, aim: Aim, shape: StreamShape, span: Span) -> Result<Report> {
    let mut tasks = JoinSet::new();
    for number in 0..shape.streams {
        tasks.spawn(one_stream(connections.counters(number), aim, shape, span, Dice::new(number as u64 + 1)));
    }
    let mut all = Report::new();
    while let Some(report) = tasks.join_next().await {
        all.merge(&report??);
    }
    all.measured = span.measure;
    Ok(all)
}

async fn one_stream(mut client: Counters, aim: Aim, shape: StreamShape, span: Span, mut dice: Dice) -> Result<Report> {
    let from = Instant::now() + span.warm_up;
    let to = from + span.measure;
    let (sender, receiver) = mpsc::channel(shape.window);
    let mut answers = client.stream_add_counts(ReceiverStream::new(receiver)).await?.into_inner();
    let mut report = Report::new();
    let mut waiting: VecDeque<(u64, Instant)> = VecDeque::new();
    let mut last_item = 0;
    while Instant::now() < to {
        while waiting.len() < shape.window {
            let items = (0..shape.items).map(|_| add_item(aim.first + dice.below(aim.counters), 1)).collect();
            sender.send(StreamAddCountsRequest { namespace: aim.namespace.to_owned(), items }).await?;
            last_item += shape.items as u64;
            waiting.push_back((last_item, Instant::now()));
        }
        take_answer(&mut answers, &mut waiting, |latency, items, ended| {
            if ended >= from && ended < to {
                report.note(latency, &items);
            }
        })
        .await?;
    }
    drop(sender);
    while !waiting.is_empty() {
        take_answer(&mut answers, &mut waiting, |_, _, _| {}).await?;
    }
    Ok(report)
}

/// Takes one acknowledgement; notes the messages that it completes, and its exceptions as failures.
async fn take_answer(
    answers: &mut Streaming<StreamAddCountsResponse>,
    waiting: &mut VecDeque<(u64, Instant)>,
    mut note: impl FnMut(Duration, Result<u64, String>, Instant),
) -> Result<()> {
    let Some(answer) = answers.message().await? else { anyhow::bail!("the stream ended before its last answer") };
    let ended = Instant::now();
    for exception in &answer.exceptions {
        let error = exception.result.as_ref().and_then(|result| result.error.as_ref());
        note(Duration::ZERO, Err(error.map_or_else(|| "ALREADY_APPLIED".to_owned(), |e| e.reason.clone())), ended);
    }
    let mut items = (answer.last_item + 1 - answer.first_item) - answer.exceptions.len() as u64;
    while let Some(&(last, begun)) = waiting.front()
        && last <= answer.last_item
    {
        waiting.pop_front();
        note(ended - begun, Ok(std::mem::take(&mut items)), ended);
    }
    if items > 0 {
        note(Duration::ZERO, Ok(items), ended);
    }
    Ok(())
}
