//! Looks for primaries while calls go on. A primary that another one has replaced may go on answering for many seconds,
//! and what it takes then is lost.
//!
//! Each Sentinel is asked every `REDIS_PRIMARY_ASKED_EVERY`, and at once when it publishes that a failover ended. A
//! cluster is asked as often for the owner of each slot. Whether a primary still is one is asked where its
//! subscriptions are (`subscriptions`).

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client::command::RedisCommand;
use crate::client::connection::{Push, PushReceiver, RedisConnection};
use crate::client::deadline::Deadline;
use crate::client::directory::Directory;
use crate::client::failure::judge;
use crate::client::sentinels;
use crate::limits::{REDIS_LOOK_UP_WITHIN, REDIS_PRIMARY_ASKED_EVERY};
use tallystone_coalesce::DetachedTasks;
use tallystone_ports::Clock;

/// The channels on which a Sentinel publishes that it begins to name another primary: the channel of the one that led
/// the failover, and that of each other one that hears of it.
const CHANNELS: [&str; 2] = ["+failover-state-reconf-slaves", "+switch-master"];

/// The watch. It ends when it is closed or dropped.
pub(super) struct PrimaryWatch {
    stop: CancellationToken,
    tasks: DetachedTasks,
}

impl PrimaryWatch {
    pub(super) fn start(directory: &Arc<Directory>, clock: &Arc<dyn Clock>) -> Self {
        let watch = Self { stop: CancellationToken::new(), tasks: DetachedTasks::default() };
        for sentinel in 0..directory.sentinels() {
            let (directory, clock) = (Arc::clone(directory), Arc::clone(clock));
            watch.spawn(async move { follow(&directory, sentinel, &clock).await });
        }
        if directory.is_cluster() {
            let (directory, clock) = (Arc::clone(directory), Arc::clone(clock));
            watch.spawn(async move {
                loop {
                    clock.sleep(REDIS_PRIMARY_ASKED_EVERY).await;
                    // What fails is asked again in a second, of other nodes.
                    let _ = directory.look_up(directory.lookups()).await;
                }
            });
        }
        watch
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.tasks.join().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }
}

/// Follows what a Sentinel says, on a connection of its own.
async fn follow(directory: &Directory, sentinel: usize, clock: &Arc<dyn Clock>) {
    loop {
        let spoke = Arc::new(Notify::new());
        let receiver = receiver(directory.primary_name(), &spoke);
        // A Sentinel that is not there is one of several; calls that find none of them say so.
        if let Ok(connection) =
            RedisConnection::connect(directory.sentinel_endpoint(sentinel), Some(receiver), clock).await
        {
            keep(directory, sentinel, &connection, &spoke, clock).await;
        }
        clock.sleep(REDIS_PRIMARY_ASKED_EVERY).await;
    }
}

/// Is told when a Sentinel publishes something about this primary: it may watch others too.
fn receiver(primary: &str, spoke: &Arc<Notify>) -> PushReceiver {
    let (primary, spoke) = (primary.to_owned(), Arc::clone(spoke));
    Arc::new(move |push| match push {
        Push::News { payload, .. } => {
            if payload.split(|byte| *byte == b' ').any(|word| word == primary.as_bytes()) {
                spoke.notify_one();
            }
        }
        Push::Ended => spoke.notify_one(),
        Push::Entered { .. } | Push::Left { .. } => {}
    })
}

/// Asks until the connection is lost. A user who may not subscribe hears of a failover with the next question.
async fn keep(
    directory: &Directory,
    sentinel: usize,
    connection: &RedisConnection,
    spoke: &Notify,
    clock: &Arc<dyn Clock>,
) {
    let subscribe = CHANNELS.map(|channel| RedisCommand::new("SUBSCRIBE").arg(channel));
    let (primary, address) = (directory.primary_name(), &directory.sentinel_endpoint(sentinel).address);
    let mut commands = [subscribe.to_vec(), sentinels::questions(primary)].concat();
    let mut skipped = CHANNELS.len();
    while !connection.is_broken() {
        let deadline = Deadline::after(REDIS_LOOK_UP_WITHIN, clock);
        let Some(Ok(answers)) = deadline.meet(connection.send(&commands)).await else { return };
        let answers = answers.into_iter().skip(skipped).map(|answer| answer.map_err(|text| judge(address, &text).0));
        // A Sentinel that does not know the primary has nothing to say, until somebody tells it.
        if let Ok(word) = sentinels::read(answers.collect(), address, primary) {
            directory.hear(sentinel, word);
        }
        (commands, skipped) = (sentinels::questions(primary), 0);
        tokio::select! {
            () = spoke.notified() => {}
            () = clock.sleep(REDIS_PRIMARY_ASKED_EVERY) => {}
        }
    }
}
