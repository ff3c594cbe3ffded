//! The items of a request, counted before any of them is decoded.
//!
//! An item takes two bytes on the wire and hundreds in memory. So the raw bytes are scanned first, by the descriptors.
//! Each list and map has a bound, and so have all of a message together. The scan allocates no memory and stops at the
//! first exceeded bound. Invalid bytes are left to the decoder.

use std::collections::HashMap;

use prost::encoding::{WireType, decode_key, decode_varint};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::errors::ApiError;
use tallystone_domain::Reason;
use tallystone_domain::limits::{BATCH_ITEMS_MAX, MAP_ENTRIES_MAX, REQUEST_ITEMS_MAX};
use tallystone_proto::LIST_BOUNDS;

/// The greatest number of lists and maps that one message type has itself, without those of nested messages.
const LISTS_OF_ONE: usize = 8;

/// The decoder refuses messages with deeper nesting.
const DECODER_DEPTH: u32 = 100;

/// Returns the greatest number of items of a list, or entries of a map.
pub fn items_max(field: &FieldDescriptor) -> usize {
    let own = LIST_BOUNDS.iter().find(|(name, _)| *name == field.full_name());
    match own {
        Some((_, most)) => *most as usize,
        None if field.is_map() => MAP_ENTRIES_MAX,
        None => BATCH_ITEMS_MAX,
    }
}

/// Returns the number of items that are decoded: slightly more than the bound, so that the service refuses a list just
/// above it with full details.
pub fn decoded_items_max(most: usize) -> usize {
    2 * most
}

/// Returns the error text for a list above its bound.
pub fn too_many(most: usize) -> String {
    format!("more than {most} items; nothing was applied: send 1 to {most} in one call")
}

/// Returns the error text for a message whose lists have too many items in total.
pub fn too_many_in_total() -> String {
    format!(
        "more than {REQUEST_ITEMS_MAX} items in all lists of the message together; nothing was applied: send fewer \
         items"
    )
}

/// The positions of the lists in a message and in its nested messages.
#[derive(Debug)]
pub struct ListLimits {
    messages: Vec<ListFields>,
}

/// The fields of one message type that are lists, or contain messages with lists, by number.
type ListFields = Vec<(u32, ListField)>;

#[derive(Debug)]
struct ListField {
    name: Box<str>,
    /// The index among the lists of its message, and its bound; none for a single value.
    list: Option<(usize, usize)>,
    /// The nested message, if it has lists.
    inner: Option<usize>,
}

impl ListLimits {
    /// Finds the lists of a message; none if it has none at any depth.
    pub fn of(descriptor: &MessageDescriptor) -> Option<Self> {
        let mut lists = Self { messages: Vec::new() };
        lists.add(descriptor, &mut HashMap::new());
        let is_there = lists.messages.iter().flatten().any(|(_, field)| field.list.is_some());
        is_there.then_some(lists)
    }

    fn add(&mut self, descriptor: &MessageDescriptor, known: &mut HashMap<String, usize>) -> usize {
        if let Some(&at) = known.get(descriptor.full_name()) {
            return at;
        }
        let at = self.messages.len();
        known.insert(descriptor.full_name().to_owned(), at);
        self.messages.push(Vec::new());
        let (mut fields, mut lists) = (Vec::new(), 0);
        for field in descriptor.fields() {
            let is_list = field.is_list() || field.is_map();
            // Keys and values of maps are single values in this protocol.
            let inner = match field.kind() {
                Kind::Message(inner) if !field.is_map() => Some(self.add(&inner, known)),
                _ => None, // no other kind holds fields
            };
            let inner = inner.filter(|&inner| inner <= at || !self.messages[inner].is_empty());
            let list = is_list.then(|| (lists, items_max(&field)));
            lists += usize::from(is_list);
            if list.is_some() || inner.is_some() {
                fields.push((field.number(), ListField { name: field.name().into(), list, inner }));
            }
        }
        assert!(lists <= LISTS_OF_ONE, "{} has {lists} lists; raise LISTS_OF_ONE", descriptor.full_name());
        self.messages[at] = fields;
        at
    }

    /// Refuses a message with too many items. O(bytes up to the first excess item).
    pub fn check(&self, message: &[u8]) -> Result<(), ApiError> {
        let mut all = 0;
        self.walk(0, message, &mut all, 0)
    }

