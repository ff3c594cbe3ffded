//! Fuzzing on a stable compiler: foreign bytes meet a reason or an error, never a panic, a hang or memory without bound.
//!
//! Each target is a function of bytes that answers a label, its outcome. The driver gives it the kept corpus
//! (`corpus/<target>/`) first, then changes of it: an input of a new outcome joins what is changed, which takes the place
//! of coverage. docs/fuzzing.md tells how to run longer, how to replay, and how an input is kept.

mod allocated;
mod descriptors;
mod driver;
#[allow(dead_code, reason = "each test binary takes what it needs")]
#[path = "../it/support/harness.rs"]
mod harness;
mod mutate;
mod requests;
mod stored;
mod texts;
