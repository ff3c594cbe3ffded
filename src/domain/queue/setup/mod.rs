//! Queue configuration: settings, their allowed ranges, and the entry in the catalog.

pub mod queue_spec;
pub mod setting_ranges;
pub mod settings;
