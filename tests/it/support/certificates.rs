//! Authorities that tests make, and the certificates that they sign.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};

/// An authority, whose certificate is in a file.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate in PEM form.
    pub pem: String,
    /// The same in a file.
    pub file: PathBuf,
    folder: PathBuf,
}

/// A certificate and its private key, in files.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// An authority that keeps everything in a folder.
    pub fn new(folder: &Path, name: &str) -> Self {
        Self::signed_by(None, folder, name)
    }

    /// An authority that this one has signed: its certificate stands between this one's and those that it signs.
    pub fn between(&self, name: &str) -> Self {
        Self::signed_by(Some(&self.issuer), &self.folder, name)
    }

    fn signed_by(issuer: Option<&Issuer<'static, KeyPair>>, folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = match issuer {
            Some(issuer) => params.signed_by(&key, issuer),
            None => params.self_signed(&key),
        };
        let pem = certificate.expect("a certificate").pem();
        let file = folder.join(format!("{name}-ca.pem"));
        fs::write(&file, &pem).expect("it can be written");
        Self { issuer: Issuer::new(params, key), pem, file, folder: folder.to_owned() }
    }

    /// A certificate for 127.0.0.1 and localhost, valid for servers and clients.
    pub fn local(&self, file: &str) -> Pair {
        self.issue(file, vec![address([127, 0, 0, 1]), dns("localhost")], None)
    }

    /// A certificate for names, which ends after a time, or in many years. With no time at all, it has ended.
    pub fn issue(&self, file: &str, names: Vec<SanType>, lasts: Option<Duration>) -> Pair {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(lasts) = lasts {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time of this century");
            let ended = if lasts.is_zero() { Duration::from_secs(60) } else { Duration::ZERO };
            params.not_after = date_time_ymd(1970, 1, 1) + now + lasts - ended;
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let pair =
            Pair { cert: self.folder.join(format!("{file}.pem")), key: self.folder.join(format!("{file}-key.pem")) };
        replace(&pair.key, &key.serialize_pem());
        replace(&pair.cert, &certificate.pem());
        pair
    }
}

impl Pair {
    /// The same pair whose file of the certificate holds others in front of its own and behind it, all in PEM form.
    pub fn among(&self, before: &str, behind: &str) -> Self {
        let own = fs::read_to_string(&self.cert).expect("it is there");
        let pair = Self { cert: self.cert.with_extension("chain.pem"), key: self.key.clone() };
        replace(&pair.cert, &format!("{before}{own}{behind}"));
        pair
    }

    /// Takes the place of another pair.
    pub fn replaces(&self, other: &Self) {
        for (from, to) in [(&self.cert, &other.cert), (&self.key, &other.key)] {
            replace(to, &fs::read_to_string(from).expect("it is there"));
        }
    }
}

/// Writes a file at once, as tools that renew certificates do.
pub fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).expect("it can be written");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::rename(&beside, file).expect("it can be renamed");
}

pub fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

pub fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("ASCII"))
}

pub fn address(address: impl Into<IpAddr>) -> SanType {
    SanType::IpAddress(address.into())
}
