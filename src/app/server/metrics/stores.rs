//! The numbers of the stores on the metrics page.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;

use super::{MetricSource, encode, encode_each};
use crate::server::memcached::MemcachedClusters;
use tallystone_adapters::memcached;
use tallystone_cassandra::Cassandra;
use tallystone_embedded::Embedded;

/// The embedded store.
impl MetricSource for Arc<Embedded> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode(encoder, tallystone_embedded::METRICS, &self.health())
    }
}

/// The label where there is no cluster; none is called so.
const NO_CLUSTER: &str = "_none";

/// The memcached clusters. They are as many as the settings list, so their labels are bounded.
impl MetricSource for MemcachedClusters {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut health: Vec<_> = self.iter().map(|(name, cluster)| (name.as_str(), cluster.health())).collect();
        if health.is_empty() {
            health.push((NO_CLUSTER, memcached::Health::default()));
        }
        encode_each(encoder, memcached::METRICS, health.iter().map(|(name, health)| ([("cluster", *name)], health)))
    }
}

/// The keyspaces; on other stores there are none.
impl MetricSource for Vec<Arc<Cassandra>> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode(encoder, tallystone_cassandra::METRICS, self)
    }
}
