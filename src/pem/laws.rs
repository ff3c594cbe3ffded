//! The tests of what is reported of files of certificates and keys.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::*;

/// A root, an authority between, and a certificate with its key, in PEM form.
struct Chain {
    root: String,
    between: String,
    leaf: String,
    key: String,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn chain() -> Chain {
    let keys = [(); 3].map(|()| KeyPair::generate().expect("a key"));
    let [root_key, between_key, key] = keys;
    let root = authority("root").self_signed(&root_key).expect("a certificate").pem();
    let of_root = Issuer::new(authority("root"), root_key);
    let between = authority("between").signed_by(&between_key, &of_root).expect("a certificate").pem();
    let of_between = Issuer::new(authority("between"), between_key);
    let mut params = CertificateParams::new(vec!["counts.example".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, "leaf");
    let leaf = params.signed_by(&key, &of_between).expect("a certificate").pem();
    Chain { root, between, leaf, key: key.serialize_pem() }
}

fn refusal(certificate: &str, key: &str) -> PairError {
    pair(certificate.as_bytes(), key.as_bytes(), "cert.pem").expect_err("it is refused")
}

#[test]
fn a_pair_that_fits_is_used_with_its_whole_chain() {
    let Chain { root, between, leaf, key } = chain();
    for (text, length) in [(leaf.clone(), 1), (format!("{leaf}{between}"), 2), (format!("{leaf}{between}{root}"), 3)] {
        let pair = pair(text.as_bytes(), key.as_bytes(), "cert.pem").expect("it fits");
        assert_eq!((pair.cert.len(), gap(&pair.cert)), (length, None));
    }
}

#[test]
fn a_chain_in_the_wrong_order_is_told_from_the_key_of_another_certificate() {
    let Chain { root, between, leaf, key } = chain();
    let other = chain();
    let told = refusal(&format!("{root}{between}{leaf}"), &key);
    assert!(
        matches!(&told, PairError::Certificate(what) if what.contains("wrong order: the one of the private key is number 3")),
        "{told}"
    );
    let told = refusal(&leaf, &other.key);
    assert!(matches!(&told, PairError::Key(what) if what.starts_with("is not the key of cert.pem")), "{told}");
}

#[test]
fn a_chain_with_a_gap_says_after_which_certificate() {
    let Chain { root, between, leaf, key } = chain();
    let at = |text: String| gap(&pair(text.as_bytes(), key.as_bytes(), "cert.pem").expect("it fits").cert);
    assert!(at(format!("{leaf}{root}")).is_some_and(|what| what.contains("number 1 in it was not signed by number 2")));
    let told = at(format!("{leaf}{between}{leaf}"));
    assert!(told.is_some_and(|what| what.contains("number 2 in it was not signed by number 3")));
}

#[test]
fn a_key_that_cannot_be_used_says_why() {
    let Chain { leaf, key, .. } = chain();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n\
               -----END RSA PRIVATE KEY-----\n";
    for (text, words) in [
        (encrypted, "is encrypted, and a password cannot be given"),
        (old, "is encrypted, and a password cannot be given"),
        (leaf.as_str(), "but a certificate; are the two files swapped?"),
        ("text", "has no private key in PEM form"),
        ("0\u{2}", "looks like DER"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be used"),
    ] {
        let told = refusal(&leaf, text);
        assert!(matches!(&told, PairError::Key(what) if what.contains(words)), "{words}: {told}");
    }
    let told = refusal(&key, &key);
    assert!(matches!(&told, PairError::Certificate(what) if what.contains("but a private key")), "{told}");
}

#[test]
fn authorities_are_certificates_that_can_be_read() {
    let Chain { root, key, .. } = chain();
    assert!(authorities(root.as_bytes()).is_ok_and(|roots| roots.len() == 1));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (text, words) in [
        ("", "has no certificate in PEM form"),
        (key.as_str(), "are the two files swapped?"),
        (broken, "has a certificate that cannot be used"),
        ("-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n", "is not in PEM form"),
    ] {
        assert!(authorities(text.as_bytes()).is_err_and(|what| what.contains(words)), "{words}");
    }
}
