//! News of shards: what other servers do becomes known here within milliseconds, and at the latest with the next poll.
//!
//! The functions publish a shard's status where it matters to others (`lua/news.lua`). Dequeues that wait here are
//! woken a little later than those of the server that published, and in the order of the servers' ranks. News may be
//! lost: a shard is read again after its subscription came back, and every `REDIS_POLLED_EVERY` while a caller waits
//! for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::client::{NewsListener, RedisClient, Slot};
use super::functions::{CALLER_BYTES, RedisQueues};
use super::keys::prefix;
use super::limits::{
    REDIS_LOOKED_FOR_EVERY, REDIS_NEWS_LATE_MAX, REDIS_NEWS_STEP, REDIS_POLL_TICK, REDIS_POLLED_EVERY,
    REDIS_POLLS_AT_ONCE_MAX, REDIS_WANTED_AGAIN, REDIS_WANTED_FOR,
};
use super::membership::SeenMembers;
use super::packed::PackedReader;
use super::replies::read_status;
use super::wire::WireCommand;
use tallystone_adapters::codec::CorruptValue;
use tallystone_coalesce::DetachedTasks;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::name::ShardId;
use tallystone_ports::{Clock, QueueListener, ShardStatus, ShardStore as _, StoreErrorKind};

const POLL: &str = "read status of shard";
const STATUS: u8 = b's';
const CANCELS: u8 = b'c';
/// How many ticks dequeues wait although messages are ready, before all arrivals are asked for.
const LINGERED: u64 = 2;

/// Hears news of shards for the listeners of this process.
pub struct RedisNews {
    queues: Weak<RedisQueues>,
    client: Weak<RedisClient>,
    clock: Arc<dyn Clock>,
    members: Arc<SeenMembers>,
    own: [u8; CALLER_BYTES],
    tasks: DetachedTasks,
    polls: Semaphore,
    stop: CancellationToken,
    state: Mutex<NewsState>,
}

#[derive(Default)]
struct NewsState {
    shards: BTreeSet<ShardId>,
    channels: HashMap<Box<str>, ShardId>,
    /// The statuses that are reported a little later.
    held: HashMap<ShardId, ShardStatus>,
    /// Shards where dequeues wait although messages are ready, and for how many ticks.
    lingering: HashMap<ShardId, u64>,
    /// Shards that could not be read and are read again with the next tick.
    unread: BTreeSet<ShardId>,
}

/// The content of a message of a channel.
enum News {
    Status(Box<ShardStatus>),
    Cancels(Vec<MessageKey>),
}

fn channel_of(shard: ShardId) -> String {
    format!("{}n", prefix(shard))
}

fn read_news(shard: ShardId, kind: u8, bytes: &[u8]) -> Result<News, CorruptValue> {
    let mut reader = PackedReader::new("news of a shard", bytes);
    match kind {
        STATUS => Ok(News::Status(Box::new(read_status(bytes)?.view))),
        CANCELS => {
            let mut keys = Vec::new();
            while !reader.is_empty() {
                keys.push(MessageKey { shard: shard.number, epoch: reader.u32()?, sequence: reader.whole()? });
            }
            Ok(News::Cancels(keys))
        }
        other => Err(reader.corrupt(format!("kind {other}"))), // of a release that has other functions
    }
}

impl RedisNews {
    /// Begins to hear news for the listeners of the queues. `own` names this process; no other one has it.
    pub fn start(
        queues: &Arc<RedisQueues>,
        client: &Arc<RedisClient>,
        members: Arc<SeenMembers>,
        own: [u8; CALLER_BYTES],
    ) -> Arc<Self> {
        let news = Arc::new(Self {
            queues: Arc::downgrade(queues),
            client: Arc::downgrade(client),
            clock: Arc::clone(&queues.clock),
            members,
            own,
            tasks: DetachedTasks::default(),
            polls: Semaphore::new(REDIS_POLLS_AT_ONCE_MAX),
            stop: CancellationToken::new(),
            state: Mutex::default(),
        });
        queues.caller.get_or_init(|| own);
        queues.listen(Arc::clone(&news) as Arc<dyn QueueListener>);
        client.listen(Arc::new(NewsReceiver(Arc::clone(&news))));
        news.spawn(Self::watch);
        news
    }

