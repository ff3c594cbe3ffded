//! The declaration of a metric: its name, its help and how it is read, in one row of a list.
//!
//! A list belongs to what it measures. The metrics page shows the rows in their order.

/// A metric of a `T`: the name (of a count without `_total`), the help, and how it is read.
pub type Metric<T> = (&'static str, &'static str, MetricValue<T>);

/// How a metric is read from a `T`.
#[derive(Clone, Copy, Debug)]
pub enum MetricValue<T> {
    /// A count, which only grows.
    Count(fn(&T) -> u64),
    /// A sum of fractions, which only grows.
    Total(fn(&T) -> f64),
    /// A value that goes up and down.
    Gauge(fn(&T) -> f64),
    /// Such a value that is not always known.
    KnownGauge(fn(&T) -> Option<f64>),
}

/// A list of metrics of one type, named at its beginning: kind, name, value and help of each.
#[macro_export]
macro_rules! metrics {
    ($of:ident: $($kind:ident $name:literal = $value:expr, $help:literal;)*) => {
        &[$(($name, $help, $crate::MetricValue::$kind(|$of| $value))),*]
    };
}
