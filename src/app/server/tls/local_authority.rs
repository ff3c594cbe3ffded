//! The authority of `tallystone dev --tls`, and the certificate that it signs for the server.
//!
//! The authority is made once for each directory, so clients trust it once. The certificate is new at each start. A
//! user that can read the directory can make certificates that the same clients trust, so everything in it is private.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::config::TlsConfig;
use tallystone_adapters::system::SystemEntropy;
use tallystone_api::tls::CertificateFields;
use tallystone_domain::Timestamp;
use tallystone_ports::Entropy as _;

const AUTHORITY_NAME: &str = "tallystone dev";
const AUTHORITY_YEARS: i16 = 10;
/// An authority that ends sooner is made anew.
const AUTHORITY_DAYS_LEAST: i64 = 400;

/// The reason why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum LocalAuthorityError {
    /// A file cannot be read or written.
    #[error("cannot keep certificates in {}", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// The library refuses.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The clock of the machine is far off.
    #[error("cannot make a certificate: the clock of this machine is out of range")]
    Clock,
}

/// Makes the files of a server's certificate in a folder, for these names and addresses and for this machine.
pub fn make(folder: &Path, names: &[String], now: Timestamp) -> Result<TlsConfig, LocalAuthorityError> {
    let failed = |error| LocalAuthorityError::Folder(folder.to_owned(), error);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    // Others read the paths: they are printed.
    let folder = &fs::canonicalize(folder).map_err(failed)?;
    let (ca_file, ca_key_file) = (folder.join("ca.pem"), folder.join("ca-key.pem"));
    let ca_key = match kept_authority(&ca_file, &ca_key_file, now) {
        Some(key) => key,
        None => {
            let key = KeyPair::generate()?;
            let certificate = authority(now)?.self_signed(&key)?;
            write(&ca_key_file, &key.serialize_pem()).map_err(failed)?;
            write(&ca_file, &certificate.pem()).map_err(failed)?;
            key
        }
    };
    let key = KeyPair::generate()?;
    let issuer = Issuer::new(authority(now)?, ca_key);
    let certificate = server(names, now)?.signed_by(&key, &issuer)?;
    let (cert_file, key_file) = (folder.join("server.pem"), folder.join("server-key.pem"));
    write(&key_file, &key.serialize_pem()).map_err(failed)?;
    write(&cert_file, &certificate.pem()).map_err(failed)?;
    Ok(TlsConfig {
        cert_file,
        key_file,
        peer_ca_file: ca_file.clone(),
        local_ca_file: Some(ca_file),
        ..TlsConfig::off()
    })
}

/// The key of the authority that is there, if it is whole and lasts.
fn kept_authority(certificate: &Path, key: &Path, now: Timestamp) -> Option<KeyPair> {
    let key = KeyPair::from_pem(&fs::read_to_string(key).ok()?).ok()?;
    let certificate = CertificateDer::from_pem_slice(&fs::read(certificate).ok()?).ok()?;
    let fields = CertificateFields::read(&certificate).ok()?;
    let is_of_key = fields.public_key == key.public_key_raw();
    let seconds_left = (fields.expires.micros() - now.micros()) / 1_000_000;
    (is_of_key && seconds_left > AUTHORITY_DAYS_LEAST * 86_400).then_some(key)
}

fn authority(now: Timestamp) -> Result<CertificateParams, LocalAuthorityError> {
    let mut params = valid_for(CertificateParams::new(Vec::new())?, now, AUTHORITY_YEARS)?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn server(names: &[String], now: Timestamp) -> Result<CertificateParams, LocalAuthorityError> {
    let mut all = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let is_shown = |name: &&String| {
        let name = name.trim_matches(['[', ']']);
        !name.is_empty() && !name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
    };
    all.extend(names.iter().filter(is_shown).map(|name| name.trim_matches(['[', ']']).to_owned()));
    all.sort();
    all.dedup();
    let mut params = valid_for(CertificateParams::new(all)?, now, 1)?;
    params.distinguished_name.push(DnType::CommonName, "tallystone dev server");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Valid since yesterday, for some years.
fn valid_for(
    mut params: CertificateParams,
    now: Timestamp,
    years: i16,
) -> Result<CertificateParams, LocalAuthorityError> {
    let now = jiff::Timestamp::from_microsecond(now.micros()).map_err(|_| LocalAuthorityError::Clock)?;
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let yesterday = today.yesterday().map_err(|_| LocalAuthorityError::Clock)?;
    let day = |date: jiff::civil::Date, years: i16| {
        // Not the 29th, which the year may lack.
        date_time_ymd(i32::from(date.year() + years), date.month() as u8, date.day().min(28) as u8)
    };
    params.not_before = day(yesterday, 0);
    params.not_after = day(today, years);
    Ok(params)
}

/// Writes a file that only this user can read.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A folder that is removed with all that is in it when the server ends.
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes a folder that nobody else can open.
    pub fn make() -> Result<Self, LocalAuthorityError> {
        let mut random = [0; 16];
        SystemEntropy.fill(&mut random);
        let path = std::env::temp_dir().join(format!("tallystone-tls-{:032x}", u128::from_be_bytes(random)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(LocalAuthorityError::Folder(path, error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "the certificates of this server are left behind");
        }
    }
}
