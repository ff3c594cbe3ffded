//! The plain settings of a queue: every duration and number that has a default. One row makes a setting of every layer.
//!
//! A row is `field as name: type = default;`. The name is that of the field of the protocol's `Queue`. A layer passes a
//! macro that takes rows, and gets `all` rows, or only those `of_messages` or `of_queue`: where the order is visible,
//! settings of another form stand between the two groups.

#[macro_export]
macro_rules! queue_settings {
    (@all $with:ident [$($first:tt)*] [$($second:tt)*]) => { $with! { $($first)* $($second)* } };
    (@of_messages $with:ident [$($first:tt)*] [$($second:tt)*]) => { $with! { $($first)* } };
    (@of_queue $with:ident [$($first:tt)*] [$($second:tt)*]) => { $with! { $($second)* } };
    ($group:ident $with:ident) => {
        $crate::queue_settings! { @$group $with
            [
                /// The default lease of dequeues and messages: 1 s to 12 h.
                default_lease as default_lease: Duration = Duration::from_secs(30);
                /// The time since dequeue after which a lease can no longer be extended; it also cuts the first lease.
                max_run_time as max_run_time: Duration = LEASE_MAX;
                /// The default invisibility of a message.
                default_invisibility as default_invisibility: Duration = Duration::ZERO;
                /// The default maximum of attempts: 1 to 10,000.
                default_attempts as default_max_attempts: u32 = 3;
            ]
            [
                /// The dedupe window of tokens: at most 24 h.
                dedupe_window as dedupe_window: Duration = Duration::from_secs(3_600);
                /// The bytes of dedupe records.
                dedupe_max_bytes as dedupe_max_bytes: usize = 4 << 30;
                /// The most messages of the shard, including terminal ones.
                quota_messages as quota_messages: u64 = 100_000_000;
                /// The most bytes of payload of the shard, including terminal messages.
                quota_bytes as quota_bytes: u64 = 64 << 30;
                /// The largest payload of a message, in bytes, within the bound of all queues.
                payload_max_bytes as payload_max_bytes: u32 = PAYLOAD_BYTES_MAX;
                /// The largest metadata of a message, in bytes of keys and values, within the bound of all queues.
                metadata_max_bytes as metadata_max_bytes: u32 = METADATA_BYTES_MAX;
                /// The most values with counts of their own, for each key of `count_by` in each shard: 1 to 10,000.
                count_by_values_max as count_by_values_max: u32 = 1_000;
            ]
        }
    };
}
pub use queue_settings;
