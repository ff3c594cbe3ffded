//! Which build this is, and what the process takes of the machine: the names that all programs give these numbers.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::MetricSource;

#[derive(Debug)]
pub struct ProcessMetrics;

impl MetricSource for ProcessMetrics {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Always 1, with version and kind of the build as labels";
        let mut family = encoder.encode_descriptor("tallystone_build_info", help, None, MetricType::Gauge)?;
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("profile", profile)];
        ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        usage::list(encoder)
    }
}

#[cfg(target_os = "linux")]
mod usage {
    use std::fmt;

    use procfs::process::{LimitValue, Process};
    use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};
    use prometheus_client::encoding::DescriptorEncoder;

    use crate::server::metrics::encode;
    use tallystone_ports::{Metric, metrics};

    /// What the kernel says of this process.
    struct Usage {
        cpu_seconds: f64,
        resident_bytes: u64,
        virtual_bytes: u64,
        threads: i64,
        start_seconds: f64,
        descriptors: usize,
        descriptors_max: f64,
    }

    fn usage() -> ProcResult<Usage> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second() as f64;
        Ok(Usage {
            cpu_seconds: seconds(stat.utime + stat.stime),
            resident_bytes: stat.rss * page_size(),
            virtual_bytes: stat.vsize,
            threads: stat.num_threads,
            start_seconds: boot_time_secs()? as f64 + seconds(stat.starttime),
            descriptors: process.fd_count()?,
            descriptors_max: match process.limits()?.max_open_files.soft_limit {
                LimitValue::Value(most) => most as f64,
                LimitValue::Unlimited => f64::INFINITY,
            },
        })
    }

    const METRICS: &[Metric<Usage>] = metrics! { usage:
        Total "process_cpu_seconds" = usage.cpu_seconds, "Processor time used by the process";
        Gauge "process_resident_memory_bytes" = usage.resident_bytes as f64, "Resident memory of the process";
        Gauge "process_virtual_memory_bytes" = usage.virtual_bytes as f64,
            "Virtual memory of the process";
        Gauge "process_threads" = usage.threads as f64, "Threads of the process";
        Gauge "process_start_time_seconds" = usage.start_seconds, "Start time of the process, since 1970";
        Gauge "process_open_fds" = usage.descriptors as f64, "Open file descriptors";
        Gauge "process_max_fds" = usage.descriptors_max, "Maximum of open file descriptors";
    };

    /// Lists what is known; a system that hides `/proc` leaves these out.
    pub fn list(encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        usage().map_or(Ok(()), |usage| encode(encoder, METRICS, &usage))
    }
}

#[cfg(not(target_os = "linux"))]
mod usage {
    use std::fmt;

    use prometheus_client::encoding::DescriptorEncoder;

    /// Other systems have no `/proc` to ask.
    pub fn list(_encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        Ok(())
    }
}