    /// Ends its tasks.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.join().await;
    }

    /// Starts a task that ends with `close`.
    fn spawn<F: Future<Output = ()> + Send>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F + Send + 'static) {
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let stop = this.stop.clone();
            tokio::select! {
                () = task(this) => {}
                () = stop.cancelled() => {}
            }
        });
    }

    fn is_awaited(&self, shard: ShardId) -> bool {
        self.queues.upgrade().is_some_and(|queues| queues.is_awaited(shard))
    }

    /// Reads shards again whose news may have been lost.
    async fn watch(self: Arc<Self>) {
        for tick in 1.. {
            self.clock.sleep(REDIS_POLL_TICK).await;
            self.greet().await;
            let wanted = self.shards_with_unmet_filters();
            for shard in &wanted {
                self.want_arrivals(*shard).await;
            }
            let unread = std::mem::take(&mut self.state.lock().unread);
            let changed = self.changed(self.due(tick)).await;
            let due: BTreeSet<ShardId> = unread.into_iter().chain(wanted).chain(changed).collect();
            self.poll(due).await;
        }
    }

    /// The shards whose step differs from the one that was reported to the listeners. A plain read of the header is
    /// enough to know, which costs Redis a thirtieth of a call that reads the status.
    async fn changed(&self, shards: Vec<ShardId>) -> Vec<ShardId> {
        let Some(queues) = self.queues.upgrade() else { return Vec::new() };
        let looks = stream::iter(shards).map(|shard| {
            let queues = &queues;
            async move {
                // One that cannot be read is read again with its status, which says why.
                let is_as_told = queues.is_as_told(shard, POLL).await.unwrap_or(false);
                (!is_as_told).then_some(shard)
            }
        });
        let looked: Vec<_> = looks.buffer_unordered(REDIS_POLLS_AT_ONCE_MAX).collect().await;
        looked.into_iter().flatten().collect()
    }

    /// The shards that are read in a tick: all in turn, those with waiting dequeues more often.
    fn due(&self, tick: u64) -> Vec<ShardId> {
        let turns = |every: Duration| every.as_secs() / REDIS_POLL_TICK.as_secs();
        let (often, seldom) = (turns(REDIS_POLLED_EVERY), turns(REDIS_LOOKED_FOR_EVERY));
        let shards: Vec<ShardId> = self.state.lock().shards.iter().copied().collect();
        let is_due = |shard: &ShardId| {
            let place = SeenMembers::place_of(*shard);
            place % seldom == tick % seldom || (place % often == tick % often && self.is_awaited(*shard))
        };
        shards.into_iter().filter(is_due).collect()
    }

    /// The shards where dequeues have waited for a while although messages are ready: their filters want others.
    fn shards_with_unmet_filters(&self) -> Vec<ShardId> {
        let known: Vec<ShardId> = self.state.lock().lingering.keys().copied().collect();
        let (awaited, left): (Vec<_>, Vec<_>) = known.into_iter().partition(|shard| self.is_awaited(*shard));
        let mut state = self.state.lock();
        state.lingering.retain(|shard, _| !left.contains(shard));
        let again = REDIS_WANTED_AGAIN.as_secs() / REDIS_POLL_TICK.as_secs();
        let is_wanted = |shard: &ShardId| {
            let Some(ticks) = state.lingering.get_mut(shard) else { return false };
            *ticks += 1;
            *ticks % again == LINGERED
        };
        awaited.into_iter().filter(is_wanted).collect()
    }

    /// Lets every arrival in a shard be told for a while.
    async fn want_arrivals(&self, shard: ShardId) {
        let Some(queues) = self.queues.upgrade() else { return };
        let key = format!("{}j", prefix(shard)).into_bytes();
        let for_millis = REDIS_WANTED_FOR.as_millis().to_string().into_bytes();
        let arguments = vec![key.clone(), b"1".to_vec(), b"PX".to_vec(), for_millis];
        if let Err(error) = queues.ask(&key, WireCommand { name: "SET", arguments }, POLL).await {
            tracing::debug!(%error, "arrivals in a shard are not told; it is polled");
        }
    }

    /// Lets new listeners hear: one at whose server nobody calls a shard would hear nothing.
    async fn greet(&self) {
        if let Some(queues) = self.queues.upgrade()
            && let Err(error) = queues.greet().await
        {
            tracing::debug!(%error, "a listener could not be told what is there; it is told later");
        }
    }

    /// Reads the status of shards and tells it.
    async fn poll(&self, shards: impl IntoIterator<Item = ShardId> + Send) {
        self.greet().await;
        stream::iter(shards).for_each_concurrent(REDIS_POLLS_AT_ONCE_MAX, |shard| self.poll_one(shard)).await;
    }

    async fn poll_one(&self, shard: ShardId) {
        let _turn = self.polls.acquire().await.expect("the semaphore is never closed");
        let Some(queues) = self.queues.upgrade() else { return };
        match queues.header(shard, POLL).await {
            Ok((status, _)) => queues.notify(shard, status.view),
            Err(error) if error.kind == StoreErrorKind::Conflict => self.forget(shard),
            Err(error) => {
                tracing::debug!(%error, "the status of a shard cannot be read; it is read again in a moment");
                self.state.lock().unread.insert(shard);
            }
        }
    }

    /// Forgets a shard that is not there any more.
    fn forget(&self, shard: ShardId) {
        let channel = channel_of(shard);
        {
            let mut state = self.state.lock();
            state.shards.remove(&shard);
            state.channels.remove(channel.as_str());
            state.lingering.remove(&shard);
            state.unread.remove(&shard);
        }
        if let Some(client) = self.client.upgrade() {
            client.unsubscribe(&channel);
        }
    }

    /// Reports a status of another server. If dequeues wait here, the server that published it goes first, and then
    /// each in its turn.
    fn heard(self: &Arc<Self>, shard: ShardId, view: ShardStatus) {
        let Some(queues) = self.queues.upgrade() else { return };
        if view.ready() == 0 || !queues.is_awaited(shard) {
            return queues.notify(shard, view);
        }
        let is_first = {
            let mut state = self.state.lock();
            let held = state.held.insert(shard, view);
            if let Some(held) = held.filter(|held| held.step > view.step) {
                state.held.insert(shard, held);
            }
            held.is_none()
        };
        if is_first {
            let late = (REDIS_NEWS_STEP * (1 + self.members.rank_for(shard))).min(REDIS_NEWS_LATE_MAX);
            self.spawn(move |this| async move {
                this.clock.sleep(late).await;
                let held = this.state.lock().held.remove(&shard);
                if let (Some(view), Some(queues)) = (held, this.queues.upgrade()) {
                    queues.notify(shard, view);
                }
            });
        }
    }
}

