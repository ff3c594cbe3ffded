//! The `tallystone` binary.

fn main() {}
