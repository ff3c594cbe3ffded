//! The work with messages: enqueues, dequeues, settlements, and work streams.

pub(in crate::queues) mod dequeue;
pub(in crate::queues) mod enqueue;
pub(in crate::queues) mod rule_messages;
pub(in crate::queues) mod settle;
pub(in crate::queues) mod streams;
