//! The units of metrics: they stand at the end of names, and are declared beside them.

use prometheus_client::registry::{Metric, Registry, Unit};

/// Registers a metric under its full name, of a count without `_total`.
pub fn register(registry: &mut Registry, name: &str, help: &str, metric: impl Metric) {
    match split_unit(name) {
        (name, Some(unit)) => registry.register_with_unit(name, help, unit.clone(), metric),
        (name, None) => registry.register(name, help, metric),
    }
}

/// Splits the unit off the name of a metric.
pub fn split_unit(name: &str) -> (&str, Option<&'static Unit>) {
    let units = [("_seconds", &Unit::Seconds), ("_bytes", &Unit::Bytes)];
    let split = |(end, unit)| name.strip_suffix(end).map(|name| (name, Some(unit)));
    units.into_iter().find_map(split).unwrap_or((name, None))
}
