//! The faults of the settings of clusters, and of settings that name a cluster.

use crate::config::{
    ClusterConfig, ClusterKind, Config, CounterEngine, DeclaredDurability, RedisTopology, cassandra, cluster_tls, redis,
};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::{DEDUPE_SECONDS_MAX, MEMCACHED_PREFIX_BYTES_MAX, MEMCACHED_TIMEOUT_MAX};

/// The key that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(String, String)> {
    let engine_kind = match config.counters.engine {
        CounterEngine::Embedded => ClusterKind::Embedded,
        CounterEngine::Memory => ClusterKind::Memory,
        CounterEngine::Cassandra => ClusterKind::Cassandra,
    };
    let of_clusters = config.clusters.iter().find_map(|(name, cluster)| {
        if let Err(reject) = NamespaceName::new(name) {
            return Some((format!("clusters.{name}"), format!("is not a valid name: {}", reject.message)));
        }
        if cluster.kind == ClusterKind::Cassandra
            && engine_kind != ClusterKind::Cassandra
            && *name != config.counters.cluster
        {
            let what =
                "may be \"cassandra\" only if counters.engine is \"cassandra\": the catalog must be in Cassandra too";
            return Some((format!("clusters.{name}.kind"), what.to_owned()));
        }
        if let Some(other) = cassandra::same_keyspace(config, name) {
            let what = format!("is also the keyspace of [clusters.{other}]; remove one of the two clusters");
            return Some((format!("clusters.{name}.keyspace"), what));
        }
        let (setting, what) = invalid_cluster_setting(cluster, engine_kind)?;
        Some((format!("clusters.{name}.{setting}"), what))
    });
    let of_best_effort = || Some(("best_effort.cluster".to_owned(), invalid_best_effort_cluster(config)?));
    let of_cache = || Some(("cache.cluster".to_owned(), invalid_cache_cluster(config)?));
    let of_counters = || Some(("counters.cluster".to_owned(), cassandra::invalid_counter_cluster(config)?));
    let of_queues = || Some(("queues.cluster".to_owned(), redis::invalid_queue_cluster(config)?));
    of_clusters.or_else(of_counters).or_else(of_queues).or_else(of_best_effort).or_else(of_cache)
}

/// A setting that clusters of this kind do not have. What has another default than nothing is not told from it.
fn foreign(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
    use ClusterKind::{Cassandra, Memcached, Redis};
    let with_users: &[_] = &[Cassandra, Redis];
    let settings: [(&'static str, bool, &[ClusterKind]); 14] = [
        ("data_center", !cluster.data_center.is_empty(), &[Cassandra]),
        ("replication", !cluster.replication.to_string().is_empty(), &[Cassandra]),
        ("user", !cluster.user.is_empty(), with_users),
        ("password", !cluster.password.is_empty(), with_users),
        ("password_file", !cluster.password_file.as_os_str().is_empty(), with_users),
        ("tls", cluster.tls, with_users),
        ("topology", cluster.topology != RedisTopology::Single, &[Redis]),
        ("primary", !cluster.primary.is_empty(), &[Redis]),
        ("sentinel_user", !cluster.sentinel_user.is_empty(), &[Redis]),
        ("sentinel_password", !cluster.sentinel_password.is_empty(), &[Redis]),
        ("sentinel_password_file", !cluster.sentinel_password_file.as_os_str().is_empty(), &[Redis]),
        ("replicas", cluster.replicas > 0, &[Redis]),
        ("durability", cluster.durability != DeclaredDurability::None, &[Redis]),
        ("dedupe_seconds", cluster.dedupe_seconds > 0, &[Memcached]),
    ];
    let (setting, _, kinds) =
        settings.into_iter().find(|(_, is_set, kinds)| *is_set && !kinds.contains(&cluster.kind))?;
    let kinds: Vec<String> = kinds.iter().map(|kind| format!("\"{}\"", kind.word())).collect();
    let what = format!("applies only to a cluster of kind {}; remove it, or set the kind", kinds.join(" or "));
    Some((setting, what))
}

fn invalid_cluster_setting(cluster: &ClusterConfig, engine_kind: ClusterKind) -> Option<(&'static str, String)> {
    if let Some(invalid) = cluster_tls::invalid_setting(cluster).or_else(|| foreign(cluster)) {
        return Some(invalid);
    }
    let has_servers = !cluster.servers.replicas().is_empty();
    let prefix = &cluster.key_prefix;
    if cluster.kind == ClusterKind::Memcached {
        if !has_servers {
            return Some(("servers", "must name the memcached servers, as in 127.0.0.1:11211".to_owned()));
        }
        let has_valid_length = |prefix: &str| (1..=MEMCACHED_PREFIX_BYTES_MAX).contains(&prefix.len());
        if !has_valid_length(prefix) || !prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!("must be 1 to {MEMCACHED_PREFIX_BYTES_MAX} visible ASCII characters");
            return Some(("key_prefix", what));
        }
        if cluster.timeout_ms == 0 || cluster.timeout() > MEMCACHED_TIMEOUT_MAX {
            return Some(("timeout_ms", format!("must be 1 to {}", MEMCACHED_TIMEOUT_MAX.as_millis())));
        }
        if cluster.dedupe_seconds > DEDUPE_SECONDS_MAX {
            return Some(("dedupe_seconds", format!("must be 0 to {DEDUPE_SECONDS_MAX}")));
        }
        return None;
    }
    if cluster.kind == ClusterKind::Cassandra {
        return cassandra::invalid_setting(cluster);
    }
    if cluster.kind == ClusterKind::Redis {
        return redis::invalid_setting(cluster);
    }
    // Documents written for one machine name the cluster `embedded`; here it stands for the store of [counters].
    let stands_for_engine = engine_kind == ClusterKind::Cassandra && cluster.kind == ClusterKind::Embedded;
    if cluster.kind != engine_kind && !stands_for_engine {
        let what =
            "must be counters.engine, \"memcached\", \"cassandra\" or \"redis\": a server has one store of counters";
        return Some(("kind", what.to_owned()));
    }
    has_servers
        .then(|| ("servers", "apply only to a cluster of kind \"memcached\", \"cassandra\" or \"redis\"".to_owned()))
}

