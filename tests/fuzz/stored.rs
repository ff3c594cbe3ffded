//! What stands in a store: values by their kind, keys by their space. Decoding answers an error and never holds more than
//! what it reads is worth; what it takes is written and read again as the same.

use std::fmt::Debug;

use tallystone::adapters::codec::{self, CorruptValue, catalog, count, queues};
use tallystone::adapters::embedded::disk::{key, meta};
use tallystone::adapters::embedded::queue_key::{self, PageTag};
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, CounterName, DatasetId, EventId, EventKey, NamespaceId};
use tallystone::domain::queue::index::stubs::Stub;
use tallystone::domain::queue::messages::id_hash::IdHash;
use tallystone::domain::queue::messages::message::{RoutingValue, SessionId};
use tallystone::domain::queue::transition::RowPosition;
use tallystone::domain::queue::{QueueId, ShardId};

use super::allocated::bounded;
use super::descriptors::{self, Care, POOL, Words};
use super::driver::{Rng, Run, folder, joined, split};
use super::mutate;

/// A list of small messages may hold so many bytes for each of its own.
const HELD_PER_BYTE: usize = 600;

/// Reads a value, and holds what was read against its own encoding.
fn read<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, CorruptValue>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> String {
    match bounded(bytes, HELD_PER_BYTE, || decode(bytes)) {
        Ok(value) => {
            // Foreign numbers may lie beyond a range of ours and come back at its end.
            let again = decode(&encode(&value)).expect("what was read is written in a form that is read");
            assert_eq!(decode(&encode(&again)).as_ref(), Ok(&again), "what is in range stays as it is");
            format!("ok {}", bytes.len().checked_ilog2().map_or(0, |log| log / 3))
        }
        Err(damaged) => {
            let text = damaged.to_string();
            let plain = text.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
            plain.chars().take(60).collect()
        }
    }
}

/// Reads the value of a kind, which is the name of its message; none where no such value is stored by itself.
fn read_value(kind: &str, bytes: &[u8]) -> Option<String> {
    Some(match kind {
        "StoredEvent" => read(bytes, codec::decode_event, |(change, from)| codec::encode_event(*change, from)),
        "StoredCheckpoint" => read(bytes, codec::decode_checkpoint, codec::encode_checkpoint),
        "StoredBucket" => read(bytes, codec::decode_bucket, codec::encode_bucket),
        "StoredStep" => read(bytes, codec::decode_step, codec::encode_step),
        "StoredPair" => read(bytes, codec::decode_key, codec::encode_key),
        "StoredTimeSlice" => read(bytes, codec::decode_slice, codec::encode_slice),
        "StoredBeat" => read(bytes, codec::decode_beat, codec::encode_beat),
        "StoredSealed" => read(bytes, codec::decode_sealed, codec::encode_sealed),
        "StoredCount" => read(bytes, count::decode_count, count::encode_count),
        "StoredDataset" => read(bytes, catalog::decode_dataset, catalog::encode_dataset),
        "StoredNamespace" => read(bytes, catalog::decode_namespace, catalog::encode_namespace),
        "StoredNamespaceSpec" => read(bytes, catalog::decode_spec, catalog::encode_spec),
        "StoredNamespaceChange" => read(bytes, catalog::decode_change, catalog::encode_change),
        "StoredQueueHeader" => {
            read(bytes, |bytes| queues::settings::decode_header(7, bytes), queues::settings::encode_header)
        }
        "StoredQueueSettings" => read(bytes, queues::settings::decode_settings, |(settings, version)| {
            queues::settings::encode_settings(settings, *version)
        }),
        "StoredQueueShards" => read(bytes, queues::settings::decode_queue, |row| queues::settings::encode_queue(*row)),
        "StoredSession" => read(bytes, queues::session::decode_session, queues::session::encode_session),
        "StoredQueueMessage" => read(bytes, |bytes| queues::decode_message(7, 9, bytes), queues::encode_message),
        "StoredQueueBody" => read(bytes, queues::decode_body, queues::encode_body),
        "StoredQueueAnswer" => {
            let token = (IdHash(7), Timestamp::from_secs(9));
            read(bytes, |bytes| queues::decode_answer(7, token, bytes), queues::encode_answer)
        }
        "StoredStubPage" => {
            let decode = |bytes: &[u8]| queues::stubs::decode_stub_page(7, 9, bytes);
            read(bytes, decode, |stubs: &Vec<Stub>| queues::stubs::encode_stub_page(stubs))
        }
        "StoredTransitions" => {
            read(bytes, |bytes| queues::history::decode_rows(7, bytes), |rows| queues::history::encode_rows(rows))
        }
        "StoredQueue" => read(bytes, queues::catalog::decode_queue, queues::catalog::encode_queue),
        "StoredQueueChange" => read(bytes, queues::catalog::decode_change, queues::catalog::encode_change),
        "StoredQueueRequest" => {
            let decode = |bytes: &[u8]| queues::catalog::decode_request(QueueId(7), "token", bytes);
            read(bytes, decode, queues::catalog::encode_request)
        }
        // Parts of the others, and words that a change has made.
        _ => return None,
    })
}

