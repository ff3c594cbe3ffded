//! The numbers of the stores on the metrics page.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{MetricSource, encode, encode_count};
use crate::adapters::cassandra::{Cassandra, RequestCounts};
use crate::adapters::embedded::{Embedded, Health};
use crate::adapters::memcached;
use crate::app::server::backend::MemcachedClusters;

type StoreRow = (&'static str, &'static str, fn(&Health) -> u64);

const STORE_GAUGES: &[StoreRow] = &[
    ("tallystone_store_disk_bytes", "Bytes of the store's files", |h| h.disk_bytes),
    ("tallystone_store_journal_bytes", "Bytes of the store's journals", |h| h.journal_bytes),
    ("tallystone_store_waiting_bytes", "Bytes of writes waiting for a commit", |h| h.waiting_bytes),
    ("tallystone_store_tail_bytes", "Bytes of recent events in memory", |h| h.tail_bytes),
    ("tallystone_store_row_bytes", "Bytes of counters in memory", |h| h.row_bytes),
    ("tallystone_store_flushes_waiting", "Memory tables waiting to be written to files", |h| h.outstanding_flushes),
    ("tallystone_store_full", "1 while adds are refused because the file system is full", |h| u64::from(h.full)),
    ("tallystone_store_failed", "1 once the store has failed and accepts no more writes", |h| {
        u64::from(h.failure.is_some())
    }),
];

/// The embedded store.
impl MetricSource for Arc<Embedded> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let health = self.health();
        if let Some(free) = health.free_bytes {
            let help = "Free bytes of the data directory's file system";
            encode(encoder, "tallystone_store_free_bytes", help, &ConstGauge::new(free as f64))?;
        }
        for (name, help, value) in STORE_GAUGES {
            encode(encoder, name, help, &ConstGauge::new(value(&health) as f64))?;
        }
        encode_count(encoder, "tallystone_store_commits", "Commits since the store was created", health.commit_number)
    }
}

/// The label where there is no cluster; none is called so.
const NO_CLUSTER: &str = "_none";

type MemcachedRow = (&'static str, &'static str, fn(&memcached::Health) -> u64);

const MEMCACHED_COUNTS: &[MemcachedRow] = &[
    ("tallystone_memcached_calls", "Calls to memcached servers; an add on two replicas counts as two", |h| h.calls),
    ("tallystone_memcached_calls_failed", "Failed calls to memcached servers", |h| h.failed),
    (
        "tallystone_memcached_calls_unknown",
        "Failed calls to memcached servers that may have been \
        applied",
        |h| h.unknown,
    ),
    (
        "tallystone_memcached_calls_refused",
        "Failed calls to memcached servers that were not sent, because the server \
        was paused",
        |h| h.refused,
    ),
];

const MEMCACHED_GAUGES: &[MemcachedRow] = &[
    ("tallystone_memcached_servers", "memcached servers in use", |h| h.servers),
    ("tallystone_memcached_servers_down", "memcached servers paused because they did not answer", |h| h.servers_down),
];

/// The memcached clusters. They are as many as the settings list, so their labels are bounded.
impl MetricSource for MemcachedClusters {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let health = self.iter().map(|(name, cluster)| ([("cluster", name.clone())], cluster.health()));
        let mut health: Vec<_> = health.collect();
        if health.is_empty() {
            health.push(([("cluster", NO_CLUSTER.to_owned())], memcached::Health::default()));
        }
        for (name, help, value) in MEMCACHED_COUNTS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, health) in &health {
                ConstCounter::new(value(health)).encode(family.encode_family(labels)?)?;
            }
        }
        for (name, help, value) in MEMCACHED_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, health) in &health {
                ConstGauge::new(value(health) as f64).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

type CassandraRow = (&'static str, &'static str, fn(&RequestCounts) -> u64);

const CASSANDRA_COUNTS: &[CassandraRow] = &[
    ("tallystone_cassandra_reads", "Reads of the keyspace, counted by page", |r| r.reads),
    ("tallystone_cassandra_writes", "Plain writes; a batch of rows counts as one", |r| r.writes),
    ("tallystone_cassandra_rows_written", "Rows in plain writes", |r| r.rows),
    ("tallystone_cassandra_conditional", "Conditional requests", |r| r.conditional),
    ("tallystone_cassandra_failed", "Failed requests; most of them are retried", |r| r.failed),
];

/// How often the keyspaces were asked, all together; on other stores there are none.
impl MetricSource for Vec<Arc<Cassandra>> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let requests: Vec<RequestCounts> = self.iter().map(|keyspace| keyspace.request_counts()).collect();
        for (name, help, value) in CASSANDRA_COUNTS {
            encode_count(encoder, name, help, requests.iter().map(value).sum())?;
        }
        let wide = self.iter().map(|keyspace| keyspace.wide_counters()).sum();
        let help = "Counters with partitions above 10 MiB, counted per slice";
        encode_count(encoder, "tallystone_cassandra_wide_counters", help, wide)
    }
}
