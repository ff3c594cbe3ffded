//! The settings of a `[clusters.NAME]` of kind "cassandra": where its keyspace is and how data is replicated.

use std::time::Duration;

use crate::config::{ClusterConfig, ClusterKind, Config, CounterEngine};
use tallystone_cassandra::{Credentials, Options};
use tallystone_domain::limits::{CASSANDRA_SERVERS_MAX, KEYSPACE_NAME_BYTES_MAX};

/// The cluster that `[counters]` names, if it is one of Cassandra.
pub fn counter_cluster(config: &Config) -> Option<(&str, &ClusterConfig)> {
    let name = config.counters.cluster.as_str();
    let cluster = config.clusters.get(name).filter(|cluster| cluster.kind == ClusterKind::Cassandra)?;
    (config.counters.engine == CounterEngine::Cassandra).then_some((name, cluster))
}

/// The clusters beside that one, whose keyspaces keep datasets whose namespaces name them.
pub fn attached_clusters(config: &Config) -> impl Iterator<Item = (&str, &ClusterConfig)> {
    let of_kind = config.clusters.iter().filter(|(_, cluster)| cluster.kind == ClusterKind::Cassandra);
    of_kind.map(|(name, cluster)| (name.as_str(), cluster)).filter(|(name, _)| *name != config.counters.cluster)
}

/// How the cluster is reached. Reads the password from its file, if it is in one.
pub fn options(cluster: &ClusterConfig) -> Result<Options, String> {
    let password = cluster.password()?;
    let credentials = (!cluster.user.is_empty()).then(|| Credentials { user: cluster.user.clone(), password });
    Ok(Options {
        servers: cluster.servers.replicas().concat(),
        keyspace: cluster.keyspace.clone(),
        data_center: (!cluster.data_center.is_empty()).then(|| cluster.data_center.clone()),
        credentials,
        tls: cluster.store_tls()?,
        timeout: Duration::from_millis(cluster.request_timeout_ms),
    })
}

/// The setting of a cluster of Cassandra that cannot be used, and what to write instead.
pub(super) fn invalid_setting(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
    let servers = cluster.servers.replicas();
    if servers.len() != 1 || servers[0].len() > CASSANDRA_SERVERS_MAX {
        let what = format!(
            "must name 1 to {CASSANDRA_SERVERS_MAX} nodes, as in 127.0.0.1:9042; replicas separated by | are \
                only for memcached"
        );
        return Some(("servers", what));
    }
    let keyspace = &cluster.keyspace;
    let is_name = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    let begins = keyspace.starts_with(|first: char| first.is_ascii_lowercase());
    if !begins || !keyspace.chars().all(is_name) || keyspace.len() > KEYSPACE_NAME_BYTES_MAX {
        let what = format!("must be a lower-case letter and up to {} of a-z, 0-9 and _", KEYSPACE_NAME_BYTES_MAX - 1);
        return Some(("keyspace", what));
    }
    if !(100..=60_000).contains(&cluster.request_timeout_ms) {
        return Some(("request_timeout_ms", "must be 100 to 60000".to_owned()));
    }
    if cluster.user.is_empty() && !(cluster.password.is_empty() && cluster.password_file.as_os_str().is_empty()) {
        return Some(("user", "must be set together with a password".to_owned()));
    }
    if !cluster.password.is_empty() && !cluster.password_file.as_os_str().is_empty() {
        return Some(("password", "and password_file are both set; remove one of them".to_owned()));
    }
    None
}

/// Another cluster that stands for the keyspace of this one: two stores of the same rows would not know of each other.
pub(super) fn same_keyspace<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    let cluster = config.clusters.get(name).filter(|cluster| cluster.kind == ClusterKind::Cassandra)?;
    let servers = cluster.servers.replicas().concat();
    let is_same = |other: &ClusterConfig| {
        let shares_a_server = other.servers.replicas().iter().flatten().any(|server| servers.contains(server));
        other.kind == ClusterKind::Cassandra && other.keyspace == cluster.keyspace && shares_a_server
    };
    let mut others = config.clusters.iter().filter(|(other, _)| *other != name);
    others.find(|(_, other)| is_same(other)).map(|(other, _)| other.as_str())
}

/// The fault of the cluster that `[counters]` names, if any.
pub(super) fn invalid_counter_cluster(config: &Config) -> Option<String> {
    let name = &config.counters.cluster;
    match (config.counters.engine, counter_cluster(config)) {
        (CounterEngine::Cassandra, Some(_)) => None,
        (CounterEngine::Cassandra, None) => Some(format!(
            "is {name:?}, but there is no [clusters.{name}] with kind = \"cassandra\"; add it with its servers, or \
             use a listed cluster"
        )),
        (CounterEngine::Embedded | CounterEngine::Memory, _) if !name.is_empty() => {
            Some("applies only to counters.engine = \"cassandra\"; leave it empty".to_owned())
        }
        (CounterEngine::Embedded | CounterEngine::Memory, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::loaded;

    #[test]
    fn a_cluster_of_cassandra_that_cannot_be_used_is_refused_with_what_to_write() {
        let refused = |pairs: &[(&str, &str)]| loaded(pairs).map(drop);
        let good = [
            ("counters.engine", "cassandra"),
            ("counters.cluster", "main"),
            ("clusters.main.kind", "cassandra"),
            ("clusters.main.servers", "127.0.0.1:9042,127.0.0.2:9042"),
        ];
        assert_eq!(refused(&good), Ok(()));
        for (pair, words) in [
            (("clusters.main.servers", ""), "clusters.main.servers must name 1 to 64 nodes"),
            (("clusters.main.servers", "a:1|b:2"), "clusters.main.servers must name 1 to 64 nodes"),
            (("clusters.main.keyspace", "Shop"), "clusters.main.keyspace must be a lower-case letter"),
            (("clusters.main.request_timeout_ms", "99"), "clusters.main.request_timeout_ms must be 100 to 60000"),
            (("clusters.main.replication", "dc1"), "must be DATACENTER:COPIES"),
            (("counters.cluster", "other"), "is \"other\", but there is no [clusters.other]"),
            (("clusters.main.kind", "memcached"), "there is no [clusters.main] with kind = \"cassandra\""),
            (("counters.engine", "embedded"), "counters.cluster applies only to counters.engine = \"cassandra\""),
        ] {
            let error = refused(&[&good[..], &[pair]].concat()).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
        let far = [("clusters.far.kind", "cassandra"), ("clusters.far.servers", "127.0.0.2:9042")];
        let same = refused(&[&good[..], &far].concat()).expect_err("remove one of the two clusters");
        assert!(same.contains("is also the keyspace of [clusters."), "{same}");
        let far = [&far[..], &[("clusters.far.keyspace", "far")]].concat();
        assert_eq!(refused(&[&good[..], &far].concat()), Ok(()));
        let alone = refused(&far).expect_err("its catalog would be in the embedded store");
        assert!(alone.contains("clusters.far.kind may be \"cassandra\" only if counters.engine is"), "{alone}");
    }
}
