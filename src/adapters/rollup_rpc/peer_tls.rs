//! TLS to other servers: whom this server trusts, and the certificate that it shows, both from files.

use std::io;
use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::tls_file;
use tallystone_domain::limits::SIGNAL_CALL_WITHIN;
use tallystone_pem::{self as pem, PairError};

/// How an address begins that is reached by TLS.
pub const TLS_SCHEME: &str = "https://";

/// The files of a server that calls others. They are read again for each new connection, so that a replaced certificate
/// is shown from then on.
#[derive(Clone, Debug, Default)]
pub struct PeerTlsFiles {
    /// The authorities of the certificates of the others; none: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// The certificate to show, and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason for which a server cannot be called by TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerTlsError {
    /// A file cannot be read.
    #[error("{} cannot be read", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A file does not hold what it should.
    #[error("{} {what}", file.display())]
    Invalid { file: PathBuf, what: String },
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
            Some(file) => {
                let bytes = read(file)?;
                pem::authorities(&bytes).map_err(|what| invalid(file, what))?;
                config.ca_certificate(Certificate::from_pem(bytes))
            }
            None => config.with_enabled_roots(),
        };
        let Some((certificate, key)) = &self.certificate else { return Ok(config) };
        let (shown, secret) = (read(certificate)?, read(key)?);
        pem::pair(&shown, &secret, &certificate.display().to_string()).map_err(|error| match error {
            PairError::Certificate(what) => invalid(certificate, what),
            PairError::Key(what) => invalid(key, what),
        })?;
        Ok(config.identity(Identity::from_pem(shown, secret)))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, PeerTlsError> {
    tls_file::read(file).map_err(|error| PeerTlsError::Unreadable(file.to_owned(), error))
}

fn invalid(file: &Path, what: String) -> PeerTlsError {
    PeerTlsError::Invalid { file: file.to_owned(), what }
}
