//! The declaration of a metric: its name, its help and how it is read, in one row of a list.
//!
//! A list belongs to what it measures. The metrics page shows the rows in their order.

/// A metric of a `T`: the name (of a count without `_total`), the help, and how it is read. A name that ends with
/// `_seconds` or `_bytes` says the unit.
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
    /// Counts that only grow, told apart by a label.
    CountBy(fn(&T) -> LabelledCounts),
    /// How often values fell between bounds.
    Histogram(fn(&T) -> HistogramReading),
}

/// Counts of one metric, told apart by a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelledCounts {
    /// The name of the label.
    pub label: &'static str,
    /// Each value of the label, in lower snake case, with its count.
    pub counts: Vec<(&'static str, u64)>,
}

impl LabelledCounts {
    /// The counts by this label.
    pub fn by<const N: usize>(label: &'static str, counts: [(&'static str, u64); N]) -> Self {
        Self { label, counts: counts.into() }
    }
}

/// The observations of a histogram.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct HistogramReading {
    /// The sum of all values.
    pub sum: f64,
    /// The upper bounds, rising to infinity, each with the number of values above the bound before it.
    pub buckets: Vec<(f64, u64)>,
}

/// A list of metrics of one type, named at its beginning: kind, name, value and help of each.
#[macro_export]
macro_rules! metrics {
    ($of:ident: $($kind:ident $name:literal = $value:expr, $help:literal;)*) => {
        &[$(($name, $help, $crate::MetricValue::$kind(|$of| $value))),*]
    };
}
