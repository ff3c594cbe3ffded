//! The descriptors and the memory that the system gives this process, and the part of them that the connections may
//! take.
//!
//! The store has files to open whatever clients do: a reserve of descriptors is not given to connections.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use tallystone_api::serve::ServeLimits;
use tallystone_domain::limits::{BUFFER_BYTES_DEFAULT, CONNECTIONS_MAX, DESCRIPTORS_RESERVED};

/// The part of the memory that requests and answers under way may take: one in so many.
const BUFFERS_OF_MEMORY: u64 = 4;
/// The part of the memory that queues may take: one in so many.
const QUEUES_OF_MEMORY: u64 = 2;

/// Makes files from here on readable by the user of this process alone: data, exports and backups hold payloads and
/// names.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Raises the soft limit of descriptors to the hard one: the soft one is for programs that still use `select`.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "raised the limit of file descriptors"),
        Err(error) => tracing::warn!(%error, limit = limit.current, "cannot raise the limit of file descriptors"),
    }
}

/// The name of a server that listens at an address: its address, or its host where it listens on all addresses.
pub fn name_of(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), address.port())
}

/// The limits on the connections of this process.
pub fn bounds(config: &Config) -> ServeLimits {
    let connections = connections(getrlimit(Resource::Nofile).current, open_descriptors());
    if connections < CONNECTIONS_MAX {
        tracing::info!(
            connections,
            reserved = DESCRIPTORS_RESERVED,
            "the limit of file descriptors limits the connections; raise it (ulimit -Hn, LimitNOFILE) for more \
             connections"
        );
    }
    let buffer_bytes = buffer_bytes(config.server.buffer_bytes, memory_bytes());
    ServeLimits { connections, buffer_bytes, ..ServeLimits::default() }
}

/// The bytes of requests and answers under way: what is set, or with 0 a part of the memory if that is known.
fn buffer_bytes(set: u64, memory: Option<u64>) -> usize {
    match set {
        0 => memory.map_or(BUFFER_BYTES_DEFAULT, |memory| as_size(memory / BUFFERS_OF_MEMORY)),
        set => as_size(set),
    }
}

/// The bytes of memory that queues may take: what is set, or a part of the memory with 0 and where more is set than
/// there is.
pub fn queue_memory_bytes(config: &Config) -> u64 {
    let (set, memory) = (config.queues.memory_bytes, memory_bytes());
    if let Some(memory) = memory.filter(|memory| set > *memory) {
        tracing::warn!(
            memory_bytes = set,
            memory,
            used_instead = memory / QUEUES_OF_MEMORY,
            "queues.memory_bytes is more than the memory of this machine or of its control group; half of that is used"
        );
    }
    bound_of_queues(set, memory)
}

fn bound_of_queues(set: u64, memory: Option<u64>) -> u64 {
    match (set, memory) {
        (0, None) => tallystone_embedded::QUEUE_MEMORY_BYTES_DEFAULT,
        (set, Some(memory)) if set == 0 || set > memory => memory / QUEUES_OF_MEMORY,
        (set, _) => set,
    }
}

fn as_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The connections that a limit of descriptors leaves, beside those that are open and those that the store may need.
fn connections(limit: Option<u64>, open: usize) -> usize {
    let left = limit.map_or(usize::MAX, as_size).saturating_sub(DESCRIPTORS_RESERVED).saturating_sub(open);
    left.clamp(1, CONNECTIONS_MAX)
}

/// The descriptors that are open; 0 where the system does not tell.
fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// The memory that this process may take: of the machine, or of its control group if that is less. None where the
/// system does not say.
pub fn memory_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_limits(&groups, |path| fs::read_to_string(path).ok()?.trim().parse().ok());
    [machine, group].into_iter().flatten().min()
}

/// The least limit of the control groups of this process, those above them included. `groups` is `/proc/self/cgroup`:
/// lines such as `0::/system.slice/tallystone.service`, or `4:memory:/path` of the first version. In a container they
/// begin at its own root.
fn group_limits(groups: &str, limit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (folder, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        };
        let is_of_memory = controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
        let groups = Path::new(path).ancestors().map(|group| group.to_string_lossy().into_owned());
        let files = groups.map(move |group| format!("{folder}{}/{file}", group.trim_end_matches('/')));
        files.filter(move |_| is_of_memory)
    });
    limits.filter_map(|file| limit(&file)).min()
}

/// The total of `/proc/meminfo`, which counts in KiB.
fn total_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_the_reserve_leaves() {
        assert_eq!(connections(Some(1_024), 20), 748);
        assert_eq!(connections(Some(256), 20), 1, "one call at a time, rather than none");
        assert_eq!(connections(Some(1_048_576), 20), CONNECTIONS_MAX);
        assert_eq!(connections(None, 20), CONNECTIONS_MAX);
    }

    #[test]
    fn the_least_limit_of_the_own_control_group_and_those_above_counts() {
        let group = |text: &str| group_limits(text, |path| (path == "/sys/fs/cgroup/a/memory.max").then_some(7));
        assert_eq!(group("0::/a/b\n"), Some(7));
        assert_eq!((group("0::/\n"), group("")), (None, None));
        let root = |path: &str| (path == "/sys/fs/cgroup/memory.max").then_some(8);
        assert_eq!(group_limits("0::/\n", root), Some(8));
        let old = |path: &str| path.ends_with("/memory/c/memory.limit_in_bytes").then_some(9);
        assert_eq!(group_limits("5:cpu:/x\n4:memory:/c\n0::/\n", old), Some(9));
    }

    #[test]
    fn queues_get_what_is_set_or_half_of_the_memory_and_never_more_than_there_is() {
        const GIB: u64 = 1 << 30;
        assert_eq!(bound_of_queues(0, Some(4 * GIB)), 2 * GIB);
        assert_eq!(bound_of_queues(0, None), tallystone_embedded::QUEUE_MEMORY_BYTES_DEFAULT);
        assert_eq!([1, GIB, 9 * GIB].map(|set| bound_of_queues(set, Some(4 * GIB))), [1, GIB, 2 * GIB]);
        assert_eq!(bound_of_queues(9 * GIB, None), 9 * GIB);
    }

    #[test]
    fn buffers_get_what_is_set_or_a_quarter_of_the_memory() {
        const GIB: u64 = 1 << 30;
        let cases = [
            (0, Some(8 * GIB), as_size(2 * GIB)),
            (0, Some(u64::MAX), as_size(u64::MAX / 4)),
            (0, None, BUFFER_BYTES_DEFAULT),
            (1, Some(8 * GIB), 1),
            (GIB, None, as_size(GIB)),
            (16 * GIB, Some(8 * GIB), as_size(16 * GIB)),
            (u64::MAX, None, as_size(u64::MAX)),
        ];
        for (set, memory, expected) in cases {
            assert_eq!(buffer_bytes(set, memory), expected, "{set} set, {memory:?} of memory");
        }
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        assert_eq!(total_of("MemFree:  1 kB\nMemTotal:       8 kB\n"), Some(8_192));
        assert_eq!(total_of("MemTotal: many"), None);
    }
}
