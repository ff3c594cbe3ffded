//! Subscriptions to channels: one connection to each node that serves channels, checked every `REDIS_PING_EVERY`.
//!
//! On a cluster a channel belongs to a slot and moves with it. A lost subscription is reported to the listener once,
//! and so is its return: whatever was published in between is missed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::client::command::RedisCommand;
use crate::client::connection::{Push, PushReceiver, RedisConnection};
use crate::client::connection_slot::Outage;
use crate::client::deadline::Deadline;
use crate::client::directory::Directory;
use crate::client::health::Role;
use crate::client::slot::Slot;
use crate::limits::{REDIS_CHANNELS_A_REQUEST_MAX, REDIS_CHANNELS_MAX, REDIS_PING_EVERY, REDIS_PING_WITHIN};
use tallystone_coalesce::DetachedTasks;
use tallystone_ports::Clock;

/// Is told of news. Called from tasks of the client; must not block.
pub trait NewsListener: Send + Sync + 'static {
    /// Something was published in a channel.
    fn news(&self, channel: &str, payload: Bytes);

    /// These subscriptions were lost. Told once; what is published until `subscribed` is missed.
    fn lost(&self, channels: &[String]);

    /// These subscriptions hold, for the first time or again.
    fn subscribed(&self, channels: &[String]);
}

