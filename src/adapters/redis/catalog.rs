//! `QueueCatalog`: names of queues, their history, saved requests, the lease key.
//!
//! A commit compares and sets in one step. If its answer is lost it is sent once more, marked so. A change that is in
//! the history was committed.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::functions::RedisQueues;
use super::keys::{CATALOG, CHANGES, LEASE_KEY, REQUESTS};
use super::packed::{PackedBytes, PackedReader};
use super::store_calls::{text_of, texts_of, unreadable};
use super::stored_message::hash_of;
use super::wire::WireReply;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::catalog::{
    decode_change, decode_queue, decode_request, encode_change, encode_queue, encode_request,
};
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    Catalog, EffectOutcome, QueueCatalog, QueueChange, QueueRecord, QueueRequest, StoreError, StoreErrorKind,
};

/// The format of the entries that this release reads and writes.
const FORMAT: u8 = 1;
/// In place of the version that an entry must have: there must be none.
const NO_VERSION: f64 = -1.0;

const COMMIT: &str = "commit queue";

/// The catalog of the queues of a deployment.
pub struct RedisCatalog {
    store: Arc<RedisQueues>,
}

impl RedisCatalog {
    /// The catalog beside the shards.
    pub fn new(store: Arc<RedisQueues>) -> Self {
        Self { store }
    }

    /// Fails if the catalog is known to be lost.
    async fn refuse_loss(&self) -> Result<(), StoreError> {
        if !self.store.losses.had_catalog() {
            return Ok(());
        }
        match self.store.catalog_revision(COMMIT).await {
            Err(error) if error.kind == StoreErrorKind::Lost => Err(error),
            // A commit that meets the same trouble says what became of it.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn try_commit(&self, record: &QueueRecord, is_again: bool) -> Result<(), StoreError> {
        let change = &record.change;
        let expected = record.expected_version.map_or(NO_VERSION, |version| version as f64);
        let arguments = vec![
            change.name.as_str().as_bytes().to_vec(),
            PackedBytes::default().raw(&change.id.0.to_be_bytes()).double(expected).0,
            record.entry.as_ref().map(pack_entry).unwrap_or_default(),
            encode_change(change),
            name_digits(&change.name).into_bytes(),
            vec![if is_again { b'1' } else { b'0' }],
        ];
        let mut reply = self.store.call_store(("cat", COMMIT), arguments).await?;
        if reply.int()? == 1 {
            self.store.losses.note_catalog();
            return Ok(());
        }
        let (live, was_used) = (reply.bytes()?, reply.int()? == 1);
        let live = Some(live).filter(|live| !live.is_empty()).map(|live| read_entry(&live)).transpose();
        let live = live.map_err(|damaged| damaged.into_store_error(COMMIT))?;
        let why = record.check(live.as_ref(), |_| was_used).err().unwrap_or_else(|| "it has changed".to_owned());
        Err(StoreError::not_applied(StoreErrorKind::Conflict, COMMIT).with_source(why))
    }
}

/// The name of the key of a name's history ends with this.
fn name_digits(name: &QueueName) -> String {
    format!("{:032x}", u128::from_be_bytes(hash_of(name.as_str())))
}

/// The field of a saved request.
fn request_field(queue: QueueId, token: &str) -> Vec<u8> {
    format!("{queue} {token}").into_bytes()
}

/// An entry behind what the functions compare.
fn pack_entry(queue: &CatalogQueue) -> Vec<u8> {
    let packed = PackedBytes::default().byte(FORMAT).raw(&queue.id.0.to_be_bytes()).whole(queue.version);
    packed.raw(&encode_queue(queue)).0
}

fn read_entry(bytes: &Bytes) -> Result<CatalogQueue, CorruptValue> {
    let mut reader = PackedReader::new("entry of the catalog", bytes);
    let format = reader.byte()?;
    if format != FORMAT {
        return Err(reader.corrupt(format!("format {format}")));
    }
    let (_id, _version) = (reader.raw(16)?, reader.whole()?);
    decode_queue(reader.rest())
}

/// The queues of the catalog, by name.
pub(super) async fn load_entries(store: &RedisQueues) -> Result<Vec<CatalogQueue>, StoreError> {
    const LOAD: &str = "load queues";
    let entries = texts_of(store.on_store(("HVALS", LOAD), vec![name_of(CATALOG)]).await?, LOAD)?;
    let queues: Result<Vec<CatalogQueue>, CorruptValue> = entries.iter().map(read_entry).collect();
    let mut queues = queues.map_err(|damaged| damaged.into_store_error(LOAD))?;
    queues.sort_unstable_by(|one, other| one.spec.name.cmp(&other.spec.name));
    Ok(queues)
}

fn name_of(key: &str) -> Vec<u8> {
    key.as_bytes().to_vec()
}

#[async_trait]
impl Catalog<CatalogQueue> for RedisCatalog {
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        load_entries(&self.store).await
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        self.store.catalog_revision("read revision").await.map(Some)
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        if record.expected_version.is_none() && self.store.losses.misses_catalog() {
            // Servers that know of a catalog that is gone do not begin it again: they would forget it. Nothing is asked
            // unless the look of every second missed it, so that a commit is not held up.
            self.refuse_loss().await?;
        }
        let answered = match self.try_commit(&record, false).await {
            Err(error) if error.outcome == EffectOutcome::Unknown && error.kind == StoreErrorKind::Unavailable => {
                // Whatever is not known after this stays unknown: the first answer may be about another moment.
                let again = self.try_commit(&record, true).await;
                again.map_err(|again| if again.kind == StoreErrorKind::Conflict { again } else { error })
            }
            answered => answered,
        };
        match answered {
            // What a change begins with may be gone with the catalog.
            Err(error) if error.kind == StoreErrorKind::Conflict => self.refuse_loss().await.and(Err(error)),
            answered => answered,
        }
    }

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        const READ: &str = "read history";
        if limit == 0 {
            return Ok(Vec::new());
        }
        let key = format!("{CHANGES}{}", name_digits(name)).into_bytes();
        let last = skip.saturating_add(limit - 1).min(i64::MAX as usize);
        let range = vec![key, skip.to_string().into_bytes(), last.to_string().into_bytes()];
        let changes = texts_of(self.store.on_store(("LRANGE", READ), range).await?, READ)?;
        let changes: Result<Vec<QueueChange>, CorruptValue> = changes.iter().map(|one| decode_change(one)).collect();
        changes.map_err(|damaged| damaged.into_store_error(READ))
    }
}