impl QueueListener for RedisNews {
    /// Subscribes to the shards that this process has to do with.
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        let (is_new, lingers) = {
            let mut state = self.state.lock();
            if view.ready() == 0 {
                state.lingering.remove(&shard);
            }
            (state.shards.insert(shard), state.lingering.contains_key(&shard))
        };
        if is_new {
            let channel = channel_of(shard);
            self.state.lock().channels.insert(channel.as_str().into(), shard);
            if let Some(client) = self.client.upgrade() {
                client.subscribe(Slot::of(channel.as_bytes()), &channel);
            }
        }
        if view.ready() > 0 && !lingers && self.is_awaited(shard) {
            self.state.lock().lingering.insert(shard, 0);
        }
    }
}

/// Receives what the client hears, with a handle that its tasks can keep.
struct NewsReceiver(Arc<RedisNews>);

impl NewsListener for NewsReceiver {
    fn news(&self, channel: &str, payload: Bytes) {
        let Self(news) = self;
        let Some((caller, rest)) = payload.split_at_checked(CALLER_BYTES) else { return };
        let shard = news.state.lock().channels.get(channel).copied();
        let (Some(shard), Some((kind, bytes))) = (shard, rest.split_first()) else { return };
        if caller == news.own {
            return; // told with the answer
        }
        match read_news(shard, *kind, bytes) {
            Ok(News::Status(view)) => news.heard(shard, *view),
            Ok(News::Cancels(keys)) => {
                let queues = news.queues.upgrade();
                queues.iter().for_each(|queues| queues.notify_cancels(shard, &keys));
            }
            // A server of another release may say more.
            Err(fault) => tracing::debug!(%fault, "news of a shard cannot be read"),
        }
    }

    /// The shards are read as soon as the subscriptions hold again.
    fn lost(&self, _channels: &[String]) {}

    fn subscribed(&self, channels: &[String]) {
        let shards: Vec<ShardId> = {
            let state = self.0.state.lock();
            channels.iter().filter_map(|channel| state.channels.get(channel.as_str()).copied()).collect()
        };
        self.0.spawn(move |news| async move { news.poll(shards).await });
    }
}
