//! TLS to the servers of a `[clusters.NAME]`.

use std::path::Path;

use crate::config::{ClusterConfig, ClusterKind};
use tallystone_adapters::store_tls::{StoreTls, StoreTlsFiles};

impl ClusterConfig {
    /// The TLS of connections to the servers; none: they are in clear text. Reads the files.
    pub fn store_tls(&self) -> Result<Option<StoreTls>, String> {
        if !self.tls {
            return Ok(None);
        }
        let set = |file: &Path| is_set(file).then(|| file.to_owned());
        // A single one was refused when the settings were checked.
        let identity = set(&self.tls_cert_file).zip(set(&self.tls_key_file));
        let tls = StoreTls::new(StoreTlsFiles { authorities: set(&self.tls_ca_file), identity });
        tls.map(Some).map_err(|error| error.to_string())
    }
}

/// The setting that does not fit the others, and what to write instead.
pub(super) fn invalid_setting(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
    if cluster.kind == ClusterKind::Memcached {
        return of_memcached(cluster);
    }
    let files = [
        ("tls_ca_file", is_set(&cluster.tls_ca_file)),
        ("tls_cert_file", is_set(&cluster.tls_cert_file)),
        ("tls_key_file", is_set(&cluster.tls_key_file)),
    ];
    if let Some((setting, _)) = files.into_iter().find(|(_, is_set)| *is_set && !cluster.tls) {
        return Some((setting, "applies only to tls = true; remove it, or set tls".to_owned()));
    }
    match files {
        [_, (_, true), (key, false)] => Some((key, "must be set together with tls_cert_file".to_owned())),
        [_, (certificate, false), (_, true)] => {
            Some((certificate, "must be set together with tls_key_file".to_owned()))
        }
        _ => None, // both or none
    }
}

/// memcached has none: the client library would encrypt without checking whom it talks to as other connections do.
fn of_memcached(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
    let settings = [
        ("tls", cluster.tls),
        ("tls_ca_file", is_set(&cluster.tls_ca_file)),
        ("tls_cert_file", is_set(&cluster.tls_cert_file)),
        ("tls_key_file", is_set(&cluster.tls_key_file)),
    ];
    let (setting, _) = settings.into_iter().find(|(_, is_set)| *is_set)?;
    let what =
        "cannot be set: memcached is reached in clear text only; remove it, and keep memcached in a trusted network";
    Some((setting, what.to_owned()))
}

fn is_set(file: &Path) -> bool {
    !file.as_os_str().is_empty()
}
