//! The settings of a shard as this process knows them, and what a call says of them.
//!
//! A call names the version of the settings that it was made with. The library refuses an older one as stale; then they
//! are read again.

use std::time::Duration;

use super::epoch::ServerLife;
use super::packed::{PackedBytes, PackedReader};
use super::requests::CONFIGURE;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::settings::encode_settings;
use tallystone_domain::limits::DEDUPE_RECORD_BYTES;
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::setup::settings::{HistoryKept, IdReuse};
use tallystone_domain::queue::{Settings, ShardSettings};
use tallystone_domain::time::Timestamp;

/// The settings of one shard, under their version.
#[derive(Clone, Debug)]
pub struct VersionedSettings {
    pub version: u64,
    /// The epoch of the shard when they were read.
    pub epoch: u32,
    pub settings: Settings,
    /// The number of the set of counted keys, 0 for none.
    pub key_set: u64,
}

/// The new settings in the form that the functions take.
pub struct PackedSettings {
    pub version: u64,
    /// A bit for each block: 1 of enqueues, 2 of dequeues.
    pub blocks: u8,
    /// The settings as they are stored, the names of the counted keys, the reasons of the two blocks, the shapes.
    pub parts: [Vec<u8>; 5],
}

impl PackedSettings {
    /// Packs settings.
    pub fn of(new: &ShardSettings) -> Self {
        let ShardSettings { version, settings, enqueue_blocked, dequeue_blocked } = new;
        let blocks = u8::from(enqueue_blocked.is_some()) | u8::from(dequeue_blocked.is_some()) << 1;
        let reason = |reason: &Option<Box<str>>| reason.as_deref().unwrap_or_default().as_bytes().to_vec();
        let stored = encode_settings(settings, *version);
        let parts = [
            stored,
            pack_counted_keys(settings),
            reason(enqueue_blocked),
            reason(dequeue_blocked),
            pack_shapes(settings),
        ];
        Self { version: *version, blocks, parts }
    }
}

/// The most messages of a value in flight; 0 in a simple queue.
fn in_flight_of(settings: &Settings) -> u32 {
    settings.exclusivity.as_ref().map_or(0, |rule| rule.max_in_flight_per_value)
}

/// The request of new settings: what they change, and the limit of values. `invalid` says that they are out of range.
pub fn change_request(blocks: u8, invalid: bool, [old, new]: [&Settings; 2]) -> Vec<u8> {
    let fixed = |of: &Settings| of.exclusivity.as_ref().map(|rule| (rule.key.clone(), rule.strict_order_per_value));
    let changes_kind = fixed(old) != fixed(new);
    let raises_limit = !changes_kind && in_flight_of(new) > in_flight_of(old);
    let shortens = new.retention.is_shorter_than(&old.retention);
    let what = u8::from(changes_kind) | u8::from(raises_limit) << 1 | u8::from(shortens) << 3;
    let packed = PackedBytes::default().byte(CONFIGURE).byte(blocks).byte(u8::from(invalid)).byte(what);
    packed.whole(in_flight_of(new).into()).0
}

/// The data on the caller that a call carries.
#[derive(Clone, Copy, Debug)]
pub struct CallerView {
    /// The caller's time for shards, which follows elapsed time.
    pub now: Timestamp,
    /// The caller's wall time, by which tokens are judged too.
    pub wall: Timestamp,
    /// How far its clock may be behind that of the store before the earlier of the two counts.
    pub slack: Duration,
    /// The highest epoch that it knows.
    pub epoch: u32,
    pub outbox_entries: u64,
    /// How long the shard rests after it lost work; zero for never.
    pub rest: Duration,
    /// The newest step of the shard that it has seen.
    pub seen: u64,
    /// The life of the server for which it raised its epoch when that served this shard.
    pub life: ServerLife,
}

impl VersionedSettings {
    /// The first two arguments of a call: versions and time, then the numbers of the settings.
    pub fn arguments(&self, by: CallerView) -> [Vec<u8>; 2] {
        let versions = PackedBytes::default().whole(self.version).whole(u64::from(by.epoch.max(self.epoch)));
        let versions = versions.time(by.now).duration(by.slack).whole(by.outbox_entries).time(by.wall);
        let versions = versions.duration(by.rest).whole(by.seen).raw(&by.life);
        let own = &self.settings;
        let history = match own.history {
            HistoryKept::All => 1,
            HistoryKept::Nothing => 0,
        };
        let kept = own.retention;
        let numbers = PackedBytes::default().duration(own.max_run_time).duration(own.default_lease);
        let numbers = numbers.duration(kept.completed).duration(kept.canceled).duration(kept.errored);
        let numbers = numbers.duration(own.dedupe_window).whole((own.dedupe_max_bytes / DEDUPE_RECORD_BYTES) as u64);
        let numbers = numbers.whole(own.quota_messages).whole(own.quota_bytes).whole(history);
        let numbers = numbers.whole(u64::from(own.count_by_values_max)).whole(self.key_set);
        let is_strict = own.exclusivity.as_ref().is_some_and(|rule| rule.strict_order_per_value);
        let reuses_ids = own.reuse_ids == IdReuse::WhenOver;
        let numbers = numbers.whole(in_flight_of(own).into()).whole(is_strict.into()).whole(reuses_ids.into());
        [versions.0, numbers.0]
    }
}

/// The filter shapes, as the library takes them.
fn pack_shapes(settings: &Settings) -> Vec<u8> {
    let pack = |packed: PackedBytes, shape: &ShapeKeys| {
        let count = u8::try_from(shape.iter().count()).expect("a shape has few keys");
        shape.iter().fold(packed.byte(count), PackedBytes::text)
    };
    settings.shapes.iter().fold(PackedBytes::default(), pack).0
}

/// A shape as a shard stores it.
pub struct StoredShape {
    pub keys: ShapeKeys,
    /// Whether it has every message.
    pub is_complete: bool,
}

/// Reads the shapes of a shard, in the order of the settings.
pub fn read_shapes(bytes: &[u8]) -> Result<Vec<StoredShape>, CorruptValue> {
    let mut reader = PackedReader::new("filter shapes of a shard", bytes);
    let mut shapes = Vec::new();
    while !reader.is_empty() {
        let (_number, filled_through) = (reader.whole()?, reader.signed()?);
        let count = reader.byte()?;
        let keys = (0..count).map(|_| reader.text()).collect::<Result<Vec<_>, CorruptValue>>()?;
        let keys = ShapeKeys::new(keys).map_err(|_| reader.corrupt("illegal keys"))?;
        shapes.push(StoredShape { keys, is_complete: filled_through < 0 });
    }
    Ok(shapes)
}

/// The names of counted keys, as the library takes them.
fn pack_counted_keys(settings: &Settings) -> Vec<u8> {
    settings.count_by.iter().fold(PackedBytes::default(), |packed, key| packed.text(key)).0
}
