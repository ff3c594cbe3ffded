//! How events become counts: slices and buckets, the fold, the checkpoint, series.

pub mod checkpoint;
pub mod fold;
#[cfg(test)]
mod fold_laws;
pub mod repair;
pub mod sealing;
pub mod series;
pub mod window;

pub use checkpoint::{BucketRecord, Checkpoint, CountAt, RolledBy, SourceTotal, StepSum};
pub use fold::{Folder, Rolled, TailSum, fold, row_digest};
pub use repair::{Compared, Remedy, Sealed};
pub use sealing::{is_sampled, sealable_to};
pub use window::{FoldRules, SliceRule, SliceStatus, TimeSlice};
