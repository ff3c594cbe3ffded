//! TLS to the servers of a store: the authorities to trust, and the certificate to show.
//!
//! Each handshake looks at the files and goes by what they hold then; open connections go on. Files that cannot be used
//! change nothing, and are reported once for each change. The authorities of the machine are read once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};

use crate::tls_file;
use tallystone_pem::{self as pem, PairError};

/// How the TLS library tells that the other side ended the handshake, and that its bytes are none of TLS.
const REFUSED_BY_IT: &str = "received fatal alert";
const NO_TLS: &str = "received corrupt message";

/// The TLS settings of a client of a store. Cheap to clone.
#[derive(Clone)]
pub struct StoreTls {
    config: Arc<ClientConfig>,
}

/// The files with it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StoreTlsFiles {
    /// The authorities of the certificates of the servers; none: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// The certificate to show with its chain, and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The fault of TLS settings that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreTlsError(String);

/// The contents of the files at one moment.
struct StoreTlsContents {
    authorities: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// The verifier and the certificate that handshakes go by.
#[derive(Clone)]
struct StoreTrust {
    verifier: Arc<WebPkiServerVerifier>,
    shown: Option<Arc<CertifiedKey>>,
}

/// The trust of the moment, with the files that it is from.
struct LiveTrust {
    files: StoreTlsFiles,
    state: Mutex<LiveTrustState>,
}

struct LiveTrustState {
    trust: StoreTrust,
    /// The digest of the contents that were judged last, whether they are used or not; or the error of reading them.
    judged: Result<[u8; 32], String>,
}

impl StoreTls {
    /// Reads the files. Fails if what they hold cannot be used.
    pub fn new(files: StoreTlsFiles) -> Result<Self, StoreTlsError> {
        let contents = files.read().map_err(StoreTlsError)?;
        let trust = files.judge(&contents).map_err(StoreTlsError)?;
        let state = LiveTrustState { trust, judged: Ok(contents.digest()) };
        let live = Arc::new(LiveTrust { files, state: Mutex::new(state) });
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| StoreTlsError(format!("TLS cannot be used: {error}")))?;
        let verifier = Arc::clone(&live) as Arc<dyn ServerCertVerifier>;
        let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_client_cert_resolver(live);
        // A resumed session would not check the certificate of the server again.
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// The settings of connections.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl StoreTlsFiles {
    fn read(&self) -> Result<StoreTlsContents, String> {
        let read = |file: &Path| {
            tls_file::read(file).map_err(|error| format!("the TLS file {} cannot be read: {error}", file.display()))
        };
        let authorities = self.authorities.as_deref().map(read).transpose()?;
        let identity = match &self.identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        Ok(StoreTlsContents { authorities, identity })
    }

    fn judge(&self, contents: &StoreTlsContents) -> Result<StoreTrust, String> {
        let about = |file: &Option<PathBuf>, what: String| match file {
            Some(file) => format!("the TLS file {} {what}", file.display()),
            None => what,
        };
        let roots = match &contents.authorities {
            Some(bytes) => pem::authorities(bytes).map_err(|what| about(&self.authorities, what))?,
            None => machine_authorities()?,
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| about(&self.authorities, format!("cannot be used: {error}")))?;
        let Some((certificate, key)) = &contents.identity else { return Ok(StoreTrust { verifier, shown: None }) };
        let (of_certificate, of_key) = self.identity.clone().unzip();
        let name = of_certificate.as_deref().unwrap_or(Path::new("")).display().to_string();
        let pair = pem::pair(certificate, key, &name).map_err(|error| match error {
            PairError::Certificate(what) => about(&of_certificate, what),
            PairError::Key(what) => about(&of_key, what),
        })?;
        Ok(StoreTrust { verifier, shown: Some(Arc::new(pair)) })
    }
}

impl StoreTlsContents {
    /// A short form: equal if nothing has changed.
    fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let (certificate, key) = self.identity.as_ref().map(|(certificate, key)| (certificate, key)).unzip();
        for part in [self.authorities.as_ref(), certificate, key] {
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            hash.update(part.map_or(&[][..], Vec::as_slice));
        }
        hash.finalize().into()
    }
}

/// The reason for which there is no connection to another server, with what to do about it if TLS is the cause.
/// `setting` names the file of its authorities.
pub fn with_tls_advice(why: String, setting: &str) -> String {
    let advice = if why.contains("UnknownIssuer") {
        format!(
            "no authority in {setting} has signed its certificate, or it does not send the certificates between its own and that \
             authority: its file must hold them, each after the one that it signed"
        )
    } else if why.contains(REFUSED_BY_IT) {
        "if it asks for a certificate, it wants one that is signed by an authority that it trusts, with the certificates in \
         between behind it in the same file"
            .to_owned()
    } else if why.contains(NO_TLS) {
        "what listens there does not speak TLS; use its port for TLS, or remove the TLS settings".to_owned()
    } else {
        return why;
    };
    format!("{why}; {advice}")
}

/// Whether a connection failed for its TLS session, by what the TLS library says within what others made of it.
pub fn is_about_tls(why: &str) -> bool {
    ["invalid peer certificate", REFUSED_BY_IT, NO_TLS].iter().any(|words| why.contains(words))
}

/// The authorities that the machine trusts.
fn machine_authorities() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // Some may be of kinds that are not known here.
    let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err("no authority is trusted: this machine has none; name a file".to_owned()),
        false => Ok(roots),
    }
}

impl LiveTrust {
    /// The trust of the moment, after a look at the files. Handshakes are rare, and the files short.
    fn current(&self) -> StoreTrust {
        let read = self.files.read();
        let seen = read.as_ref().map(StoreTlsContents::digest).map_err(Clone::clone);
        let mut state = self.state.lock();
        if seen == state.judged {
            return state.trust.clone();
        }
        state.judged = seen;
        match read.and_then(|contents| self.files.judge(&contents)) {
            Ok(trust) => {
                state.trust = trust;
                tracing::info!("new connections to a store go by its new TLS files");
            }
            Err(why) => {
                tracing::warn!(why, "the TLS files of a store were changed and cannot be used; those of before hold");
            }
        }
        state.trust.clone()
    }

    /// The same without a look: within a handshake that looked.
    fn last(&self) -> StoreTrust {
        self.state.lock().trust.clone()
    }
}

impl ServerCertVerifier for LiveTrust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.current().verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.last().verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.last().verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.last().verifier.supported_verify_schemes()
    }
}

impl ResolvesClientCert for LiveTrust {
    fn resolve(&self, _authorities: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current().shown
    }

    fn has_certs(&self) -> bool {
        self.files.identity.is_some()
    }
}

impl fmt::Debug for LiveTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveTrust").field("files", &self.files).finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreTls").finish_non_exhaustive()
    }
}
