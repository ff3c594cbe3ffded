//! Queue configuration: settings, their allowed ranges, and the entry in the catalog.

pub mod queue_spec;
pub mod setting_ranges;
mod setting_table;
pub mod settings;

pub use setting_table::queue_settings;