    fn walk(&self, at: usize, mut message: &[u8], all: &mut usize, depth: u32) -> Result<(), ApiError> {
        let mut counts = [0_usize; LISTS_OF_ONE];
        while !message.is_empty() {
            let Ok((number, wire_type)) = decode_key(&mut message) else { return Ok(()) };
            let length = match wire_type {
                WireType::Varint => match decode_varint(&mut message) {
                    Ok(_) => continue,
                    Err(_) => return Ok(()),
                },
                WireType::StartGroup | WireType::EndGroup => continue,
                WireType::SixtyFourBit => Some(8),
                WireType::ThirtyTwoBit => Some(4),
                WireType::LengthDelimited => {
                    decode_varint(&mut message).ok().and_then(|length| usize::try_from(length).ok())
                }
            };
            let Some((value, rest)) = length.and_then(|length| message.split_at_checked(length)) else { return Ok(()) };
            message = rest;
            let Some((_, field)) = self.messages[at].iter().find(|(known, _)| *known == number) else { continue };
            if let Some((list, most)) = field.list {
                counts[list] += 1;
                *all += 1;
                if counts[list] > decoded_items_max(most) {
                    return Err(refused(&field.name, &too_many(most)));
                }
                if *all > REQUEST_ITEMS_MAX {
                    return Err(refused(&field.name, &too_many_in_total()));
                }
            }
            if let Some(inner) = field.inner.filter(|_| depth < DECODER_DEPTH) {
                self.walk(inner, value, all, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn refused(field: &str, what: &str) -> ApiError {
    ApiError::new(Reason::InvalidBatchSize, format!("{field}: {what}")).at(field)
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_reflect::DescriptorPool;

    use super::*;
    use tallystone_domain::limits::QUEUE_BATCH_ITEMS_MAX;
    use tallystone_proto::queue::v1 as queue;

    const ENTRIES: usize = 2 * MAP_ENTRIES_MAX;

    fn pool() -> DescriptorPool {
        DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("descriptors decode")
    }

    fn lists(name: &str) -> ListLimits {
        let descriptor = pool().get_message_by_name(name).expect("the message exists");
        ListLimits::of(&descriptor).expect("it has lists")
    }

    fn is_refused(lists: &ListLimits, message: &[u8], field: &str) -> bool {
        match lists.check(message) {
            Ok(()) => false,
            Err(refusal) => {
                assert_eq!((refusal.reason, &*refusal.fields[0].0), (Reason::InvalidBatchSize, field));
                true
            }
        }
    }

    /// Empty items of a list: each has its key and a length of 0.
    fn empty_items(number: u32, count: usize) -> Vec<u8> {
        let mut item = Vec::new();
        prost::encoding::encode_key(number, WireType::LengthDelimited, &mut item);
        item.push(0);
        item.repeat(count)
    }

    #[test]
    fn every_list_of_every_request_is_counted_at_its_bound() {
        let mut seen = 0;
        for service in pool().services() {
            for method in service.methods() {
                let input = method.input();
                for field in input.fields().filter(|field| field.is_list() || field.is_map()) {
                    let lists = ListLimits::of(&input).expect("it has a list");
                    let (number, most) = (field.number(), decoded_items_max(items_max(&field)));
                    assert!(!is_refused(&lists, &empty_items(number, most), field.name()), "{}", field.full_name());
                    assert!(is_refused(&lists, &empty_items(number, most + 1), field.name()), "{}", field.full_name());
                    seen += 1;
                }
            }
        }
        assert!(seen >= 12, "{seen} lists");
    }

    #[test]
    fn the_protos_declare_the_bounds_that_services_check() {
        let queues = "tallystone.queue.v1.";
        assert!(
            LIST_BOUNDS.iter().all(|(name, most)| name.starts_with(queues) && *most as usize == QUEUE_BATCH_ITEMS_MAX)
        );
        assert_eq!(LIST_BOUNDS.len(), 2);
    }

    #[test]
    fn lists_inside_of_items_and_single_messages_are_counted() {
        let with = |pairs: usize| {
            let metadata = (0..pairs).map(|at| (at.to_string(), String::new())).collect();
            queue::Message { metadata, ..queue::Message::default() }
        };
        let one = lists("tallystone.queue.v1.EnqueueRequest");
        let sent = |pairs| queue::EnqueueRequest { message: Some(with(pairs)), ..Default::default() }.encode_to_vec();
        assert!(!is_refused(&one, &sent(ENTRIES), "metadata"));
        assert!(is_refused(&one, &sent(ENTRIES + 1), "metadata"));
        // The decoder merges messages that were sent in parts.
        let parts = sent(ENTRIES).repeat(REQUEST_ITEMS_MAX / ENTRIES + 1);
        assert!(is_refused(&one, &parts, "metadata"), "in parts");
        let batch = lists("tallystone.queue.v1.BatchEnqueueRequest");
        let messages = vec![with(1), with(ENTRIES + 1)];
        let sent = queue::BatchEnqueueRequest { messages, ..Default::default() }.encode_to_vec();
        assert!(is_refused(&batch, &sent, "metadata"));
    }

    #[test]
    fn what_is_no_message_is_left_to_the_decoder() {
        let batch = lists("tallystone.queue.v1.BatchEnqueueRequest");
        for bytes in [&[0xff_u8; 20][..], &[0x12, 0x7f], &[0x12], &[0x00], &[0x0b, 0x0c], &[0x09, 1]] {
            assert!(!is_refused(&batch, bytes, ""), "{bytes:?}");
        }
    }
}
