//! `[tls]`: the certificate of the listening port, and whose certificates its clients show.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::Config;
use tallystone_adapters::rollup_rpc::PeerTlsFiles;

/// `[tls]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate with its chain; empty: no TLS.
    pub cert_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// The authorities of the certificates of clients.
    pub client_ca_file: PathBuf,
    /// The authorities of the certificates of the other servers of a fleet; empty: those that the machine trusts.
    pub peer_ca_file: PathBuf,
    /// The authority that `tallystone dev --tls` has made. Not a setting.
    #[serde(skip)]
    pub local_ca_file: Option<PathBuf>,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// None is asked for.
    Off,
    /// A client may show one. If it does, it has to be valid.
    Optional,
    /// A client without a valid one gets no connection.
    Required,
}

impl TlsConfig {
    /// No TLS.
    pub fn off() -> Self {
        Self {
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            client_auth: ClientAuth::Off,
            client_ca_file: PathBuf::new(),
            peer_ca_file: PathBuf::new(),
            local_ca_file: None,
        }
    }

    /// Whether the port speaks TLS.
    pub fn is_on(&self) -> bool {
        is_set(&self.cert_file)
    }

    /// The TLS files for calls to other servers.
    pub fn peers(&self) -> PeerTlsFiles {
        PeerTlsFiles {
            authorities: is_set(&self.peer_ca_file).then(|| self.peer_ca_file.clone()),
            certificate: self.is_on().then(|| (self.cert_file.clone(), self.key_file.clone())),
        }
    }
}

fn is_set(file: &Path) -> bool {
    !file.as_os_str().is_empty()
}

/// The setting that does not fit the others, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    let tls = &config.tls;
    let invalid = |key, what: &str| Some((key, what.to_owned()));
    match (is_set(&tls.cert_file), is_set(&tls.key_file)) {
        (true, false) => return invalid("tls.key_file", "must be set together with tls.cert_file"),
        (false, true) => return invalid("tls.cert_file", "must be set together with tls.key_file"),
        (true, true) | (false, false) => {}
    }
    match (tls.client_auth, is_set(&tls.client_ca_file)) {
        (ClientAuth::Off, true) => invalid(
            "tls.client_ca_file",
            "applies only to client_auth = \"optional\" or \"required\"; remove it, or set tls.client_auth",
        ),
        (ClientAuth::Optional | ClientAuth::Required, _) if !tls.is_on() => {
            invalid("tls.client_auth", "needs TLS: set tls.cert_file and tls.key_file")
        }
        (ClientAuth::Optional | ClientAuth::Required, false) => {
            invalid("tls.client_ca_file", "must name the authorities of the clients' certificates")
        }
        (ClientAuth::Off, false) | (ClientAuth::Optional | ClientAuth::Required, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::loaded;

    #[test]
    fn tls_needs_both_files_and_client_certificates_need_tls_and_an_authority() {
        let refused = |pairs: &[(&str, &str)]| loaded(pairs).map(drop);
        let (cert, key) = (("tls.cert_file", "cert.pem"), ("tls.key_file", "key.pem"));
        let (ca, required) = (("tls.client_ca_file", "ca.pem"), ("tls.client_auth", "required"));
        assert_eq!(refused(&[cert, key]), Ok(()));
        assert_eq!(refused(&[cert, key, ca, required]), Ok(()));
        assert_eq!(refused(&[cert, key, ca, ("tls.client_auth", "optional")]), Ok(()));
        for (pairs, words) in [
            (vec![cert], "tls.key_file must be set together with tls.cert_file"),
            (vec![key], "tls.cert_file must be set together with tls.key_file"),
            (vec![ca, required], "tls.client_auth needs TLS: set tls.cert_file and tls.key_file"),
            (vec![cert, key, required], "tls.client_ca_file must name the authorities"),
            (vec![cert, key, ca], "tls.client_ca_file applies only to client_auth"),
            (vec![("tls.client_auth", "maybe")], "tls.client_auth cannot be used"),
        ] {
            let error = refused(&pairs).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
