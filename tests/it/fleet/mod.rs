//! Several servers on one Cassandra keyspace, and servers on several clusters.

pub mod clusters;
mod keys;
mod over_tls;
mod reported_queues;
pub mod several_servers;
pub mod strangers;
pub mod two_clusters;
