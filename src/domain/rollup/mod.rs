//! From events to counts: slices and buckets, the fold, the checkpoint, series.

pub mod checkpoint;
pub mod fold;
#[cfg(test)]
mod fold_laws;
pub mod read_plan;
#[cfg(test)]
mod read_plan_laws;
pub mod reading;
pub mod repair;
pub mod rollup_row;
pub mod sealing;
pub mod series;
pub mod series_step;
pub mod settled_clears;
pub mod slice_rules;

pub use checkpoint::{BucketRecord, Checkpoint, CheckpointWriter, CountAt, SourceTotal, SourceTotals, StepSum};
pub use fold::{EventFolder, FoldResult, TailLookup, TailSum, fold, row_digest};
pub use read_plan::{FoldedTail, ReadAnswer, ReadPlan, ReadRules, ReadStep, StateBefore};
pub use reading::{CountReading, Exactness, Freshness, ReadOptions};
pub use repair::{BucketComparison, RepairAction, VerifiedBase};
pub use rollup_row::{CachedCount, RollupRow};
pub use sealing::{is_sampled, sealable_to};
pub use settled_clears::SettledClears;
pub use slice_rules::{FoldRules, SliceRule, SliceStatus, TimeSlice};
