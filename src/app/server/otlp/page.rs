//! Reads the metrics page, which is OpenMetrics text, as metrics of OTLP.
//!
//! Names and labels stay as they are on the page, `_total` included, so that a query finds a metric under one name
//! whichever way it came. This follows the mapping of the OpenTelemetry specification ("Prometheus and OpenMetrics
//! Compatibility"): counters become cumulative monotonic sums since the start of the process, histograms cumulative
//! histograms, and all others gauges.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, metric,
};

/// The sample with the start of the process.
const START: &str = "process_start_time_seconds";

/// A text attribute.
pub fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// Reads a page as of a time, in nanoseconds since 1970. Fails on a line that no page has. Cost: O(page).
pub fn read(page: &str, now_nanos: u64) -> Result<Vec<Metric>, String> {
    let start = page.lines().find_map(|line| line.strip_prefix(START)?.strip_prefix(' ')?.parse().ok());
    let start = start.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
    let times = PointTimes { start_nanos: u64::try_from(start.as_nanos()).unwrap_or(u64::MAX), now_nanos };
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        match line.strip_prefix("# ") {
            Some(about) => Family::describe(&mut families, about)?,
            None => {
                let family = families.last_mut().ok_or_else(|| format!("a sample without a family: {line}"))?;
                family.samples.push(Sample::read(line)?);
            }
        }
    }
    Ok(families.into_iter().flat_map(|family| family.into_metrics(times)).collect())
}

#[derive(Clone, Copy)]
struct PointTimes {
    start_nanos: u64,
    now_nanos: u64,
}

/// The lines about one metric.
struct Family<'a> {
    name: &'a str,
    help: String,
    kind: &'a str,
    unit: &'a str,
    samples: Vec<Sample<'a>>,
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: &'a str,
}

impl<'a> Family<'a> {
    /// Takes a line `HELP`, `TYPE` or `UNIT`; the first one about a metric begins its family.
    fn describe(families: &mut Vec<Self>, about: &'a str) -> Result<(), String> {
        let unknown = || format!("a line that no page has: # {about}");
        let (what, rest) = about.split_once(' ').ok_or_else(unknown)?;
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        if families.last().is_none_or(|family| family.name != name) {
            families.push(Self { name, help: String::new(), kind: "", unit: "", samples: Vec::new() });
        }
        let family = families.last_mut().expect("a family was just pushed or is there");
        match what {
            "HELP" => family.help = unescaped(text),
            "TYPE" => family.kind = text,
            "UNIT" => family.unit = text,
            _ => return Err(unknown()), // OpenMetrics has no other lines
        }
        Ok(())
    }

    /// Most families are one metric. One whose samples have other names, as those of an `info`, has a metric for each
    /// name.
    fn into_metrics(self, times: PointTimes) -> Vec<Metric> {
        let unit = match self.unit {
            "seconds" => "s",
            "bytes" => "By",
            other => other,
        };
        let metric = |name: &str, data: metric::Data| Metric {
            name: name.to_owned(),
            description: self.help.clone(),
            unit: unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        };
        if self.kind == "histogram" {
            return vec![metric(self.name, histogram(self.name, &self.samples, times))];
        }
        let of_one_name = self.samples.chunk_by(|one, next| one.name == next.name);
        let point = |sample: &Sample<'_>| sample.point(self.kind, times);
        let data = |samples: &[Sample<'_>]| {
            let data_points = samples.iter().map(point).collect();
            match self.kind {
                "counter" => metric::Data::Sum(Sum {
                    data_points,
                    aggregation_temporality: AggregationTemporality::Cumulative.into(),
                    is_monotonic: true,
                }),
                _ => metric::Data::Gauge(Gauge { data_points }), // infos and states are gauges of 0 and 1
            }
        };
        of_one_name.map(|samples| metric(samples[0].name, data(samples))).collect()
    }
}

impl<'a> Sample<'a> {
    /// Reads `name{label="value",...} number`, or the same without labels.
    fn read(line: &'a str) -> Result<Self, String> {
        let unknown = || format!("a sample that cannot be read: {line}");
        let end = line.find(['{', ' ']).ok_or_else(unknown)?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, after) = rest.trim_start_matches(',').split_once("=\"").ok_or_else(unknown)?;
                let end = end_of_quoted(after).ok_or_else(unknown)?;
                labels.push((label, unescaped(&after[..end])));
                rest = &after[end + 1..];
            }
            rest = &rest[1..];
        }
        // A time or an exemplar would follow the number.
        let value = rest.split_whitespace().next().ok_or_else(unknown)?;
        value.parse::<f64>().map_err(|_error| unknown())?;
        Ok(Self { name, labels, value })
    }

    fn point(&self, kind: &str, times: PointTimes) -> NumberDataPoint {
        let value = match self.value.parse() {
            Ok(whole) => Value::AsInt(whole),
            Err(_) => Value::AsDouble(self.number()),
        };
        NumberDataPoint {
            attributes: attributes(&self.labels, ""),
            start_time_unix_nano: if kind == "counter" { times.start_nanos } else { 0 },
            time_unix_nano: times.now_nanos,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    }

    fn number(&self) -> f64 {
        self.value.parse().unwrap_or(f64::NAN)
    }

    /// A count of a histogram, which is whole.
    fn count(&self) -> u64 {
        self.value.parse().unwrap_or_else(|_fraction| self.number() as u64)
    }
}

