//! What messages that are over cost: memory, the start after a kill, and a look at one of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tallystone_client::proto::queue::v1::{GetMessageRequest, ListMessagesRequest, MessageState};

use super::messages::{Queues, client, create};
use super::steady::{Life, QUEUES, Taken, found, name};
use super::{begin, raw};
use crate::client::Connections;
use crate::load::{Span, closed};
use crate::report::Report;
use crate::target::{self, Target};

const WORKERS: usize = 16;
const SPAN: Span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(5) };
/// The messages that are looked at, one after the other.
const LOOKS: i32 = 1_000;

/// What came of it.
pub struct Outcome {
    /// The messages that are over.
    pub finished: u64,
    /// Resident memory of the server without messages and with them, in bytes.
    pub resident: [u64; 2],
    /// From the start of the process after the kill until `/readyz` says yes.
    pub ready_after: Duration,
    /// Resident memory after that start, in bytes.
    pub resident_after: u64,
    /// Looks at finished messages.
    pub looks: Report,
}

/// Works off so many messages in eight queues, kills, starts again, and checks that all of them are there.
pub async fn run(binary: &Path, data: &Path, count: u64) -> Result<Outcome> {
    let (server, connections) = begin(binary, data).await?;
    for number in 0..QUEUES {
        create(&connections, Queues::simple(&name(number))).await?;
    }
    let empty = target::usage(server.pid())?.resident;
    let mut finished = 0;
    while finished < count {
        let taken = Arc::new(Taken::default());
        let workers = (0..WORKERS).map(|worker| Life::new(&connections, worker, &taken)).collect();
        closed(workers, SPAN).await;
        (_, finished) = found(&connections).await?;
    }
    tokio::time::sleep(raw::REST).await; // what is flushed and compacted for the filling is not what a look costs
    let resident = target::usage(server.pid())?.resident;
    let looks = look(&connections).await?;
    drop(server); // kill -9
    let server = Target::server(binary, data)?;
    let (_, after) = found(&Connections::open(&server.url(), 1).await?).await?;
    ensure!(after == finished, "{after} of {finished} finished messages after the restart");
    let resident_after = target::usage(server.pid())?.resident;
    Ok(Outcome { finished, resident: [empty, resident], ready_after: server.ready_after, resident_after, looks })
}

async fn look(connections: &Connections) -> Result<Report> {
    let (mut client, queue) = (client(connections, 0), name(0));
    let state = MessageState::Completed.into();
    let list = ListMessagesRequest { queue: queue.clone(), state, page_size: LOOKS, ..ListMessagesRequest::default() };
    let listed = client.list_messages(list).await?.into_inner().messages;
    let mut report = Report::new();
    for message in listed {
        let request = GetMessageRequest { queue: queue.clone(), message_id: message.message_id, ..Default::default() };
        let began = Instant::now();
        client.get_message(request).await?.into_inner().message.context("a message")?;
        report.note(began.elapsed(), &Ok(1));
    }
    Ok(report)
}
