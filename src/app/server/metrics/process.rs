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
    use std::fs;
    use std::sync::OnceLock;

    use prometheus_client::encoding::DescriptorEncoder;
    use rustix::param::{clock_ticks_per_second, page_size};
    use rustix::process::{Resource, getrlimit};

    use crate::server::metrics::encode;
    use tallystone_ports::{Metric, metrics};

    /// The figures of the kernel about this process.
    struct Usage {
        cpu_seconds: f64,
        resident_bytes: u64,
        virtual_bytes: u64,
        threads: u64,
        start_seconds: f64,
        descriptors: u64,
        descriptors_max: f64,
    }

    fn usage() -> Option<Usage> {
        let stat = ProcessStat::parse(&fs::read("/proc/self/stat").ok()?)?;
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Some(Usage {
            cpu_seconds: seconds(stat.user_ticks + stat.system_ticks),
            resident_bytes: stat.resident_pages * page_size() as u64,
            virtual_bytes: stat.virtual_bytes,
            threads: stat.threads,
            start_seconds: boot_seconds()? as f64 + seconds(stat.start_ticks),
            descriptors: descriptors()?,
            descriptors_max: getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |most| most as f64),
        })
    }

    /// The fields of `/proc/self/stat` that are shown.
    #[derive(PartialEq, Eq, Debug)]
    struct ProcessStat {
        user_ticks: u64,
        system_ticks: u64,
        threads: u64,
        /// Since the boot of the machine.
        start_ticks: u64,
        virtual_bytes: u64,
        resident_pages: u64,
    }

    impl ProcessStat {
        /// Reads the line; none if a field is missing or no number.
        fn parse(line: &[u8]) -> Option<Self> {
            // The second field is the name of the command in parentheses, which may itself have spaces, parentheses,
            // and bytes that are no text.
            let name_end = line.iter().rposition(|byte| *byte == b')')?;
            let after_name = str::from_utf8(&line[name_end + 1..]).ok()?;
            let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
            // The numbers of proc_pid_stat(5). The first one here is the third there.
            let field = |number: usize| fields.get(number - 3)?.parse().ok();
            Some(Self {
                user_ticks: field(14)?,
                system_ticks: field(15)?,
                threads: field(20)?,
                start_ticks: field(22)?,
                virtual_bytes: field(23)?,
                resident_pages: field(24)?,
            })
        }
    }

    /// When the machine was started, in seconds since 1970. Read once, so that the start of the process does not move
    /// with the machine's clock.
    fn boot_seconds() -> Option<u64> {
        static BOOT_SECONDS: OnceLock<u64> = OnceLock::new();
        if let Some(seconds) = BOOT_SECONDS.get() {
            return Some(*seconds);
        }
        let seconds = parse_boot_seconds(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(*BOOT_SECONDS.get_or_init(|| seconds))
    }

    fn parse_boot_seconds(stat: &str) -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    }

    fn descriptors() -> Option<u64> {
        const FOLDER: &str = "/proc/self/fd";
        // Since Linux 6.2 the size of the folder is the number of its entries; before, it is zero.
        match fs::metadata(FOLDER).ok()?.len() {
            // Without the descriptor by which the folder is read.
            0 => Some(fs::read_dir(FOLDER).ok()?.count().saturating_sub(1) as u64),
            entries => Some(entries),
        }
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

    #[cfg(test)]
    mod tests {
        use super::*;

        /// A line with this name of the command.
        fn line(name: &[u8]) -> Vec<u8> {
            let fields = b") S 1 42 42 0 -1 4194560 900 0 3 0 250 75 0 0 20 0 11 0 5000 104857600 2560 18446744073709551615 1 1 0";
            [b"42 (", name, fields, b"\n"].concat()
        }

        #[test]
        fn the_name_of_the_command_does_not_shift_the_fields() {
            let stat = ProcessStat {
                user_ticks: 250,
                system_ticks: 75,
                threads: 11,
                start_ticks: 5_000,
                virtual_bytes: 104_857_600,
                resident_pages: 2_560,
            };
            let names: [&[u8]; 6] = [b"tallystone", b"a b c", b") S 1 2 3 (", b"(((", b"", b"\xFF\n)"];
            for name in names {
                assert_eq!(ProcessStat::parse(&line(name)).as_ref(), Some(&stat), "{name:?}");
            }
        }

        #[test]
        fn a_line_that_is_cut_short_or_has_no_numbers_is_not_read() {
            let whole = line(b"x");
            let cut = whole.iter().rposition(|byte| *byte == b'2').expect("a resident size");
            for broken in [&b""[..], b")", b"42 (x", b"42 (x) S 1", b"42 (x) \xFF", &whole[..cut - 30]] {
                assert_eq!(ProcessStat::parse(broken), None, "{broken:?}");
            }
            let worded = String::from_utf8(whole).expect("a text").replace(" 250 ", " many ");
            assert_eq!(ProcessStat::parse(worded.as_bytes()), None);
            let negative = worded.replace(" many ", " -1 ");
            assert_eq!(ProcessStat::parse(negative.as_bytes()), None);
        }

        #[test]
        fn the_boot_is_found_among_the_other_lines() {
            let stat = "cpu  1 2 3\nintr 5 btime 6\nctxt 7\nbtime 1700000000\nprocesses 8\n";
            assert_eq!(parse_boot_seconds(stat), Some(1_700_000_000));
            for broken in ["", "btime", "btime \n", "btime soon\n", "xbtime 5\n", "btime -5\n"] {
                assert_eq!(parse_boot_seconds(broken), None, "{broken:?}");
            }
        }

        #[test]
        fn this_process_is_read() {
            let usage = usage().expect("/proc is mounted");
            assert!(usage.threads >= 1 && usage.descriptors >= 1 && usage.descriptors_max >= usage.descriptors as f64);
            assert!(usage.virtual_bytes >= usage.resident_bytes && usage.resident_bytes >= 100_000);
            assert!(usage.start_seconds > 1_500_000_000.0, "{}", usage.start_seconds);
        }
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
