//! TLS to other servers: whom this server trusts, and the certificate that it shows, both from files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use tallystone_domain::limits::SIGNAL_CALL_WITHIN;

/// How an address begins that is reached by TLS.
pub const TLS_SCHEME: &str = "https://";

/// The files of a server that calls others. They are read again for each new connection, so that a replaced certificate is
/// shown from then on.
#[derive(Clone, Debug, Default)]
pub struct PeerTlsFiles {
    /// The authorities of the certificates of the others; none: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// The certificate to show, and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Why a server cannot be called by TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerTlsError {
    /// A file cannot be read.
    #[error("{} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// The address or what the files hold cannot be used.
    #[error("the connection cannot be prepared")]
    Unusable(#[from] tonic::transport::Error),
}

impl PeerTlsFiles {
    /// How to connect to an address: HOST:PORT in clear text, or https://HOST:PORT.
    pub(super) fn endpoint(&self, address: &str) -> Result<Endpoint, PeerTlsError> {
        match address.starts_with(TLS_SCHEME) {
            true => Ok(Endpoint::from_shared(address.to_owned())?.tls_config(self.config()?)?),
            false => Ok(Endpoint::from_shared(format!("http://{address}"))?),
        }
    }

    fn config(&self) -> Result<ClientTlsConfig, PeerTlsError> {
        let config = ClientTlsConfig::new().timeout(SIGNAL_CALL_WITHIN);
        let config = match &self.authorities {
            Some(file) => config.ca_certificate(Certificate::from_pem(read(file)?)),
            None => config.with_enabled_roots(),
        };
        Ok(match &self.certificate {
            Some((certificate, key)) => config.identity(Identity::from_pem(read(certificate)?, read(key)?)),
            None => config,
        })
    }
}

fn read(file: &Path) -> Result<Vec<u8>, PeerTlsError> {
    fs::read(file).map_err(|error| PeerTlsError::Unreadable(file.to_owned(), error))
}
