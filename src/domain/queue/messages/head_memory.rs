//! The memory of a head beyond its own size: texts and rarely used parts, as an allocator gives it away.

use crate::queue::allocation::{allocated, on_heap};
use crate::queue::messages::message::{CanceledBy, MessageExtras, MessageHead, Metadata, RoutingValue};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::{Settlement, UpdateToken};

/// The two counts in front of a shared text.
const SHARED_COUNTS: usize = 2 * size_of::<usize>();

impl MessageHead {
    /// The bytes that the head has on the heap, without its own size. O(parts).
    pub(in crate::queue) fn heap_bytes(&self) -> usize {
        let Self { id, routing, metadata, extras, .. } = self;
        let routing = routing.as_ref().map_or(0, RoutingValue::heap_bytes);
        let extras = extras.held().map_or(0, MessageExtras::memory_bytes);
        id.heap_bytes() + routing + metadata.heap_bytes() + extras
    }
}

impl MessageId {
    fn heap_bytes(&self) -> usize {
        if self.uuid().is_some() { 0 } else { on_heap(self.text().len()) }
    }
}

impl RoutingValue {
    /// The bytes of its text, which its copies in indexes share.
    pub(in crate::queue) fn heap_bytes(&self) -> usize {
        allocated(SHARED_COUNTS + self.as_str().len())
    }
}

impl Metadata {
    fn heap_bytes(&self) -> usize {
        let pair = |(key, value): (&str, &str)| on_heap(key.len()) + on_heap(value.len());
        on_heap(self.pairs().count() * size_of::<(Box<str>, Box<str>)>()) + self.pairs().map(pair).sum::<usize>()
    }
}

impl MessageExtras {
    /// The bytes of the extras with what they own.
    fn memory_bytes(&self) -> usize {
        let Self { canceled_by, error, updates, counted_metadata, .. } = self;
        let canceled = match canceled_by {
            Some(CanceledBy::Request(reason)) => on_heap(reason.len()),
            Some(CanceledBy::Worker | CanceledBy::Purge | CanceledBy::Ttl) | None => 0,
        };
        let error = error.as_ref().map_or(0, |error| on_heap(error.signature.len()) + on_heap(error.text.len()));
        let tokens: usize = updates.iter().map(|(token, _)| on_heap(token.text.len())).sum();
        let updates = on_heap(updates.capacity() * size_of::<(UpdateToken, Settlement)>());
        let metadata = counted_metadata.as_ref().map_or(0, Metadata::heap_bytes);
        allocated(size_of::<Self>()) + canceled + error + tokens + updates + metadata
    }
}
