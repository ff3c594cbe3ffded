//! Use cases and background loops, on ports alone.

pub mod counting;
pub mod namespaces;