/// The points of a histogram. On the page a bucket counts all observations up to its bound, in OTLP those above the
/// bound before.
fn histogram(name: &str, samples: &[Sample<'_>], times: PointTimes) -> metric::Data {
    let mut data_points: Vec<HistogramDataPoint> = Vec::new();
    for sample in samples {
        let attributes = attributes(&sample.labels, "le");
        if data_points.last().is_none_or(|point| point.attributes != attributes) {
            data_points.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: times.start_nanos,
                time_unix_nano: times.now_nanos,
                ..HistogramDataPoint::default()
            });
        }
        let point = data_points.last_mut().expect("a point was just pushed or is there");
        match sample.name.strip_prefix(name) {
            Some("_sum") => point.sum = Some(sample.number()),
            Some("_count") => point.count = sample.count(),
            _ => {
                let below: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push(sample.count().saturating_sub(below));
                let bound = sample.labels.iter().find(|(label, _)| *label == "le");
                let bound = bound.and_then(|(_, bound)| bound.parse().ok()).filter(|bound: &f64| bound.is_finite());
                point.explicit_bounds.extend(bound);
            }
        }
    }
    metric::Data::Histogram(Histogram {
        data_points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
    })
}

fn attributes(labels: &[(&str, String)], but: &str) -> Vec<KeyValue> {
    labels.iter().filter(|(label, _)| *label != but).map(|(label, value)| attribute(label, value)).collect()
}

/// The end of a quoted text.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Undoes the escapes of OpenMetrics.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(
        "# HELP process_start_time_seconds Start.\n# TYPE process_start_time_seconds gauge\n",
        "process_start_time_seconds 100.5\n",
        "# HELP tallystone_writes Adds, \\\"quoted\\\".\n# TYPE tallystone_writes counter\n",
        "tallystone_writes_total{outcome=\"applied\"} 7\n",
        "tallystone_writes_total{outcome=\"odd \\\"} {,\\\\ \\n\"} 0\n",
        "# HELP tallystone_wait_seconds Waits.\n# TYPE tallystone_wait_seconds histogram\n# UNIT tallystone_wait_seconds seconds\n",
        "tallystone_wait_seconds_sum{queue=\"a\"} 3.5\ntallystone_wait_seconds_count{queue=\"a\"} 4\n",
        "tallystone_wait_seconds_bucket{le=\"0.1\",queue=\"a\"} 1\n",
        "tallystone_wait_seconds_bucket{le=\"1.0\",queue=\"a\"} 3\n",
        "tallystone_wait_seconds_bucket{le=\"+Inf\",queue=\"a\"} 4\n",
        "# HELP tallystone_build Build.\n# TYPE tallystone_build info\ntallystone_build_info{version=\"1\"} 1\n",
        "# EOF\n",
    );

    #[test]
    fn a_page_is_read_as_it_is() {
        let metrics = read(PAGE, 9).expect("it is a page");
        let names: Vec<(&str, &str)> = metrics.iter().map(|metric| (&*metric.name, &*metric.unit)).collect();
        let wait = ("tallystone_wait_seconds", "s");
        assert_eq!(names, [(START, ""), ("tallystone_writes_total", ""), wait, ("tallystone_build_info", "")]);
        let Some(metric::Data::Sum(sum)) = &metrics[1].data else { panic!("a counter is a sum") };
        assert!(sum.is_monotonic && metrics[1].description == "Adds, \"quoted\".");
        let point = &sum.data_points[1];
        assert_eq!(point.attributes, [attribute("outcome", "odd \"} {,\\ \n")]);
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (100_500_000_000, 9));
        assert_eq!(sum.data_points[0].value, Some(Value::AsInt(7)));
        let Some(metric::Data::Histogram(waits)) = &metrics[2].data else { panic!("a histogram stays one") };
        let [point] = &waits.data_points[..] else { panic!("one queue is one point: {waits:?}") };
        assert_eq!((point.count, point.sum, &point.attributes[..]), (4, Some(3.5), &[attribute("queue", "a")][..]));
        assert_eq!((&point.explicit_bounds[..], &point.bucket_counts[..]), (&[0.1, 1.0][..], &[1, 2, 1][..]));
        let Some(metric::Data::Gauge(start)) = &metrics[0].data else { panic!("a gauge stays one") };
        assert_eq!(start.data_points[0].value, Some(Value::AsDouble(100.5)));
    }

    #[test]
    fn a_line_that_no_page_has_is_refused() {
        for line in ["x", "x{a=\"b} 1", "x{a} 1", "# TYPE", "# NOTE x y", "x many"] {
            let page = format!("# TYPE x gauge\n{line}\n");
            assert!(read(&page, 0).is_err(), "{line}");
        }
        assert!(read("x 1\n", 0).is_err(), "a sample needs a family");
    }
}