/// The fault of the cluster that the count cache of new namespaces should be in, if any.
fn invalid_cache_cluster(config: &Config) -> Option<String> {
    let name = &config.cache.cluster;
    let is_redis = |cluster: &ClusterConfig| cluster.kind == ClusterKind::Redis;
    if config.clusters.get(name).is_some_and(is_redis) {
        return Some(format!(
            "is {name}, which keeps queues and no counts; name a memcached cluster, or leave it empty"
        ));
    }
    (!name.is_empty() && !config.clusters.contains_key(name)).then(|| {
        let known: Vec<&str> = config.clusters.keys().map(String::as_str).collect();
        format!("is {name}, but there is no [clusters.{name}]; add it, or use one of {}", known.join(", "))
    })
}

/// The fault of the cluster that best-effort counters should be in, if any.
fn invalid_best_effort_cluster(config: &Config) -> Option<String> {
    let name = &config.best_effort.cluster;
    match config.clusters.get(name).map(|cluster| cluster.kind) {
        _ if name.is_empty() => None,
        Some(ClusterKind::Memcached) => None,
        Some(ClusterKind::Embedded | ClusterKind::Memory | ClusterKind::Cassandra | ClusterKind::Redis) => {
            Some(format!(
                "is {name}, which is not a memcached cluster; leave it empty to keep best-effort counters in this process"
            ))
        }
        None => {
            let of_kind = config.clusters.iter().filter(|(_, cluster)| cluster.kind == ClusterKind::Memcached);
            let known: Vec<&str> = of_kind.map(|(name, _)| name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Some(format!(
                "is {name}, but there is no [clusters.{name}]; add it with kind = \"memcached\" and its servers, or \
                 use a listed memcached cluster: {known}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::loaded;

    #[test]
    fn a_cluster_that_cannot_be_used_is_refused_with_what_to_write() {
        let refused = |pairs: &[(&str, &str)]| loaded(pairs).map(drop);
        let (kind, servers) = (("clusters.near.kind", "memcached"), ("clusters.near.servers", "127.0.0.1:11211"));
        assert_eq!(refused(&[kind, servers, ("best_effort.cluster", "near")]), Ok(()));
        for (pairs, words) in [
            (vec![kind], "clusters.near.servers must name the memcached servers"),
            (
                vec![kind, ("clusters.near.servers", "nowhere")],
                "clusters.near.servers cannot be used: must be HOST:PORT",
            ),
            (vec![servers], "clusters.near.servers apply only to a cluster of kind"),
            (
                vec![("clusters.near.data_center", "dc9")],
                "clusters.near.data_center applies only to a cluster of kind \"cass",
            ),
            (
                vec![kind, servers, ("clusters.near.user", "me")],
                "clusters.near.user applies only to a cluster of kind \"cass",
            ),
            (
                vec![kind, servers, ("clusters.near.tls", "true")],
                "clusters.near.tls cannot be set: memcached is reached in clear text only",
            ),
            (
                vec![("clusters.near.dedupe_seconds", "5")],
                "clusters.near.dedupe_seconds applies only to a cluster of kind \"memcached\"; remove it, or set the kind",
            ),
            (vec![kind, servers, ("clusters.near.timeout_ms", "0")], "clusters.near.timeout_ms must be 1 to 10000"),
            (
                vec![kind, servers, ("clusters.near.dedupe_seconds", "86401")],
                "clusters.near.dedupe_seconds must be 0 to 86400",
            ),
            (vec![kind, servers, ("clusters.near.key_prefix", "a b")], "clusters.near.key_prefix must be"),
            (vec![kind, servers, ("best_effort.cluster", "far")], "a listed memcached cluster: near"),
            (vec![("cache.cluster", "far")], "cache.cluster is far, but there is no [clusters.far]; add it"),
            (vec![("clusters.a b.kind", "embedded")], "clusters.a b is not a valid name: "),
            (vec![("best_effort.cluster", "far")], "there is no [clusters.far]; add it with kind = \"memcached\""),
            (vec![("best_effort.cluster", "embedded")], "leave it empty to keep best-effort counters in this process"),
        ] {
            let error = refused(&pairs).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
