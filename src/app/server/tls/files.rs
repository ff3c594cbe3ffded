//! The files of the listening port's certificate: what they hold, and whether that can be served.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use sha2::{Digest as _, Sha256};

use crate::config::{ClientAuth, TlsConfig};
use tallystone_adapters::tls_file;
use tallystone_api::tls::CertificateFields;
use tallystone_domain::Timestamp;
use tallystone_pem::{self as pem, PairError};

const CERT_FILE: &str = "tls.cert_file";
const KEY_FILE: &str = "tls.key_file";
const CLIENT_CA_FILE: &str = "tls.client_ca_file";
const PEER_CA_FILE: &str = "tls.peer_ca_file";

/// The files that the settings name.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    client_auth: ClientAuth,
    client_ca: PathBuf,
}

/// The contents of the files at one moment.
pub(super) struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

/// A short form of what was read: equal if nothing has changed.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum FilesFingerprint {
    Held([u8; 32]),
    Unreadable(String),
}

/// A certificate that can be served, from the files.
pub(super) struct ServedCertificate {
    pub server: ServerConfig,
    /// The first moment at which the certificate is not valid any more.
    pub expires: Timestamp,
    /// The gap in its chain, if there is one.
    gap: Option<String>,
}

/// The reason why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error("{setting} {} cannot be read", path.display())]
    Unreadable {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{setting} {} {what}", path.display())]
    Invalid {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        what: String,
    },
}

/// Checks that the files of the settings can be served, as a start does.
pub fn check(config: &TlsConfig) -> Result<(), TlsFileError> {
    check_peers(config)?;
    if !config.is_on() {
        return Ok(());
    }
    let files = TlsFiles::of(config);
    files.judge(&files.read()?).map(drop)
}

/// Checks the authorities of other servers, if the settings name a file of them: calls to the others read it only then.
/// A server without TLS of its own may call others that have it.
pub(super) fn check_peers(config: &TlsConfig) -> Result<(), TlsFileError> {
    let path = &config.peer_ca_file;
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let invalid = |what| TlsFileError::Invalid { setting: PEER_CA_FILE, path: path.clone(), what };
    pem::authorities(&read(PEER_CA_FILE, path)?).map(drop).map_err(invalid)
}

impl FilesFingerprint {
    pub(super) fn of(read: &Result<FileContents, TlsFileError>) -> Self {
        match read {
            Ok(contents) => {
                let mut hash = Sha256::new();
                for part in [&contents.certificate, &contents.key, &contents.client_ca] {
                    hash.update((part.len() as u64).to_be_bytes());
                    hash.update(part);
                }
                Self::Held(hash.finalize().into())
            }
            Err(error) => Self::Unreadable(describe(error)),
        }
    }
}

/// The error with its cause.
pub(super) fn describe(error: &TlsFileError) -> String {
    match error {
        TlsFileError::Unreadable { source, .. } => format!("{error}: {source}"),
        TlsFileError::Invalid { .. } => error.to_string(),
    }
}

impl TlsFiles {
    pub(super) fn of(config: &TlsConfig) -> Self {
        Self {
            certificate: config.cert_file.clone(),
            key: config.key_file.clone(),
            client_auth: config.client_auth,
            client_ca: config.client_ca_file.clone(),
        }
    }

    pub(super) fn read(&self) -> Result<FileContents, TlsFileError> {
        Ok(FileContents {
            certificate: read(CERT_FILE, &self.certificate)?,
            key: read(KEY_FILE, &self.key)?,
            client_ca: match self.client_auth {
                ClientAuth::Off => Vec::new(),
                ClientAuth::Optional | ClientAuth::Required => read(CLIENT_CA_FILE, &self.client_ca)?,
            },
        })
    }

    /// Checks that the key belongs to the certificate, and that all of it can be served.
    pub(super) fn judge(&self, contents: &FileContents) -> Result<ServedCertificate, TlsFileError> {
        let invalid =
            |setting, path: &Path, what: String| TlsFileError::Invalid { setting, path: path.to_owned(), what };
        let of_certificate = |what| invalid(CERT_FILE, &self.certificate, what);
        let name = self.certificate.display().to_string();
        let certified = pem::pair(&contents.certificate, &contents.key, &name).map_err(|error| match error {
            PairError::Certificate(what) => of_certificate(what),
            PairError::Key(what) => invalid(KEY_FILE, &self.key, what),
        })?;
        let expires = expiry(&certified.cert[0]).map_err(of_certificate)?;
        let gap = pem::gap(&certified.cert);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = self.verifier(contents, &provider)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| of_certificate(error.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        if self.client_auth != ClientAuth::Off {
            // A resumed session would not check again whether the certificate of the client is still valid.
            server.session_storage = Arc::new(NoServerSessionStorage {});
            server.send_tls13_tickets = 0;
        }
        Ok(ServedCertificate { server, expires, gap })
    }

    fn verifier(
        &self,
        contents: &FileContents,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
        let invalid = |what| TlsFileError::Invalid { setting: CLIENT_CA_FILE, path: self.client_ca.clone(), what };
        if self.client_auth == ClientAuth::Off {
            return Ok(WebPkiClientVerifier::no_client_auth());
        }
        let roots = pem::authorities(&contents.client_ca).map_err(invalid)?;
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let builder = match self.client_auth {
            ClientAuth::Optional => builder.allow_unauthenticated(),
            ClientAuth::Off | ClientAuth::Required => builder,
        };
        builder.build().map_err(|error| invalid(format!("cannot be used: {error}")))
    }

    /// Says what is amiss and no reason to refuse a start: a chain with a gap, since some clients know what is missing;
    /// a private key that everyone on this machine can read, since mounted secrets often are like that.
    pub(super) fn warn_of_flaws(&self, served: &ServedCertificate) {
        if let Some(gap) = &served.gap {
            tracing::warn!(file = %self.certificate.display(), "the certificate in tls.cert_file {gap}");
        }
        let mode = std::fs::metadata(&self.key).map(|data| data.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o007 != 0) {
            tracing::warn!(file = %self.key.display(), "every user of this machine can use the private key in tls.key_file; chmod 600");
        }
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, TlsFileError> {
    tls_file::read(path).map_err(|source| TlsFileError::Unreadable { setting, path: path.to_owned(), source })
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<Timestamp, String> {
    let fields = CertificateFields::read(certificate);
    let fields = fields.map_err(|error| format!("has a certificate that cannot be read: {error}"))?;
    Ok(fields.expires)
}
