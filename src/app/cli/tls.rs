//! The certificates of a command: from options, or files that the environment names.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::Failure;
use tallystone_client::ClientTls;

/// The environment's names of the files.
const CA_FILE_VARIABLE: &str = "TALLYSTONE_CA_FILE";
const CERT_VARIABLE: &str = "TALLYSTONE_CLIENT_CERT";
const KEY_VARIABLE: &str = "TALLYSTONE_CLIENT_KEY";

/// The files of a command that takes them from nowhere else.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsArgs {
    /// The authorities that https:// servers are trusted by, in PEM form [env: TALLYSTONE_CA_FILE] [default: those of the
    /// machine].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate to show to https:// servers that ask for one, in PEM form [env: TALLYSTONE_CLIENT_CERT].
    #[arg(long, value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// The private key of the certificate [env: TALLYSTONE_CLIENT_KEY].
    #[arg(long, value_name = "FILE")]
    client_key: Option<PathBuf>,
}

/// The same for all commands below a noun.
#[derive(Clone, Debug, Args)]
pub struct InheritedTlsArgs {
    /// The authorities that https:// servers are trusted by, in PEM form [env: TALLYSTONE_CA_FILE] [default: those of the
    /// machine].
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate to show to https:// servers that ask for one, in PEM form [env: TALLYSTONE_CLIENT_CERT].
    #[arg(long, global = true, value_name = "FILE")]
    client_cert: Option<PathBuf>,
    /// The private key of the certificate [env: TALLYSTONE_CLIENT_KEY].
    #[arg(long, global = true, value_name = "FILE")]
    client_key: Option<PathBuf>,
}

/// The files of the options of one place.
#[derive(Clone, Copy, Debug)]
pub struct TlsFileOptions<'a> {
    ca: Option<&'a Path>,
    cert: Option<&'a Path>,
    key: Option<&'a Path>,
}

impl TlsArgs {
    pub fn files(&self) -> TlsFileOptions<'_> {
        let Self { ca_file, client_cert, client_key } = self;
        TlsFileOptions { ca: ca_file.as_deref(), cert: client_cert.as_deref(), key: client_key.as_deref() }
    }

    /// Each option, and whether it was given.
    pub fn given(&self) -> [(&'static str, bool); 3] {
        [
            ("--ca-file", self.ca_file.is_some()),
            ("--client-cert", self.client_cert.is_some()),
            ("--client-key", self.client_key.is_some()),
        ]
    }
}

impl InheritedTlsArgs {
    pub fn files(&self) -> TlsFileOptions<'_> {
        let Self { ca_file, client_cert, client_key } = self;
        TlsFileOptions { ca: ca_file.as_deref(), cert: client_cert.as_deref(), key: client_key.as_deref() }
    }
}

/// The TLS settings that a command needs for its servers: from the options after the noun, those before it, or the
/// environment. The environment says nothing to servers without TLS.
pub fn tls_of(after: TlsFileOptions<'_>, before: TlsFileOptions<'_>, servers: &[&str]) -> Result<ClientTls, Failure> {
    let is_secure = servers.iter().any(|server| server.starts_with("https://"));
    let file = |given: Option<&Path>, variable| {
        let set = || std::env::var_os(variable).filter(|name| is_secure && !name.is_empty()).map(PathBuf::from);
        given.map(Path::to_owned).or_else(set)
    };
    let ca = file(after.ca.or(before.ca), CA_FILE_VARIABLE);
    let cert = file(after.cert.or(before.cert), CERT_VARIABLE);
    let key = file(after.key.or(before.key), KEY_VARIABLE);
    let mut tls = ClientTls::default();
    if let Some(ca) = ca {
        let unusable = |error| Failure::usage(format!("the authorities in {} cannot be used: {error}", ca.display()));
        tls = tls.trusting(read(&ca)?).map_err(unusable)?;
    }
    match (cert, key) {
        (None, None) => Ok(tls),
        (Some(cert), Some(key)) => {
            let unusable = |error| {
                let files = format!("{} and {}", cert.display(), key.display());
                Failure::usage(format!("the client certificate in {files} cannot be used: {error}"))
            };
            tls.showing(read(&cert)?, read(&key)?).map_err(unusable)
        }
        (Some(_), None) => Err(Failure::usage("--client-cert needs the private key too: --client-key FILE")),
        (None, Some(_)) => Err(Failure::usage("--client-key needs the certificate too: --client-cert FILE")),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}
