//! Implementations of the ports, one folder per technology.

pub mod stored;
