//! TLS to the servers of a `[clusters.NAME]`.

use std::path::Path;

use crate::adapters::store_tls::{StorePem, StoreTls};
use crate::app::config::ClusterConfig;

impl ClusterConfig {
    /// What connections to the servers need; none: they are in clear text. Reads the files.
    pub fn store_tls(&self) -> Result<Option<StoreTls>, String> {
        if !self.tls {
            return Ok(None);
        }
        let identity = match (is_set(&self.tls_cert_file), is_set(&self.tls_key_file)) {
            (true, true) => {
                Some((read("tls_cert_file", &self.tls_cert_file)?, read("tls_key_file", &self.tls_key_file)?))
            }
            (_, _) => None, // a single one was refused when the settings were checked
        };
        let authorities = match is_set(&self.tls_ca_file) {
            true => Some(read("tls_ca_file", &self.tls_ca_file)?),
            false => None,
        };
        let tls = StoreTls::new(StorePem { authorities, identity });
        tls.map(Some).map_err(|error| format!("the TLS files of the cluster: {error}"))
    }
}

/// The setting that does not fit the others, and what to write instead.
pub(super) fn invalid_setting(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
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

fn is_set(file: &Path) -> bool {
    !file.as_os_str().is_empty()
}

fn read(setting: &str, file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file)
        .map_err(|error| format!("cannot read {}, the {setting} of the cluster: {error}", file.display()))
}
