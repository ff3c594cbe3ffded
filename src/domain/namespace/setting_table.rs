//! The plain settings of a namespace and its dataset: those with a default. One row makes a setting of every layer.
//!
//! A group begins with the type of its settings, that of their draft and their path in the protocol's `Namespace`. A
//! row is `field: type = default;`. A layer passes a macro that takes a group, and names the group.

#[macro_export]
macro_rules! namespace_settings {
    (dataset $with:ident) => {
        $with! {
            DatasetSettings, DatasetDraft, dataset:
            /// The width of a time slice in seconds.
            seconds_per_slice: u32 = 86_400;
            /// A slice of this age takes no more events.
            close_after: Duration = Duration::from_secs(518_400);
            /// A slice of this age is dropped once all its events are rolled up.
            delete_after: Duration = Duration::from_secs(604_800);
            /// The greatest age of an event on arrival; counts lag behind by this much.
            accept_limit: Duration = Duration::from_secs(5);
            /// How far ahead of the server's clock an event time may be.
            future_limit: Duration = FUTURE_LIMIT_FLOOR;
            /// Whether a slice is exported before it is dropped.
            export_before_drop: bool = false;
        }
    };
    (partition $with:ident) => {
        $with! {
            TimePartition, PartitionDraft, time_partition:
            /// Event buckets per time bucket; the embedded store needs none.
            buckets_per_id: u32 = 4;
            /// The width of a time bucket in seconds.
            seconds_per_bucket: u32 = 600;
        }
    };
    (rollup $with:ident) => {
        $with! {
            RollupSettings, RollupDraft, rollup:
            /// The number of rollup queues per roller.
            num_queues: u32 = 8;
            /// The minimum interval between two rollups of a counter, in milliseconds.
            coalesce_ms: u32 = 10_000;
            /// The capacity of one queue in bytes.
            capacity_bytes: u64 = 16_777_216;
            /// The number of counters per batch.
            rollup_batch_count: u32 = 32;
        }
    };
}
pub use namespace_settings;