#[test]
fn any_stored_value_is_read_or_called_damaged() {
    let kinds: Vec<_> = POOL
        .all_messages()
        .filter(|message| {
            message.package_name() == "tallystone.internal.v1" && read_value(message.name(), b"").is_some()
        })
        .collect();
    assert_eq!(kinds.len(), 25, "every kind of value has a reader");
    let words = Words::default()
        .with("name", &["views", "hello", "shop"])
        .with("counter_type", &["EVENTUAL"])
        .with("step_name", &["hour"]);
    let make = |rng: &mut Rng, pool: &[Vec<u8>]| {
        if rng.one_in(3) {
            let (kind, bytes) = split(rng.pick::<Vec<u8>>(pool));
            let mut changed = bytes.to_vec();
            mutate::change(rng, &mut changed, pool, &[]);
            return joined(kind, &changed);
        }
        let kind = rng.pick(&kinds);
        let care = if rng.one_in(2) { Care::Typed } else { Care::Wild };
        joined(kind.name(), &descriptors::message(rng, kind, &words, care))
    };
    Run::of("stored_values", 20_000).judge(make, |input| {
        let (kind, bytes) = split(input);
        format!("{kind} {}", read_value(kind, bytes).unwrap_or_default())
    });
}

/// Reads a key of a space and holds it against its own writing.
fn read_key(space: &str, bytes: &[u8]) -> bool {
    let same = |written: &[u8]| assert_eq!(written, bytes, "a key of {space} has one form");
    match space {
        "counter" => key::to_counter(bytes).map(|counter| same(&key::of_counter(&counter))),
        "event" => key::to_event(bytes).map(|(counter, event)| {
            assert_eq!(key::to_event_of(&counter, bytes), Some(event.clone()));
            same(&key::of_event(&counter, &event));
        }),
        "touch" => key::to_touch(bytes).map(|touch| {
            // The shard of a recheck need not be that of its counter.
            same(&[&bytes[..1], &key::of_touch(&touch.counter, touch.step)[1..]].concat());
        }),
        "frontier" => meta::to_frontier(bytes).map(|dataset| same_but_tag(&meta::frontier(dataset), bytes)),
        "watermark" => meta::to_watermark(bytes)
            .filter(|(_, shard)| *shard < 64)
            .map(|(dataset, shard)| same_but_tag(&meta::watermark(dataset, shard), bytes)),
        "forgotten" => meta::to_forgotten(bytes).map(|namespace| same_but_tag(&meta::forgotten(namespace), bytes)),
        "time" => meta::to_time(bytes).map(|time| same(&meta::slice(DatasetId(0), time)[5..])),
        "queue" => queue_key::to_queue(bytes).map(|queue| same_but_tag(&queue_key::of_queue(queue), bytes)),
        "tagged" => queue_key::to_shard(bytes).map(|shard| same_but_tag(&queue_key::of_header(shard), bytes)),
        "value_limit" => queue_key::to_value_limit(bytes)
            .map(|(shard, value)| same_but_tag(&queue_key::of_value_limit(shard, &value), bytes)),
        "session" => queue_key::to_session(bytes)
            .map(|(shard, session)| same_but_tag(&queue_key::of_session(shard, session), bytes)),
        "place" => queue_key::to_message(bytes).map(|(shard, sequence)| same(&queue_key::of_message(shard, sequence))),
        "answer" => queue_key::to_answer(bytes).map(|(shard, id, time)| same(&queue_key::of_answer(shard, id, time))),
        "over" => queue_key::to_over(bytes).map(|(shard, sequence)| same(&queue_key::of_over(shard, sequence))),
        "page" => queue_key::to_page(bytes)
            .map(|(shard, page)| same_but_tag(&queue_key::of_page(PageTag::Stubs, shard, page), bytes)),
        "outbox" => {
            queue_key::to_outbox(bytes).map(|(shard, last, first)| same(&queue_key::of_outbox(shard, last, first)))
        }
        // Words that a change has made.
        _ => None,
    }
    .is_some()
}

