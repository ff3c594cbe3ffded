//! What the tests share: the real binary as a process, faults of clock and disk, texts to compare with.

pub mod certificates;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod clockskew;
pub mod golden;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod harness;
pub mod judging;
#[allow(dead_code, reason = "each test takes what it needs")]
pub mod powerloss;