/// The subscriptions of a client.
pub(super) struct Subscriptions {
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    tasks: Arc<DetachedTasks>,
    listener: OnceLock<Arc<dyn NewsListener>>,
    wanted: Mutex<Wanted>,
    changes: watch::Sender<u64>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Wanted {
    channels: HashMap<Arc<str>, Slot>,
    /// Whether the task runs that starts a follower for each node.
    is_watched: bool,
    /// The nodes that have a follower.
    followed: HashSet<Arc<str>>,
}

/// The channels that one connection is subscribed to, by what the server confirms. It also ends subscriptions by
/// itself, and then its confirmations and our requests do not match by number.
#[derive(Default)]
struct Held {
    state: Mutex<HeldState>,
    changed: Notify,
}

#[derive(Default)]
struct HeldState {
    channels: HashSet<Arc<str>>,
    /// The channels whose subscription is not reported to the listener yet.
    untold: Vec<String>,
    /// The channels that are being left on purpose.
    leaving: HashSet<Arc<str>>,
}

impl Subscriptions {
    pub(super) fn new(directory: Arc<Directory>, clock: Arc<dyn Clock>, tasks: Arc<DetachedTasks>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            clock,
            tasks,
            listener: OnceLock::new(),
            wanted: Mutex::default(),
            changes: watch::Sender::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn listen(&self, listener: Arc<dyn NewsListener>) {
        // The first one stays.
        let _ = self.listener.set(listener);
    }

    pub(super) fn subscribe(self: &Arc<Self>, slot: Slot, channel: &str) {
        let is_first = {
            let mut wanted = self.wanted.lock();
            if wanted.channels.len() >= REDIS_CHANNELS_MAX && !wanted.channels.contains_key(channel) {
                drop(wanted);
                return self.tell(|listener| listener.lost(&[channel.to_owned()]));
            }
            wanted.channels.insert(Arc::from(channel), slot);
            !std::mem::replace(&mut wanted.is_watched, true)
        };
        self.changes.send_modify(|changes| *changes += 1);
        if is_first {
            let this = Arc::clone(self);
            self.tasks.spawn(async move { this.watch().await });
        }
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        if self.wanted.lock().channels.remove(channel).is_some() {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn tell(&self, of: impl FnOnce(&dyn NewsListener)) {
        if let Some(listener) = self.listener.get() {
            of(&**listener);
        }
    }

    /// Starts a follower for each node that serves a wanted channel.
    async fn watch(self: Arc<Self>) {
        let (mut wanted, mut moved) = (self.changes.subscribe(), self.directory.changes());
        while !self.is_closed() {
            wanted.mark_unchanged();
            moved.mark_unchanged();
            for address in self.unfollowed() {
                let this = Arc::clone(&self);
                self.tasks.spawn(async move { this.follow(address).await });
            }
            tokio::select! {
                changed = wanted.changed() => changed.expect("its sender is held here"),
                changed = moved.changed() => changed.expect("its sender is held here"),
            }
        }
    }

    /// The nodes that get their follower now.
    fn unfollowed(&self) -> Vec<Arc<str>> {
        let mut wanted = self.wanted.lock();
        let owners: HashSet<Arc<str>> =
            wanted.channels.values().filter_map(|slot| self.directory.owner(*slot)).collect();
        owners.into_iter().filter(|owner| wanted.followed.insert(Arc::clone(owner))).collect()
    }

    /// The wanted channels that a node serves.
    fn wanted_of(&self, address: &Arc<str>) -> HashSet<Arc<str>> {
        let wanted = self.wanted.lock();
        let mine = wanted.channels.iter().filter(|(_, slot)| self.directory.owner(**slot).as_ref() == Some(address));
        mine.map(|(channel, _)| Arc::clone(channel)).collect()
    }

    /// Keeps the subscriptions of a node until it has none.
    async fn follow(self: Arc<Self>, address: Arc<str>) {
        let outage = Outage::default();
        let mut changed = self.changes.subscribe();
        loop {
            changed.mark_unchanged();
            if self.is_closed() || self.wanted_of(&address).is_empty() {
                self.wanted.lock().followed.remove(&address);
                // A channel that came in between finds nobody: whoever looks next starts another follower.
                if self.is_closed() || self.wanted_of(&address).is_empty() {
                    return;
                }
                return self.changes.send_modify(|changes| *changes += 1);
            }
            let held = Arc::new(Held::default());
            let (seen, receiver) = (self.directory.lookups(), self.receiver(&held));
            match RedisConnection::connect(&self.directory.endpoint(&address), Some(receiver), &self.clock).await {
                Ok(connection) => {
                    outage.end();
                    self.keep(&address, &connection, &held).await;
                    drop(connection);
                    self.give_up(&held);
                }
                Err(failure) => outage.record_failure(self.clock.elapsed(), &failure),
            }
            // Whatever ended it, the channels may be elsewhere. A look-up that fails is made again after the next
            // failure.
            let _ = self.directory.look_up(seen).await;
            let pause = outage.pause_left(self.clock.elapsed());
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                _ = changed.changed() => {}
            }
        }
    }

    /// Receives what a connection pushes.
    fn receiver(self: &Arc<Self>, held: &Arc<Held>) -> PushReceiver {
        let (this, held) = (Arc::clone(self), Arc::clone(held));
        Arc::new(move |push| match push {
            Push::News { channel, payload } => this.tell(|listener| listener.news(&channel, payload)),
            Push::Entered { channel } => {
                let mut state = held.state.lock();
                if state.channels.insert(Arc::from(channel.as_str())) {
                    state.untold.push(channel);
                }
            }
            Push::Left { channel } => {
                let was_held = {
                    let mut state = held.state.lock();
                    state.channels.remove(channel.as_str()) && !state.leaving.remove(channel.as_str())
                };
                // The node gave the slot away.
                if was_held {
                    this.tell(|listener| listener.lost(&[channel]));
                    held.changed.notify_one();
                }
            }
            Push::Ended => held.changed.notify_one(),
        })
    }

    /// Tells of everything that a connection held.
    fn give_up(&self, held: &Held) {
        let lost: Vec<String> = held.state.lock().channels.drain().map(|channel| channel.to_string()).collect();
        if !lost.is_empty() {
            self.tell(|listener| listener.lost(&lost));
        }
    }

    /// Subscribes and checks until the connection is lost, or nothing is wanted of it.
    async fn keep(&self, address: &Arc<str>, connection: &RedisConnection, held: &Held) {
        let (mut wanted, mut moved) = (self.changes.subscribe(), self.directory.changes());
        let mut check_at = self.clock.elapsed() + REDIS_PING_EVERY;
        loop {
            wanted.mark_unchanged();
            moved.mark_unchanged();
            let mine = self.wanted_of(address);
            if self.is_closed() || mine.is_empty() || self.bring_up_to_date(connection, held, mine).await.is_none() {
                return;
            }
            let due = check_at.saturating_sub(self.clock.elapsed());
            if due.is_zero() {
                match self.role(connection).await {
                    Some(Role::Primary) => {}
                    Some(Role::Replica) => return self.directory.leave(address),
                    None => return,
                }
                check_at = self.clock.elapsed() + REDIS_PING_EVERY;
            }
            tokio::select! {
                _ = wanted.changed() => {}
                _ = moved.changed() => {}
                () = held.changed.notified() => {}
                () = self.clock.sleep(due) => {}
            }
            if connection.is_broken() {
                return;
            }
        }
    }

    /// Subscribes to what is missing and leaves what is not wanted. None if the connection is lost.
    async fn bring_up_to_date(&self, connection: &RedisConnection, held: &Held, mine: HashSet<Arc<str>>) -> Option<()> {
        let (missing, surplus) = {
            let mut state = held.state.lock();
            let missing: Vec<Arc<str>> = mine.difference(&state.channels).cloned().collect();
            let surplus: Vec<Arc<str>> = state.channels.difference(&mine).cloned().collect();
            state.leaving = surplus.iter().cloned().collect();
            (missing, surplus)
        };
        let (enter, leave) =
            if self.directory.is_cluster() { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
        for some in surplus.chunks(REDIS_CHANNELS_A_REQUEST_MAX) {
            self.each(connection, leave, some).await?;
        }
        let seen = self.directory.lookups();
        let mut is_refused = false;
        for some in missing.chunks(REDIS_CHANNELS_A_REQUEST_MAX) {
            self.each(connection, enter, some).await?;
            let (entered, refused) = {
                let mut state = held.state.lock();
                let refused = some.iter().any(|channel| !state.channels.contains(channel));
                (std::mem::take(&mut state.untold), refused)
            };
            is_refused |= refused;
            if !entered.is_empty() {
                self.tell(|listener| listener.subscribed(&entered));
            }
        }
        if is_refused {
            // Some slots are elsewhere. What does not hold is tried again with the next check.
            let _ = self.directory.look_up(seen).await;
        }
        Some(())
    }

    /// One command for each channel, because channels of one command must have one slot.
    async fn each(&self, connection: &RedisConnection, verb: &'static str, some: &[Arc<str>]) -> Option<()> {
        let commands: Vec<RedisCommand> =
            some.iter().map(|channel| RedisCommand::new(verb).arg(channel.as_bytes())).collect();
        let deadline = Deadline::after(REDIS_PING_WITHIN, &self.clock);
        deadline.meet(connection.send(&commands)).await?.ok().map(drop)
    }

    /// The role that the node answers in time: one that was demoted publishes too late, or nothing.
    async fn role(&self, connection: &RedisConnection) -> Option<Role> {
        let deadline = Deadline::after(REDIS_PING_WITHIN, &self.clock);
        let answers = deadline.meet(connection.send(&[RedisCommand::new("ROLE")])).await?.ok()?;
        let role = answers.into_iter().next().and_then(Result::ok).and_then(|role| role.into_list().ok());
        let role = role.and_then(|parts| parts.into_iter().next()?.into_text().ok());
        // A user who may not ask for the role is answered all the same: the node is alive.
        Some(if role.is_none_or(|role| role == "master") { Role::Primary } else { Role::Replica })
    }
}