/// The tag before a key says which space it is of; readers are asked for those of their tag only.
fn same_but_tag(written: &[u8], bytes: &[u8]) {
    assert_eq!(written.get(1..), bytes.get(1..), "a key has one form");
}

#[test]
fn any_stored_key_is_read_as_it_was_written_or_not_at_all() {
    let make = |rng: &mut Rng, pool: &[Vec<u8>]| {
        let (space, bytes) = split(rng.pick::<Vec<u8>>(pool));
        let mut changed = bytes.to_vec();
        mutate::change(rng, &mut changed, pool, &["views", "\0"]);
        joined(space, &changed)
    };
    Run::of("stored_keys", 50_000).judge(make, |input| {
        let (space, bytes) = split(input);
        format!("{space} {}", bounded(bytes, 64, || read_key(space, bytes)))
    });
}

/// A key of each space.
fn real_keys() -> Vec<(&'static str, Vec<u8>)> {
    let counter = Counter::new(NamespaceId(3), CounterName::new("views.home").expect("a valid name"));
    let time = Timestamp::from_micros(1_700_000_000_000_000);
    let shard = ShardId { queue: QueueId(0xfeed), number: 3 };
    let routing = RoutingValue::new("user-7").expect("a valid value");
    let event = EventKey { time, id: EventId::text("token") };
    vec![
        ("counter", key::of_counter(&counter)),
        ("event", key::of_event(&counter, &event)),
        ("touch", key::of_touch(&counter, time)),
        ("frontier", meta::frontier(DatasetId(5))),
        ("watermark", meta::watermark(DatasetId(5), 63)),
        ("forgotten", meta::forgotten(NamespaceId(3))),
        ("time", key::to_sortable(time).to_vec()),
        ("queue", queue_key::of_queue(shard.queue)),
        ("tagged", queue_key::of_header(shard)),
        ("value_limit", queue_key::of_value_limit(shard, &routing)),
        ("session", queue_key::of_session(shard, SessionId(9))),
        ("place", queue_key::of_message(shard, 5 << 40).to_vec()),
        ("answer", queue_key::of_answer(shard, IdHash(0xfeed << 64 | 7), time)),
        ("over", queue_key::of_over(shard, 5 << 40 | 63).to_vec()),
        ("page", queue_key::of_page(PageTag::Dirty, shard, 5 << 40)),
        ("outbox", queue_key::of_outbox(shard, RowPosition { epoch: 1, position: 34 }, 12)),
    ]
}

#[test]
fn keys_of_older_stores_are_still_those_that_are_written() {
    for (space, bytes) in real_keys() {
        let path = folder("stored_keys").join(space);
        let input = joined(space, &bytes);
        if std::env::var_os("TALLYSTONE_FUZZ_KEEP").is_some() {
            std::fs::write(&path, &input).expect("the corpus can be written");
        }
        let kept = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(kept, input, "stores on disk hold the kept form of {space}");
        assert!(read_key(space, &bytes), "{space} is read");
    }
}