#[async_trait]
impl QueueCatalog for RedisCatalog {
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        const SAVE: &str = "keep request";
        let times = PackedBytes::default().time(now).time(request.until).0;
        let arguments = vec![times, request_field(request.queue, &request.token), encode_request(&request)];
        match self.store.call_store(("req", SAVE), arguments).await?.int()? {
            0 => Err(StoreError::not_applied(StoreErrorKind::Busy, SAVE)),
            _ => Ok(()), // the library replies nothing else
        }
    }

    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError> {
        const READ: &str = "read request";
        let place = vec![name_of(REQUESTS), request_field(queue, token)];
        let Some(stored) = text_of(self.store.on_store(("HGET", READ), place).await?, READ)? else { return Ok(None) };
        decode_request(queue, token, &stored).map(Some).map_err(|damaged| damaged.into_store_error(READ))
    }

    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        const READ: &str = "read lease key";
        let set = vec![name_of(LEASE_KEY), made.0.to_vec()];
        match self.store.on_store(("SETNX", READ), set).await? {
            WireReply::Int(1) => return Ok(made),
            WireReply::Int(_) | WireReply::Nil | WireReply::Bytes(_) | WireReply::List(_) => {} // there is one
        }
        let stored = text_of(self.store.on_store(("GET", READ), vec![name_of(LEASE_KEY)]).await?, READ)?;
        let stored = stored.ok_or_else(|| unreadable("the lease key has gone", READ))?;
        let key = <[u8; 16]>::try_from(&*stored).map_err(|_| unreadable("the lease key has another length", READ))?;
        Ok(LeaseKey(key))
    }
}
