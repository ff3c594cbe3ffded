//! Load generator and measuring tool.

fn main() {}
